"""kernel.frames: the bytes that Redis keeps, frozen, and what hostile records and data come to."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import msgspec
import pytest

from kernel.errors import BadReturn, CorruptRecord, Refused, UnknownRecordType, UnsupportedCompactVersion
from kernel.frames import (
    MESSAGE_CHARACTERS_MAX,
    Frame,
    Terminal,
    decode,
    encode,
    encode_terminal,
    encode_text,
    header,
    shown,
    split_header,
    terminal_frame,
)
from kernel.stream_events import StreamEvent, error_event, frame_event, heartbeat_event, reset_event, terminal_event
from kernel.stream_words import Position

GOLDEN: list[tuple[bytes, Frame | Terminal]] = [
    (b"\x11hello", Frame(data="hello")),
    (b"\x11", Frame(data="")),
    ("\x11é☃\U0001f600".encode(), Frame(data="é☃\U0001f600")),
    (
        b'\x12{"code":0,"retry":1500,"msg_type":"text","data":"later"}',
        Frame(retry=1500, data="later"),
    ),
    (b"\x13\x92\xa6status\xa9composing", Frame(msg_type="status", data="composing")),
    (b"\x13\x92\xa4page\x82\xa1n\x01\xa4rows\x92\xa1a\xa1b", Frame(msg_type="page", data={"n": 1, "rows": ["a", "b"]})),
    (b"\x14\x92\xcd\x01\xf7\xa4busy", Frame(code=503, msg_type="error", data="busy")),
    (b"\x15\x95\xa9completed\x02\x09\xc0\xc0", Terminal("completed", 2, 9)),
    (
        b"\x15\x95\xa6failed\x01\x07\xacstep_timeout\xa8too late",
        Terminal("failed", 1, 7, "step_timeout", "too late"),
    ),
]
"""Records as an earlier release wrote them: these bytes never change. A new form gets a new version or type."""


def made(frame: Frame | Terminal) -> bytes:
    return encode_terminal(frame) if isinstance(frame, Terminal) else encode(frame)


@pytest.mark.req("sse-header", "sse-version-1", "sse-cross-pod", "sse-other-types", "sse-terminal-payload")
@pytest.mark.parametrize(("record", "frame"), GOLDEN, ids=lambda value: repr(value)[:30])
def test_golden_bytes_are_written_and_read(record: bytes, frame: Frame | Terminal) -> None:
    assert made(frame) == record
    assert decode(record) == frame


@pytest.mark.req("sse-header")
def test_the_header_holds_version_and_type_in_four_bits_each() -> None:
    for byte in range(256):
        version, type_ = split_header(byte)
        assert (version, type_) == (byte >> 4, byte & 0x0F)
        assert header(version, type_) == byte


@pytest.mark.req("sse-unknown-version", "sse-other-types")
def test_what_is_not_known_is_refused_and_never_guessed() -> None:
    for byte in range(256):
        version, type_ = split_header(byte)
        if version != 1:
            with pytest.raises(UnsupportedCompactVersion, match=f"version {version}"):
                decode(bytes((byte,)) + b"hello")
        elif not 1 <= type_ <= 5:
            with pytest.raises(UnknownRecordType, match=f"type {type_}"):
                decode(bytes((byte,)) + b"hello")


@pytest.mark.req("sse-text-payload")
def test_a_text_record_is_one_byte_and_the_text_and_the_fixed_fields_come_back() -> None:
    for text in ("x", "ein Wort", "é☃", "\r\n\0", "<b>"):
        record = encode(Frame(data=text))
        assert len(record) == 1 + len(text.encode())
        assert json.loads(shown(decode(record))) == {"code": 0, "retry": 0, "msg_type": "text", "data": text}


@pytest.mark.req("sse-internal-only")
@pytest.mark.parametrize(
    "frame",
    [frame for _, frame in GOLDEN if isinstance(frame, Frame)]
    + [Frame(data=data) for data in (None, 1.5, True, [1, {"a": []}], {"x": "\r\n\nevent: terminal\ndata: {}"})]
    + [Frame(code=7, data="x"), Frame(msg_type="error", data="x"), Frame(code=-1, retry=5, msg_type="odd", data={})],
    ids=repr,
)
def test_a_client_can_not_tell_a_compact_record_from_a_plain_one(frame: Frame) -> None:
    compact, plain = encode(frame), encode(frame, compact=False)

    assert plain[0] == 0x12
    assert len(compact) <= len(plain)
    assert shown(decode(compact)) == shown(decode(plain)) == shown(frame)
    place = Position(7, 3)
    assert frame_event(decode(compact), place).sse() == frame_event(decode(plain), place).sse()  # type: ignore[arg-type]


@pytest.mark.req("sse-terminal-payload")
def test_a_terminal_summary_survives_and_is_shorter_than_its_json() -> None:
    terminal = Terminal("failed", 3, 41, "max_step_retries_exceeded", "the model did not answer")

    record = encode_terminal(terminal)

    assert record[0] == 0x15
    assert decode(record) == terminal
    assert len(record) < len(shown(terminal))
    long = decode(encode_terminal(Terminal("failed", 1, 1, "error", "x" * 100_000)))
    assert isinstance(long, Terminal) and long.message is not None
    assert len(long.message) == MESSAGE_CHARACTERS_MAX


@pytest.mark.req("sse-terminal-payload")
def test_the_terminal_frame_says_how_it_ended_and_gives_the_result() -> None:
    good = terminal_frame(Terminal("completed", 1, 5), {"text": "a summary"})
    bad = terminal_frame(Terminal("failed", 2, 9, "step_timeout", "too late"))

    assert good == Frame(0, 0, "terminal", {"status": "completed", "workflow_run": 1, "result": {"text": "a summary"}})
    assert (bad.code, bad.data["error"]) == (1, {"code": "step_timeout", "message": "too late"})


@pytest.mark.case("A77")
@pytest.mark.parametrize(
    "record",
    [
        b"", b"\x12", b"\x12{", b"\x12[]", b'\x12{"code":"x"}', b"\x13", b"\x13\xc0", b"\x13\x92\x01\x01",
        b"\x14\x91\xa1x", b"\x15", b"\x15\x90", b"\x15\x93\xa1x", b"\x11\xff\xfe", b"\x11\xc3",
        b"\x13\xdd\xff\xff\xff\xff", b"\x13\xdf\xff\xff\xff\xff", b"\x13\x92\xa1x\xdb\xff\xff\xff\xff",
        b"\x13\x92\xa1x\xc6\xff\xff\xff\xff", b"\x13\x92\xa1x\xc9\xff\xff\xff\xff\x01", b"\x15\xdd\xff\xff\xff\xff",
        b"\x13\x92\xa1x" + b"\x91" * 100_000, b"\x12" + b"[" * 100_000, b"\x14\x92\x01\x01\x01",
    ],
    ids=lambda record: repr(record[:12]),
)  # fmt: skip
def test_a_record_that_no_kernel_wrote_is_one_clear_error(record: bytes) -> None:
    with pytest.raises(CorruptRecord) as caught:
        decode(record)
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


def test_random_bytes_are_frames_or_refused_and_nothing_else() -> None:
    choose, shows = random.Random(1), 0
    for _ in range(20_000):
        record = bytes((choose.choice((0x11, 0x12, 0x13, 0x14, 0x15, choose.randrange(256))),)) + choose.randbytes(
            choose.randrange(40)
        )
        try:
            shown(decode(record))
        except (Refused, CorruptRecord):
            continue
        shows += 1
    assert shows > 100, "short texts are frames"


@pytest.mark.parametrize("data", [object(), {1, 2}.__iter__(), float, 2**80, {"a": object()}])
def test_data_that_is_no_json_is_refused_when_it_is_written(data: object) -> None:
    with pytest.raises(BadReturn, match="frame: data"):
        encode(Frame(msg_type="page", data=data))


def test_text_that_utf_8_can_not_hold_does_not_break_the_stream() -> None:
    assert decode(encode_text("a\ud800b")) == Frame(data="a?b")


@pytest.mark.req("sse-cross-pod")
def test_another_process_reads_what_this_one_wrote() -> None:
    records = [made(frame) for _, frame in GOLDEN]
    code = (
        "import sys; from kernel.frames import decode, shown\n"
        "for line in sys.stdin: print(shown(decode(bytes.fromhex(line))).decode())"
    )
    text = "\n".join(record.hex() for record in records)

    done = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.splitlines() == [shown(frame).decode() for _, frame in GOLDEN]


# --- server-sent events -------------------------------------------------------------------------------------


def fields(event: StreamEvent) -> list[tuple[str, str]]:
    """An SSE event as a browser reads it: (field, value) in order; comments left out."""
    text = event.sse().decode()
    assert text.endswith("\n\n") and "\n\n" not in text[:-2], "one event"
    lines = text[:-2].replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [(name, value.removeprefix(" ")) for name, _, value in (line.partition(":") for line in lines) if name]


INJECTIONS = (
    "\n\nevent: terminal\ndata: {}",
    "\r\revent: terminal",
    "\r\n\r\nid: 9-9",
    "\n",
    "\r",
    "\0",
    "\u2028",
    "\u0085",
    ": x",
)


@pytest.mark.req("sse-internal-only")
@pytest.mark.parametrize("text", INJECTIONS, ids=ascii)
def test_no_text_of_an_activity_can_make_a_field_of_its_own(text: str) -> None:
    for frame in (Frame(data=text), Frame(msg_type=text, data={text: text}), Frame(code=1, data=[text])):
        event = frame_event(decode(encode(frame)), Position(7, 3))  # type: ignore[arg-type]
        assert [name for name, _ in fields(event)] == ["event", "id", "data"]
        assert dict(fields(event)) | {"data": ""} == {"event": "frame", "id": "7-3", "data": ""}
        assert json.loads(dict(fields(event))["data"]) == msgspec.to_builtins(frame)
    for event in (error_event(text, text), terminal_event(Terminal("failed", 1, 1, text, text))):
        assert [name for name, _ in fields(event)] == ["event", "data"]


def test_data_with_line_ends_stays_data_even_if_it_were_no_json() -> None:
    event = StreamEvent("frame", b"a\r\nevent: terminal\rid: 1-1\n\ndata: b", Position(7, 3))

    assert fields(event)[:2] == [("event", "frame"), ("id", "7-3")]
    assert fields(event)[2:] == [("data", part) for part in ("a", "event: terminal", "id: 1-1", "", "data: b")]


@pytest.mark.parametrize("name", ["frame\ndata: x", "", "a b", "x" * 65, "é"])
def test_an_event_name_that_could_be_more_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="event"):
        StreamEvent(name, b"{}").sse()


@pytest.mark.case("A78")
def test_only_frames_carry_an_id_and_a_heartbeat_is_a_comment() -> None:
    with_id = frame_event(Frame(data="x"), Position(1_800_000_000_000, 4)).sse()

    assert b"\nid: 1800000000000-4\n" in with_id
    assert heartbeat_event().sse() == b": heartbeat\n\n"
    for event in (reset_event(9), terminal_event(Terminal("completed")), error_event("x", "y"), heartbeat_event()):
        assert b"id:" not in event.sse()


def test_markup_in_text_never_shows_as_such_in_the_events_bytes() -> None:
    event = frame_event(Frame(data="</script><img src=x onerror=alert(1)>"), Position(1, 1))

    assert b"<" not in event.sse()
    assert event.frame.data == "</script><img src=x onerror=alert(1)>"
