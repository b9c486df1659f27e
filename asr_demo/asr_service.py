"""The demo's speech service: an outside provider in small, with a queue, tasks, idempotency keys and faults.

It answers HTTP on a loopback socket that its parent holds, so that requests sent while it restarts wait in the
socket's queue instead of being refused. It reads recordings only from the folders that it was given, keeps its
tasks in SQLite in its data folder, and survives a SIGKILL at any moment: every accepted task ends after a restart.

It stands for something outside, so it uses nothing of the kernel.
The protocol is in asr_demo.asr_protocol; the limits are the constants below (dc-demo-fake-asr).
"""

from __future__ import annotations

import ipaddress
import logging
import re
import select
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from asr_demo.asr_api import AsrApi, LostReply, Reply, RequestRefused, Silence
from asr_demo.asr_faults import Faults, FaultSource
from asr_demo.asr_protocol import API_PREFIX, BODY_BYTES_MAX, Problem
from asr_demo.asr_tasks import TaskTable
from asr_demo.asr_worker import RecognitionWorker

BUNDLED_AUDIO = Path(__file__).resolve().parent / "audio"
OWN_AUDIO_NAME = "audio"  # below the data folder: for recordings that the demo was given (asr_demo.wav.keep_wav)
HEADER_BYTES_MAX = 16 * 1024
CONNECTIONS_MAX = 64
SILENT_CLIENT_S = 10.0
_LOOK_S = 0.1
_REPORT_S = 1.0
_TASK_PATH = re.compile(rf"{API_PREFIX}/tasks/([A-Za-z0-9_-]{{1,64}})")

logger = logging.getLogger(__name__)


class Child(Protocol):
    """What the supervisor hands to a companion process (supervisor.child.ChildLink)."""

    listener: socket.socket
    data_dir: Path

    def ready(self) -> None: ...

    def next_order(self, timeout_s: float) -> Any: ...

    def report(self, status: dict[str, Any]) -> None: ...

    def failed(self, text: str) -> None: ...


def main(child: Child) -> int:
    """The role of the companion process: serve until the supervisor orders the drain; the exit status."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            serve(child.listener, child.data_dir, Faults(), stop, ready=child.ready)
        except BaseException as error:
            failures.append(error)
        finally:
            stop.set()

    server = threading.Thread(target=run, name="asr")
    server.start()
    while not stop.is_set():
        order = child.next_order(_REPORT_S)
        if order is not None and order.kind in ("drain", "hasten"):
            stop.set()
        child.report({"loops": {"asr": 0.0}})
    server.join()
    for error in failures:
        logger.error("the speech service failed", exc_info=error)
        child.failed(f"the speech service failed: {type(error).__name__}: {error}")
    return 1 if failures else 0


def serve(
    listener: socket.socket,
    data_dir: Path,
    faults: Faults,
    stop: threading.Event,
    *,
    ready: Callable[[], None] = lambda: None,
    audio_roots: Sequence[Path] = (),
) -> None:
    """Answer requests on `listener` until `stop` is set; the listener stays open and is the caller's to close.

    Recordings may lie in `audio_roots`, in the demo's own audio folder, or in `data_dir/audio`. `faults` hold
    while there is no faults file in `data_dir` (asr_demo.asr_faults). Raises ValueError for a listener that is
    reachable from outside this machine.
    """
    _check_loopback(listener)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    table = TaskTable(data_dir)
    try:
        worker = RecognitionWorker(table, data_dir, stop)
        roots = (BUNDLED_AUDIO, data_dir / OWN_AUDIO_NAME, *audio_roots)
        api = AsrApi(table, FaultSource(data_dir, faults), roots, worker.wake)
        worker.start()
        try:
            with AsrServer(listener, api, stop) as server:
                ready()
                # On a socket that does not block, handle_request would not wait either: this waits for it.
                callers = select.poll()
                callers.register(server, select.POLLIN)
                while not stop.is_set():
                    if callers.poll(_LOOK_S * 1000):
                        server.handle_request()
        finally:
            stop.set()  # also when this loop failed: the worker must not go on alone
            worker.join()
    finally:
        table.close()


def _check_loopback(listener: socket.socket) -> None:
    if listener.family in (socket.AF_INET, socket.AF_INET6):
        host = listener.getsockname()[0]
        if ipaddress.ip_address(host).is_loopback:
            return
        raise ValueError(f"listener: {host} is no loopback address")
    raise ValueError("listener: must be a TCP socket on a loopback address")


class AsrServer(ThreadingHTTPServer):
    """A thread and one request per connection, at most CONNECTIONS_MAX of them; more are closed unanswered."""

    daemon_threads = False  # joined at the end: none may touch the task table after it is closed

    def __init__(self, listener: socket.socket, api: AsrApi, stop: threading.Event) -> None:
        super().__init__(listener.getsockname()[:2], RequestHandler, bind_and_activate=False)
        self.socket.close()  # the one that the base class made, for an address that is taken
        self.socket = listener.dup()
        # Another service on the same socket may take a connection between this one's select and accept.
        self.socket.setblocking(False)
        self.api = api
        self.stop = stop
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            logger.warning("more than %d connections: one is closed", CONNECTIONS_MAX)
            self.shutdown_request(request)
            return
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._connections.discard(request)
            self._free.release()

    def server_close(self) -> None:
        """End the open connections and wait for their threads; the caller's listener stays open."""
        with self._lock:
            for connection in self._connections:
                _hang_up(connection)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the service; anything else is logged with its trace."""
        logger.log(
            logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR,
            "a request ended with an error",
            exc_info=True,
        )


class RequestHandler(BaseHTTPRequestHandler):
    """HTTP and nothing else: limits, paths, and the bytes of the answers that AsrApi gives."""

    protocol_version = "HTTP/1.1"
    server_version = "asr-demo"
    sys_version = ""
    timeout = SILENT_CLIENT_S
    server: AsrServer

    def handle(self) -> None:
        # One request per connection, so that a stop never waits for a client that keeps one open.
        self.handle_one_request()

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_GET(self) -> None:
        self._answer(self._get)

    def _post(self) -> Reply:
        if self.path != f"{API_PREFIX}/tasks":
            raise _no_such_path()
        return self.server.api.submit(self.headers.get("Idempotency-Key"), self._body())

    def _get(self) -> Reply:
        url = urlsplit(self.path)
        if url.path == f"{API_PREFIX}/stats":
            return self.server.api.stats()
        task = _TASK_PATH.fullmatch(url.path)
        if task is None:
            raise _no_such_path()
        return self.server.api.poll(task[1], url.query)

    def _answer(self, decide: Callable[[], Reply]) -> None:
        try:
            self._check_headers()
            self._send(decide())
        except RequestRefused as refused:
            self._send(refused.reply)
        except LostReply:
            pass
        except Silence:
            self.server.stop.wait()
        except OSError:
            raise  # the client went away or sent nothing: there is nobody to answer
        except Exception:
            logger.exception("the service failed on a request")
            self._send(Reply(HTTPStatus.INTERNAL_SERVER_ERROR, Problem("internal", "the service failed; see its log")))

    def _check_headers(self) -> None:
        size = sum(len(name) + len(value) for name, value in self.headers.items())
        if size > HEADER_BYTES_MAX:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise RequestRefused(status, "headers_too_large", f"headers: at most {HEADER_BYTES_MAX} bytes are taken")
        # A browser that was lured to a name which resolves to this machine still sends that name.
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if host not in ("127.0.0.1", "localhost", "::1"):
            raise RequestRefused(HTTPStatus.FORBIDDEN, "bad_host", "Host: must be a loopback name")

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            message = "Content-Length: is needed, and no Transfer-Encoding"
            raise RequestRefused(HTTPStatus.LENGTH_REQUIRED, "length_required", message)
        if len(length) > 9 or int(length) > BODY_BYTES_MAX:
            message = f"body: at most {BODY_BYTES_MAX} bytes are taken"
            raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", message)
        return self.rfile.read(int(length))

    def _send(self, reply: Reply) -> None:
        body = msgspec.json.encode(reply.body)
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The base class's own refusals (bad request line, unknown method), in this service's form."""
        status = HTTPStatus(code)
        self._send(Reply(status, Problem("bad_request", message or status.phrase)))

    def log_message(self, format: str, *args: object) -> None:
        logger.debug("%s %s", self.address_string(), format % args)


def _no_such_path() -> RequestRefused:
    return RequestRefused(HTTPStatus.NOT_FOUND, "no_such_path", "path: this service has /v1/tasks and /v1/stats")


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other side was faster
