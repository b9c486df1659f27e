"""The dispatch source of declared business objects: the verbs of `kernel.dispatch.DispatchSource` on their documents.

Every write is one conditional update of one document and touches only the fields that it names. A miss is a value. A
lost answer is decided by one more read: each write leaves in the document what tells whether it landed; only if that
read fails too, `OutcomeUnknown` goes to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernel import transitions
from kernel.dispatch import (
    DISPATCHED,
    INTENT_FIELD,
    OPEN,
    PENDING,
    PROCESSING,
    REFUSED,
    ROUND_FIELD,
    DueIntent,
    Intent,
    to_intent,
)
from kernel.errors import CorruptRecord, InvalidIntent, OutcomeUnknown, StoreUnavailable
from kernel.fields import TIMES
from kernel.ids import check_id
from kernel.intents import snapshot
from kernel.objects import Objects, Status
from kernel.records import Document
from kernel.store.conditional import Applied, AtMost, Transition
from kernel.store.protocol import Query, Store
from kernel.transitions.dispatch import DUE

TIME_MAX = TIMES[-1]
"""The end of the year 9999. A scan bounded by it leaves out what is no time at all."""
RACES_MAX = 8


class ObjectSource:
    """What a dispatcher needs of the objects of one declaration. Safe for many threads of the process that opened the
    store; any call may raise StoreUnavailable or OutcomeUnknown."""

    def __init__(self, declaration: Objects, store: Store) -> None:
        self.declaration = declaration
        self._store = store
        self._place = declaration.place

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def key_field(self) -> str:
        return self.declaration.key

    def now_ms(self) -> int:
        return self._store.now_ms()

    def read(self, object_id: str) -> Intent | None:
        document = self._store.get(self._place, check_id(object_id, self.declaration.key))
        return None if document is None else self._intent_of(document, object_id)

    def due(self, *, after: tuple[int, str] | None, limit: int) -> Sequence[DueIntent]:
        key = self.declaration.key
        rows = self._store.scan(
            Query(
                table=self._place,
                guards=(AtMost(DUE, TIME_MAX),),
                order=DUE,
                columns=(key, DUE),
                limit=limit,
                after=after,
            )
        )
        return [DueIntent(object_id, due_time) for object_id, due_time in rows]

    def claim(self, object_id: str, seen: Intent, claim_token: str, lease_ms: int) -> Intent | None:
        kept = self.declaration.legacy_input is not None
        transition = transitions.claim_dispatch(self._place, object_id, seen, claim_token, lease_ms, keep_input=kept)
        document = self._settled(transition, lambda row: lease_of(row) == claim_token)
        return None if document is None else self._intent_of(document, object_id)

    def renew(self, object_id: str, fencing_token: str, claim_token: str, lease_ms: int) -> bool:
        # An unknown renewal counts as not renewed (DECISIONS detail 3): sent again, it only lengthens the lease.
        transition = transitions.renew_dispatch(self._place, object_id, fencing_token, claim_token, lease_ms)
        return self._settled(transition, lambda _row: False) is not None

    def confirm(self, object_id: str, fencing_token: str, claim_token: str | None) -> bool:
        transition = transitions.confirm_dispatch(self._place, object_id, fencing_token, claim_token)
        return self._settled(transition, lambda row: is_at(row, fencing_token, DISPATCHED)) is not None

    def release(self, object_id: str, fencing_token: str, claim_token: str, delay_ms: int, error: str) -> int | None:
        transition = transitions.release_dispatch(
            self._place, object_id, fencing_token, claim_token, delay_ms, visible(error)
        )
        document = self._settled(transition, lambda row: is_at(row, fencing_token, PENDING))
        due_time = None if document is None else document[INTENT_FIELD].get("due_time")
        return due_time if isinstance(due_time, int) else None

    def refuse(self, object_id: str, fencing_token: str, claim_token: str | None, reason: str) -> bool:
        def refusal(**standing: Any) -> Transition:
            return transitions.refuse_dispatch(
                self._place, object_id, fencing_token, claim_token, visible(reason), **standing
            )

        def standing(row: Document) -> bool:
            if claim_token is None:
                return is_at(row, fencing_token, PENDING)
            return is_at(row, fencing_token, PROCESSING) and lease_of(row) == claim_token

        return self._refused(object_id, fencing_token, standing, refusal)

    def _refused(
        self,
        object_id: str,
        fencing_token: str,
        standing: Callable[[Document], bool],
        refusal: Callable[..., Transition],
    ) -> bool:
        """Refuse an intent that is `standing`, and close its object if that is live; also True when it is refused
        already. `refusal` gets the business status as it was seen, and misses when that has changed meanwhile."""
        for _ in range(RACES_MAX):
            document = self._store.get(self._place, check_id(object_id, self.declaration.key))
            if document is None or not standing(document):
                return document is not None and is_at(document, fencing_token, REFUSED)
            seen = status_of(document, self.declaration.status)
            live = seen in (None, self.declaration.initial, self.declaration.processing)
            transition = refusal(
                status_field=self.declaration.status,
                seen_status=seen,
                closed=self.declaration.closed if live else None,
            )
            if self._settled(transition, lambda row: is_at(row, fencing_token, REFUSED)) is not None:
                return True
        return False

    def close(self) -> None:
        """Close the store that the objects are in; those of one file or database share it."""
        self._store.close()

    def _intent_of(self, document: Document, object_id: str) -> Intent | None:
        stored = document.get(INTENT_FIELD)
        if stored is None:
            return None
        if not isinstance(stored, dict):
            raise CorruptRecord(f"intent of {object_id!r}: a {type(stored).__name__}, no map")
        build = self.declaration.legacy_input
        if build is not None and "input" not in stored:
            token = str(stored.get(ROUND_FIELD))
            what = f"legacy input of {self.name} {object_id!r}"
            try:
                value = build({name: value for name, value in document.items() if name != INTENT_FIELD})
            except Exception as error:
                # The user's own code and one document: whoever reads many objects goes on with the next.
                raise InvalidIntent(f"{what}: {visible(f'{type(error).__name__}: {error}')}") from error
            stored = {**stored, "input": snapshot(value, token, what, self.declaration.input_bytes_max)}
        return to_intent(stored, object_id)

    def _reread(self, object_id: str) -> Document | None:
        """What a write whose answer was lost left behind. A store that does not tell leaves it unknown."""
        try:
            return self._store.get(self._place, object_id)
        except StoreUnavailable as error:
            raise OutcomeUnknown(f"{self.name} {object_id!r}: {error}") from None

    def _settled(
        self,
        transition: Transition,
        landed: Callable[[Document], bool],
        again: Callable[[Document], Transition | None] | None = None,
    ) -> Document | None:
        """The row after `transition`, or None when it missed. After a lost answer `landed` looks at the row, and what
        did not land is sent once more: "missed" would be wrong.

        The writes on an intent hit once at most, so a second copy does no harm. For any other, `again` says of the row
        that was read what may be sent; None when it would miss; it raises OutcomeUnknown when the row does not tell.
        """
        check_id(transition.key, self.declaration.key)
        try:
            answer = self._store.apply(transition)
        except OutcomeUnknown:
            row = self._reread(transition.key)
            if row is not None and landed(row):
                return row
            second = transition if again is None or row is None else again(row)
            if second is None:
                return None
            answer = self._store.apply(second)
            if not isinstance(answer, Applied):
                # The first copy may have landed after the reading, or somebody else has written.
                row = self._reread(transition.key)
                if row is None or landed(row):
                    return row
                if again is not None and again(row) is not None:
                    raise OutcomeUnknown(f"{self.name} {transition.key!r}: others write to it all the time") from None
                return None
        return answer.document if isinstance(answer, Applied) else None


def visible(text: str) -> str:
    """An error as it is kept: no character of it can steer a terminal or break the encoding of the store."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def status_of(document: Document, field: str) -> Status | None:
    value = document.get(field)
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def _embedded(document: Document) -> Mapping[str, Any]:
    found = document.get(INTENT_FIELD)
    return found if isinstance(found, dict) else {}


def round_of_row(document: Document) -> Any:
    return _embedded(document).get(ROUND_FIELD)


def lease_of(document: Document) -> Any:
    return _embedded(document).get("claim_token")


def is_open(document: Document, fencing_token: str) -> bool:
    return any(is_at(document, fencing_token, status) for status in OPEN)


def is_at(document: Document, fencing_token: str, status: str) -> bool:
    return round_of_row(document) == fencing_token and _embedded(document).get("status") == status
