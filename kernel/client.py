"""The publisher's side: starting, replaying, superseding and waiting for workflows (groups 4 and 6).

`start_or_resume` is the one idempotent entry for requests, retries, compensation and replays (sor-same-entry). It needs
a Plan and no activity. The serialisation point is the permanent unique index on biz_key: a duplicate is a normal
branch, never an error to the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Literal, cast

import msgspec

from kernel import transitions
from kernel.candidates import Candidate
from kernel.clock import Clock
from kernel.closing import Closing
from kernel.codec import decode, encode
from kernel.definition import Definition, Plan, plan_of
from kernel.dispatch import Snapshot, round_of, rounds_of
from kernel.engine.commit import fresh_commit_id, settled
from kernel.engine.inbox import Inbox
from kernel.engine.matching import proofs
from kernel.engine.ports import Event, Observer, ReadyQueue
from kernel.engine.telling import Note, silent, superseded, tell
from kernel.errors import (
    BadReturn,
    CoordinationRejected,
    CoordinationUnavailable,
    DefinitionMismatch,
    InputIdentityChanged,
    InvalidInput,
    OutcomeUnknown,
    Refused,
    StoreUnavailable,
    TooLarge,
)
from kernel.ids import IdSource, check_id, workflow_id_for
from kernel.progress import Progress
from kernel.records import Instance, to_instance
from kernel.signals import Signal, SignalReceipt
from kernel.states import FAILED, TERMINAL, lane_of
from kernel.store.conditional import Insert, Inserted
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from kernel.stream_events import StreamEvent
from kernel.streams import ClientStreams

log = logging.getLogger("kernel.client")

Branch = Literal[
    "created", "replayed", "running", "waiting", "failing", "failed", "completed", "canceled", "parked",
    "definition_mismatch",
]  # fmt: skip
_RACES_MAX = 16


class Superseded(msgspec.Struct, frozen=True):
    """Whether the call changed something, and the status after it; None for an unknown workflow."""

    changed: bool
    status: str | None


class Handle:
    """One workflow as a publisher sees it right after `start_or_resume`."""

    def __init__(self, client: Client, instance: Instance, branch: Branch) -> None:
        self._client = client
        self.instance = instance
        self.branch = branch

    @property
    def workflow_id(self) -> str:
        return self.instance.workflow_id

    @property
    def status(self) -> str:
        """The status when the handle was made."""
        return self.instance.status

    @property
    def execution_activated(self) -> bool:
        """Whether this call made the instance run: it was created or replayed (sor-returns)."""
        return self.branch in ("created", "replayed")

    def result(self, timeout: timedelta, type_: Any = Any) -> Any:
        """Wait for the end; the last step's output decoded as `type_`. See `Client.result`."""
        return self._client.result(self.workflow_id, timeout, type_)

    def stream(self, last_event_id: str | None = None, **options: Any) -> Iterator[StreamEvent]:
        """What the workflow shows while it works, until its end. See `Progress.follow`."""
        return self._client.follow(self.workflow_id, last_event_id, **options)


class Client(Closing):
    """Everything that a process may do with workflows without running them. Safe for many threads."""

    def __init__(
        self,
        store: Store,
        queue: ReadyQueue,
        clock: Clock,
        ids: IdSource,
        pause: Event,
        *,
        input_bytes_max: int,
        streams: ClientStreams | None = None,
        observer: Observer | None = None,
        closers: Sequence[Callable[[], None]] = (),
    ) -> None:
        super().__init__(closers)
        self._store = store
        self._queue = queue
        self._clock = clock
        self._ids = ids
        self._streams = streams
        self.progress = Progress(store, clock, pause, streams)
        self._input_bytes_max = input_bytes_max
        self._note: Note = silent if observer is None else partial(tell, observer)
        self._inbox = Inbox(store, self._enqueue, self._commit_id, pause, self._note)
        self.watch_deliveries = self._inbox.watch

    # --- starting --------------------------------------------------------------------------------------

    def start_or_resume(
        self,
        plan: Plan | Definition,
        *,
        biz_key: str,
        input: Any = None,
        priority: int | str = "async",
        start_delay: timedelta = timedelta(0),
        before_write: Callable[[], None] = lambda: None,
    ) -> Handle:
        """Register the one instance of `biz_key`, or find it; a failed one is replayed with the new input.

        A `Snapshot` as `input` is submitted byte for byte (req-one-snapshot). A failed instance that has run for the
        round of the snapshot, in this run or one of the last RUNS_KEPT before it, is found (branch `failed`) and not
        run again: only a new round may do that (req-two-failures), and a publisher that was held up since an old one
        comes too late. `before_write` is called before each write that may start a run; what it raises ends the call,
        so that one who has lost the right to register does not.

        Raises InvalidDefinition, InvalidId, InvalidInput, TooLarge, InvalidPriority, InputIdentityChanged,
        DefinitionMismatch (the key belongs to another type) before any write, and StoreUnavailable or OutcomeUnknown
        when the durable store can not say what happened; the call may be repeated. A dead Redis does not fail it
        (sor-enqueue-failure).
        """
        plan = plan_of(plan)
        insert = self._insert(plan, biz_key, input, lane_of(priority), start_delay)
        round_ = round_of(input.data) if isinstance(input, Snapshot) else None
        for _ in range(_RACES_MAX):
            before_write()
            found = self._registered(insert)
            if found is None:
                decided: tuple[Branch, Instance] | None = self._created(insert)
            else:
                decided = self._existing(plan, found, insert, round_, before_write)
            if decided is None:
                continue  # another caller changed it between the reading and the write: read again
            handle = Handle(self, decided[1], decided[0])
            self._activated(plan, [handle])
            self._enqueue([handle.instance])
            return handle
        raise OutcomeUnknown(f"{biz_key}: changed {_RACES_MAX} times while it was being read")

    def start_many(
        self, plan: Plan | Definition, requests: Sequence[tuple[str, Any]], *, priority: int | str = "async"
    ) -> list[Handle]:
        """As `start_or_resume` for (biz_key, input) pairs, at the price of few commits and one round trip."""
        plan = plan_of(plan)
        inserts = [self._insert(plan, key, value, lane_of(priority), timedelta(0)) for key, value in requests]
        answers = self._store.insert_all(inserts)
        created = [(k, to_instance(a.document)) for k, a in enumerate(answers) if isinstance(a, Inserted)]
        fresh = {k: Handle(self, instance, "created") for k, instance in created}
        # Before the others, of which one may be refused: these are registered.
        for handle in fresh.values():
            self._note("workflow.created", instance=handle.instance)
        self._activated(plan, list(fresh.values()))
        self._enqueue([handle.instance for handle in fresh.values()])
        return [
            fresh.get(k) or self.start_or_resume(plan, biz_key=key, input=value, priority=priority)
            for k, (key, value) in enumerate(requests)
        ]

    def _activated(self, plan: Plan, handles: Sequence[Handle]) -> None:
        """What an earlier run showed goes before anybody is woken for this one, or the first frames of a fast worker go
        as well (sor-reset-before-enqueue). Best effort: no registration fails for it, or waits beyond one call."""
        if not plan.streams or self._streams is None:
            return
        for handle in handles:
            if handle.execution_activated and not self._streams.reset(handle.instance):
                break

    def _insert(self, plan: Plan, biz_key: str, value: Any, lane: int, delay: timedelta) -> Insert:
        check_id(biz_key, "biz_key")
        if not timedelta(0) <= delay <= timedelta(days=3660):
            raise Refused(f"start_delay: must lie between 0 and 3660 days, is {delay}")
        data = self._encoded(plan, value)
        plan.check_input(data)
        return transitions.create(
            workflow_id=workflow_id_for(biz_key),
            type_=plan.type,
            biz_key=biz_key,
            fingerprint=plan.fingerprint,
            step_names=[step.name for step in plan.steps],
            input_=data,
            priority=lane,
            now_ms=self._store.now_ms(),
            start_delay_ms=round(delay.total_seconds() * 1000),
            commit_id=self._commit_id(),
        )

    def _encoded(self, plan: Plan, value: Any) -> bytes:
        if not isinstance(value, Snapshot):
            try:
                return encode(value, f"input of {plan.type}", self._input_bytes_max)
            except BadReturn as error:
                raise InvalidInput(str(error)) from None
        if len(value.data) > self._input_bytes_max:
            raise TooLarge(
                f"input of {plan.type}: {len(value.data)} bytes, at most {self._input_bytes_max} are allowed"
            )
        return value.data

    def _registered(self, insert: Insert) -> Instance | None:
        """None when this insert made the instance, else the instance that is already there (sor-unique-race)."""
        try:
            if isinstance(self._store.insert(insert), Inserted):
                return None
        except OutcomeUnknown:
            pass
        document = self._store.find(INSTANCES, "biz_key", insert.document["biz_key"])
        if document is None:
            raise StoreUnavailable(f"{insert.document['biz_key']}: the answer of the insert was lost; try again")
        if document["commit_ids"][:1] == insert.document["commit_ids"]:
            return None
        return to_instance(document)

    def _created(self, insert: Insert) -> tuple[Branch, Instance]:
        instance = to_instance(insert.document)
        self._note("workflow.created", instance=instance)
        return "created", instance

    def _existing(
        self, plan: Plan, found: Instance, insert: Insert, round_: str | None, before_write: Callable[[], None]
    ) -> tuple[Branch, Instance] | None:
        """What an existing instance means for this call (T-03). None: it changed meanwhile, read it again."""
        if found.type != plan.type:
            raise DefinitionMismatch(f"biz_key {found.biz_key!r} belongs to a workflow of type {found.type}")
        instance = self._raise_priority(found, insert.document["business_priority"])
        if instance.parked is not None:
            return "parked", instance
        if instance.status != FAILED:
            return cast(Branch, instance.status), instance
        if round_ is not None and round_ in rounds_of(instance):
            return "failed", instance
        before_write()  # after the reading: the replay misses when anything has happened to the instance since
        return self._replay(plan, instance, insert)

    def _replay(self, plan: Plan, instance: Instance, insert: Insert) -> tuple[Branch, Instance] | None:
        data: bytes = insert.document["input"]
        self._check_identity(plan, instance, data)
        # A failed instance stands still, so what it proves now is all that this replay clears (sig-mark-before-unset).
        self._inbox.mark(proofs(instance))
        lane: int = insert.document["business_priority"]
        if instance.definition_key == plan.key:
            transition = transitions.replay_failed(instance, input_=data, priority=lane, commit_id=self._commit_id())
        elif plan.on_changed_plan == "fresh_run":
            transition = transitions.fresh_run(
                instance,
                type_=plan.type,
                fingerprint=plan.fingerprint,
                step_names=[step.name for step in plan.steps],
                input_=data,
                priority=lane,
                commit_id=self._commit_id(),
            )
        else:
            return "definition_mismatch", instance
        document = settled(self._store, transition)
        if document is None:
            return None
        replayed = to_instance(document)
        self._note("workflow.replayed", instance=replayed)
        return "replayed", replayed

    @staticmethod
    def _check_identity(plan: Plan, instance: Instance, data: bytes) -> None:
        """A replay replaces the input whole; the identity that the completed steps worked for stays (DECISIONS 16)."""
        if not plan.identity:
            return
        old: Any = decode(instance.input, Any, f"stored input of {instance.workflow_id}")
        new: Any = decode(data, Any, f"input of {plan.type}")
        if not isinstance(old, dict) or not isinstance(new, dict):
            raise InvalidInput(f"input of {plan.type}: declared identity fields need an input with named fields")
        for field in plan.identity:
            if old.get(field) != new.get(field):
                raise InputIdentityChanged(f"input of {plan.type}: field {field!r} differs from that of the failed run")

    def _raise_priority(self, instance: Instance, lane: int) -> Instance:
        """Best effort upwards, in any live status (sor-priority-any-status); never down."""
        if lane >= instance.business_priority or instance.status in TERMINAL:
            return instance  # a replay lowers the number in its own write
        document = settled(self._store, transitions.raise_priority(instance.workflow_id, lane))
        if document is None:
            return self.get(instance.workflow_id) or instance
        raised = to_instance(document)
        self._note("workflow.raised", instance=raised)
        return raised

    # --- signals ---------------------------------------------------------------------------------------

    def deliver_signals(self, signals: Sequence[Signal]) -> list[SignalReceipt]:
        """Store each signal once in the inbox, then wake the waits that match; a receipt each, in order (group 21).

        Write the business fact first (sig-business-first). Many share few commits, and memory does not grow with their
        number beyond the receipts. Raises StoreUnavailable or OutcomeUnknown when the inbox does not say that it has
        them: repeat with the same ids, what is stored already is a duplicate.
        """
        return self._inbox.deliver(signals)

    def signal(
        self, workflow_id: str, signal_type: str, *, wait_key: str, generation: int = 0, signal_id: str
    ) -> SignalReceipt:
        """Tell one workflow that what it waits for may have changed. Raises as `deliver_signals`, and InvalidId,
        InvalidName or Refused before any write."""
        signal = Signal(
            signal_id=signal_id,
            workflow_id=workflow_id,
            signal_type=signal_type,
            wait_key=wait_key,
            generation=generation,
        )
        return self._inbox.deliver([signal])[0]

    # --- control ---------------------------------------------------------------------------------------

    def supersede(self, workflow_id: str) -> Superseded:
        """End a live workflow as canceled, whoever holds it; nothing is an error (can-supersede-idempotent)."""
        check_id(workflow_id, "workflow_id")
        self._inbox.mark_consumed(workflow_id)
        document = settled(self._store, transitions.supersede(workflow_id, commit_id=self._commit_id()))
        if document is not None:
            ended = to_instance(document)
            superseded(self._note, ended)
            if self._streams is not None:
                self._streams.finish_now(ended)
            return Superseded(True, ended.status)
        instance = self.get(workflow_id)
        return Superseded(False, None if instance is None else instance.status)

    def unpark(self, workflow_id: str) -> bool:
        """Bring a parked workflow back; whether it was parked (DECISIONS detail 19)."""
        check_id(workflow_id, "workflow_id")
        document = settled(self._store, transitions.unpark(workflow_id, commit_id=self._commit_id()))
        if document is None:
            return False
        instance = to_instance(document)
        self._note("workflow.unparked", instance=instance)
        self._enqueue([instance])
        return True

    # --- reading ---------------------------------------------------------------------------------------

    def get(self, workflow_id: str) -> Instance | None:
        """The instance as it is now."""
        return self.progress.get(workflow_id)

    def result(self, workflow_id: str, timeout: timedelta, type_: Any = Any) -> Any:
        """Wait until the workflow ends; the output of its last step, decoded as `type_`. See `Progress.result`."""
        return self.progress.result(workflow_id, timeout, type_)

    def follow(self, workflow_id: str, last_event_id: str | None = None, **options: Any) -> Iterator[StreamEvent]:
        """What the workflow shows while it works, event by event, until its end. See `Progress.follow`."""
        return self.progress.follow(workflow_id, last_event_id, **options)

    def _enqueue(self, instances: Sequence[Instance]) -> None:
        """Tell the queue whatever the branch was (sor-enqueue-always): a vain candidate costs one vain claim. But for
        who waits for a permit: a place may have been handed to it, and its id would be moved to its own later time."""
        now_ms = self._store.now_ms()
        candidates = [
            Candidate(i.workflow_id, i.business_priority, now_ms if i.claimable_time is None else i.claimable_time)
            for i in instances
            if i.permit_wait is None or (i.claimable_time or 0) <= now_ms
        ]
        if not candidates:
            return
        try:
            self._queue.push(candidates)
        except (CoordinationUnavailable, CoordinationRejected) as error:
            log.debug("registered, but not queued; the scan will find it: %s", error)

    def _commit_id(self) -> str:
        return fresh_commit_id(self._ids)
