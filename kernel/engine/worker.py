"""A worker process from inside: the scheduling loop, the sweeps at the scan rate, and an orderly end (groups 9, 28)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kernel.engine.event_loop import EventLoop
from kernel.engine.ports import Event
from kernel.engine.scheduler import Scheduler
from kernel.engine.services import Services
from kernel.engine.sweeps import Sweeps, Swept, cast_each
from kernel.errors import KernelError
from kernel.fingerprint import version_shown

log = logging.getLogger("kernel.worker")

_STORE_RETRY_MS = 1_000
VERSIONS_TOLD_MAX = 100
"""A report is one message of bounded size, and its versions about a hundred bytes each. Who has more tells of none."""


class WorkerLoop:
    """Runs on a thread of its own; the process's main thread only listens for orders."""

    def __init__(
        self, services: Services, scheduler: Scheduler, sweeps: Sweeps, loop: EventLoop, stop_listening: Event
    ) -> None:
        self._s = services
        self._scheduler = scheduler
        self._sweeps = sweeps
        self._event_loop = loop
        self._stop_listening = stop_listening
        self._next_scan_ms = 0
        self._moved_ms = services.clock.boot_ms()
        self._scanned_ms = services.clock.boot_ms()
        self.done = services.runner.event()
        self.store_failed = False
        self.last_words: Callable[[], None] = lambda: None
        """Called when the last claim has ended and nothing is left to be told: what was told may be written now."""
        self._last_words_lock = threading.Lock()
        self._last_words_said = False
        self._versions = sorted(version_shown(one.plan.key) for one in services.app.definitions.values())
        scheduler.rebuild = self._rebuild

    def start(self) -> None:
        """Start the loop and the renewal of claims."""
        self._s.runner.spawn("renewals", self._s.renewals.run)
        self._s.runner.spawn("permits", self._s.permits.run)
        self._s.runner.spawn("scheduler", self.run)

    def run(self) -> None:
        """Fill slots, sleep until something is due or somebody calls, sweep at the scan rate; until stopped.

        The event is cleared before the pass: a wakeup that comes during the pass is not slept through.
        """
        while not self._scheduler.stopping():
            self._scheduler.wake.clear()
            wait_ms = self.pass_once()
            self._scheduler.wake.wait(wait_ms / 1000)
        self._note_drain("drain.poll_stopped")
        while self._scheduler.busy:
            self._scheduler.wake.clear()
            if self._scheduler.busy:
                self._scheduler.wake.wait(0.2)
        self._note_drain("drain.claims_ended")
        self._s.renewals.stop()
        self._s.permits.stop()
        self._event_loop.close()
        self._say_last_words()
        self._note_drain("drain.observations_drained")
        self._note_drain("drain.ended")
        self.done.set()

    def pass_once(self) -> int:
        """One turn: sweeps when their time has come, then slots; how many milliseconds nothing needs doing."""
        self._moved_ms = self._s.clock.boot_ms()
        try:
            self._sweep_when_due()
            next_in_ms = self._scheduler.schedule_runnable_workflows()
            self.store_failed = False
        except KernelError as error:
            # The durable store is away: nothing can be granted. Said once, tried again every second (L4).
            if not self.store_failed:
                log.warning("nothing can be claimed: %s", error)
            self.store_failed = True
            return _STORE_RETRY_MS
        except Exception:
            log.exception("a scheduling pass failed")
            return _STORE_RETRY_MS
        until_scan_ms = max(0, self._next_scan_ms - self._s.clock.boot_ms())
        sleep_ms = min(self._s.settings.poll_ms, until_scan_ms)
        return sleep_ms if next_in_ms is None else min(sleep_ms, next_in_ms + 1)

    def drain(self) -> None:
        """First no wakeup, then no pass; running steps end, commit and release their claims (shd-order)."""
        self._stop_listening.set()
        self._note_drain("drain.wakeups_stopped")
        self._scheduler.stop()

    def give_up_all(self, after_ms: int) -> None:
        """Give back every claim as one that ends by order, which counts no death (DECISIONS detail 4): nobody is left
        who could say that this worker has not died of its work.

        Called just before the process ends, which must be gone within `after_ms`: activities still run, and so the work
        is nobody's until then. The fence comes first, so that none of them commits what another may begin again.
        """
        for held in self._s.renewals.lose_all():
            self._s.given_up.add(held)
        freed = self._s.given_up.give_back(after_ms=after_ms)
        if freed:
            log.warning("gave back %d claims that could not be ended in time", len(freed))
        self._s.enqueue(freed)
        self._say_last_words()

    def _say_last_words(self) -> None:
        """Once: a worker that gives up may at the same moment see its last claim end."""
        with self._last_words_lock:
            if not self._last_words_said:
                self._last_words_said = True
                self.last_words()

    @staticmethod
    def _note_drain(event: str) -> None:
        """An operator who waits for the end sees in the log where it is (shd-order)."""
        log.info(event.replace(".", ": ").replace("_", " "), extra={"event": event})

    @property
    def draining(self) -> bool:
        return self._scheduler.stopping()

    def release_owner(self, worker_id: str, *, counted: bool) -> list[str]:
        """A dead worker's claims, in a tree without dispatchers (DECISIONS detail 18)."""
        return self._sweeps.release_owner(worker_id, counted=counted)

    def status(self) -> dict[str, object]:
        """What `kernel-supervisor status` shows of this process."""
        now_ms = self._s.clock.boot_ms()
        return {
            "loops": {
                "scheduler": (now_ms - self._moved_ms) / 1000,
                "scan": (now_ms - self._scanned_ms) / 1000,
            },
            "claims": len(self._s.renewals.held()),
            "slots_busy": self._scheduler.busy,
            "slots": self._s.settings.slots,
            "counters": {
                "claims_taken": self._scheduler.claims_taken,
                "claims_stale": self._scheduler.claims_stale,
                "commits": self._s.committer.commits,
                **self._s.permits.counters,
            },
            "store": "down" if self.store_failed else "up",
            "redis": "down" if self._scheduler.queue_failed else "up",
            **({"definitions": self._versions} if len(self._versions) <= VERSIONS_TOLD_MAX else {}),
        }

    def _sweep_when_due(self) -> None:
        now_ms = self._s.clock.boot_ms()
        if now_ms < self._next_scan_ms:
            return
        # Jittered, so that the workers of a tree do not scan in step.
        self._next_scan_ms = now_ms + round(self._s.settings.scan_ms * (0.8 + 0.2 * self._s.ids.fraction()))
        sweeps, found = self._sweeps, Swept(complete=False)

        def recover() -> None:
            nonlocal found
            found = sweeps.recover(self._s.settings.scan_ms)

        try:
            cast_each(sweeps.touch_definitions, sweeps.release_own, recover, sweeps.permit_rows.queue_forgotten)
        except KernelError as error:
            # An empty queue is no answer now: this very round asks the store, and the next scan comes soon.
            log.warning("a sweep failed: %s", error)
            self._scheduler.scan_failed = True
            self._next_scan_ms = now_ms + min(self._s.settings.scan_ms, _STORE_RETRY_MS)
            return
        self._s.permits.sweep()
        self._scheduler.scan_failed = not found.complete
        self._scanned_ms = self._s.clock.boot_ms()

    def _rebuild(self) -> None:
        """The queue was wiped: fill it from the store at once, and look again after the pass (DECISIONS detail 20)."""
        queued = self._sweeps.recover(self._s.settings.scan_ms).queued + self._sweeps.permit_rows.queue_forgotten()
        if queued:
            log.info("the ready queue had lost its memory: %d candidates queued again", queued)
