"""The request side: one call for "the user wants this", whatever became of it before (group 4, T-15).

| business status | its intent | what happens | answer |
| --- | --- | --- | --- |
| there is no such object | – | object and round 1 in one write, start, confirm | registered, or accepted |
| initial | pending | the same round again: start, confirm | registered, or accepted |
| initial | none: a document of the user's | round 1 is put into it, start, confirm | registered, or accepted |
| initial | processing, dispatched | nothing | in_progress |
| processing, or another of the user's own | any | nothing | in_progress |
| completed | any | nothing | completed, with the object |
| failed | any | the next round by one conditional write, start, confirm | as above; its loser: in_progress |
| closed, or deleted meanwhile | any | nothing | refused |
| any but failed, completed | refused | nothing | refused |

Durable first, then start, then confirm, in this order (req-order): wherever a process dies between two of them, a
dispatcher goes on from what is stored. So `accepted` is a promise too: the work is stored and will be registered.

A publisher may be stopped between any two lines, for longer than its object stays in a round. So the round is read
again before each write that may start a run, and before each answer that a miss leads to; what it would run too late
even then, start_or_resume refuses by the rounds that the instance has run for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from kernel.business_objects import BusinessObject, BusinessObjects
from kernel.codec import decode
from kernel.definition import Definition, Plan, plan_of
from kernel.dispatch import DISPATCHED, INTENT_VERSION, PENDING, REFUSED, Intent
from kernel.errors import CheckpointError, InputIdentityChanged, InvalidId, InvalidIntent, KernelError, UnknownVersion
from kernel.ids import IdSource, RandomIds, check_id, workflow_id_for
from kernel.intents import OBJECT_FIELD, Registrar, check_carries, check_intent, register, snapshot
from kernel.states import lane_of

log = logging.getLogger("kernel.requests")

Outcome = Literal["registered", "accepted", "in_progress", "completed", "refused"]
Announce = Callable[[str, str, int], object]
"""Tells Redis of a fresh intent, best effort: source name, object id, due time in ms (dsp-candidate-add)."""

_RACES_MAX = 8
_TRIAL_ROUND = "f0-trial"


class StreamIdentity(msgspec.Struct, frozen=True):
    """Where this round's progress can be followed; an object id alone never suffices (id-stream-identity)."""

    object_id: str
    workflow_id: str
    fencing_token: str


class RequestAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a request came to.

    registered: this round is registered. accepted: it is stored, and a dispatcher will register it. in_progress: a
    round is under way, by another request perhaps. completed: `object` holds the result. refused: this object takes
    no more work. `created` and `new_round` say what this very call did; `detail` tells people why.
    """

    outcome: Outcome
    object_id: str
    stream: StreamIdentity | None = None
    object: BusinessObject | None = None
    created: bool = False
    new_round: bool = False
    detail: str = ""


class _RoundOver(KernelError):
    """The object is not in the round any more that is being registered, or takes no more work."""

    code = "round_over"


class _Did(NamedTuple):
    """What this call has written so far."""

    created: bool = False
    new_round: bool = False


_NOTHING = _Did()


class Requests:
    """The requests of one workflow type for one kind of business object. Safe for many threads.

    The workflow and its object are two rows, and each is told of its own end. `Client.supersede` ends the workflow
    only: the object stays `in_progress` until its owner withdraws it too (`BusinessObjects.withdraw`). And canceled
    is for good: an activity that finds its object in another round raises NonRetryable, after which that round can be
    registered, and never WorkflowCanceled, by which it is refused and its object closed (DECISIONS detail 8).

    Raises InvalidDefinition when it is made for what is no Plan, or whose declared input has no field for the round
    (`fencing_token`), or, where the objects were declared with a key of their own, none for their id (`object_id` or
    that key): an activity could not see it.
    """

    def __init__(
        self,
        client: Registrar,
        objects: BusinessObjects,
        plan: Plan | Definition,
        *,
        priority: int | str = "realtime",
        retry_priority: int | str = "async",
        announce: Announce | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self._client = client
        self._objects = objects
        self._plan = plan_of(plan)
        check_carries(self._plan, objects.declaration.key)
        self._lane = lane_of(priority)
        self._retry_lane = lane_of(retry_priority)
        self._announce = announce
        self._ids = ids or RandomIds()

    def request(
        self,
        input: Any,
        *,
        object_id: str | None = None,
        client_id: str | None = None,
        fields: Mapping[str, Any] | None = None,
        biz_key: str | None = None,
    ) -> RequestAnswer:
        """Make sure that this work is being done, and say where it stands (req-status-branches).

        Named by the server's `object_id`, or by the client's idempotency id: equal ids are one object, however many
        ask at once (id-client-idem). `input` holds stable identities and what was decided at entry; the round is
        filled in, and where a known client id names another object than `object_id`, the `input` that says so is taken
        for that object. `fields` belong to a new object only. `biz_key` is `type:object_id` unless given; a later
        round keeps that of the first.

        Raises Refused before any write for input that can not be right, or an object of another type of work;
        StoreUnavailable or OutcomeUnknown when the object could not be read or stored: the same call may be made again.
        """
        if object_id is not None:
            there = self._objects.get(object_id)
        elif client_id is not None:
            there = self._objects.by_client(client_id)
        else:
            raise InvalidId("request: give an object_id or a client_id")
        if there is None:
            object_id = self._ids.token() if object_id is None else object_id
            key = self._checked(object_id, input, biz_key)
            accepted = self._objects.accept(
                object_id,
                type_=self._plan.type,
                biz_key=key,
                input=input,
                priority=self._lane,
                fields=fields,
                client_id=client_id,
            )
            there = accepted.object
            if accepted.created and there.intent is not None:
                return self._start(there, there.intent, created=True)
        if object_id is not None and there.object_id != object_id:
            input = self._readdressed(input, object_id, there.object_id)
        return self._branch(there, input, biz_key)

    # --- branches -------------------------------------------------------------------------------------

    def _branch(self, there: BusinessObject, input: Any, biz_key: str | None) -> RequestAnswer:
        """The row of the table that `there` is in; after a lost race the object is read again."""
        declared = self._objects.declaration
        current: BusinessObject | None = there
        for _ in range(_RACES_MAX):
            if current is None:
                return RequestAnswer(outcome="refused", object_id=there.object_id, detail="the object was deleted")
            intent = current.intent
            if intent is not None and intent.type != self._plan.type:
                raise InvalidIntent(
                    f"{self._objects.name} {current.object_id!r} belongs to workflows of type {intent.type!r}"
                )
            if current.status == declared.completed:
                return self._answer("completed", current)
            if intent is not None and current.status == declared.failed:
                return self._next_round(current, intent, input)
            if self._takes_no_work(current):
                return self._refused(current)
            if intent is not None and current.status == declared.initial and intent.status == PENDING:
                return self._start(current, intent)
            if intent is not None or current.status not in (None, declared.initial, declared.failed):
                return self._answer("in_progress", current)
            key = self._checked(current.object_id, input, biz_key)
            self._objects.embed(current, type_=self._plan.type, biz_key=key, input=input, priority=self._lane)
            current = self._objects.get(current.object_id)
        return RequestAnswer(
            outcome="in_progress", object_id=there.object_id, detail="it changes while it is being read"
        )

    def _next_round(self, there: BusinessObject, last: Intent, input: Any) -> RequestAnswer:
        """Only the winner of the conditional write starts (req-round-then-start); a loser finds its work under way."""
        self._checked(there.object_id, input, last.biz_key)
        self._check_identity(last, input)
        token = self._objects.new_round(
            there.object_id,
            last.fencing_token,
            type_=self._plan.type,
            biz_key=last.biz_key,
            input=input,
            priority=self._retry_lane,
        )
        now = self._objects.get(there.object_id)
        if now is None:
            return RequestAnswer(outcome="refused", object_id=there.object_id, detail="the object was deleted")
        if token is None or now.intent is None or now.intent.fencing_token != token:
            return self._answer("in_progress", now, detail="another retry was first")
        return self._start(now, now.intent, new_round=True)

    def _start(
        self, there: BusinessObject, intent: Intent, *, created: bool = False, new_round: bool = False
    ) -> RequestAnswer:
        """start_or_resume, then confirm. What fails on the way leaves the intent pending for a dispatcher."""
        did = _Did(created, new_round)
        object_id, token = there.object_id, intent.fencing_token
        self._tell(object_id, intent)
        try:
            found = register(
                self._client,
                self._plan,
                intent,
                object_id,
                key=self._objects.declaration.key,
                before_write=lambda: self._check_round(object_id, token),
            )
        except KernelError as error:
            if not isinstance(error, _RoundOver):
                log.warning("%s is accepted, and not registered yet: %s", object_id, error)
            return self._as_it_stands(there, intent, did, "accepted", f"{error.code}: {error}")
        if found.verdict == "confirm":
            return self._confirm(there, intent, did)
        detail = f"the workflow is {found.branch}"
        if found.verdict == "refuse" and found.branch != "definition_mismatch":
            detail += ", and its input is of another round"
            self._refuse(object_id, token, detail)
        # Another round is still ending, or workers of another version are at work: a dispatcher sees to it.
        return self._as_it_stands(there, intent, did, "accepted", detail)

    def _check_round(self, object_id: str, token: str) -> None:
        """Before a write that may start a run: a process that was held up must not start a round that is over."""
        now = self._objects.read(object_id)
        if now is None or now.fencing_token != token or now.status == REFUSED:
            raise _RoundOver(f"{object_id}: round {token} is over")

    def _refuse(self, object_id: str, token: str, reason: str) -> None:
        try:
            self._objects.refuse(object_id, token, None, reason)
        except KernelError as error:
            log.warning("%s can not be registered, and is not refused yet: %s", object_id, error)

    def _confirm(self, there: BusinessObject, intent: Intent, did: _Did) -> RequestAnswer:
        try:
            if self._objects.confirm(there.object_id, intent.fencing_token, None):
                return self._answer("registered", there, did=did)
        except KernelError as error:
            # It is registered all the same; a dispatcher finds that out and confirms.
            return self._answer("registered", there, detail=f"not confirmed yet: {error.code}", did=did)
        return self._as_it_stands(there, intent, did, "registered", "")

    def _as_it_stands(
        self, there: BusinessObject, intent: Intent, did: _Did, otherwise: Outcome, detail: str
    ) -> RequestAnswer:
        """The answer after a miss or a failure, by what the object says now; `otherwise` while that is still open."""
        object_id = there.object_id
        try:
            now = self._objects.get(object_id)
        except KernelError as error:
            log.debug("%s can not be read again: %s", object_id, error)
            return self._answer(otherwise, there, detail=detail, did=did)
        if now is None:
            return RequestAnswer(
                outcome="refused", object_id=object_id, created=did.created, detail="the object was deleted"
            )
        if self._takes_no_work(now):
            return self._refused(now, did)
        if now.intent is None or now.fencing_token != intent.fencing_token:
            # The new round is left alone, and this one is not confirmed any more (dsp-confirm-miss-round).
            done = now.status == self._objects.declaration.completed
            return self._answer("completed" if done else "in_progress", now, detail="the round has changed", did=did)
        if now.intent.status == DISPATCHED:
            return self._answer("registered", now, did=did)  # somebody else has confirmed it
        if otherwise == "registered" and now.intent.status == PENDING:
            return self._answer("accepted", now, detail=now.intent.error or "", did=did)
        return self._answer(otherwise, now, detail=detail, did=did)

    def _takes_no_work(self, there: BusinessObject) -> bool:
        return there.status == self._objects.declaration.closed or (
            there.intent is not None and there.intent.status == REFUSED
        )

    def _refused(self, there: BusinessObject, did: _Did = _NOTHING) -> RequestAnswer:
        reason = None if there.intent is None else there.intent.error
        return self._answer("refused", there, detail=reason or "the object is closed", did=did)

    # --- inside ---------------------------------------------------------------------------------------

    def _checked(self, object_id: str, input: Any, biz_key: str | None) -> str:
        """The biz_key, after everything that a dispatcher will check of this intent; nothing was written yet."""
        check_id(object_id, self._objects.declaration.key)
        key = f"{self._plan.type}:{object_id}" if biz_key is None else biz_key
        what = f"input of {self._plan.type}"
        data = snapshot(input, _TRIAL_ROUND, what, self._objects.declaration.input_bytes_max)
        self._plan.check_input(data)
        trial = Intent(
            v=INTENT_VERSION,
            type=self._plan.type,
            biz_key=key,
            priority=self._lane,
            status=PENDING,
            fencing_token=_TRIAL_ROUND,
            input=data,
            accepted_time=0,
        )
        check_intent(trial, self._plan, object_id, key=self._objects.declaration.key)
        return key

    def _readdressed(self, input: Any, asked_for: str, object_id: str) -> Any:
        """A client that repeats its id under a fresh object id means the object that it has already."""
        plain: Any = msgspec.to_builtins(input) if isinstance(input, msgspec.Struct) else input
        if not isinstance(plain, Mapping):
            return input
        names = (OBJECT_FIELD, self._objects.declaration.key)
        return {field: object_id if field in names and value == asked_for else value for field, value in plain.items()}

    def _check_identity(self, last: Intent, input: Any) -> None:
        """A replay keeps the results of completed steps, so the identity that they worked for stays (DECISIONS 16)."""
        if not self._plan.identity:
            return
        try:
            old: Any = decode(last.input, Any, "input of the last round")
        except (CheckpointError, UnknownVersion):
            return  # start_or_resume compares with the instance, which is what counts
        new = msgspec.to_builtins(input)
        for field in self._plan.identity:
            if isinstance(old, Mapping) and old.get(field) != new.get(field):
                raise InputIdentityChanged(
                    f"input of {self._plan.type}: field {field!r} differs from that of the last round"
                )

    def _tell(self, object_id: str, intent: Intent) -> None:
        """Compensation is prompt when Redis knows; without it the scan finds the intent."""
        if self._announce is None:
            return
        try:
            self._announce(self._objects.name, object_id, intent.due_time or self._objects.now_ms())
        except Exception as error:
            log.debug("%s is not announced; the scan will find it: %s", object_id, error)

    def _answer(
        self,
        outcome: Outcome,
        there: BusinessObject,
        *,
        detail: str = "",
        did: _Did = _NOTHING,
    ) -> RequestAnswer:
        intent = there.intent
        stream = None
        if intent is not None:
            stream = StreamIdentity(there.object_id, workflow_id_for(intent.biz_key), intent.fencing_token)
        return RequestAnswer(
            outcome=outcome,
            object_id=there.object_id,
            stream=stream,
            object=there,
            created=did.created,
            new_round=did.new_round,
            detail=detail,
        )
