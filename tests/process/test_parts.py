"""The pure parts of the tree: notices, health, messages, the log's formats, the mask over passwords, the loop."""

from __future__ import annotations

import json
import logging
import os
import socket
import time

import pytest
from multiprocessing_logging import MultiProcessingHandler

from kernel.config import Config
from kernel.errors import TooLarge, UnknownVersion
from supervisor.health import SILENT_MS, Health
from supervisor.log_format import JsonFormatter, TextFormatter
from supervisor.log_setup import RECORD_BYTES_MAX, RecordSocket, SinkHandler, TreeLogHandler
from supervisor.log_sink import BACKLOG_BYTES_MAX, LogSink
from supervisor.loop import READ, Loop
from supervisor.messages import (
    MESSAGE_BYTES_MAX,
    BadMessage,
    Drain,
    OwnerDead,
    Report,
    encoded,
    from_child,
    to_child,
)
from supervisor.notices import NoticeBoard
from supervisor.redaction import Redactor
from supervisor.status_view import as_text, is_all_running

OWNER = "0123456789abcdef" * 2


# --- notices ------------------------------------------------------------------------------------------


def test_a_notice_is_due_at_once_after_one_second_after_five_and_then_every_five() -> None:
    board = NoticeBoard(lifetime_ms=60_000)
    board.post(OWNER, "death", 1_000)

    sent = []
    for now in range(1_000, 23_000, 100):
        for notice in board.due(now):
            notice.sent()
            sent.append(now - 1_000)

    assert sent == [0, 1_000, 5_000, 10_000, 15_000, 20_000]


def test_the_first_acknowledgement_ends_a_notice_and_later_ones_say_nothing() -> None:
    board = NoticeBoard(lifetime_ms=60_000)
    first, second = board.post(OWNER, "death", 0), board.post(OWNER, "ordered", 0)

    assert board.acknowledge(first.message.notice_id) is True
    assert board.acknowledge(first.message.notice_id) is False
    assert [message.cause for message in board.messages()] == [second.message.cause]


def test_a_notice_ends_when_every_lease_has_run_out() -> None:
    board = NoticeBoard(lifetime_ms=60_000)
    board.post(OWNER, "death", 0)

    assert board.due(59_999)
    assert board.due(60_000) == []
    assert (len(board), board.next_ms) == (0, None)


# --- health -------------------------------------------------------------------------------------------


def test_the_age_of_a_loop_is_what_was_reported_and_the_time_since() -> None:
    health = Health()
    health.note({"loops": {"poll": 0.5, "bad": "x"}, "claims": 2, "store": "sqlite"}, now_ms=1_000)

    shown = health.shown(3_500)

    assert shown["loops"] == {"poll": 3.0}
    assert (shown["report_age_s"], shown["claims"], shown["x_store"]) == (2.5, 2, "sqlite")


def test_silence_begins_ten_seconds_after_the_last_report_and_never_before_the_first() -> None:
    health = Health()
    assert not health.is_silent(10**9)

    health.note({}, now_ms=0)

    assert not health.is_silent(SILENT_MS)
    assert health.is_silent(SILENT_MS + 1)


@pytest.mark.parametrize(
    ("status", "committed"),
    [
        ({}, False),
        ({"counters": {"commits": 0}}, False),
        ({"counters": {"commits": 3}}, True),
        ({"counters": [3]}, False),
    ],
)
def test_commits_are_read_from_the_counters(status, committed) -> None:
    health = Health()
    health.note(status, 0)

    assert health.has_committed is committed


# --- messages -----------------------------------------------------------------------------------------


def test_messages_survive_the_journey() -> None:
    assert to_child(encoded(Drain(deadline_s=2.5))) == Drain(deadline_s=2.5)
    notice = OwnerDead(notice_id=7, worker_id=OWNER, cause="ordered")
    assert to_child(encoded(notice)) == notice
    assert from_child(encoded(Report(status={"a": [1, None]}))) == Report(status={"a": [1, None]})


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"v":1}', b'{"v":1,"kind":"format"}', b"[" * 50_000])
def test_what_is_no_message_is_refused(data) -> None:
    for read in (to_child, from_child):
        with pytest.raises(BadMessage):
            read(data)


def test_an_unknown_version_is_refused_before_anything_else_is_read() -> None:
    with pytest.raises(UnknownVersion, match="version 2"):
        from_child(b'{"v":2,"kind":"something new","field":1}')


def test_a_message_above_the_limit_is_refused_by_the_sender() -> None:
    with pytest.raises(TooLarge):
        encoded(Report(status={"text": "x" * MESSAGE_BYTES_MAX}))


# --- passwords ----------------------------------------------------------------------------------------


@pytest.mark.case("A83")
@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("redis://:pw@h:1/0", "redis://***@h:1/0"),
        ("at redis://u:p/w#x@h/0, again", "at redis://***@h/0, again"),
        ("mongodb://u:p%40w@a:1,b:2/?x=1", "mongodb://***@a:1,b:2/?x=1"),
        ("mongodb+srv://u:p@w@h/", "mongodb+srv://***@h/"),
        ("two redis://:a@h and redis://:b@h", "two redis://***@h and redis://***@h"),
        ("no credentials in redis://h:1/0", "no credentials in redis://h:1/0"),
        ("password=abc, user=x", "password=***, user=x"),
        ('{"password": "a b", "n": 1}', '{"password": ***, "n": 1}'),
        ("MONGODB_PASSWORD=abc&x=1", "MONGODB_PASSWORD=***&x=1"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("claim_token=abc", "claim_token=abc"),
    ],
)
def test_credentials_of_every_form_are_masked(text, masked) -> None:
    assert Redactor()(text) == masked


@pytest.mark.case("A83")
def test_the_configured_password_is_masked_wherever_and_however_it_stands() -> None:
    redact = Redactor.of(
        Config(redis_url="redis://:ab%2Fcd%23efgh@h/0", mongodb_uri="mongodb://u:s3cr3t@h/?password=q123")
    )

    for form in (
        "ab/cd#efgh",
        "ab%2Fcd%23efgh",
        "ab%2Fcd%23efgh".lower().replace("2f", "2F"),
        "efgh",
        "s3cr3t",
        "q123",
    ):
        assert form not in redact(f"it was '{form}' after all")
    assert redact("abcd") == "abcd"


# --- the log's formats --------------------------------------------------------------------------------


def record(msg: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("name", logging.WARNING, "", 0, msg, None, None)
    place = {"event": "claim.lost", "role": "worker", "slot": 3, "worker_id": OWNER, "seq": 9}
    made.__dict__.update(place | {"fields": extra})
    return made


@pytest.mark.req("dc-logging")
def test_a_json_line_has_its_fields_in_order_and_the_rest_under_x() -> None:
    line = JsonFormatter(Redactor()).format(
        record("gone", workflow_id="wf-1", lane=0, other={"deep": object}, big=2**70)
    )

    found = json.loads(line)
    assert list(found) == [
        *("v", "ts", "level", "event", "msg", "role", "slot", "pid", "worker_id", "workflow_id", "lane", "seq", "x")
    ]
    assert found["level"] == "warning"
    assert (found["role"], found["slot"], found["pid"], found["worker_id"]) == ("worker", 3, os.getpid(), OWNER)
    assert found["ts"].endswith("Z")
    assert found["x"]["big"] == 2**70


@pytest.mark.req("dc-logging")
def test_what_steers_a_terminal_is_escaped_in_json_too() -> None:
    text = "a\x1b[2J\x9b2J\x7f\u2028b\n"
    line = JsonFormatter(Redactor()).format(record(text, workflow_id=f"wf{text}", other={text: text}))

    assert line.isprintable()
    found = json.loads(line)
    assert (found["msg"], found["workflow_id"], found["x"]["other"]) == (text, f"wf{text}", {text: text})


@pytest.mark.req("dc-logging")
def test_a_record_without_an_event_is_called_log_and_names_its_logger() -> None:
    reader, writer = os.pipe()
    sink = LogSink(writer)
    for formatter in (JsonFormatter(Redactor()), TextFormatter(Redactor())):
        SinkHandler(sink, formatter).emit(
            logging.LogRecord("flows.billing", logging.INFO, __file__, 1, "paid", None, None)
        )
    os.close(writer)
    with open(reader) as lines:
        as_json, as_text = lines.read().splitlines()

    assert json.loads(as_json)["event"] == "log"
    assert json.loads(as_json)["x"] == {"logger": "flows.billing"}
    assert as_text.endswith(" flows.billing paid")


@pytest.mark.case("A83")
def test_passwords_are_masked_in_every_corner_of_a_line() -> None:
    secret = "redis://:canary@h/0"
    hidden = record(f"m {secret}", url=secret, password="canary", deep=[{"secret": "canary"}, secret])
    hidden.exc_text = f"ConnectionError: {secret}"

    for formatter in (JsonFormatter(Redactor()), TextFormatter(Redactor())):
        assert "canary" not in formatter.format(hidden)


def test_a_text_line_can_not_be_forged_nor_steer_a_terminal() -> None:
    line = TextFormatter(Redactor()).format(record("one\ntwo\x1b[2J\r\u2028three", step="a\nb"))

    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert "worker-3" in line
    assert "step=a\\nb" in line


# --- records on their way -----------------------------------------------------------------------------


@pytest.fixture
def record_socket():
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with reader, writer:
        reader.settimeout(60)
        yield reader, RecordSocket(writer)


@pytest.mark.parametrize(
    "extra",
    [{"n": 2**80}, {"x": float("nan")}, {"s": "\ud800"}, {"o": object()}, {1: 2}, {"loop": logging}],
    ids=["huge", "nan", "surrogate", "object", "key", "module"],
)
def test_whatever_a_caller_gives_as_extra_the_record_arrives(record_socket, extra) -> None:
    reader, sender = record_socket
    made = logging.LogRecord("n", 20, "", 0, "half \ud800 a pair" if "s" in extra else "text", None, None)
    made.__dict__.update(extra)

    sender.put_nowait(made)

    assert json.loads(reader.recv(RECORD_BYTES_MAX))["msg"].startswith(("text", "half"))
    assert sender.dropped == 0


def test_a_record_above_the_limit_keeps_its_head(record_socket) -> None:
    reader, sender = record_socket
    made = logging.LogRecord("n", 20, "", 0, "head " + "\x00" * 100_000, None, None)
    made.exc_text = "\x00" * 100_000

    sender.put_nowait(made)

    found = json.loads(reader.recv(RECORD_BYTES_MAX))
    assert found["msg"].startswith("head ")
    assert found["msg"].endswith("[truncated]")
    assert found["fields"] == {"truncated": True}


@pytest.mark.case("A68")
def test_a_reader_that_does_not_read_costs_half_a_second_once(record_socket) -> None:
    _, sender = record_socket
    made = logging.LogRecord("n", 20, "", 0, "x" * 5_000, None, None)

    began = time.monotonic()
    for _ in range(2_000):
        sender.put_nowait(made)

    assert time.monotonic() - began < 30, "once and not for each of the 2,000"
    assert sender.dropped > 1_000


def test_the_handler_is_the_librarys_without_its_queue_and_its_thread() -> None:
    handler = TreeLogHandler(logging.NullHandler())

    assert isinstance(handler, MultiProcessingHandler)
    handler.close()
    assert handler.queue is None


# --- the sink -----------------------------------------------------------------------------------------


def test_a_full_pipe_does_not_block_and_the_surplus_is_counted() -> None:
    reader, writer = os.pipe()
    sink = LogSink(writer)

    for number in range(3_000):
        sink.write(f"{number} " + "x" * 1_000)

    assert sink.dropped > 0
    assert sink.backlog <= BACKLOG_BYTES_MAX
    os.close(reader)
    sink.flush()
    assert sink.backlog == 0  # nobody will ever read it
    os.close(writer)


def test_lines_arrive_whole_and_in_order_when_the_reader_is_slow() -> None:
    reader, writer = os.pipe()
    sink = LogSink(writer)
    lines = [f"{number} " + "y" * (number % 9_000) for number in range(0, 60_000, 997)]
    received = b""
    for line in lines:
        sink.write(line)
        received += os.read(reader, 3_000)
    while sink.backlog:
        sink.flush()
        received += os.read(reader, 65_536)
    os.close(writer)
    received += os.read(reader, 65_536)
    os.close(reader)

    assert received.decode().splitlines() == lines
    assert sink.dropped == 0


# --- the loop -----------------------------------------------------------------------------------------


def test_timers_run_in_their_order_and_canceled_ones_never() -> None:
    now, ran = [0], []
    loop = Loop(now_ms=lambda: now[0])
    loop.call_at(20, lambda: ran.append("b"))
    loop.call_at(10, lambda: ran.append("a"))
    loop.call_at(15, lambda: ran.append("never")).cancel()

    for now[0] in (5, 10, 30):
        loop.run_once(0)

    assert ran == ["a", "b"]
    loop.close()


def test_a_fault_in_one_callback_does_not_stop_the_others() -> None:
    loop, ran = Loop(), []
    left, right = socket.socketpair()
    with left, right:
        left.send(b"x")
        loop.watch(right.fileno(), READ, lambda: 1 / 0)
        loop.call_at(0, lambda: ran.append("timer"))

        loop.run_once(0)

        assert ran == ["timer"]
        loop.close()


def test_a_descriptor_forgotten_by_an_earlier_callback_is_not_called() -> None:
    loop, ran = Loop(), []
    pairs = [socket.socketpair() for _ in range(2)]
    for mine, other in zip(pairs, reversed(pairs), strict=True):
        mine[0].send(b"x")
        loop.watch(
            mine[1].fileno(), READ, lambda mine=mine, other=other: (ran.append(mine), loop.forget(other[1].fileno()))
        )

    loop.run_once(0)

    assert len(ran) == 1
    loop.close()
    for pair in pairs:
        for end in pair:
            end.close()


def test_a_store_out_of_reach_is_shown_and_only_the_durable_one_decides() -> None:
    child = {"name": "worker-0", "state": "RUNNING", "silent": False, "pid": 1, "uptime_s": 1.0, "restarts": 0}
    child |= {"claims": 0, "last_exit": None, "loops": {}, "x_store": "up", "x_redis": "up"}
    status = {"pid": 1, "state": "RUNNING", "uptime_s": 1.0, "data_dir": "d", "app": None, "failure": None}
    status |= {"log": {"lost_in_children": 0, "lost_at_sink": 0}, "children": [child]}
    assert is_all_running(status)

    child["x_redis"] = "down"
    assert is_all_running(status)
    assert "redis out of reach for worker-0" in as_text(status)

    child["x_store"] = "down"
    assert not is_all_running(status)
    assert "durable store out of reach for worker-0" in as_text(status)
