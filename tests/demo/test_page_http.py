"""The page's paths as a client meets them: streams for any number of readers, and what is refused before anything."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from asr_demo.page.desk import PAGE_MAX, NoteDesk, Shown, SubscriptionDesk
from asr_demo.page.server import STATIC
from asr_demo.page.streaming import STREAMS_MAX, THREADS
from asr_demo.subscriptions import SUBSCRIPTIONS, SummaryInput
from asr_demo.summary import live_summary
from kernel import SystemClock, Unavailable
from kernel.config import Config
from kernel.runtime import open_objects
from tests.demo.page_process import PageProcess
from tests.demo.page_reader import Reading, get
from tests.demo.page_stage import Site, Stage
from tests.support.wait import stays, wait_until

# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("sse-http", "sse-list", "sse-internal-only")
def test_two_readers_get_the_same_decoded_frames_as_an_event_stream(stage: Stage, site: Site) -> None:
    stage.start()
    with Reading(site.port, "/stream/note-1") as one, Reading(site.port, "/stream/note-1") as other:
        stage.write("First. ", "Second.")
        frames, same = one.frames(2), other.frames(2)  # before the end: who looks only then is given the result alone
        stage.finish("First. Second.")
        rest, same_rest = ([e for e in reading.events() if e.name] for reading in (one, other))

    assert one.answer.getheader("Content-Type", "").startswith("text/event-stream")
    assert (frames, rest) == (same, same_rest)
    assert [e.data for e in frames] == [
        {"code": 0, "retry": 0, "msg_type": "text", "data": text} for text in ("First. ", "Second.")
    ]
    assert [str(e.id).rpartition("-")[2] for e in frames] == ["0", "1"]
    result = {"round": "f1", "status": "completed", "summary": "First. Second."}
    assert [event.name for event in rest] == ["terminal"]
    assert rest[0].data["data"] == {"status": "completed", "workflow_run": 1, "result": result}


@pytest.mark.req("e2e-sse", "sse-reconnect", "sse-cross-pod")
def test_a_reader_goes_on_at_another_process_from_the_head_and_ends_with_the_result(stage: Stage, site: Site) -> None:
    """A79, A80: three events, gone, and again at a process that has never heard of him."""
    stage.start()
    stage.write("One. ", "two. ", "three. ")
    with Reading(site.port, "/stream/note-1") as before:
        seen = before.frames(3)
    with closing(PageProcess(stage.config)) as other, Reading(other.port, "/stream/note-1") as after:
        again = after.frames(3)
        stage.write("four.")
        new = after.frames(1)
        stage.finish("One, two, three, four.")
        end = next(after.named("terminal"))

    assert again == seen
    assert [e.data["data"] for e in (*again, *new)] == ["One. ", "two. ", "three. ", "four."]
    assert str(new[0].id).endswith("-3")
    assert end.data["data"]["result"]["summary"] == "One, two, three, four." == stage.note().summary


@pytest.mark.req("sse-reconnect")
@pytest.mark.parametrize("way", ["header", "query"])
def test_the_last_event_id_is_the_place_to_go_on_from(stage: Stage, site: Site, way: str) -> None:
    stage.start()
    stage.write("One. ", "two. ", "three.")
    with Reading(site.port, "/stream/note-1") as reading:
        first = str(reading.frames(3)[0].id)

    more = {"Last_Event_ID": first} if way == "header" else {}
    with Reading(site.port, "/stream/note-1" + ("" if more else f"?after={first}"), **more) as again:
        assert [e.data["data"] for e in again.frames(2)] == ["two. ", "three."]
    gone = first.replace("-0", "-99")
    with Reading(site.port, "/stream/note-1", Last_Event_ID=gone) as reading:
        events = [event for event, _ in zip(reading.events(), range(3), strict=False)]
    assert [e.name for e in events] == ["", "reset", "frame"], "such a frame is not there: from the head, and said so"


@pytest.mark.req("sse-finished-direct")
def test_who_comes_after_the_end_gets_the_result_at_once(stage: Stage, site: Site) -> None:
    workflow_id = stage.start()
    stage.write("The way. ")
    stage.finish("The result.")
    wait_until(lambda: stage.instance(workflow_id).ended, "it has ended")

    with Reading(site.port, "/stream/note-1") as late:
        names = [event.name for event in late.events() if event.name]
    assert names == ["terminal"]
    assert msgspec.json.decode(get(site.port, "/result/note-1")[1]) == {
        "object_id": "note-1", "round": "f1", "status": "completed", "summary": "The result.",
        "transcript": "what was said", "error": None,
    }  # fmt: skip


@pytest.mark.case("A80")
@pytest.mark.req("sse-disconnect", "sse-http")
def test_many_readers_cost_a_few_threads_and_one_too_many_is_told_when_to_come(stage: Stage, site: Site) -> None:
    stage.start()
    stage.write("For all.")
    with ExitStack() as stack:
        readers = [stack.enter_context(Reading(site.port, "/stream/note-1")) for _ in range(STREAMS_MAX)]
        assert {reader.frames(1)[0].data["data"] for reader in readers} == {"For all."}
        names = [thread.name for thread in threading.enumerate()]
        assert sum(name.startswith("page_") for name in names) <= THREADS
        assert stage.news.readers == STREAMS_MAX
        assert sum("stream-news" in name for name in names) == 1

        with Reading(site.port, "/stream/note-1") as refused:
            assert (refused.status, refused.answer.getheader("Retry-After")) == (429, "1")
            assert "64 of 64" in refused.text()
        readers[0].close()
        wait_until(lambda: stage.news.readers == STREAMS_MAX - 1, "a reader who vanished is forgotten")
        with Reading(site.port, "/stream/note-1") as taken:
            assert taken.status == 200
    wait_until(lambda: stage.news.readers == 0, "all are forgotten")


@pytest.mark.case("A79")
@pytest.mark.req("sse-disconnect")
def test_a_reader_who_takes_nothing_holds_up_nobody_and_nothing_is_kept_for_him(stage: Stage, site: Site) -> None:
    stage.start()
    with Reading(site.port, "/stream/note-1") as quick, socket.socket() as slow:
        for _ in range(60):  # a writer who is faster than Redis would drop some
            stage.write("x" * 50_000)
            taken = 0
            while taken < 50_000:
                taken += len(quick.frames(1)[0].data["data"])
        before = set(site.server.streams.open)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", site.port))
        slow.sendall(b"GET /stream/note-1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        (open_stream,) = wait_until(lambda: set(site.server.streams.open) - before, "the slow one reads")
        wait_until(lambda: open_stream.given, "he was given something")
        stays(lambda: open_stream.given < 1_000_000, "he is given what the socket takes, of three million", 0.5)
        stage.write("And more.")
        assert quick.frames(1)[0].data["data"] == "And more."


@pytest.mark.fault
def test_on_sigterm_streams_are_told_and_the_process_ends_with_0(stage: Stage) -> None:
    stage.start()
    stage.write("Some text.")
    with closing(PageProcess(stage.config)) as web, ExitStack() as stack:
        readers = [stack.enter_context(Reading(web.port, "/stream/note-1")) for _ in range(3)]
        assert [len(reader.frames(1)) for reader in readers] == [1, 1, 1]
        web.signal(signal.SIGTERM)
        last = [list(reader.events())[-1] for reader in readers]
        assert web.ended() == 0
    assert [(event.name, event.retry) for event in last] == [("bye", "500")] * 3


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/live/note-1", "/result/note-1", "/static/live.js", "/nothing", "/live/none"])
def test_every_answer_carries_the_protective_headers(stage: Stage, site: Site, path: str) -> None:
    stage.start()
    with Reading(site.port, path) as reading:
        headers = dict(reading.answer.getheaders())
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"Host": "evil.example"}, "Host: must be a loopback name"),
        ({"Host": "127.0.0.1.evil.example:8321"}, "Host: must be a loopback name"),
        ({"Host": "[::1"}, "Host: must be a loopback name"),
        ({"Host": "localhost:1", "Origin": "http://evil.example"}, "Origin: must be this very page"),
        ({"Host": "localhost:1", "Origin": "null"}, "Origin: must be this very page"),
        ({"Host": "localhost:1", "Origin": "http://localhost:2"}, "Origin: must be this very page"),
    ],
)
def test_foreign_hosts_and_origins_are_refused(stage: Stage, site: Site, headers: dict[str, str], says: str) -> None:
    stage.start()
    for path in ("/", "/live/note-1", "/stream/note-1", "/result/note-1"):
        assert get(site.port, path, **headers) == (403, f"{says}\n")


def test_nothing_is_changed_by_a_request_because_there_is_only_get(stage: Stage, site: Site) -> None:
    stage.start()
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("/", "/live/note-1", "/stream/note-1", "/result/note-1", "/static/live.js"):
            with Reading(site.port, path, method=method) as reading:
                assert reading.status == 405, (method, path)


@pytest.mark.parametrize("garbage", ["x", "1", "-1--1", "1-2-3", "99999999999999999999-0", "0x1-2", " ", "1-1\x00"])
def test_a_last_event_id_that_none_of_ours_was_is_refused_with_one_line(stage: Stage, site: Site, garbage: str) -> None:
    stage.start()
    status, text = get(site.port, f"/stream/note-1?after={quote(garbage)}")
    assert status == 400
    assert text == "last_event_id: must be <generation>-<offset>, as the id of an event that was sent\n"


HOSTILE_IDS = (
    "none",
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "a\x00b",
    "a\r\nX: y",
    "é" * 201,
    "%",
    " ",
    "note-1/",
)


@pytest.mark.parametrize("object_id", HOSTILE_IDS)
def test_an_id_that_nothing_has_is_404_as_plain_text(stage: Stage, site: Site, object_id: str) -> None:
    stage.start()
    for path in ("live", "stream", "result"):
        with Reading(site.port, f"/{path}/{quote(object_id, safe='')}") as reading:
            assert (reading.status, reading.answer.getheader("X", None)) == (404, None)
            assert reading.answer.getheader("Content-Type") == "text/plain; charset=utf-8"
            assert len(reading.text().splitlines()) == 1


def test_only_the_files_of_the_table_are_served(site: Site) -> None:
    for name, kind in STATIC.items():
        with Reading(site.port, f"/static/{name}") as reading:
            assert (reading.status, reading.answer.getheader("Content-Type", "").partition(";")[0]) == (200, kind)
    for name in ("", "live.css.map", "../server.py", "..%2Fserver.py", "%2Fetc%2Fpasswd", "__init__.py"):
        assert get(site.port, f"/static/{name}")[0] == 404


def test_a_note_that_is_not_registered_yet_is_503_for_a_moment(stage: Stage, site: Site) -> None:
    stage.notes.create("note-9", "f1")
    with Reading(site.port, "/stream/note-9") as early:
        assert (early.status, early.answer.getheader("Retry-After")) == (503, "1")
    assert get(site.port, "/live/note-9")[0] == 200


class Away(NoteDesk):
    """A store that does not answer."""

    def find(self, object_id: str) -> Shown | None:
        raise Unavailable("the store does not answer")

    def page(self, after: str | None) -> list[Shown]:
        raise Unavailable("the store does not answer")


def test_a_store_that_does_not_answer_is_503_for_a_moment(stage: Stage) -> None:
    with stage.served(Away(stage.notes)) as site:
        for path in ("/", "/live/note-1", "/stream/note-1", "/result/note-1"):
            with Reading(site.port, path) as reading:
                assert (reading.status, reading.answer.getheader("Retry-After")) == (503, "1")
                assert reading.text() == "not now: the store does not answer\n"


# --- the list, and the audience's desk -------------------------------------------------------------------------------


def test_the_list_has_at_most_a_hundred_rows_and_a_way_to_the_next(stage: Stage, site: Site) -> None:
    for number in range(PAGE_MAX + 1):
        stage.notes.create(f"<b>{number:03}</b>", "f1")
    _, first = get(site.port, "/")
    assert first.count("<tr><td>") == PAGE_MAX
    assert "<b>" not in first
    assert '<a id="more" href="/?after=%3Cb%3E099%3C%2Fb%3E">more</a>' in first
    _, second = get(site.port, "/?after=%3Cb%3E099%3C%2Fb%3E")
    assert second.count("<tr><td>") == 1
    assert "more</a>" not in second


def test_the_audiences_desk_shows_subscriptions(tmp_path: Path) -> None:
    objects = open_objects(Config(data_dir=str(tmp_path)), tmp_path, [SUBSCRIPTIONS], SystemClock())["subscriptions"]
    with closing(objects):
        for name in ("sub-001", "sub-002"):
            job = SummaryInput("demo", name, "show")
            objects.accept(
                name, type_=live_summary().type, biz_key=f"live_summary:demo:{name}", input=job, priority=0,
                fields={"show_id": "show"},
            )  # fmt: skip
        there = objects.get("sub-001")
        assert there is not None and there.fencing_token is not None
        objects.begin("sub-001", there.fencing_token)
        objects.update("sub-001", there.fencing_token, {"segments": ["it was", "said"], "summary": "In short."})
        objects.complete("sub-001", there.fencing_token)
        desk = SubscriptionDesk(objects)

        first = desk.find("sub-001")
        assert first is not None
        assert (first.round, first.status, first.ended) == (there.fencing_token, "completed", True)
        assert (first.summary, first.transcript, first.error) == ("In short.", "it was said", None)
        assert [(s.object_id, s.ended) for s in desk.page(None)] == [("sub-001", True), ("sub-002", False)]
        assert [s.object_id for s in desk.page("sub-001")] == ["sub-002"]
        assert (desk.find("sub-003"), desk.find("\x00")) == (None, None)
