"""A dispatcher process from inside: intents, the sweeps, and the releases that a proof of death allows.

One loop sweeps, and each source of intents has another, so that a slow registration holds up no sweep, a long sweep no
registration, and a source that hangs no other source. That of a source sleeps until its next intent is due, at most one
poll interval, and is woken when one becomes due earlier than that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from kernel.engine.outbox import Outbox
from kernel.engine.services import Services
from kernel.engine.sweeps import Sweeps, cast_each
from kernel.errors import KernelError

log = logging.getLogger("kernel.dispatcher")


class DispatcherLoop:
    """Runs on threads of its own; the process's main thread only listens for orders."""

    def __init__(self, services: Services, sweeps: Sweeps, outbox: Outbox) -> None:
        self._s = services
        self._sweeps = sweeps
        self._outbox = outbox
        self._stop = services.runner.event()
        self._moved_ms = services.clock.boot_ms()
        self._next_versions_ms = services.clock.boot_ms()
        self._may_defer_ms = services.clock.boot_ms() + 3 * services.settings.scan_ms
        self.done = services.runner.event()
        self.store_failed = False
        self.last_words: Callable[[], None] = lambda: None
        """Called when nothing is left that could be told of: what was told may be written now."""
        self.counters = {"queued": 0, "activated": 0, "released": 0, "deferred": 0}

    def start(self) -> None:
        for source in self._outbox.sources:
            self._s.runner.spawn(f"outbox.{source.name}", source.run)
        self._s.runner.spawn("dispatcher", self.run)

    def run(self) -> None:
        """Sweep every poll interval until stopped."""
        while not self._stop.is_set():
            self.pass_once()
            self._stop.wait(self._s.settings.poll_ms / 1000)
        for source in self._outbox.sources:
            source.ended.wait()
        self.last_words()
        self.done.set()

    def wake(self) -> None:
        """An intent has become due earlier than this process knows. Only sets flags."""
        self._outbox.wake()

    def drain(self) -> None:
        """Nothing new is begun; `done` is set when what is in hand has come to its end."""
        self._stop.set()
        self._outbox.drain()

    @property
    def draining(self) -> bool:
        return self._stop.is_set()

    def pass_once(self) -> None:
        """One bounded turn of all sweeps."""
        self._moved_ms = self._s.clock.boot_ms()
        try:
            cast_each(self._recover, self._look_into_inbox, self._versions_when_due)
            self.store_failed = False
        except KernelError as error:
            if not self.store_failed:
                log.warning("the sweeps wait for the store: %s", error)
            self.store_failed = True
        except Exception:
            log.exception("a sweep failed")

    def _recover(self) -> None:
        swept = self._sweeps.recover(self._s.settings.poll_ms)
        self.counters["queued"] += swept.queued
        self._count("activated", swept.activated)

    def _look_into_inbox(self) -> None:
        self._count("activated", self._sweeps.inbox.pass_once().activated)

    def _versions_when_due(self) -> None:
        """Deferral waits three scan periods after the start: before that, silence proves nothing about workers."""
        now_ms = self._s.clock.boot_ms()
        if now_ms < self._next_versions_ms:
            return
        self._next_versions_ms = now_ms + self._s.settings.scan_ms
        cast_each(partial(self._defer, now_ms >= self._may_defer_ms), self._sweeps.permit_rows.queue_forgotten)
        self._s.permits.sweep()
        self._s.permits.pass_once()  # it holds none: what is owed of dead workers' places is released

    def _defer(self, may_defer: bool) -> None:
        deferred, _released = self._sweeps.defer_and_release(defer=may_defer)
        self._count("deferred", deferred)

    def release_owner(self, worker_id: str, *, counted: bool) -> list[str]:
        """Release the claims of a worker whose death is proved; the workflow_ids that are free now (DECISIONS 27)."""
        freed = self._sweeps.release_owner(worker_id, counted=counted)
        self._count("released", len(freed))
        return freed

    def _count(self, name: str, writes: int) -> None:
        """These writes have hit: that is what a crash-looping process never gets to (DECISIONS detail 23)."""
        self.counters[name] += writes
        for _ in range(writes):
            self._s.committer.count_commit()

    def status(self) -> dict[str, object]:
        """What `kernel-supervisor status` shows of this process."""
        now_ms = self._s.clock.boot_ms()
        loops = {"sweeps": (now_ms - self._moved_ms) / 1000}
        counters = {**self.counters, "commits": self._s.committer.commits}
        for source in self._outbox.sources:
            loops[f"outbox.{source.name}"] = (now_ms - source.moved_ms) / 1000
        if self._outbox:
            counters |= {f"intents_{name}": count for name, count in self._outbox.counters.items()}
        return {
            "loops": loops,
            "claims": 0,
            "counters": counters,
            "store": "down" if self.store_failed or self._outbox.away else "up",
        }
