"""Encoding of inputs, outputs and checkpoints: msgpack by msgspec, one version byte in front (dc-msgspec).

Layout: byte 0x01, then msgpack. An unknown first byte is refused (UnknownVersion); undecodable bytes or a value
of another shape are a CheckpointError that names the field path, never a crash of the worker (dc-msgspec-types).
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from kernel.errors import BadReturn, CheckpointError, TooLarge, UnknownVersion

CODEC_VERSION = 1
_PREFIX = bytes((CODEC_VERSION,))
T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


def encode(value: object, what: str, bytes_max: int) -> bytes:
    """Encode `value`; `what` names it in errors. Raises BadReturn (not encodable) or TooLarge, before any write."""
    try:
        data = _PREFIX + _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise BadReturn(f"{what}: {type(value).__name__} can not be encoded: {_line(error)}") from None
    if len(data) > bytes_max:
        raise TooLarge(
            f"{what}: {len(data)} bytes encoded, at most {bytes_max} are allowed; keep large content elsewhere"
        )
    return data


def decode(data: bytes, type_: type[T] | Any, what: str) -> T:
    """Decode what `encode` made as `type_`. Raises UnknownVersion or CheckpointError with the field path."""
    if not data or data[0] != CODEC_VERSION:
        found = f"0x{data[0]:02x}" if data else "nothing"
        raise UnknownVersion(f"{what}: encoding version {found}, this kernel knows 0x{CODEC_VERSION:02x}")
    try:
        value: T = msgspec.msgpack.decode(memoryview(data)[1:], type=type_)
    except (msgspec.MsgspecError, RecursionError, MemoryError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{what}: {_line(error)}") from None
    return value


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"
