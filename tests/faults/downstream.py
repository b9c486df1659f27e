"""A downstream service that counts by itself: it knows nothing of permits, claims or workers, only its own callers.

Each call is one connection. It begins when the service has read who calls, and ends when the connection does: the
caller returned, or its process died. Times are those of the service, which runs in the test's own process.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from kernel import Context
from tests.faults.effects import boot_ms

SOCKET = "downstream"
_TURN_S = 0.02


class Call(NamedTuple):
    """One call as the service saw it; `end_ms` is None while it goes on."""

    pid: int
    kind: str
    workflow_id: str
    start_ms: int
    end_ms: int | None


class Downstream:
    """The service, and what it has seen."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen(1024)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._open: dict[socket.socket, int] = {}
        self._calls: list[Call] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="downstream", daemon=True)
        self._thread.start()

    def calls(self, kind: str = "") -> list[Call]:
        """All calls so far, in the order of their beginnings."""
        return [call for call in list(self._calls) if kind in ("", call.kind)]

    def running(self, kind: str = "") -> list[Call]:
        return [call for call in self.calls(kind) if call.end_ms is None]

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)
        for connection in self._open:
            connection.close()
        self._selector.close()
        self._listener.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            ready = [key.fileobj for key, _ in self._selector.select(_TURN_S)]
            if self._listener not in ready:
                self._end_those(ready)
                continue
            fresh, _ = self._listener.accept()
            # A call that began after another had ended is seen after that end, also when both come in one turn.
            self._end_those([key.fileobj for key, _ in self._selector.select(0)])
            self._begin(fresh)

    def _begin(self, fresh: socket.socket) -> None:
        fresh.settimeout(5)
        try:
            pid, kind, workflow_id = fresh.makefile("r").readline().split()
        except (OSError, ValueError):
            fresh.close()  # its process died in the middle of the word
            return
        self._open[fresh] = len(self._calls)
        self._calls.append(Call(int(pid), kind, workflow_id, boot_ms(), None))
        self._selector.register(fresh, selectors.EVENT_READ)
        with suppress(OSError):  # its process died before the answer: the call ends as one that was answered
            fresh.sendall(b"\n")

    def _end_those(self, ready: list[object]) -> None:
        for connection in [known for known in self._open if known in ready]:
            place = self._open.pop(connection)
            self._calls[place] = self._calls[place]._replace(end_ms=boot_ms())
            self._selector.unregister(connection)
            connection.close()


@contextmanager
def downstream(folder: Path) -> Iterator[Downstream]:
    folder.mkdir(mode=0o700, exist_ok=True)
    service = Downstream(folder)
    try:
        yield service
    finally:
        service.close()


@contextmanager
def calling(ctx: Context, folder: Path, kind: str) -> Iterator[None]:
    """The caller's side: inside the block the call goes on, whatever the caller does meanwhile."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(folder / SOCKET))
        connection.sendall(f"{os.getpid()} {kind} {ctx.workflow_id}\n".encode())
        connection.recv(1)
        yield


WINDOWS_S = range(1, 8)


def most_at_once(calls: list[Call]) -> int:
    """The most calls that the service ever saw going on at the same moment: an end at the moment of a beginning comes
    before it."""
    moments = [(call.start_ms, 1) for call in calls] + [(call.end_ms, -1) for call in calls if call.end_ms is not None]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


def most_starts(calls: Iterable[Call], window_ms: int) -> int:
    """The most calls that began within any window of that length."""
    starts = sorted(call.start_ms for call in calls)
    most = first = 0
    for number, start in enumerate(starts):
        while start - starts[first] >= window_ms:
            first += 1
        most = max(most, number - first + 1)
    return most


def too_many_starts(calls: Iterable[Call], starts: int, at_once: int) -> str | None:
    """What is seen of more than `starts` beginnings a second, None where nothing is.

    Between the start that Redis counts and the moment at which the service reads the call lies the way there, which may
    take as long as it likes on a busy machine. Whoever is on it holds one of `at_once` places: so many more may be seen
    within some seconds than were begun in them.
    """
    calls = list(calls)
    for seconds in WINDOWS_S:
        # A tenth of a second less: the server's clock and ours need not be equally fast.
        most, allowed = most_starts(calls, 1_000 * seconds - 100), starts * seconds + at_once
        if most > allowed:
            return f"{most} calls began within {seconds} s, at most {allowed} may"
    return None
