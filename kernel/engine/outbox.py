"""The recovery of dispatch intents: bounded rounds over each source, for as many dispatchers as there are (group 7).

Each source has a loop of its own: one that hangs, or is slow, holds up nobody else's objects.

A round first takes what Redis says is due (dsp-redis-first). At the low scan rate it also pages through the open
intents of the source, which is the net beneath: what Redis lost, what a process took and died with, leases that ran
out. A scan notes what it finds in Redis, so that all dispatchers share the work; where Redis does not take it, the page
is handled on the spot. Who scans is settled by a mutex that only saves work: without Redis everybody scans, and two
scans at once are harmless, because one conditional write decides about each object (dsp-scan-mutex-redis-down).

An object is claimed only when its turn comes, so that a dispatcher that dies with a page in its hands holds no more
leases than it has slots (dsp-claim-one).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kernel.dispatch import DispatchSource, DueIntent
from kernel.engine.bad_intents import BadIntents
from kernel.engine.ports import DispatchCandidates, Event
from kernel.engine.registering import Registration, Surroundings
from kernel.engine.spare_slots import SpareSlots
from kernel.errors import CoordinationRejected, CoordinationUnavailable, InvalidId, KernelError, Unavailable
from kernel.ids import check_id

log = logging.getLogger("kernel.dispatch")

COUNTERS = ("dispatched", "released", "refused", "poison", "lost", "scans")
_WRITES = ("dispatched", "released", "refused")
_NO_REDIS = (CoordinationUnavailable, CoordinationRejected)
_AWAY_RETRY_MS = 1_000
_FAILURES_MAX = 2
"""Objects that fail before the others are left alone and the source is asked whether it is there."""
_TOGETHER_MS = 50
"""The shortest sleep: what becomes due within it is taken together, and not by a round of its own each."""


class Outbox:
    """The sources of one dispatcher, and what they share: the slots of the process, counters, the order to stop."""

    def __init__(
        self,
        sources: Sequence[DispatchSource],
        candidates: DispatchCandidates,
        around: Surroundings,
        committed: Callable[[], None],
    ) -> None:
        self.stop = around.runner.event()
        self._committed = committed
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.counted: Callable[[str], None] = lambda name: None
        """Told of each count, from any slot."""
        self._lock = threading.Lock()
        self.spare = SpareSlots(around.settings.dispatch_slots - len(sources))
        self.sources = [SourceRecovery(source, candidates, around, self) for source in sources]

    def __bool__(self) -> bool:
        """Whether there is any source."""
        return bool(self.sources)

    @property
    def away(self) -> list[str]:
        """The sources that did not answer in their last round."""
        return [source.name for source in self.sources if source.away]

    def wake(self) -> None:
        """Something has become due earlier than this process knows: which source's, only a round can tell."""
        for source in self.sources:
            source.wake.set()

    def drain(self) -> None:
        """Objects in hand are dispatched to their end; what was only taken from Redis is noted there again."""
        self.stop.set()
        self.wake()

    def count(self, name: str) -> None:
        """One more of what `counters` counts. From any slot."""
        with self._lock:
            self.counters[name] += 1
        self.counted(name)
        if name in _WRITES:
            self._committed()


class _Failure(NamedTuple):
    object_id: str
    error: Unavailable


class SourceRecovery:
    """The rounds of one source, and the loop that makes them."""

    def __init__(
        self,
        source: DispatchSource,
        candidates: DispatchCandidates,
        around: Surroundings,
        outbox: Outbox,
    ) -> None:
        self.name = source.name
        self.away = False
        self.moved_ms = around.clock.boot_ms()
        """When the loop was last seen to go on, by the boot clock: it stands still while a call of the source hangs."""
        self.wake = around.runner.event()
        self.ended = around.runner.event()
        self._source = source
        self._candidates = candidates
        self._a = around
        self._outbox = outbox
        settings = around.settings
        self._bad = BadIntents(
            source.name,
            around.clock,
            delay_ms=settings.dispatch_delay_ms,
            delay_max_ms=settings.dispatch_delay_max_ms,
        )
        self._registration = Registration(source, around, self._bad, self._note, outbox.count)
        self._after: tuple[int, str] | None = None
        self._next_scan_ms = around.clock.boot_ms()
        self._token: str | None = None
        self._answered = False
        self._said: set[type[Exception]] = set()
        """The kinds of fault that were logged since it last answered."""

    def run(self) -> None:
        """Dispatch what is due, sleep until something is; until stopped.

        The event is cleared before the round: a wakeup that comes during the round is not slept through.
        """
        try:
            while not self._outbox.stop.is_set():
                self.wake.clear()
                wait_ms = self.round()
                if not self._outbox.stop.is_set():
                    self.wake.wait(wait_ms / 1000)
        finally:
            self.ended.set()

    def round(self) -> int:
        """Candidates that are due, then the scan when its time has come; milliseconds until the next is wanted, at most
        a poll interval.

        At most `dispatch_round` objects are handled; when more are due, the next round is wanted at once.
        """
        self.moved()
        self._answered = False
        try:
            wait_ms = min(self._round(), self._a.settings.poll_ms)
        except Exception as error:
            # Tried again every second. A turn to scan that came to nothing is another's.
            self._say(error)
            self.away = True
            self._give_turn_back()
            wait_ms = _AWAY_RETRY_MS
        else:
            if self._answered:
                self.away = False
                self._said.clear()
        self.moved()
        return wait_ms and max(wait_ms, _TOGETHER_MS)

    def moved(self) -> None:
        self.moved_ms = self._a.clock.boot_ms()

    def _say(self, error: Exception) -> None:
        """Once for each kind of fault until the source answers again: it may last for days."""
        if type(error) in self._said:
            return
        self._said.add(type(error))
        if isinstance(error, KernelError):
            log.warning("the intents of %s wait for their source: %s", self.name, error)
        else:
            log.error("a round of %s failed, and is tried again every second", self.name, exc_info=error)

    def _round(self) -> int:
        left, next_in_ms = self._take_candidates(self._a.settings.dispatch_round)
        if self._a.clock.boot_ms() >= self._next_scan_ms and not self._outbox.stop.is_set():
            left, found = self._scan(left)
            if found:
                return 0
        if left <= 0:
            return 0
        until_scan_ms = max(0, self._next_scan_ms - self._a.clock.boot_ms())
        return until_scan_ms if next_in_ms is None else min(until_scan_ms, next_in_ms)

    def _take_candidates(self, left: int) -> tuple[int, int | None]:
        """Handle what Redis says is due; what is left of the round, and when Redis knows of more."""
        while left > 0 and not self._outbox.stop.is_set():
            count = min(self._a.settings.dispatch_batch, left)
            now_ms = self._source.now_ms()
            try:
                taken = self._candidates.take(self.name, count, now_ms)
            except _NO_REDIS as error:
                log.debug("no candidates of %s: %s", self.name, error)
                return left, None
            self._handle(taken.object_ids)
            left -= len(taken.object_ids)
            if taken.next_due_ms is None:
                return left, None
            if taken.next_due_ms > self._source.now_ms():
                # One more: waking within the millisecond would find it not due yet.
                return left, taken.next_due_ms - self._source.now_ms() + 1
        return left, 0

    # --- the scan ----------------------------------------------------------------------------------------

    def _scan(self, left: int) -> tuple[int, bool]:
        """Page on from where the last scan stopped; what is left of the round, and whether more is to do at once.

        A scan that has not come to the end goes on with the next round. It ends where intents are not due within
        two of its periods, and begins at the earliest again (rows that are left alone hide nothing for long).
        """
        if not self._take_turn():
            return left, False
        found = False
        horizon_ms = self._source.now_ms() + 2 * self._a.settings.dispatch_scan_ms
        for _ in range(self._a.settings.scan_pages):
            rows = self._source.due(after=self._after, limit=self._a.settings.dispatch_batch)
            self._answered = True
            wanted = [row for row in rows if row.due_time <= horizon_ms and self._may_be_handled(row)]
            due = [row for row in wanted if row.due_time <= self._source.now_ms()]
            found = found or bool(due)
            if not self._note(wanted):
                turn, later = due[:left], due[left:]
                self._handle([row.object_id for row in turn])
                left -= len(turn)
                if later:
                    self._after = (turn[-1].due_time, turn[-1].object_id) if turn else self._after
                    return left, True
            if len(rows) < self._a.settings.dispatch_batch or rows[-1].due_time > horizon_ms:
                self._end_scan()
                return left, found
            self._after = (rows[-1].due_time, rows[-1].object_id)
        return left, True

    def _may_be_handled(self, row: DueIntent) -> bool:
        try:
            check_id(row.object_id, "object_id")
        except InvalidId as error:
            # A document of the user's own making: no key of it could be passed on.
            self._bad.report(ascii(row.object_id), str(error))
            return False
        return not self._bad.resting(row.object_id)

    def _take_turn(self) -> bool:
        """Whether this dispatcher is to scan now; a scan that goes on needs no new turn."""
        if self._after is not None:
            return True
        settings, now_ms = self._a.settings, self._a.clock.boot_ms()
        try:
            turn = self._candidates.hold_scan(self.name, settings.dispatch_scan_ms)
        except _NO_REDIS as error:
            log.debug("scanning %s without the mutex: %s", self.name, error)
            self._token = None
            self._outbox.count("scans")
            return True
        if turn.token is None:
            self._next_scan_ms = now_ms + turn.free_in_ms + 1
            return False
        self._token = turn.token
        self._outbox.count("scans")
        return True

    def _end_scan(self) -> None:
        """From the beginning again, one period later. Not before the mutex may be free: it is kept until then, which
        makes it one scan a period for all dispatchers together."""
        self._after = self._token = None
        self._next_scan_ms = self._a.clock.boot_ms() + self._a.settings.dispatch_scan_ms

    def _give_turn_back(self) -> None:
        token, self._token = self._token, None
        self._next_scan_ms = max(self._next_scan_ms, self._a.clock.boot_ms() + _AWAY_RETRY_MS)
        if token is not None:
            try:
                self._candidates.free_scan(self.name, token)
            except _NO_REDIS as error:
                log.debug("the turn to scan %s runs out by itself: %s", self.name, error)

    # --- objects -----------------------------------------------------------------------------------------

    def _note(self, intents: Sequence[DueIntent]) -> bool:
        """Tell Redis, best effort; whether it knows of them now."""
        if not intents:
            return True
        try:
            self._candidates.add(self.name, intents)
        except _NO_REDIS as error:
            log.debug("%d intents of %s could not be noted: %s", len(intents), self.name, error)
            return False
        return True

    def _handle(self, object_ids: Sequence[str]) -> None:
        """Handle these one by one, on this thread and in what slots are to be had beside it. What a stop or an absent
        source leaves over is noted again. Raises what made the source unusable."""
        queue = deque(dict.fromkeys(object_ids))
        failures: list[_Failure] = []
        others = [
            done for _ in range(self._outbox.spare.take(len(queue) - 1)) if (done := self._beside(queue, failures))
        ]
        self._work(queue, failures)
        for done in others:
            done.wait()
        away = bool(failures) and not self._answers()
        if failures and not away:
            self._put_aside(failures)
        elif failures:
            queue.extend(failure.object_id for failure in failures)
        if queue:
            due_ms = self._source.now_ms() + (_AWAY_RETRY_MS if failures else 0)
            self._note([DueIntent(object_id, due_ms) for object_id in queue])
        if away:
            raise failures[0].error
        if object_ids:
            self._answered = True

    def _answers(self) -> bool:
        """Whether the source is there: then it is those objects that it refuses, and not everything."""
        try:
            self._source.due(after=None, limit=1)
        except Unavailable:
            return False
        return True

    def _put_aside(self, failures: Sequence[_Failure]) -> None:
        """For no longer than a scan period: the source may be able to read and, for a while, not to write."""
        for object_id, error in failures:
            reason = f"{type(error).__name__}: {error}"
            self._bad.rest(object_id, reason, most_ms=self._a.settings.dispatch_scan_ms)
            self._outbox.count("poison")

    def _beside(self, queue: deque[str], failures: list[_Failure]) -> Event | None:
        """Work in one of the shared slots; told when it has ended. None when there is no thread to be had for it."""
        done = self._a.runner.event()
        try:
            self._a.runner.spawn("dispatch", lambda: self._slot(queue, failures, done))
        except RuntimeError:
            log.exception("no thread could be started for %s", self.name)
            self._outbox.spare.give_back()
            return None
        return done

    def _slot(self, queue: deque[str], failures: list[_Failure], done: Event) -> None:
        try:
            self._work(queue, failures)
        finally:
            self._outbox.spare.give_back()
            done.set()

    def _work(self, queue: deque[str], failures: list[_Failure]) -> None:
        while len(failures) < _FAILURES_MAX and not self._outbox.stop.is_set():
            try:
                object_id = queue.popleft()
            except IndexError:
                return
            self.moved()
            if self._bad.resting(object_id):
                continue
            try:
                self._registration.handle(object_id)
            except Unavailable as error:
                failures.append(_Failure(object_id, error))
            except Exception as error:
                # It does not decode, or the source's own code has a fault with it: this object waits, the others of
                # its batch do not.
                fresh = self._bad.rest(object_id, f"{type(error).__name__}: {error}")
                if fresh and not isinstance(error, KernelError):
                    log.exception("the intent of %s in %s could not be handled", object_id, self.name)
                self._outbox.count("poison")
