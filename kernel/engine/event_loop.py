"""The one event loop of a process, for `async def` activities; watched from outside (DECISIONS detail 17)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any

from kernel.clock import Clock
from kernel.engine.ports import Runner
from kernel.errors import ActivityPanic

_BEAT_S = 0.5


class LoopCall:
    """One coroutine under way. `result` returns when the task has really ended, not when its end was asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self._cancel_asked = False
        self._done: Future[Any] = Future()

    def cancel(self) -> None:
        """Ask the task to end at its next await. From any thread."""
        self._loop.call_soon_threadsafe(self._cancel)

    def result(self) -> Any:
        """Wait for the task's end: its value, or what it raised."""
        return self._done.result()

    def start(self, awaitable: Awaitable[Any]) -> asyncio.Task[Any]:
        """On the loop's thread."""
        self._task = self._loop.create_task(_whole(awaitable))
        self._task.add_done_callback(self._settle)
        if self._cancel_asked:
            self._task.cancel()
        return self._task

    def _cancel(self) -> None:
        self._cancel_asked = True
        if self._task is not None:
            self._task.cancel()

    def _settle(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._done.set_exception(ActivityPanic("the activity was cancelled"))
        elif (error := task.exception()) is not None:
            self._done.set_exception(error)
        else:
            self._done.set_result(task.result())


class EventLoop:
    """Started with the first coroutine. It only runs coroutines: timeouts and cancellation come from other threads,
    so that a coroutine which never yields can not hide its own timeout."""

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self._runner = runner
        self._clock = clock
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beat_ms = 0
        self._active = 0

    def submit(self, awaitable: Awaitable[Any]) -> LoopCall:
        """Run `awaitable` as a task of the loop."""
        loop = self._started()
        with self._lock:
            if self._active == 0:
                self._beat_ms = self._clock.boot_ms()
            self._active += 1
        call = LoopCall(loop)
        loop.call_soon_threadsafe(self._start, call, awaitable)
        return call

    def _start(self, call: LoopCall, awaitable: Awaitable[Any]) -> None:
        call.start(awaitable).add_done_callback(self._finished)

    def silent_ms(self) -> int:
        """For how long the loop has not moved although it has work; 0 when all is well."""
        with self._lock:
            if self._loop is None or self._active == 0:
                return 0
            return max(0, self._clock.boot_ms() - self._beat_ms - round(_BEAT_S * 1000))

    def close(self) -> None:
        """Stop the loop after its tasks; for the end of the process and for tests."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _finished(self, _future: object) -> None:
        with self._lock:
            self._active -= 1

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._runner.spawn("event-loop", self._serve)
            return self._loop

    def _serve(self) -> None:
        loop = self._loop
        if loop is None:
            return
        asyncio.set_event_loop(loop)
        loop.call_soon(self._beat, loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beat_ms = self._clock.boot_ms()
        loop.call_later(_BEAT_S, self._beat, loop)


async def _whole(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except (KeyboardInterrupt, SystemExit) as error:
        # asyncio would let these two through and end the loop, and with it every other activity of the process.
        raise ActivityPanic(f"{type(error).__name__}: {error}") from error
