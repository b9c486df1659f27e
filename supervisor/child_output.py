"""stdout and stderr of a child: a pipe to the supervisor, which shows each line in the log (event `child.stderr`).

Native crashes, faulthandler and ill-behaved libraries write to the descriptor itself; Python's streams go through
`LossyPipe`, so that a supervisor that does not read can not hold up a print for ever (A68).
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
import time
from collections.abc import Callable

LINE_BYTES_MAX = 8_192
_WAIT_S = 0.5


class LossyPipe(io.RawIOBase):
    """Writes to a pipe; what the reader does not take within 0.5 s is dropped."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._lock = threading.Lock()
        self._stalled = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        deadline = time.monotonic() + _WAIT_S
        with self._lock:
            for start in range(0, len(view), select.PIPE_BUF):
                remaining = 0.0 if self._stalled else max(0.0, deadline - time.monotonic())
                self._stalled = not self._poll.poll(remaining * 1000)
                if self._stalled:
                    break
                try:
                    os.write(self._fd, view[start : start + select.PIPE_BUF])
                except OSError:
                    break  # the supervisor is gone
        return len(view)


def redirect(pipe_fd: int) -> None:
    """In a child: stdin from nowhere, stdout and stderr into the pipe."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(pipe_fd, 1)
    os.dup2(pipe_fd, 2)
    stream = io.TextIOWrapper(
        io.BufferedWriter(LossyPipe(2)), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    sys.stdout = sys.stderr = stream


class LineReader:
    """The supervisor's end of that pipe: whole lines, and at the end what is left of one."""

    def __init__(self, fd: int, show: Callable[[str], None]) -> None:
        self.fd = fd
        self._show = show
        self._rest = b""
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Take what is there, at most 64 kB; False when there is nothing for now. Raises EOFError at the end."""
        try:
            data = os.read(self.fd, 65_536)
        except BlockingIOError:
            return False
        if not data:
            raise EOFError
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._shown(line)
        while len(self._rest) > LINE_BYTES_MAX:
            self._shown(self._rest[:LINE_BYTES_MAX])
            self._rest = self._rest[LINE_BYTES_MAX:]
        return True

    def finish(self) -> None:
        """Nobody writes any more: show the last line even if it was not ended."""
        self._shown(self._rest)
        self._rest = b""

    def _shown(self, line: bytes) -> None:
        if line.strip():
            self._show(line[: LINE_BYTES_MAX * 4].decode("utf-8", "backslashreplace").rstrip())
