"""Business objects as one process works with them: accept, read, guarded writes of a round, the next round.

Whatever else a user's document holds stays as it is: every write names its fields. What a dispatcher needs of the
same documents is `kernel.object_source`, which also says how a lost answer is decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kernel import transitions
from kernel.dispatch import INTENT_FIELD, INTENT_VERSION, PENDING, ROUND_FIELD, Intent
from kernel.errors import InvalidObject, OutcomeUnknown, StoreUnavailable
from kernel.fields import checked_path, plain_fields
from kernel.ids import IdSource, check_id
from kernel.intents import fresh_round, snapshot
from kernel.object_source import RACES_MAX, ObjectSource, is_open, round_of_row, status_of, visible
from kernel.objects import Objects, Status
from kernel.records import Document
from kernel.store.conditional import Equals, Inserted, Transition, parse
from kernel.store.evaluate import ABSENT, lookup
from kernel.store.protocol import Query, Store

PAGE_MAX = 1_000


class BusinessObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object as it was read. `fields` is the user's document without the intent; `intent` None when it has none."""

    object_id: str
    status: Status | None
    fields: Document
    intent: Intent | None

    @property
    def fencing_token(self) -> str | None:
        """The object's current round: the authority (fen-input-copy)."""
        return None if self.intent is None else self.intent.fencing_token


class Accepted(msgspec.Struct, frozen=True):
    """An object that is there now; `created` says whether by this call."""

    object: BusinessObject
    created: bool


class BusinessObjects(ObjectSource):
    """The objects of one declaration in an open store; also the `kernel.dispatch.DispatchSource` of their intents.

    Safe for many threads of the process that opened the store. Any call may raise StoreUnavailable (nothing was
    written), OutcomeUnknown, and UnknownVersion or CorruptRecord for an intent that does not decode.
    """

    def __init__(self, declaration: Objects, store: Store, ids: IdSource) -> None:
        super().__init__(declaration, store)
        self._ids = ids

    # --- accepting and rounds -------------------------------------------------------------------------

    def accept(
        self,
        object_id: str,
        *,
        type_: str,
        biz_key: str,
        input: Any,
        priority: int,
        fields: Mapping[str, Any] | None = None,
        client_id: str | None = None,
    ) -> Accepted:
        """Create the object with its first round pending, in one write; or find the one that is there already, under
        the same object id or client id: a duplicate is a normal answer (req-atomic-intent, id-client-idem).

        `input` gets the round filled in. Raises InvalidId, InvalidObject, InvalidInput or TooLarge before any write.
        """
        document = self._document(object_id, fields or {}, client_id)
        intent = self._intent(object_id, type_, biz_key, input, priority, None)
        insert = transitions.accept_object(self._place, object_id, document, intent)
        for _ in range(RACES_MAX):
            try:
                answer = self._store.insert(insert)
            except OutcomeUnknown:
                pass  # whatever is there now is the answer
            else:
                if isinstance(answer, Inserted):
                    return Accepted(self._object(answer.document), True)
            found = self._reread(object_id)
            if found is None and client_id is not None:
                found = self._by_client(client_id)
            if found is not None:
                there = self._object(found)
                return Accepted(there, there.fencing_token == intent.fencing_token)
        raise StoreUnavailable(f"{self.name} {object_id!r}: nothing was stored; try again")

    def embed(self, there: BusinessObject, *, type_: str, biz_key: str, input: Any, priority: int) -> bool:
        """Give an object that exists and has no intent its first round; False when it has one by now, or another
        status. For documents that the user's own programs made."""
        intent = self._intent(there.object_id, type_, biz_key, input, priority, None)
        transition = transitions.embed_intent(
            self._place,
            there.object_id,
            intent,
            status_field=self.declaration.status,
            status=self.declaration.initial,
            seen_status=there.status,
        )
        return self._settled(transition, lambda row: round_of_row(row) == intent.fencing_token) is not None

    def new_round(
        self, object_id: str, previous: str, *, type_: str, biz_key: str, input: Any, priority: int
    ) -> str | None:
        """Start a failed object over: the token of the round that this call installed, or None when the object is not
        failed, or not in round `previous` any more (req-round-change-cas, req-round-race)."""
        intent = self._intent(object_id, type_, biz_key, input, priority, previous)
        transition = transitions.new_round(
            self._place,
            object_id,
            previous,
            intent,
            status_field=self.declaration.status,
            failed=self.declaration.failed,
            initial=self.declaration.initial,
            clear=self.declaration.round_fields,
        )
        landed = self._settled(transition, lambda row: round_of_row(row) == intent.fencing_token)
        return None if landed is None else intent.fencing_token

    def _document(self, object_id: str, fields: Mapping[str, Any], client_id: str | None) -> Document:
        declared = self.declaration
        check_id(object_id, declared.key)
        where = f"{self.name} {object_id!r}"
        copied = plain_fields(fields, where)
        kernels = {declared.key, declared.status, declared.client_id, INTENT_FIELD}
        for name in copied:
            if name in kernels or "." in name:
                raise InvalidObject(f"{where}: {name!r} can not be given as a field of a new object")
        document = {declared.key: object_id, declared.status: declared.initial, **copied}
        if client_id is not None:
            if declared.client_id is None:
                raise InvalidObject(f"{where}: the declaration names no client_id field")
            document[declared.client_id] = check_id(client_id, declared.client_id)
        return document

    def _intent(
        self, object_id: str, type_: str, biz_key: str, input: Any, priority: int, previous: str | None
    ) -> Intent:
        now_ms = self._store.now_ms()
        token = fresh_round(self._ids, previous)
        what = f"input of {self.name} {check_id(object_id, self.declaration.key)!r}"
        return Intent(
            v=INTENT_VERSION,
            type=type_,
            biz_key=check_id(biz_key, "biz_key"),
            priority=priority,
            status=PENDING,
            fencing_token=token,
            input=snapshot(input, token, what, self.declaration.input_bytes_max),
            accepted_time=now_ms,
            due_time=now_ms + self.declaration.grace_ms,
        )

    # --- business reads and writes --------------------------------------------------------------------

    def get(self, object_id: str) -> BusinessObject | None:
        """The object as the last acknowledged write left it."""
        document = self._store.get(self._place, check_id(object_id, self.declaration.key))
        return None if document is None else self._object(document)

    def by_client(self, client_id: str) -> BusinessObject | None:
        """The object that was accepted under a client's idempotency id."""
        found = None if self.declaration.client_id is None else self._by_client(client_id)
        return None if found is None else self._object(found)

    def update(
        self,
        object_id: str,
        fencing_token: str,
        changes: Mapping[str, Any],
        *,
        when_status: Status | Sequence[Status] | None = None,
    ) -> bool:
        """A business write of round `fencing_token`, by an activity or a finalizer: one conditional update
        (fen-cas, fen-finalizer). False: not that round any more, or not one of `when_status`; nothing was changed.

        `changes` are paths `field` or `field.part` of the user's; None makes a field absent. It may be repeated.
        Raises InvalidObject before any write, and OutcomeUnknown when an answer was lost and the object does not tell
        whether it was written.
        """
        put, clear = self._changes(object_id, changes)
        wanted = None if when_status is None else _several(when_status)
        field, round_ = self.declaration.status, check_id(fencing_token, ROUND_FIELD)

        def write(standing: tuple[Status, ...] | None, absent: Sequence[str] = ()) -> Transition:
            return transitions.update_object(
                self._place,
                object_id,
                round_,
                put,
                clear,
                status_field=field,
                when_status=standing,
                when_absent=absent,
            )

        def landed(row: Document) -> bool:
            values = [lookup(row, parse(name)) == value for name, value in put.items()]
            return (
                round_of_row(row) == fencing_token
                and all(values)
                and all(lookup(row, parse(name)) is ABSENT for name in clear)
            )

        def again(row: Document) -> Transition | None:
            # Another attempt of the same round may have written since, and must not be written over: a second copy goes
            # out only where the row shows that no first one has landed, and hits only while it does.
            seen = status_of(row, field)
            if round_of_row(row) != fencing_token or (wanted is not None and seen not in wanted):
                return None
            moves = wanted is not None and seen is not None and put.get(field, seen) != seen
            absent = [name for name in put if lookup(row, parse(name)) is ABSENT]
            if not moves and not absent:
                raise OutcomeUnknown(f"{self.name} {object_id!r}: an answer was lost, and the object does not tell")
            return write((seen,) if moves and seen is not None else wanted, absent)

        return self._settled(write(wanted), landed, again) is not None

    def begin(self, object_id: str, fencing_token: str) -> bool:
        """initial → processing; also True when this round is processing already."""
        live = (self.declaration.initial, self.declaration.processing)
        return self.update(
            object_id, fencing_token, {self.declaration.status: self.declaration.processing}, when_status=live
        )

    def complete(self, object_id: str, fencing_token: str, changes: Mapping[str, Any] | None = None) -> bool:
        """The round's result and the status `completed`, in one write."""
        return self._end(object_id, fencing_token, self.declaration.completed, changes)

    def fail(self, object_id: str, fencing_token: str, changes: Mapping[str, Any] | None = None) -> bool:
        """The status `failed`, with the round kept (fen-fail-keeps-round); False when the round is another's."""
        return self._end(object_id, fencing_token, self.declaration.failed, changes)

    def withdraw(self, object_id: str, fencing_token: str, reason: str) -> bool:
        """The status `closed`: nothing is started for this object any more. An open intent is refused in the same
        write, also under a dispatcher's lease: its holder then neither confirms nor releases it."""

        def withdrawal(**standing: Any) -> Transition:
            return transitions.withdraw_dispatch(self._place, object_id, fencing_token, visible(reason), **standing)

        return self._refused(
            object_id, fencing_token, lambda row: is_open(row, fencing_token), withdrawal
        ) or self._end(object_id, fencing_token, self.declaration.closed, None)

    def _end(self, object_id: str, fencing_token: str, status: Status, changes: Mapping[str, Any] | None) -> bool:
        live = (self.declaration.initial, self.declaration.processing, status)
        return self.update(
            object_id, fencing_token, {**(changes or {}), self.declaration.status: status}, when_status=live
        )

    def _changes(self, object_id: str, changes: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        where = f"{self.name} {check_id(object_id, self.declaration.key)!r}"
        if not changes:
            raise InvalidObject(f"{where}: an update needs a field to change")
        permanent = {self.declaration.key, self.declaration.client_id, INTENT_FIELD}
        for field in changes:
            if checked_path(field, where).partition(".")[0] in permanent:
                raise InvalidObject(f"{where}: {field!r} is permanent, or the kernel's to write")
        return plain_fields(changes, where), [field for field, value in changes.items() if value is None]

    def page(
        self,
        where: Mapping[str, str | int] | None = None,
        *,
        after: str | None = None,
        limit: int = 100,
        columns: Sequence[str] = (),
    ) -> list[dict[str, Any]]:
        """A page of objects in the order of their ids, from `after` on: their key and the declared `columns`.

        `where` compares the columns of one declared index. Ids do not change, so a page is a safe cursor for a
        fan-out. Raises InvalidObject for what no index serves.
        """
        wanted = dict(where or {})
        declared = self.declaration
        if wanted and set(wanted) not in [set(index) for index in declared.indexes]:
            raise InvalidObject(f"{self.name}: no declared index has the columns {', '.join(sorted(wanted))}")
        if not 1 <= limit <= PAGE_MAX:
            raise InvalidObject(f"{self.name}: a page has 1–{PAGE_MAX} objects, not {limit}")
        asked = (declared.key, *(column for column in columns if column != declared.key))
        for column in asked:
            if column not in declared.table.columns:
                raise InvalidObject(f"{self.name}: {column!r} is no declared column")
        rows = self._store.scan(
            Query(
                table=self._place,
                guards=tuple(Equals(column, value) for column, value in wanted.items()),
                order=declared.key,
                columns=asked,
                limit=limit,
                after=None if after is None else (after, after),
            )
        )
        return [dict(zip(asked, row, strict=True)) for row in rows]

    def _object(self, document: Document) -> BusinessObject:
        object_id = document.get(self.declaration.key)
        if not isinstance(object_id, str):
            raise InvalidObject(f"{self.name}: {self.declaration.key} is a {type(object_id).__name__}, not text")
        return BusinessObject(
            object_id=object_id,
            status=status_of(document, self.declaration.status),
            fields={name: value for name, value in document.items() if name != INTENT_FIELD},
            intent=self._intent_of(document, object_id),
        )

    def _by_client(self, client_id: str) -> Document | None:
        assert self.declaration.client_id is not None
        return self._store.find(
            self._place, self.declaration.client_id, check_id(client_id, self.declaration.client_id)
        )


def _several(statuses: Status | Sequence[Status]) -> tuple[Status, ...]:
    return (statuses,) if isinstance(statuses, str | int) else tuple(statuses)
