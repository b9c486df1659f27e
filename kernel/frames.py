"""Frames of a client's stream, and the compact records that Redis keeps of them (sse-header).

A record is one byte, `version << 4 | type`, and a payload:

    0x11  text       the text in UTF-8, nothing else: the fixed fields are defaults
    0x12  frame      the whole frame as JSON
    0x13  control    msgpack [msg_type, data]
    0x14  error      msgpack [code, data]
    0x15  terminal   msgpack [status, workflow_run, revision, code, message]

Readers see none of this: a decoded frame is the same JSON whichever record held it (sse-internal-only). A record may be
read by another process and another release than wrote it, so these bytes are frozen by tests (sse-cross-pod): what
changes gets a new version, and a version or type that is not known is refused, never guessed (sse-unknown-version).
"""

from __future__ import annotations

from typing import Any

import msgspec

from kernel.errors import BadReturn, CorruptRecord, UnknownRecordType, UnsupportedCompactVersion

COMPACT_VERSION = 1
TEXT, FRAME, CONTROL, ERROR, TERMINAL = 1, 2, 3, 4, 5
TERMINAL_TYPE = "terminal"
MESSAGE_CHARACTERS_MAX = 500

_TYPES = (TEXT, FRAME, CONTROL, ERROR, TERMINAL)


class Frame(msgspec.Struct, frozen=True, omit_defaults=False):
    """What a client gets for each step of the way, as JSON with these four fields. The defaults are those of a text."""

    code: int = 0
    retry: int = 0
    """Milliseconds after which trying again makes sense; 0: does not apply."""
    msg_type: str = "text"
    data: Any = ""


class Terminal(msgspec.Struct, frozen=True, array_like=True):
    """How a round ended: a compact summary that refers to the durable record and does not replace it."""

    status: str
    workflow_run: int = 0
    revision: int = 0
    code: str | None = None
    """The kernel's code of the error, when there was one."""
    message: str | None = None


class _Control(msgspec.Struct, frozen=True, array_like=True):
    msg_type: str
    data: Any = None


class _Error(msgspec.Struct, frozen=True, array_like=True):
    code: int
    data: Any = None


_pack = msgspec.msgpack.Encoder()
_frame_from_json = msgspec.json.Decoder(Frame)
_control_from = msgspec.msgpack.Decoder(_Control)
_error_from = msgspec.msgpack.Decoder(_Error)
_terminal_from = msgspec.msgpack.Decoder(Terminal)


def header(version: int, type_: int) -> int:
    """The first byte of a record: four bits of version, four of type."""
    return version << 4 | type_


def split_header(byte: int) -> tuple[int, int]:
    """(version, type) of a first byte."""
    return byte >> 4, byte & 0x0F


def encode_text(text: str) -> bytes:
    """A text record: one byte and the text (sse-text-payload). Lone surrogates, which UTF-8 has not, become `?`."""
    return bytes((header(COMPACT_VERSION, TEXT),)) + text.encode("utf-8", "replace")


def encode(frame: Frame, *, compact: bool = True) -> bytes:
    """The shortest record that holds `frame`. Without `compact` always the JSON record: the reader sees no difference.

    Raises BadReturn for data that is no JSON.
    """
    if compact and frame == Frame(data=frame.data) and isinstance(frame.data, str):
        return encode_text(frame.data)
    try:
        # Also for msgpack records: what can not be shown as JSON is refused by the writer, not found by a reader.
        text = msgspec.json.encode(frame)
        if compact and frame.msg_type == "error" and not frame.retry and frame.code:
            return _record(ERROR, _Error(frame.code, frame.data))
        if compact and not frame.code and not frame.retry and frame.msg_type not in ("text", "error", TERMINAL_TYPE):
            return _record(CONTROL, _Control(frame.msg_type, frame.data))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise BadReturn(f"frame: data of type {type(frame.data).__name__} is no JSON: {error}") from None
    return bytes((header(COMPACT_VERSION, FRAME),)) + text


def encode_terminal(terminal: Terminal) -> bytes:
    """The terminal record (sse-terminal-payload). A long message is cut: it is in the durable record in full."""
    if terminal.message is not None and len(terminal.message) > MESSAGE_CHARACTERS_MAX:
        cut = terminal.message[: MESSAGE_CHARACTERS_MAX - 1] + "…"
        terminal = msgspec.structs.replace(terminal, message=cut)
    return _record(TERMINAL, terminal)


def decode(record: bytes) -> Frame | Terminal:
    """What a record holds. Raises UnsupportedCompactVersion, UnknownRecordType, or CorruptRecord for anything else that
    no kernel wrote: an empty record, cut bytes, a length that its bytes do not have."""
    if not record:
        raise CorruptRecord("stream record: empty")
    version, type_ = split_header(record[0])
    if version != COMPACT_VERSION:
        raise UnsupportedCompactVersion(f"stream record: version {version}, this kernel knows {COMPACT_VERSION}")
    if type_ not in _TYPES:
        raise UnknownRecordType(f"stream record: type {type_} of version {version}, this kernel knows 1 to {TERMINAL}")
    payload = memoryview(record)[1:]
    try:
        return _decoded(type_, payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        raise CorruptRecord(f"stream record of type {type_}: {line}") from None


def shown(frame: Frame | Terminal) -> bytes:
    """The JSON that a client gets, always with code, retry, msg_type and data in this order."""
    if isinstance(frame, Terminal):
        frame = terminal_frame(frame)
    return msgspec.json.encode(frame)


def terminal_frame(terminal: Terminal, result: Any = None) -> Frame:
    """The last frame: how it ended, and the result where there is one. Its code is 0 only for a completed round."""
    data: dict[str, Any] = {"status": terminal.status, "workflow_run": terminal.workflow_run}
    if terminal.code is not None:
        data["error"] = {"code": terminal.code, "message": terminal.message or ""}
    if result is not None:
        data["result"] = result
    return Frame(code=0 if terminal.status == "completed" else 1, msg_type=TERMINAL_TYPE, data=data)


def _decoded(type_: int, payload: memoryview) -> Frame | Terminal:
    if type_ == TEXT:
        return Frame(data=str(payload, "utf-8"))
    if type_ == FRAME:
        return _frame_from_json.decode(payload)
    if type_ == CONTROL:
        control = _control_from.decode(payload)
        return Frame(msg_type=control.msg_type, data=control.data)
    if type_ == ERROR:
        error = _error_from.decode(payload)
        return Frame(code=error.code, msg_type="error", data=error.data)
    return _terminal_from.decode(payload)


def _record(type_: int, value: object) -> bytes:
    return bytes((header(COMPACT_VERSION, type_),)) + _pack.encode(value)
