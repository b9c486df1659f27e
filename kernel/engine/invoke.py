"""The single entry into business code: every activity, finalizer and prepare hook goes through here (act-single-entry).

On a timeout the invocation's token fires, and then the old attempt is waited for: two attempts of a step never run
side by side (act-timeout-cancel-wait). Whatever leaves the function — a value, an exception, a panic — is an
outcome; nothing that an activity does ends the worker (act-panic).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from kernel.cancel import CancelToken
from kernel.clock import Clock
from kernel.context import Context
from kernel.credentials import without_credentials
from kernel.engine.claims import ActiveClaim
from kernel.engine.event_loop import EventLoop
from kernel.engine.ports import Runner
from kernel.errors import ActivityPanic, StepTimeout


class Outcome(msgspec.Struct, frozen=True):
    """What came of one invocation: a value, or the error that decides."""

    value: Any = None
    error: BaseException | None = None
    elapsed_ms: int = 0


def text_of(error: BaseException) -> str:
    """The text of a foreign exception, whose own code may fail and which may quote a URL with its password."""
    try:
        return without_credentials(str(error))
    except BaseException:
        return f"{type(error).__name__} whose text can not be made"


class _Returned:
    """Whether an invocation has come back; asked by the timer's thread, and nobody waits for it."""

    __slots__ = ("yes",)

    def __init__(self) -> None:
        self.yes = False


class Invoker:
    """Calls business code under a claim. `on_stuck` is called when an invocation ignores its timeout (B-40)."""

    def __init__(
        self,
        runner: Runner,
        clock: Clock,
        loop: EventLoop,
        *,
        stuck_grace_ms: int,
        on_stuck: Callable[[str], None],
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._loop = loop
        self._stuck_grace_ms = stuck_grace_ms
        self._on_stuck = on_stuck

    def invoke_activity(
        self,
        what: str,
        function: Callable[..., Any],
        claim: ActiveClaim,
        timeout_ms: int,
        context: Callable[[CancelToken, Callable[[], int]], Context],
        on_stuck: Callable[[], None] | None = None,
    ) -> Outcome:
        """Run `function` with a context of its own; `what` names it in errors. Never raises but for a lost claim.

        `on_stuck` runs on a thread of its own when the invocation ignores its timeout, before the process is replaced.
        """
        claim.check()
        token = CancelToken()
        started_ms = self._clock.boot_ms()
        deadline_ms = started_ms + timeout_ms
        claim.attach(token)
        returned = _Returned()
        timeout = self._runner.call_at(deadline_ms, partial(self._time_out, what, token, returned, on_stuck))
        try:
            ctx = context(token, lambda: deadline_ms - self._clock.boot_ms())
            value, error = self._call(function, ctx, token)
        finally:
            timeout.cancel()
            returned.yes = True
            claim.detach(token)
        elapsed_ms = self._clock.boot_ms() - started_ms
        if token.reason == "timeout":
            # The error decides, even when the old call has come back with a value (act-timeout-error, B-10).
            late = f"returned {type(value).__name__}" if error is None else f"{type(error).__name__}: {text_of(error)}"
            timed_out = StepTimeout(f"{what} ran longer than {timeout_ms} ms; it ended after {elapsed_ms} ms: {late}")
            return Outcome(error=timed_out, elapsed_ms=elapsed_ms)
        return Outcome(value=value, error=error, elapsed_ms=elapsed_ms)

    def _call(self, function: Callable[..., Any], ctx: Context, token: CancelToken) -> tuple[Any, BaseException | None]:
        try:
            value = function(ctx)
            if inspect.isawaitable(value):
                value = self._await(value, token)
        except Exception as error:
            return None, error
        except BaseException as error:
            # SystemExit, KeyboardInterrupt and the like: an activity has no say about this process.
            panic = ActivityPanic(f"{type(error).__name__}: {text_of(error)}")
            panic.__cause__ = error
            return None, panic
        return value, None

    def _await(self, awaitable: Awaitable[Any], token: CancelToken) -> Any:
        call = self._loop.submit(awaitable)
        token.on_fire(call.cancel)
        return call.result()

    def _time_out(
        self, what: str, token: CancelToken, returned: _Returned, on_stuck: Callable[[], None] | None
    ) -> None:
        """On the timer thread. The watch for an invocation that ignores its end starts only now: few ever need it."""
        token.fire("timeout")
        at_ms = self._clock.boot_ms() + self._stuck_grace_ms
        self._runner.call_at(at_ms, partial(self._stuck, what, returned, on_stuck))

    def _stuck(self, what: str, returned: _Returned, on_stuck: Callable[[], None] | None) -> None:
        if returned.yes:
            return

        def told() -> None:
            if on_stuck is not None:
                on_stuck()
            self._on_stuck(f"{what} went on for {self._stuck_grace_ms} ms after its timeout")

        # Not here: what is told to the store may wait, and the timer thread must not.
        self._runner.spawn("stuck", told)
