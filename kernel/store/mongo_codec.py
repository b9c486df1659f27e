"""Rows in MongoDB: times are dates there and whole milliseconds here; everything else is the same on both sides.

Whether a number is a time is told by the last part of its name (`…_time`, kernel.records), wherever it stands:
at the top, in a step, in a sub-document that is stored as one value. On the way back the type tells: the driver
hands every date to `_Time`, so that no reader has to know where the dates are. `DatetimeMS` instead of
`datetime`: no time zone, no rounding, and no year that can not be read.

A user's documents (kernel.store.tables, `foreign`) have dates of their own under any name. There the name tells on
the way back too: a date at `…_time` becomes milliseconds, any other stays one, so that a caller who writes back what
it has read leaves a date behind and no number.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion, TypeDecoder, TypeRegistry
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError
from bson.int64 import Int64

from kernel.errors import InvalidId, InvalidTransition, TooLarge
from kernel.records import Document

DOCUMENT_BYTES_MAX = 16 * 1024 * 1024
"""The server's own limit on a row. The kernel's limits (DECISIONS 26) lie far below."""

TIME_SUFFIX = "_time"


class _Time(TypeDecoder):
    """A date becomes whole milliseconds since the epoch."""

    bson_type = DatetimeMS

    def transform_bson(self, value: Any) -> int:
        return int(value)


class _Long(TypeDecoder):
    """A 64-bit number becomes a plain one: its width is the server's affair."""

    bson_type = Int64

    def transform_bson(self, value: Any) -> int:
        return int(value)


CODEC: CodecOptions[Document] = CodecOptions(
    tz_aware=True,
    tzinfo=UTC,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    type_registry=TypeRegistry([_Time(), _Long()]),
)
FOREIGN_CODEC: CodecOptions[Document] = CodecOptions(
    tz_aware=True,
    tzinfo=UTC,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    type_registry=TypeRegistry([_Long()]),
)


def is_time(field: str) -> bool:
    """Whether a whole number at `field` is a point in time (milliseconds since the epoch)."""
    return field.endswith(TIME_SUFFIX)


def stored(field: str, value: Any) -> Any:
    """`value` as it is stored at `field`; containers are copied, so that the driver may add to them."""
    if isinstance(value, dict):
        return {name: stored(name, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [stored("", item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and is_time(field):
        try:
            return DatetimeMS(value)
        except OverflowError:
            raise InvalidTransition(f"{field}: {value} is no time that can be stored") from None
    return value


def named_times(row: Document) -> Document:
    """A user's document with the dates at `…_time` as milliseconds. Changes `row` in place."""
    for name, value in row.items():
        if isinstance(value, DatetimeMS) and is_time(name):
            row[name] = int(value)
        elif isinstance(value, datetime) and is_time(name):
            row[name] = int(DatetimeMS(value))
        elif isinstance(value, dict):
            named_times(value)
        elif isinstance(value, list):
            _in_list(value)
    return row


def _in_list(items: list[Any]) -> None:
    for item in items:
        if isinstance(item, dict):
            named_times(item)
        elif isinstance(item, list):
            _in_list(item)


def encoded(what: str, row: Document) -> bytes:
    """A row as BSON. Raises TooLarge, or InvalidTransition for a value that BSON can not hold."""
    try:
        data = bson.encode(row, codec_options=CODEC)
    except (BSONError, OverflowError, UnicodeError, TypeError, RecursionError) as error:
        raise unstorable(what, error) from None
    if len(data) > DOCUMENT_BYTES_MAX:
        raise TooLarge(f"{what}: the row has {len(data)} bytes, MongoDB takes at most {DOCUMENT_BYTES_MAX}")
    return data


def decoded(data: bytes, *, foreign: bool = False) -> Document:
    """What a reader will see of an encoded row."""
    return named_times(bson.decode(data, codec_options=FOREIGN_CODEC)) if foreign else bson.decode(data, CODEC)


def unstorable(what: str, error: Exception) -> InvalidTransition:
    """The refusal of a value that BSON can not hold; the value itself may be private and is not shown."""
    return InvalidTransition(f"{what}: holds a value that MongoDB can not store ({type(error).__name__})")


def text(field: str, value: object) -> str:
    """`value` if it is text: only then it can not be taken for a filter, whatever a caller was sent (A76)."""
    if not isinstance(value, str):
        raise InvalidId(f"{field}: expected text, got {type(value).__name__}")
    return value
