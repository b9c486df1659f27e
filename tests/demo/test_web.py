"""The second flow: a web page becomes a summary, and a page that was fetched is never fetched again (e2e-web)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from asr_demo.app import app
from asr_demo.composer import summarize
from asr_demo.holding import held_pid
from asr_demo.notes import Note, Notes
from asr_demo.web import PAGE_BYTES_MAX, PageUnavailable, WebInput, get, sentences_of
from kernel import Instance, NonRetryable
from kernel.config import Config
from kernel.runtime import open_client
from supervisor.session import running
from tests.support.wait import wait_until

PAGE = """<!doctype html><html><head><title>Not read</title><style>p { color: red }</style></head>
<body><script>alert("not read")</script><h1>Durable work</h1>
<p>Every job is a list of steps.   All of the steps must be done! A machine may fail &amp; another goes on.</p>
<p>The last result lies in the database<br>and the next worker reads it</p></body></html>"""
SEEN = (
    "Durable work",
    "Every job is a list of steps.",
    "All of the steps must be done!",
    "A machine may fail & another goes on.",
    "The last result lies in the database",
    "and the next worker reads it",
)


class Site:
    """A web server that counts; each path is answered as `answers` say, in turn, and the last answer stays."""

    def __init__(self) -> None:
        self.fetched: list[str] = []
        self.answers: dict[str, list[tuple[int, bytes]]] = {"/talk": [(200, PAGE.encode())]}
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.fetched.append(self.path)
                left = site.answers.get(self.path, [(404, b"")])
                status, body = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(status)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    try:
        yield site
    finally:
        site.close()


@contextmanager
def started(folder: Path, url: str, attribute: str = "app") -> Iterator[Any]:
    """The web flow over `url` in a tree of its own; what reads its instance."""
    folder.mkdir(mode=0o700)
    config = Config(
        app=f"asr_demo.app:{attribute}",
        data_dir=str(folder),
        workers=2,
        poll_s=1.0,
        log_file=str(folder / "kernel.log"),
    )
    with closing(Notes(folder)) as notes:
        notes.create("page-1", "f1")
    with running(config) as session:
        client = open_client(config, folder, session.redis_url)
        try:
            handle = client.start_or_resume(
                app.definition("web_content").plan,
                biz_key="web_content:demo:page-1",
                input=WebInput("demo", "page-1", "f1", url),
            )
            yield lambda: client.get(handle.workflow_id)
        finally:
            client.close()


def note_in(folder: Path) -> Note:
    with closing(Notes(folder)) as notes:
        note = notes.read("page-1")
    assert note is not None
    return note


@pytest.mark.fault
@pytest.mark.req("e2e-web")
def test_a_page_becomes_a_summary(tmp_path: Path, site: Site) -> None:
    site.answers["/talk"].insert(0, (503, b""))  # not at the first attempt
    with started(tmp_path / "data", f"{site.url}/talk") as read:
        instance: Instance = wait_until(lambda: (found := read()).ended and found, "the page's job has ended")

    note = note_in(tmp_path / "data")
    assert (instance.status, note.status) == ("completed", "completed")
    assert [step.attempt for step in instance.steps] == [2, 1, 1]
    assert site.fetched == ["/talk", "/talk"]
    assert note.segments == SEEN
    assert note.summary == summarize(SEEN)


@pytest.mark.fault
@pytest.mark.req("e2e-web", "fen-idempotent-shortcut")
@pytest.mark.parametrize("step", ["fetch", "generate"])
def test_after_a_kill_the_page_is_not_fetched_again(step: str, tmp_path: Path, site: Site) -> None:
    """Killed between the fetch and its commit, and killed in the step behind it."""
    with started(tmp_path / "data", f"{site.url}/talk", f"held_at_{step}") as read:
        os.kill(wait_until(lambda: held_pid(tmp_path / "data"), "the worker waits to be killed"), signal.SIGKILL)
        instance: Instance = wait_until(lambda: (found := read()).ended and found, "the page's job has ended")

    assert instance.status == "completed"
    assert instance.steps[instance.step_index(step)].takeovers == 1
    assert site.fetched == ["/talk"]
    assert note_in(tmp_path / "data").summary


def test_what_a_reader_sees_of_a_page_is_its_sentences() -> None:
    assert sentences_of(PAGE) == SEEN
    assert sentences_of("") == ()
    assert sentences_of("<p>…</p><p>?!</p>") == ()
    assert sentences_of("plain text, no tag") == ("plain text, no tag",)
    assert sentences_of("<p>a <b>bold</b> word") == ("a bold word",)


def test_pages_that_can_not_be_had_are_told_apart(site: Site) -> None:
    """Asking again may help, or never will."""
    site.answers |= {
        "/busy": [(503, b"")],
        "/large": [(200, b"x" * (PAGE_BYTES_MAX + 1))],
        "/moved": [(302, b"")],
    }

    with pytest.raises(PageUnavailable, match="status 503"):
        get(f"{site.url}/busy", 5)
    with pytest.raises(PageUnavailable):
        get("http://127.0.0.1:1/", 5)
    for path, says in (("/large", "larger than"), ("/moved", "status 302"), ("/none", "status 404")):
        with pytest.raises(NonRetryable, match=says):
            get(f"{site.url}{path}", 5)
    for url in (
        "file:///etc/passwd",
        "ftp://localhost/x",
        "http://",
        "http://host:port/",
        "talk",
        "http://a b/",
        f"{site.url}/a b",
    ):
        with pytest.raises(NonRetryable, match="no http or https address"):
            get(url, 5)
    with pytest.raises(NonRetryable, match="names a user") as refused:
        get("http://me:secret@localhost/", 5)
    assert "secret" not in str(refused.value)
