"""The client against servers that behave badly: every call ends in time, with an error that says what to do."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asr_demo.asr_client import AsrClient, AsrRefused, AsrUnavailable, Failed, Running

AUDIO = Path("/nowhere/talk.wav")


class Server:
    """Answers one request as it is told, and keeps what was asked."""

    def __init__(self, behave: Callable[[socket.socket], None]) -> None:
        self.asked = b""
        self._behave = behave
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(60)  # a client that never comes must not hold up the test for ever
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        try:
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(60)
                self.asked = connection.recv(65_536)
                self._behave(connection)
        except OSError:
            pass  # the client has hung up, as it should, or did not come

    def close(self) -> None:
        self._listener.close()


@contextmanager
def server(behave: Callable[[socket.socket], None]) -> Iterator[Server]:
    one = Server(behave)
    thread = threading.Thread(target=one.run)
    thread.start()
    try:
        yield one
    finally:
        thread.join()
        one.close()


def says(status: str, body: bytes, headers: str = "") -> Callable[[socket.socket], None]:
    text = f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body
    return lambda connection: connection.sendall(text)


def test_nobody_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(AsrUnavailable, match="ConnectionRefusedError") as unavailable:
        AsrClient(f"http://127.0.0.1:{port}").poll("asr-1")

    assert unavailable.value.code == "asr_unavailable"


def test_a_server_that_never_accepts_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = AsrClient(f"http://127.0.0.1:{listener.getsockname()[1]}")
        began = time.monotonic()

        with pytest.raises(AsrUnavailable, match="time limit"):
            client.submit(AUDIO, idempotency_key="k", timeout_s=0.3)

        assert 0.25 <= time.monotonic() - began < 10


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Slow: "])
def test_an_answer_that_trickles_in_does_not_stretch_the_time_limit(head: bytes) -> None:
    """Each byte comes well within the silence that is allowed; the whole call must end all the same."""
    over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        connection.sendall(head)
        while not over.wait(0.05):
            connection.sendall(b"x")

    with server(trickle) as other:
        began = time.monotonic()
        try:
            with pytest.raises(AsrUnavailable, match="time limit"):
                AsrClient(other.url, read_timeout_s=20).poll("asr-1", timeout_s=0.5)
            assert time.monotonic() - began < 15, "the silence that is allowed, 20 s, was not waited for"
        finally:
            over.set()


@pytest.mark.parametrize(
    "behave",
    [
        says("500 Oops", b"{}"),
        says("503 Full", b'{"code":"queue_full","message":"later"}'),
        says("302 Found", b"", "Location: http://127.0.0.1:1/\r\n"),
        says("200 OK", b"<html>"),
        says("200 OK", b'{"task_id":"asr-1","status":"lost","audio_s":1}'),
        says("200 OK", b'{"task_id":7,"status":"running","audio_s":1}'),
        says("200 OK", b" " * 5_000_000),
        lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"),
        lambda connection: connection.sendall(b"SSH-2.0-OpenSSH\r\n"),
        lambda connection: None,
    ],
    ids=["500", "503", "redirect", "page", "status", "type", "large", "cut off", "no HTTP", "hung up"],
)
def test_no_usable_answer_is_unavailable(behave: Callable[[socket.socket], None]) -> None:
    """Whatever it is, asking again is right; a redirect is not followed, because it could lead outside."""
    with server(behave) as other, pytest.raises(AsrUnavailable) as unavailable:
        AsrClient(other.url).poll("asr-1")

    assert len(str(unavailable.value).splitlines()) == 1


def test_a_refusal_keeps_the_service_s_word() -> None:
    answer = says("422 No", b'{"code":"not_mono","message":"audio: two channels"}')

    with server(answer) as other, pytest.raises(AsrRefused, match="two channels") as refused:
        AsrClient(other.url).submit(AUDIO, idempotency_key="k")

    assert (refused.value.status, refused.value.reason, refused.value.code) == (422, "not_mono", "asr_refused")


def test_a_404_that_is_not_about_the_task_is_no_forgotten_task() -> None:
    """A wrong address answers 404 as well; only the service's own word means that the task is gone."""
    with server(says("404 Not Found", b"not here")) as other, pytest.raises(AsrRefused) as refused:
        AsrClient(other.url).poll("asr-1")

    assert refused.value.status == 404


def test_each_status_is_a_type_of_its_own() -> None:
    for text, state in (
        (b'{"task_id":"a","status":"queued","audio_s":1}', Running(queued=True)),
        (b'{"task_id":"a","status":"running","audio_s":1}', Running(queued=False)),
        (b'{"task_id":"a","status":"failed","audio_s":1,"problem":{"code":"c","message":"m"}}', Failed("c", "m")),
    ):
        with server(says("200 OK", text)) as other:
            assert AsrClient(other.url).poll("asr-1") == state


def test_a_task_id_can_not_lead_to_another_path() -> None:
    with server(says("500 Oops", b"")) as other, pytest.raises(AsrUnavailable, match="500"):
        AsrClient(other.url).poll("../stats?x=1\r\nX: y")

    assert other.asked.startswith(
        b"GET /v1/tasks/..%2Fstats%3Fx%3D1%0D%0AX%3A%20y?language=en-us&detail=segments HTTP/1.1\r\n"
    )


def test_only_this_machine_is_called() -> None:
    for url in (
        "http://192.0.2.1:80",
        "http://asr.example:80",
        "https://127.0.0.1:1",
        "http://127.0.0.1",
        "http://[::1]:1/x",
    ):
        with pytest.raises(ValueError, match="base_url"):
            AsrClient(url)
    assert AsrClient("http://127.0.0.1:1", provider="other").provider == "other"
