"""A dispatcher process from inside: intents, the sweeps, and the releases that a proof of death allows.

Two loops, so that a slow registration holds up no sweep and a long sweep no registration. That of the intents sleeps
until the next one is due, at most one poll interval, and is woken when one becomes due earlier than that.
"""

from __future__ import annotations

import logging

from kernel.engine.outbox import Outbox
from kernel.engine.services import Services
from kernel.engine.sweeps import Sweeps
from kernel.errors import KernelError

log = logging.getLogger("kernel.dispatcher")


class DispatcherLoop:
    """Runs on threads of its own; the process's main thread only listens for orders."""

    def __init__(self, services: Services, sweeps: Sweeps, outbox: Outbox) -> None:
        self._s = services
        self._sweeps = sweeps
        self._outbox = outbox
        self.wake = services.runner.event()
        """Set when an intent becomes due earlier than this process knows."""
        self._stop = services.runner.event()
        self._moved_ms = services.clock.boot_ms()
        self._next_versions_ms = services.clock.boot_ms()
        self._may_defer_ms = services.clock.boot_ms() + 3 * services.settings.scan_ms
        self.done = services.runner.event()
        self.store_failed = False
        self.counters = {"queued": 0, "activated": 0, "released": 0, "deferred": 0}

    def start(self) -> None:
        if self._outbox:
            self._s.runner.spawn("outbox", self.run_outbox)
        self._s.runner.spawn("dispatcher", self.run)

    def run(self) -> None:
        """Sweep every poll interval until stopped."""
        while not self._stop.is_set():
            self.pass_once()
            self._stop.wait(self._s.settings.poll_ms / 1000)
        if self._outbox:
            self._outbox.ended.wait()
        self.done.set()

    def run_outbox(self) -> None:
        """Dispatch what is due, sleep until something is; until stopped.

        The event is cleared before the round: a wakeup that comes during the round is not slept through.
        """
        while not self._stop.is_set():
            self.wake.clear()
            wait_ms = self._outbox.round()
            if not self._stop.is_set():
                self.wake.wait(wait_ms / 1000)
        self._outbox.ended.set()

    def drain(self) -> None:
        """Objects in hand are dispatched to their end; what was only taken from Redis is noted there again."""
        self._stop.set()
        self._outbox.stop.set()
        self.wake.set()

    @property
    def draining(self) -> bool:
        return self._stop.is_set()

    def pass_once(self) -> None:
        """One bounded turn of all sweeps."""
        self._moved_ms = self._s.clock.boot_ms()
        try:
            swept = self._sweeps.recover(self._s.settings.poll_ms)
            self.counters["queued"] += swept.queued
            self._count("activated", swept.activated + self._sweeps.inbox.pass_once().activated)
            self._versions_when_due()
            self.store_failed = False
        except KernelError as error:
            if not self.store_failed:
                log.warning("the sweeps wait for the store: %s", error)
            self.store_failed = True
        except Exception:
            log.exception("a sweep failed")

    def _versions_when_due(self) -> None:
        """Deferral waits three scan periods after the start: before that, silence proves nothing about workers."""
        now_ms = self._s.clock.boot_ms()
        if now_ms < self._next_versions_ms:
            return
        self._next_versions_ms = now_ms + self._s.settings.scan_ms
        deferred, _released = self._sweeps.defer_and_release(defer=now_ms >= self._may_defer_ms)
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
        if self._outbox:
            loops["outbox"] = (now_ms - self._outbox.moved_ms) / 1000
            counters |= {f"intents_{name}": count for name, count in self._outbox.counters.items()}
        return {
            "loops": loops,
            "claims": 0,
            "counters": counters,
            "store": "down" if self.store_failed or self._outbox.away else "up",
        }
