"""The inbox of signals at work: store first, then wake the wait that matches, then mark (group 21).

An instance is activated by a signal only in a write that rests on three readings (S9):

- the row of the instance: a step waits for exactly this identity, and no step has consumed this signal;
- the row of the inbox, read or written after it: still pending;
- the revision, in the guard: the instance is as it was read.

Whoever makes a step forget its `resume` has marked that signal before (detail 11). So a pending row that no step bears
has not been consumed, however long a reader was held up between its readings and its write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from kernel import transitions
from kernel.engine.commit import settled
from kernel.engine.delivery import UNKNOWN, UNREADABLE, Delivery, Match
from kernel.engine.matching import IDENTITY, consumed, identity_of, proofs, signal_of, signal_waits, waiting_for
from kernel.engine.ports import Event
from kernel.engine.telling import Note, silent, woken
from kernel.errors import CorruptRecord, KernelError, OutcomeUnknown, StoreUnavailable, UnknownVersion
from kernel.records import Document, Instance, bears_mark, to_instance
from kernel.signals import Signal, SignalReceipt, SignalRecord, to_signal_record
from kernel.states import RUNNING, WAITING
from kernel.store.conditional import Applied, Duplicate, Equals, Exists, InsertAnswer, Inserted, Transition
from kernel.store.protocol import Query, Store
from kernel.store.tables import INSTANCES, SIGNALS

log = logging.getLogger("kernel.signals")

BATCH = 200
"""Signals that share their commits; bounds the memory of a delivery of any length."""
_LOOKS_MAX = 8
_PENDING_SHOWN = 32
_RETRY_FIRST_S = 0.02
_RETRY_MAX_S = 1.0


class Inbox:
    """Delivers signals and matches them with waits. Safe for many threads; holds no state."""

    def __init__(
        self,
        store: Store,
        enqueue: Callable[[Sequence[Instance]], object],
        commit_id: Callable[[], str],
        pause: Event,
        note: Note = silent,
    ) -> None:
        self._store = store
        self._enqueue = enqueue
        self._commit_id = commit_id
        self._pause = pause
        self._note = note
        self._delivered_to: Callable[[Sequence[Delivery]], None] = lambda deliveries: None

    # --- delivery ----------------------------------------------------------------------------------------

    def deliver(self, signals: Iterable[Signal]) -> list[SignalReceipt]:
        """Store each signal, then wake what waits for it; a receipt each, in order (sig-inbox-first).

        Raises StoreUnavailable or OutcomeUnknown when the inbox does not say that it has stored one of them: the same
        call with the same ids may then be repeated (sig-inbox-fail). What goes wrong after that costs time only: the
        row is in the inbox, and the sweep finds it.
        """
        receipts: list[SignalReceipt] = []
        rest = iter(signals)
        while part := list(islice(rest, BATCH)):
            receipts.extend(delivery.receipt() for delivery in self._delivered(part))
        return receipts

    def _delivered(self, signals: Sequence[Signal]) -> list[Delivery]:
        # Read before the insert: a row that is new then is pending after it, without another reading.
        seen = {key: self._read_or_none(key) for key in dict.fromkeys(s.workflow_id for s in signals)}
        answers, certain = self._stored(signals)
        deliveries: list[Delivery] = []
        for signal, answer in zip(signals, answers, strict=True):
            known = seen[signal.workflow_id] if certain else None
            deliveries.append(Delivery(signal, known, duplicate=isinstance(answer, Duplicate)))
        late = self._activate_at_once(deliveries)
        for delivery in late:
            self._deliver_late(delivery)
        self._delivered_to(deliveries)
        return deliveries

    def watch(self, seen: Callable[[Sequence[Delivery]], None]) -> None:
        """Tell `seen` of signals that were just stored, after whoever waited for them was woken."""
        self._delivered_to = seen

    def _stored(self, signals: Sequence[Signal]) -> tuple[list[InsertAnswer], bool]:
        """The answer of the inbox to each signal, and whether "inserted" means by this very call; raises when there is
        no answer to be had."""
        now_ms = self._store.now_ms()
        inserts = [transitions.receive_signal(signal, now_ms=now_ms) for signal in signals]
        try:
            return self._store.insert_all(inserts), True
        except (OutcomeUnknown, StoreUnavailable, CorruptRecord) as error:
            log.debug("the answer to %d signals was lost, each is looked at: %s", len(inserts), error)
        answers: list[InsertAnswer] = []
        for signal, insert in zip(signals, inserts, strict=True):
            stored = self._row(insert.key)
            if stored is None:
                # Not there: sent once more, and what that says is said to the caller. A first copy that lands late
                # makes it a duplicate, and a second row can not be.
                answers.append(self._store.insert(insert))
            elif stored.get("created_time") == insert.document["created_time"] and _is_of(stored, signal):
                answers.append(Inserted(stored))
            else:
                answers.append(Duplicate("signal_id"))
        return answers, False

    def _activate_at_once(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Wake those that waited before their signal was stored, in two commits; the others, to be looked at."""
        chosen: list[tuple[Delivery, int, Transition]] = []
        late: list[Delivery] = []
        taken: set[str] = set()
        for delivery in deliveries:
            signal, instance = delivery.signal, delivery.seen
            index = None if instance is None or delivery.duplicate else waiting_for(instance, signal)
            if instance is None or index is None or signal.workflow_id in taken:
                late.append(delivery)
                continue
            taken.add(signal.workflow_id)
            chosen.append((delivery, index, self._activation(instance, index, signal.signal_id)))
        runnable: list[Instance] = []
        documents = self._applied([write for _, _, write in chosen])
        for (delivery, index, _), document in zip(chosen, documents, strict=True):
            if document is None:
                late.append(delivery)  # missed or lost: looked at alone, which tells
                continue
            delivery.activated, delivery.matched, delivery.target = True, True, WAITING
            runnable.append(self._activated(delivery.seen, document, index))
        self._mark_all([d.signal.signal_id for d, _, _ in chosen if d.activated])
        self._told(runnable)
        return late

    def _applied(self, writes: list[Transition]) -> list[Document | None]:
        """The rows after `writes`; None for one that missed or of which nobody knows."""
        if not writes:
            return []
        try:
            answers = self._store.apply_all(writes)
        except (OutcomeUnknown, StoreUnavailable, CorruptRecord) as error:
            log.debug("the answer to %d activations was lost, each is looked at: %s", len(writes), error)
            return [self._landed(write) for write in writes]
        return [answer.document if isinstance(answer, Applied) else None for answer in answers]

    def _landed(self, write: Transition) -> Document | None:
        """The row, if it bears the mark of this very write."""
        try:
            document = self._store.get(INSTANCES, write.key)
        except (OutcomeUnknown, StoreUnavailable, CorruptRecord):
            return None
        return document if document is not None and bears_mark(document, write.commit_id) else None

    def _deliver_late(self, delivery: Delivery) -> None:
        signal = delivery.signal
        try:
            if delivery.duplicate:
                # The producer may repeat because it died after the insert: go on from what is stored.
                record = self._pending(signal.signal_id)
                if record is None or identity_of(record) != identity_of(signal):
                    delivery.conflict = self._note_other(signal)
                    delivery.target = self._status(signal.workflow_id)
                    return
            delivery.activated, delivery.matched, delivery.target = self.match(signal)
        except (OutcomeUnknown, StoreUnavailable, CorruptRecord, UnknownVersion) as error:
            log.warning(
                "signal %s is stored, but %s can not be woken yet: %s", signal.signal_id, signal.workflow_id, error
            )
            delivery.target = UNREADABLE

    def _note_other(self, signal: Signal) -> bool:
        """Say it when an id is used again for something else: that second notification will never arrive."""
        stored = self._row(signal.signal_id)
        if stored is None or _is_of(stored, signal):
            return False
        log.warning(
            "signal %s for %s: this id was used for another signal; it is ignored",
            signal.signal_id,
            signal.workflow_id,
        )
        return True

    def _status(self, workflow_id: str) -> str:
        instance = self._read(workflow_id)
        return UNKNOWN if instance is None else instance.status

    # --- matching ----------------------------------------------------------------------------------------

    def match(self, signal: Signal | SignalRecord) -> Match:
        """Wake the step that waits for a stored signal, if it is pending and there is one; with the status that was
        found. Completes the mark of a signal that was consumed already (sig-crash-between)."""
        status = UNKNOWN
        for _ in range(_LOOKS_MAX):
            instance = self._read(signal.workflow_id)
            if instance is None:
                return Match(False, False, UNKNOWN)
            status = instance.status
            if consumed(instance, signal.signal_id):
                self.mark([signal.signal_id])
                return Match(False, True, status)
            index = waiting_for(instance, signal)
            if index is None:
                return Match(False, False, status)
            record = self._pending(signal.signal_id)
            if record is None:
                return Match(False, True, status)
            if self._wake(instance, index, record):
                return Match(True, True, status)
        # Others changed it all the time; whoever suspends it next looks into the inbox.
        return Match(False, False, status)

    def recheck(self, instance: Instance) -> None:
        """Right after a suspension: wake what a signal has come for meanwhile (sig-check-after-suspend, detail 1).

        `instance` is the record of that very write: what is pending after it and unconsumed in it, may wake it. Never
        raises: the suspension is committed, and the sweep comes here too.
        """
        if instance.status not in (WAITING, RUNNING) or instance.claim_token is not None:
            return
        try:
            for index in signal_waits(instance):
                if self._recheck_step(instance, index):
                    return  # it runs; what is left for other steps is asked at its next rest
        except KernelError as error:
            log.warning("the inbox can not be asked for %s, the sweep will: %s", instance.workflow_id, error)

    def is_called(self, instance: Instance) -> bool:
        """Whether a signal is pending for a wait of this instance, which somebody holds: only its holder can make room
        for it, because nobody else may write (sig-check-after-suspend). Never raises."""
        try:
            return any(
                not consumed(instance, signal.signal_id)
                for index in signal_waits(instance)
                for signal in self._pending_for(instance, index)
            )
        except KernelError as error:
            log.debug("the inbox can not be asked for %s: %s", instance.workflow_id, error)
            return False

    def _recheck_step(self, instance: Instance, index: int) -> bool:
        for signal in self._pending_for(instance, index):
            if consumed(instance, signal.signal_id):
                self.mark([signal.signal_id])
                continue
            record = self._pending_or_none(signal.signal_id)
            if record is None:
                continue
            if self._wake(instance, index, record):
                return True
            return self.match(signal).activated  # it has changed since: from the beginning
        return False

    def _pending_for(self, instance: Instance, index: int) -> list[Signal]:
        wait = instance.steps[index].wait
        assert wait is not None
        query = Query(
            table=SIGNALS,
            guards=(
                Equals("workflow_id", instance.workflow_id),
                Exists("pending_time"),
                Equals("signal_type", wait.signal_type),
                Equals("wait_key", wait.wait_key),
                Equals("generation", wait.generation),
            ),
            order="workflow_id",
            columns=IDENTITY,
            limit=_PENDING_SHOWN,
        )
        return [signal_of(row) for row in self._store.scan(query)]

    def _pending_or_none(self, signal_id: str) -> SignalRecord | None:
        """As `_pending`; None also for a row that does not decode: it must not hide the next one."""
        try:
            return self._pending(signal_id)
        except (CorruptRecord, UnknownVersion) as error:
            log.error("a row of the inbox does not decode and is left alone: %s", error)
            return None

    def _wake(self, instance: Instance, index: int, record: SignalRecord) -> bool:
        """Activate, mark, enqueue, wake; False when the row has changed since it was read."""
        write = self._activation(instance, index, record.signal_id, record.created_time)
        document = settled(self._store, write)
        if document is None:
            return False
        self._mark_all([record.signal_id])
        self._told([self._activated(instance, document, index)])
        return True

    def _activated(self, before: Instance | None, document: Document, index: int) -> Instance:
        instance = to_instance(document)
        woken(self._note, instance, index, was_waiting=before is not None and before.status == WAITING)
        return instance

    def _activation(
        self, instance: Instance, index: int, signal_id: str, arrival_time: int | None = None
    ) -> Transition:
        return transitions.activate_signal(
            instance,
            index,
            signal_id=signal_id,
            now_ms=self._store.now_ms(),
            arrival_time=arrival_time,
            commit_id=self._commit_id(),
        )

    # --- marks -------------------------------------------------------------------------------------------

    def mark(self, signal_ids: Sequence[str]) -> None:
        """Make sure that these consumed signals are marked; safe to repeat. Raises when the store does not say so."""
        for signal_id in dict.fromkeys(signal_ids):
            try:
                # A reading first: nearly always the one who woke the step has marked it already.
                if self._pending(signal_id) is not None:
                    self._store.apply(transitions.mark_matched(signal_id))
            except (CorruptRecord, UnknownVersion) as error:
                # Nobody matches a row that does not decode, so it must not keep a workflow from going on.
                log.error("a row of the inbox does not decode and is left alone: %s", error)

    def repair(self, signal: Signal) -> bool:
        """As `match`, for the sweep: False also for a row that does not decode, which must not stop the page."""
        try:
            return self.match(signal).activated
        except (CorruptRecord, UnknownVersion) as error:
            log.error("a row does not decode and is left alone: %s", error)
            return False

    def mark_consumed(self, workflow_id: str) -> None:
        """Mark all that this instance proves, before it is ended from outside: that clears the `resume` that is shown;
        the steps go on proving what comes in between."""
        instance = self._read_or_none(workflow_id)
        if instance is not None:
            self.mark(proofs(instance))

    def mark_before_clear(self, signal_ids: Sequence[str], check: Callable[[], None]) -> None:
        """As `mark`, for the holder of a claim that is about to let a step forget what woke it (sig-mark-before-unset).

        A store that is away is waited for as long as `check` lets the claim live; it raises when that is over, and then
        nothing is cleared.
        """
        delay_s = _RETRY_FIRST_S
        while signal_ids:
            check()
            try:
                self.mark(signal_ids)
                return
            except (StoreUnavailable, OutcomeUnknown):
                self._pause.wait(delay_s)
                delay_s = min(delay_s * 2, _RETRY_MAX_S)

    def _mark_all(self, signal_ids: Sequence[str]) -> None:
        """Best effort: the instance proves what is not marked (sig-proof)."""
        if not signal_ids:
            return
        try:
            self._store.apply_all([transitions.mark_matched(signal_id) for signal_id in signal_ids])
        except KernelError as error:
            log.debug("%d signals are not marked yet: %s", len(signal_ids), error)

    def _told(self, woken: Sequence[Instance]) -> None:
        if woken:
            self._enqueue(woken)

    # --- reading -----------------------------------------------------------------------------------------

    def _pending(self, signal_id: str) -> SignalRecord | None:
        """The row, if it is pending; one that does not decode is never matched, and its wait has its poll fallback."""
        document = self._row(signal_id)
        if document is None:
            return None
        record = to_signal_record(document)
        return record if record.status == "pending" else None

    def _row(self, signal_id: str) -> Document | None:
        return self._store.get(SIGNALS, signal_id)

    def _read(self, workflow_id: str) -> Instance | None:
        document = self._store.get(INSTANCES, workflow_id)
        return None if document is None else to_instance(document)

    def _read_or_none(self, workflow_id: str) -> Instance | None:
        """As `_read`; None also for a row that can not be read now: it is asked for again after the insert."""
        try:
            return self._read(workflow_id)
        except (OutcomeUnknown, StoreUnavailable, CorruptRecord, UnknownVersion):
            return None


def _is_of(stored: Document, signal: Signal) -> bool:
    """Whether a row of the inbox is this notification, and not another under the same id."""
    return all(stored.get(name) == getattr(signal, name) for name in IDENTITY)
