"""The speech service's promises to its callers, and the limits that it keeps."""

from __future__ import annotations

import http.client
import json
import socket
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asr_demo.asr_client import AsrRefused, AsrTaskUnknown, Succeeded
from asr_demo.asr_faults import Faults
from asr_demo.asr_protocol import BODY_BYTES_MAX, AsrOptions
from asr_demo.asr_service import CONNECTIONS_MAX, HEADER_BYTES_MAX, serve
from tests.demo.asr_process import AsrProcess
from tests.demo.sound import BUNDLED, FIRST_SENTENCE, cut, wave_file
from tests.support.wait import wait_until


def ask(
    service: AsrProcess, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, object]]:
    """One request as it stands, for what the client never sends."""
    connection = http.client.HTTPConnection("127.0.0.1", service.listener.getsockname()[1], timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        assert response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def refusal(service: AsrProcess, body: object, key: str = "refusal") -> tuple[int, object, str]:
    status, answer = ask(service, "POST", "/v1/tasks", json.dumps(body).encode(), {"Idempotency-Key": key})
    return status, answer["code"], str(answer["message"])


def test_one_key_is_one_task_whoever_comes_first(asr: AsrProcess, sentence: Path) -> None:
    """Twenty submits at once with one key: one is told 201, all are told the same task."""
    asr.start()
    together = threading.Barrier(20)

    def submit(_: int) -> tuple[str, bool]:
        together.wait(10)
        task = asr.client().submit(sentence, idempotency_key="effect-1")
        return task.task_id, task.created

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(submit, range(20)))

    assert len({task_id for task_id, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1
    stats = asr.client().stats()
    assert (stats.asr_submits, stats.asr_submit_calls) == (1, 20)
    assert asr.result(answers[0][0]).transcript == FIRST_SENTENCE


def test_a_repeat_finds_its_task_also_when_the_file_is_gone(asr: AsrProcess, sentence: Path) -> None:
    asr.start()
    first = asr.client().submit(sentence, idempotency_key="effect-1")
    asr.result(first.task_id)
    sentence.unlink()

    again = asr.client().submit(sentence, idempotency_key="effect-1")

    assert (again.task_id, again.created) == (first.task_id, False)


def test_a_key_with_another_body_is_a_conflict(shared_asr: AsrProcess, transcription: Succeeded) -> None:
    client = shared_asr.client()
    before = client.stats()

    with pytest.raises(AsrRefused) as refused:
        client.submit(BUNDLED, idempotency_key="transcription", options=AsrOptions(detail="text"))

    assert (refused.value.status, refused.value.reason) == (409, "key_conflict")
    assert client.stats().asr_submits == before.asr_submits
    assert client.stats().asr_submit_calls == before.asr_submit_calls + 1


def test_the_same_recording_is_recognised_once(asr: AsrProcess, sentence: Path) -> None:
    """Later tasks over it, by whatever name, end after a like time with the same answer and without a child."""
    asr.start()
    client = asr.client()
    first = asr.result(client.submit(sentence, idempotency_key="effect-1").task_id)
    copy = sentence.with_name("copy.wav")
    copy.write_bytes(sentence.read_bytes())

    began = time.monotonic()
    later = [client.submit(audio, idempotency_key=f"again-{audio.name}") for audio in (sentence, copy)]

    assert [asr.result(task.task_id) for task in later] == [first, first]
    assert time.monotonic() - began > 0.25  # PocketSphinx needs that much to load its model
    stats = client.stats()
    assert (stats.asr_submits, stats.recogniser_starts, stats.recognitions) == (3, 1, 1)


def test_a_poll_answers_what_its_options_ask_for(asr: AsrProcess, sentence: Path) -> None:
    """`detail` goes with each poll: the caller's snapshot decides, not what the service remembers."""
    asr.start()
    task = asr.client().submit(sentence, idempotency_key="detail", options=AsrOptions(detail="text"))

    short = asr.result(task.task_id, AsrOptions(detail="text"))
    long = asr.result(task.task_id, AsrOptions(detail="segments"))

    assert (short.transcript, short.segments) == (FIRST_SENTENCE, ())
    assert [segment.text for segment in long.segments] == [FIRST_SENTENCE]
    assert asr.client().stats().asr_poll_calls >= 2


def test_an_unknown_task_is_told_apart_from_an_unknown_path(shared_asr: AsrProcess) -> None:
    with pytest.raises(AsrTaskUnknown):
        shared_asr.client().poll("asr-0")

    assert ask(shared_asr, "GET", "/v1/elsewhere")[1]["code"] == "no_such_path"
    assert ask(shared_asr, "GET", "/v1/tasks/../stats")[0] == 404
    assert ask(shared_asr, "POST", "/v1/stats", b"")[0] == 404
    assert ask(shared_asr, "DELETE", "/v1/tasks/asr-0")[0] == 501


def test_a_wrong_body_is_refused_with_the_field(shared_asr: AsrProcess) -> None:
    before = shared_asr.client().stats().asr_submits
    audio = str(BUNDLED)

    for body, words in [
        ({}, "audio"),
        ({"audio": 7}, "$.audio"),
        ({"audio": audio, "options": {"language": "de"}}, "$.options.language"),
        ({"audio": audio, "options": {"speed": 2}}, "speed"),
        ([audio], "object"),
    ]:
        status, code, message = refusal(shared_asr, body)
        assert (status, code) == (400, "bad_body")
        assert words in message
    assert ask(shared_asr, "POST", "/v1/tasks", b"\xff{", {"Idempotency-Key": "k"})[1]["code"] == "bad_body"
    assert ask(shared_asr, "GET", "/v1/tasks/asr-0?detail=all")[1]["code"] == "bad_query"
    assert shared_asr.client().stats().asr_submits == before


def test_a_submit_needs_a_key(shared_asr: AsrProcess) -> None:
    body = json.dumps({"audio": str(BUNDLED)}).encode()

    for headers in ({}, {"Idempotency-Key": ""}, {"Idempotency-Key": "k" * 201}, {"Idempotency-Key": "a\x01"}):
        status, answer = ask(shared_asr, "POST", "/v1/tasks", body, headers)
        assert (status, answer["code"]) == (400, "bad_key")


def test_only_recordings_in_the_given_folders_are_read(asr: AsrProcess, sentence: Path, tmp_path: Path) -> None:
    """Neither a path outside, nor one that climbs out, nor a link that leads out."""
    outside = cut(tmp_path / "outside.wav", 1.0)
    link = sentence.parent / "link.wav"
    link.symlink_to(outside)
    loop = sentence.parent / "loop.wav"
    loop.symlink_to(loop)
    asr.start()

    for audio in (
        str(outside), "/etc/passwd", "audio/sentence.wav", f"{sentence.parent}/../../outside.wav", str(link),
        f"{sentence}\0", "", "x" * 5_000,
    ):  # fmt: skip
        assert refusal(asr, {"audio": audio})[:2] == (422, "audio_outside"), audio
    assert refusal(asr, {"audio": str(loop)})[0] == 422
    assert asr.client().stats().asr_submits == 0


def test_a_bad_recording_is_refused_at_the_submit(asr: AsrProcess, sentence: Path) -> None:
    """Empty, text, stereo, 8 kHz, truncated, eleven minutes: no task is made of them."""
    asr.start()
    second = bytes(32_000)
    bad = sentence.with_name("bad.wav")

    for code, text in {
        "empty_file": b"",
        "not_wave": b"no sound",
        "not_mono": wave_file(second, channels=2),
        "wrong_rate": wave_file(second, rate=8_000),
        "truncated": wave_file(second, promised=64_000),
        "too_long": wave_file(second, promised=11 * 60 * 32_000),
    }.items():
        bad.write_bytes(text)
        status, reason, message = refusal(asr, {"audio": str(bad)})
        assert (status, reason) == (422, code)
        assert message.startswith("audio: ")
    bad.unlink()
    assert refusal(asr, {"audio": str(bad)})[1] == "not_a_file"
    assert asr.client().stats().asr_submits == 0


def test_large_requests_are_refused(shared_asr: AsrProcess) -> None:
    key = {"Idempotency-Key": "large"}

    assert ask(shared_asr, "POST", "/v1/tasks", bytes(BODY_BYTES_MAX + 1), key)[0] == 413
    assert ask(shared_asr, "POST", "/v1/tasks", None, key | {"Content-Length": "9" * 4_000})[0] == 413
    assert ask(shared_asr, "POST", "/v1/tasks", None, key | {"Content-Length": "-1"})[0] == 411
    assert ask(shared_asr, "POST", "/v1/tasks", None, key | {"Transfer-Encoding": "chunked"})[0] == 411
    assert ask(shared_asr, "GET", "/v1/stats", None, {"X-Long": "x" * HEADER_BYTES_MAX})[0] == 431
    assert ask(shared_asr, "GET", "/v1/stats", None, {"X-Longer": "x" * 70_000})[0] == 431
    assert ask(shared_asr, "GET", f"/v1/{'x' * 70_000}")[0] == 414


def test_a_request_under_a_foreign_name_is_refused(shared_asr: AsrProcess) -> None:
    """A page in a browser on this machine can reach the port by a name of its own; it must learn nothing."""
    assert ask(shared_asr, "GET", "/v1/stats", None, {"Host": "evil.example:80"})[0] == 403
    assert ask(shared_asr, "GET", "/v1/stats", None, {"Host": "localhost:1"})[0] == 200


def test_silent_connections_do_not_add_up(asr: AsrProcess) -> None:
    """More than CONNECTIONS_MAX are closed at once, and when the silent ones go there is room again."""
    asr.start()
    address = asr.listener.getsockname()
    silent = [socket.create_connection(address, timeout=60) for _ in range(CONNECTIONS_MAX)]
    try:
        with socket.create_connection(address, timeout=60) as surplus:
            assert surplus.recv(1) == b""
    finally:
        for connection in silent:
            connection.close()

    def served() -> bool:
        with socket.create_connection(address, timeout=60) as connection:
            try:
                connection.sendall(b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return connection.recv(15) == b"HTTP/1.1 200 OK"
            except ConnectionError:
                return False

    assert wait_until(served, "room for a request again")


def test_the_service_listens_on_this_machine_only(tmp_path: Path) -> None:
    for family, address in ((socket.AF_INET, ("0.0.0.0", 0)), (socket.AF_UNIX, str(tmp_path / "socket"))):
        with socket.socket(family) as listener:
            listener.bind(address)
            listener.listen()
            with pytest.raises(ValueError, match="loopback"):
                serve(listener, tmp_path / "data", Faults(), threading.Event())
    assert not (tmp_path / "data").exists()


def test_the_service_s_files_are_its_user_s_alone(shared_asr: AsrProcess, transcription: Succeeded) -> None:
    files = [path for path in shared_asr.data_dir.rglob("*") if path.is_file()]

    assert {"asr_tasks.sqlite3"} <= {path.name for path in files}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert list((shared_asr.data_dir / "asr_results").iterdir()) == []
