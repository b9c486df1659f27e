"""Values that are written into a user's documents: the same on every store, and checked before any write.

Text, bytes, numbers of 64 bits, booleans, points in time, lists and maps. A field of the name `…_time` is a point in
time as whole milliseconds, as everywhere in the kernel; under any other name a time is a `datetime` with a zone, to
the millisecond, because that is what MongoDB keeps of one. A field without a value is absent, never null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kernel.errors import InvalidObject, InvalidTransition
from kernel.store.conditional import parse

TIMES = range(-62_135_596_800_000, 253_402_300_800_000)
"""Milliseconds since the epoch from the year 1 to the year 9999: what every store keeps and gives back as it was."""
_INTEGERS = range(-(2**63), 2**63)
_DEPTH_MAX = 32


def plain(name: str, value: Any, where: str, depth: int = 0) -> Any:
    """A copy of `value` as it is stored at `name`. Raises InvalidObject in one line that names the place."""
    if depth > _DEPTH_MAX:
        raise InvalidObject(f"{where}: is nested more than {_DEPTH_MAX} deep")
    match value:
        case datetime():
            return _time(name, value, where)
        case bool() | bytes():
            return value
        case str():
            return _text(value, where)
        case int():
            if value not in _INTEGERS:
                raise InvalidObject(f"{where}: {value} is beyond 64 bits")
            if name.endswith("_time") and value not in TIMES:
                raise InvalidObject(f"{where}: {value} ms is no time between the years 1 and 9999")
            return value
        case float():
            if math.isnan(value):
                raise InvalidObject(f"{where}: is not a number")
            return value
        case list() | tuple():
            return [plain("", item, f"{where}[{at}]", depth + 1) for at, item in enumerate(value)]
        case Mapping():
            return _map(value, where, depth)
    raise InvalidObject(f"{where}: a {type(value).__name__} can not be stored; give text, numbers, lists or maps")


def plain_fields(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a document that have a value. Raises InvalidObject, also for a name that could not be a path."""
    copied: dict[str, Any] = {}
    for name, value in fields.items():
        checked_path(name, where)
        if value is not None:
            copied[name] = plain(name.rpartition(".")[2], value, f"{where}: {name}")
    return copied


def checked_path(name: object, where: str) -> str:
    """`name` if it may be the path of a user's field: `field` or `field.part`. Raises InvalidObject."""
    try:
        if isinstance(name, str) and not any(isinstance(part, int) for part in parse(name)):
            return name
    except InvalidTransition:
        pass
    shown = ascii(name)[:60]
    raise InvalidObject(f"{where}: {shown} is no field: a letter a–z, then letters, digits and _; one dot at most")


def _map(value: Mapping[Any, Any], where: str, depth: int) -> dict[str, Any]:
    copied: dict[str, Any] = {}
    for name, item in value.items():
        if not isinstance(name, str) or not name or "\0" in name or name.startswith("$") or "." in name:
            raise InvalidObject(f"{where}: {ascii(name)[:60]} can not name a field of a map")
        _text(name, where)
        if item is not None:
            copied[name] = plain(name, item, f"{where}.{name}", depth + 1)
    return copied


def _text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidObject(f"{where}: is no valid Unicode text") from None
    return value


def _time(name: str, value: datetime, where: str) -> int | datetime:
    if value.tzinfo is None:
        raise InvalidObject(f"{where}: a time needs its zone")
    exact = value.astimezone(UTC)
    if name.endswith("_time"):
        return math.floor(exact.timestamp() * 1000)
    return exact.replace(microsecond=exact.microsecond // 1000 * 1000)
