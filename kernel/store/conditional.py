"""The write vocabulary: a durable change is a value, (table, key, guards, changes), in a small closed language.

Three interpreters run the same values and give the same answers: `memory` (the reference), `sqlite` and
`mongo`. The meaning of each word is fixed here and follows what MongoDB can do in one conditional update:

- a guard on an absent field fails, except `Missing` and `Differs`;
- `AtMost` and `AtLeast` compare numbers with numbers only; `Due` means present, a time, and ≤ the store's now
  (DECISIONS detail 10): an absent or malformed time is never due;
- `PutNow` and `PutNowPlus` are evaluated by the store on its own clock (ARCHITECTURE §4). `PutNowPlus` never
  stands together with a change inside `steps`, because MongoDB needs a pipeline for it, and in a pipeline a number
  in a path is a field name. In a map it needs a guard that proves the map: a pipeline would put one in the place of
  anything else;
- two changes never touch the same field or one inside the other.

A path is `field`, `field.part`, `steps.<i>`, `steps.<i>.<field>` or `steps.<i>.<field>.<part>`. Names come from
the code or are checked names (kernel.ids); user data is never a path. `resultText` is a name too: users name the
fields of their own documents as they like.
"""

from __future__ import annotations

import re
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from kernel.errors import InvalidTransition
from kernel.records import Document
from kernel.states import INSTANCE_STATUSES, STEP_STATUSES
from kernel.store.tables import INSTANCES

Path: TypeAlias = tuple[str | int, ...]

_NAME = r"[a-z][A-Za-z0-9_]*"
_PATH = re.compile(rf"steps\.(0|[1-9][0-9]{{0,3}})(\.{_NAME}){{0,2}}|(?!steps\.){_NAME}(\.[a-z][A-Za-z0-9_]{{0,63}})?")


_field_of = attrgetter("field")
_WHOLE_STEP = re.compile(r"steps\.[0-9]+")


class _Word(msgspec.Struct, frozen=True):
    field: str


class Equals(_Word, frozen=True):
    """The field is present and equals `value`."""

    value: Any


class Differs(_Word, frozen=True):
    """The field is absent or does not equal `value`."""

    value: Any


class OneOf(_Word, frozen=True):
    """The field is present and equals one of `values`."""

    values: tuple[Any, ...]


class AtMost(_Word, frozen=True):
    """The field is a number ≤ `value`."""

    value: int


class AtLeast(_Word, frozen=True):
    """The field is a number ≥ `value`."""

    value: int


class Exists(_Word, frozen=True):
    """The field is present."""


class Missing(_Word, frozen=True):
    """The field is absent."""


class Due(_Word, frozen=True):
    """The field is a time that the store's clock has reached."""


class Put(_Word, frozen=True):
    """Set the field."""

    value: Any


class Clear(_Word, frozen=True):
    """Make the field absent."""


class Add(_Word, frozen=True):
    """Add `value` to a number; an absent field counts as 0."""

    value: int


class RaiseTo(_Word, frozen=True):
    """The larger of the field and `value`; an absent field becomes `value`."""

    value: int


class LowerTo(_Word, frozen=True):
    """The smaller of the field and `value`; an absent field becomes `value`."""

    value: int


class PutNow(_Word, frozen=True):
    """Set the field to the store's now."""


class PutNowPlus(_Word, frozen=True):
    """Set a field, or a field of a map that a guard proves, to the store's now plus `ms` milliseconds."""

    ms: int


class Append(_Word, frozen=True):
    """Append to a list that keeps its last `keep` items; an absent field counts as an empty list."""

    value: Any
    keep: int

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise InvalidTransition(f"{self.field}: a bounded list keeps at least one item, not {self.keep}")


Guard: TypeAlias = Equals | Differs | OneOf | AtMost | AtLeast | Exists | Missing | Due
Change: TypeAlias = Put | Clear | Add | RaiseTo | LowerTo | PutNow | PutNowPlus | Append

GUARDS = (Equals, Differs, OneOf, AtMost, AtLeast, Exists, Missing, Due)
CHANGES = (Put, Clear, Add, RaiseTo, LowerTo, PutNow, PutNowPlus, Append)


class Transition(msgspec.Struct, frozen=True):
    """One conditional write on one row. `commit_id` is set when the row keeps it, so that a writer that lost the answer
    can see whether its own write landed (DECISIONS detail 3). A row that bears it already is missed: of a write that
    was sent again while the first copy was still under way, one applies, whatever has happened in between."""

    name: str
    table: str
    key: str
    guards: tuple[Guard, ...]
    changes: tuple[Change, ...]
    commit_id: str | None = None

    def __post_init__(self) -> None:
        check(self)


class Insert(msgspec.Struct, frozen=True):
    """A new row. A row with the same key or the same unique field makes it a `Duplicate`, a normal answer."""

    name: str
    table: str
    key: str
    document: Document

    def __post_init__(self) -> None:
        if self.table == INSTANCES and "status" in self.document:
            _check_status("status", self.document["status"])


class Remove(msgspec.Struct, frozen=True):
    """The end of one row, if its guards hold. A repeat misses, so a lost answer needs no mark: send it again."""

    name: str
    table: str
    key: str
    guards: tuple[Guard, ...]

    def __post_init__(self) -> None:
        _check_guards(_shape(self.guards))
        if self.table == INSTANCES:
            raise InvalidTransition("an instance is never removed: one biz_key is one instance for ever (id-biz-key)")


class Applied(msgspec.Struct, frozen=True):
    """The transition hit; `document` is the row after it."""

    document: Document


class Missed(msgspec.Struct, frozen=True):
    """The guards did not hold, or there is no such row. Nothing was changed."""


class Inserted(msgspec.Struct, frozen=True):
    """The row is new; `document` is what was stored."""

    document: Document


class Removed(msgspec.Struct, frozen=True):
    """The row was there, its guards held, and it is gone."""


class Duplicate(msgspec.Struct, frozen=True):
    """Another row has the same key or unique field; nothing was changed (sor-unique-race)."""

    field: str


MISSED = Missed()
REMOVED = Removed()

Answer: TypeAlias = Applied | Missed
RemoveAnswer: TypeAlias = Removed | Missed
InsertAnswer: TypeAlias = Inserted | Duplicate


@lru_cache(maxsize=4096)
def parse(field: str) -> Path:
    """The parts of a path, array positions as numbers. Raises InvalidTransition for anything else."""
    if _PATH.fullmatch(field) is None:
        raise InvalidTransition(f"path {field!r} is not in the vocabulary")
    parts = field.split(".")
    if parts[0] == "steps" and len(parts) > 1:
        return ("steps", int(parts[1]), *parts[2:])
    return tuple(parts)


def check(transition: Transition) -> None:
    """Refuse what one of the interpreters could not run exactly. Each shape of transition is checked once."""
    guards, changes = transition.guards, transition.changes
    statuses = _checked(
        (transition.table == INSTANCES, transition.commit_id is not None),
        _shape(guards),
        tuple(map(type, changes)),
        tuple(map(_field_of, changes)),
    )
    for position in statuses:
        change = changes[position]
        assert isinstance(change, Put)
        _check_status(change.field, change.value)


_Shape: TypeAlias = tuple[tuple[type, str, type], ...]


def _shape(guards: tuple[Guard, ...]) -> _Shape:
    return tuple([(type(g), g.field, type(getattr(g, "value", ""))) for g in guards])


@lru_cache(maxsize=4096)
def _checked(
    of: tuple[bool, bool], guards: _Shape, kinds: tuple[type, ...], fields: tuple[str, ...]
) -> tuple[int, ...]:
    """The positions of the changes whose values are to be checked each time: they write a status. `of`: whether it is
    an instance's, and whether it leaves a mark."""
    of_instance, marked = of
    changes = tuple(zip(kinds, fields, strict=True))
    _check_guards(guards)
    _check_changes(changes, marked)
    _check_maps(guards, changes)
    if not of_instance:
        return ()
    return tuple(n for n, (kind, field) in enumerate(changes) if kind is Put and field.endswith("status"))


def _check_maps(guards: _Shape, changes: tuple[tuple[type, str], ...]) -> None:
    """A lease inside a map: some guard says that the map has a field, so it is one."""
    proved = [parse(field) for kind, field, _ in guards if kind not in (Differs, Missing)]
    for kind, field in changes:
        path = parse(field)
        if kind is not PutNowPlus or len(path) < 2:
            continue
        if not any(len(found) == 2 and found[0] == path[0] for found in proved):
            raise InvalidTransition(f"{field}: now + n in a map needs a guard on a field of that map")


def _check_status(field: str, value: object) -> None:
    """Statuses are a closed set, whoever writes (rec-status-set)."""
    known: tuple[str, ...] = STEP_STATUSES if field.startswith("steps.") else INSTANCE_STATUSES
    if value not in known:
        raise InvalidTransition(f"{field}: {value!r} is no status; there are {', '.join(known)}")


@lru_cache(maxsize=4096)
def _check_guards(shape: _Shape) -> None:
    for kind, field, value in shape:
        if kind not in GUARDS:
            raise InvalidTransition(f"{kind.__name__} is no guard")
        if value in (type(None), list, tuple, dict):
            # MongoDB would match absent fields, or look into lists.
            raise InvalidTransition(f"{field}: a guard compares with one plain value, not with a {value.__name__}")
        if kind in (AtMost, AtLeast) and value not in (int, float):
            raise InvalidTransition(f"{field}: {kind.__name__} compares numbers, not a {value.__name__}")
        parse(field)


def _check_changes(shape: tuple[tuple[type, str], ...], marked: bool) -> None:
    if not shape:
        raise InvalidTransition("a transition without a change")
    if marked and any(field.partition(".")[0] == "commit_ids" for _, field in shape):
        raise InvalidTransition("commit_ids is written by the store: a transition with a commit_id leaves it alone")
    if any(kind is Clear and _WHOLE_STEP.fullmatch(field) for kind, field in shape):
        raise InvalidTransition("a step can be replaced and not cleared: the others would change their numbers")
    paths = []
    for kind, field in shape:
        if kind not in CHANGES:
            raise InvalidTransition(f"{kind.__name__} is no change")
        paths.append(parse(field))
    for a, path in enumerate(paths):
        for other in paths[a + 1 :]:
            shorter = min(len(path), len(other))
            if path[:shorter] == other[:shorter]:
                raise InvalidTransition(f"two changes touch {shape[a][1]!r} and {'.'.join(map(str, other))!r}")
    if any(kind is PutNowPlus for kind, _ in shape) and any(path[0] == "steps" for path in paths):
        raise InvalidTransition("now + n can not be combined with a change under steps: give an absolute time")
