"""What stands around a workflow and is in no snapshot: its signals, its business object, who holds the place it wants.

Signals come from the inbox, objects from the application's sources, holders from Redis. Each may be out of reach and
then says so in a line; the rest is shown (ops-find, ops-chain). Nothing here reads workflow_instances or writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from kernel.coordination.permits import Permits
from kernel.dispatch import DispatchSource, Intent
from kernel.errors import CoordinationUnavailable, KernelError
from kernel.ids import ID_CHARACTERS_MAX
from kernel.observe.views import Snapshot
from kernel.permit_words import WORKFLOW, PermitStats
from kernel.signals import to_signal_record
from kernel.store.conditional import Equals, Exists
from kernel.store.protocol import Query, Store
from kernel.store.tables import SIGNALS

SIGNALS_SHOWN = 20
HOLDERS_SHOWN = 5
_KEYS_TRIED = 8
T = TypeVar("T")


class SignalRow(msgspec.Struct, frozen=True, kw_only=True):
    """A signal for this workflow. `status`: `pending`; `matched` for the last one that woke a step; `forgotten` for
    one whose row has been removed since (signal_matched_keep_s)."""

    signal_id: str
    status: str
    signal_type: str | None = None
    wait_key: str | None = None
    generation: int | None = None
    created_time: int | None = None
    match_time: int | None = None
    step: str | None = None


class ObjectRow(msgspec.Struct, frozen=True, kw_only=True):
    """The business object whose intent names this workflow's biz_key, and how that intent stands."""

    source: str
    object_id: str
    fencing_token: str
    status: str
    tries: int
    accepted_time: int
    error: str | None = None


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """The notes say why something is missing; None where nothing is."""

    signals: tuple[SignalRow, ...] = ()
    more_signals: bool = False
    signals_note: str | None = None
    object: ObjectRow | None = None
    object_note: str | None = None
    permit: PermitStats | None = None
    permit_note: str | None = None
    is_redis_away: bool = False
    """Of one that waits for a place: Redis did not answer."""


def look_around(
    snapshot: Snapshot,
    store: Store,
    sources: Callable[[], Sequence[DispatchSource]] | None,
    permits: Permits | None,
    app_of_tree: str | None = None,
) -> Surroundings:
    """Everything that can be had now. `sources` opens those of the application; None when no application is known;
    `app_of_tree` is then the one of the tree that runs here, whose code is not imported unasked."""
    signals, signals_note = _tried(lambda: _signals(snapshot, store))
    found = object_note = None
    if sources is None:
        object_note = "no application is known here: --app names it"
        if app_of_tree is not None:
            object_note = f"it is looked for with --app {app_of_tree}, the application of the tree"
    else:
        opened, object_note = _tried(sources)
        if opened is not None:
            found, object_note = _tried(lambda: _object(snapshot, opened))
        if found is None and object_note is None:
            object_note = f"none of the application's {len(opened or ())} sources has an object of this biz_key"
    permit, permit_note, is_away = _permit(snapshot, permits)
    rows = signals or []
    return Surroundings(
        signals=tuple(rows[:SIGNALS_SHOWN]),
        more_signals=len(rows) > SIGNALS_SHOWN,
        signals_note=signals_note,
        object=found,
        object_note=object_note,
        permit=permit,
        permit_note=permit_note,
        is_redis_away=is_away,
    )


def _tried(read: Callable[[], T]) -> tuple[T | None, str | None]:
    """What `read` gives, or why it does not: a source may be an application's own code, and raise anything."""
    try:
        return read(), None
    except KernelError as error:
        return None, f"{error} [{error.code}]"
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _signals(snapshot: Snapshot, store: Store) -> list[SignalRow]:
    """The pending ones, and for each step the one that woke it last; one more than is shown, to tell that there are."""
    query = Query(
        table=SIGNALS,
        guards=(Equals("workflow_id", snapshot.workflow_id), Exists("pending_time")),
        order="workflow_id",
        columns=("signal_id", "signal_type", "wait_key", "generation", "pending_time"),
        limit=SIGNALS_SHOWN + 1,
    )
    rows = [
        SignalRow(
            signal_id=signal_id,
            status="pending",
            signal_type=signal_type,
            wait_key=wait_key,
            generation=generation,
            created_time=pending_time,
        )
        for signal_id, signal_type, wait_key, generation, pending_time in store.scan(query)
    ]
    return [*_matched(snapshot, store), *rows]


def _matched(snapshot: Snapshot, store: Store) -> Iterator[SignalRow]:
    for step in snapshot.steps:
        if step.last_signal_id is None:
            continue
        document = store.get(SIGNALS, step.last_signal_id)
        if document is None:
            yield SignalRow(signal_id=step.last_signal_id, status="forgotten", step=step.name)
            continue
        record = to_signal_record(document)
        yield SignalRow(
            signal_id=record.signal_id,
            status=record.status,
            signal_type=record.signal_type,
            wait_key=record.wait_key,
            generation=record.generation,
            created_time=record.created_time,
            match_time=record.match_time,
            step=step.name,
        )


def _object(snapshot: Snapshot, sources: Sequence[DispatchSource]) -> ObjectRow | None:
    """A source is asked by key and can not be searched: a biz_key ends with the id of its object, behind some colon,
    wherever `Requests` made it; what an intent itself says decides."""
    for source in sources:
        for object_id in _object_ids(snapshot.biz_key):
            intent = source.read(object_id)
            if intent is not None and intent.biz_key == snapshot.biz_key:
                return _object_row(source.name, object_id, intent)
    return None


def _object_ids(biz_key: str) -> Iterator[str]:
    """The whole key, then what follows each colon: a bounded number of tries."""
    rest = biz_key
    for _ in range(_KEYS_TRIED):
        if rest and len(rest) <= ID_CHARACTERS_MAX and not rest.isspace():
            yield rest
        _, colon, rest = rest.partition(":")
        if not colon:
            return


def _object_row(source: str, object_id: str, intent: Intent) -> ObjectRow:
    return ObjectRow(
        source=source,
        object_id=object_id,
        fencing_token=intent.fencing_token,
        status=intent.status,
        tries=intent.tries,
        accepted_time=intent.accepted_time,
        error=intent.error,
    )


def _permit(snapshot: Snapshot, permits: Permits | None) -> tuple[PermitStats | None, str | None, bool]:
    """The line that it stands in, if it waits for a place; or why that is not known, and whether Redis is away."""
    resource = snapshot.waiting_on
    if snapshot.waiting != "permit" or resource is None:
        return None, None, False
    if permits is None:
        return None, "no Redis is known here", False
    asked, away = permits, False

    def line() -> PermitStats:
        nonlocal away
        try:
            return _line(snapshot, resource, asked)
        except CoordinationUnavailable:
            away = True
            raise

    return *_tried(line), away


def _line(snapshot: Snapshot, resource: str, permits: Permits) -> PermitStats:
    """A snapshot does not tell whether a step stands in line or the workflow as a whole: who is not there as the one is
    looked for as the other."""
    found = None
    for step in (snapshot.current_step or WORKFLOW, WORKFLOW):
        pair = (snapshot.workflow_id, step)
        found = permits.stats(resource, pair=pair, holders_max=HOLDERS_SHOWN)
        if found.place is not None or found.handed:
            break
    assert found is not None, "asked at least once"
    return found
