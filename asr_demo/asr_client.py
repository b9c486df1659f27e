"""Calls to the demo's speech service, each with a time limit that holds whatever the other side does.

Every call opens a connection of its own, so one client may be used by many threads and in a forked process. It
never tries again by itself: the caller's durable poll does (asr-poll-error). A submit whose answer is lost may be
sent again with the same idempotency key.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from asr_demo.asr_protocol import API_PREFIX, AsrOptions, Problem, Segment, Stats, SubmitRequest, TaskState

ANSWER_BYTES_MAX = 4 * 1024 * 1024
DEFAULT_OPTIONS = AsrOptions()
T = TypeVar("T")


class AsrError(Exception):
    """Base of this client's errors; `code` is stable."""

    code = "asr_error"


class AsrUnavailable(AsrError):
    """No usable answer: no connection, too late, a 5xx status or broken HTTP. Asking again may well work.

    For a submit this does not say that there is no task: only the same key tells.
    """

    code = "asr_unavailable"


class AsrTaskUnknown(AsrError):
    """The service has no such task: it forgot it, or never had it."""

    code = "asr_task_unknown"


class AsrRefused(AsrError):
    """The request breaks a rule of the service; the same request will be refused again. `reason` is its word."""

    code = "asr_refused"

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Submitted:
    """The task that this key has; `created` is False when an earlier submit had made it."""

    task_id: str
    provider: str
    created: bool


@dataclass(frozen=True, slots=True)
class Running:
    """Not finished. `queued` tells that the recognition has not begun."""

    queued: bool


@dataclass(frozen=True, slots=True)
class Succeeded:
    """What was said; `segments` is empty if the options asked for text only."""

    transcript: str
    segments: tuple[Segment, ...]
    audio_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The provider gave up on this task for good: its word and its line."""

    code: str
    reason: str


class AsrClient:
    """One provider at one address.

    `provider` is the name under which a caller pins its task to this address (asr-provider-pinned). A call takes
    `timeout_s` at most in all; within that, `connect_timeout_s` to connect and `read_timeout_s` of silence.
    """

    def __init__(
        self,
        base_url: str,
        *,
        provider: str = "pocketsphinx",
        connect_timeout_s: float = 2.0,
        read_timeout_s: float = 10.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.provider = provider
        self._host, self._port = _loopback_address(base_url)
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._monotonic = monotonic

    def submit(
        self, audio: Path, *, idempotency_key: str, options: AsrOptions = DEFAULT_OPTIONS, timeout_s: float = 15.0
    ) -> Submitted:
        """Have `audio` recognised, once per key. Raises AsrUnavailable, AsrRefused."""
        body = msgspec.json.encode(SubmitRequest(str(audio), options))
        headers = {"Idempotency-Key": idempotency_key, "Content-Type": "application/json"}
        status, answer = self._call("POST", f"{API_PREFIX}/tasks", body, headers, timeout_s)
        task = _decoded(status, answer, TaskState)
        return Submitted(task.task_id, self.provider, created=status == http.client.CREATED)

    def poll(
        self, task_id: str, *, options: AsrOptions = DEFAULT_OPTIONS, timeout_s: float = 15.0
    ) -> Running | Succeeded | Failed:
        """Return how the task stands. Raises AsrUnavailable, AsrTaskUnknown, AsrRefused."""
        path = f"{API_PREFIX}/tasks/{quote(task_id, safe='')}?language={options.language}&detail={options.detail}"
        task = _decoded(*self._call("GET", path, None, {}, timeout_s), TaskState)
        if task.status == "succeeded":
            return Succeeded(task.transcript or "", task.segments or (), task.audio_s)
        if task.status == "failed":
            problem = task.problem or Problem("failed", "the provider gave no reason")
            return Failed(problem.code, problem.message)
        return Running(queued=task.status == "queued")

    def stats(self, *, timeout_s: float = 15.0) -> Stats:
        """Return the service's counts. Raises AsrUnavailable."""
        return _decoded(*self._call("GET", f"{API_PREFIX}/stats", None, {}, timeout_s), Stats)

    def _call(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> tuple[int, bytes]:
        deadline = Deadline(self._monotonic, timeout_s, self._read_timeout_s)
        connection = _Connection(self._host, self._port, deadline, self._connect_timeout_s)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = response.read(ANSWER_BYTES_MAX + 1)
        except TimeoutError:
            raise AsrUnavailable(f"{method} {path}: no complete answer within the time limit") from None
        except (OSError, http.client.HTTPException) as error:
            raise AsrUnavailable(f"{method} {path}: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
        if len(answer) > ANSWER_BYTES_MAX:
            raise AsrUnavailable(f"{method} {path}: the answer is larger than {ANSWER_BYTES_MAX} bytes")
        return response.status, answer


class Deadline:
    """How long the next read or write may wait: the rest of the whole time, but no longer than one silence."""

    def __init__(self, monotonic: Callable[[], float], total_s: float, silence_s: float) -> None:
        self._monotonic = monotonic
        self._end = monotonic() + total_s
        self._silence_s = silence_s

    def next_wait_s(self) -> float:
        """Raises TimeoutError when the whole time is used up."""
        left_s = self._end - self._monotonic()
        if left_s <= 0:
            raise TimeoutError("the time limit of the call is used up")
        return min(left_s, self._silence_s)


class _Connection(http.client.HTTPConnection):
    """A connection whose whole use ends by the deadline, also when the answer trickles in byte by byte."""

    def __init__(self, host: str, port: int, deadline: Deadline, connect_timeout_s: float) -> None:
        super().__init__(host, port)
        self._deadline = deadline
        self._connect_timeout_s = connect_timeout_s

    def connect(self) -> None:
        wait_s = min(self._deadline.next_wait_s(), self._connect_timeout_s)
        plain = socket.create_connection((self.host, self.port), wait_s)
        self.sock = _DeadlineSocket(plain, self._deadline)


class _DeadlineSocket(socket.socket):
    """A socket that asks the deadline before each read: a time limit per read alone never adds up to an end."""

    def __init__(self, plain: socket.socket, deadline: Deadline) -> None:
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self._deadline = deadline

    def recv_into(self, *args: Any, **named: Any) -> int:
        self.settimeout(self._deadline.next_wait_s())
        return super().recv_into(*args, **named)

    def sendall(self, *args: Any, **named: Any) -> None:
        self.settimeout(self._deadline.next_wait_s())
        super().sendall(*args, **named)


def _decoded(status: int, answer: bytes, wanted: type[T]) -> T:
    if status in (http.client.OK, http.client.CREATED):
        try:
            return msgspec.json.decode(answer, type=wanted)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise AsrUnavailable(f"the answer is not what the protocol says: {error}") from None
    try:
        problem = msgspec.json.decode(answer, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        problem = Problem("unknown", "the service gave no reason")
    if status >= http.client.INTERNAL_SERVER_ERROR or status < http.client.BAD_REQUEST:
        raise AsrUnavailable(f"status {status}: {problem.message}")
    if problem.code == "task_unknown":
        raise AsrTaskUnknown(problem.message)
    raise AsrRefused(status, problem.code, problem.message)


def _loopback_address(base_url: str) -> tuple[str, int]:
    url = urlsplit(base_url)
    if url.scheme != "http" or url.port is None or url.hostname is None or url.path not in ("", "/"):
        raise ValueError("base_url: must look like http://127.0.0.1:PORT")
    if not _is_loopback(url.hostname):
        raise ValueError("base_url: the speech service of the demo is on this machine; a loopback address is needed")
    return url.hostname, url.port


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
