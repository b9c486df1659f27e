"""Where log lines leave the tree: a descriptor that may be slow, full or gone, and must never hold up the parent (A68).

Lines wait in a bounded buffer while the reader does not read; above the bound the newest are dropped and counted.
"""

from __future__ import annotations

import os
import select
import stat
import time
from collections import deque

BACKLOG_BYTES_MAX = 1024 * 1024
_ATOMIC_BYTES = select.PIPE_BUF
"""poll() promises room for this much and no more: a longer write to a pipe could block."""


class LogSink:
    """Writes whole lines to a descriptor without blocking on it."""

    def __init__(self, fd: int, path: str | None = None) -> None:
        self.fd = fd
        self.dropped = 0
        self._path = path
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @classmethod
    def to_file(cls, path: str) -> LogSink:
        """Append to `path`, readable by its owner only. Raises OSError."""
        return cls(_opened(path), path)

    @property
    def is_terminal(self) -> bool:
        return os.isatty(self.fd)

    @property
    def backlog(self) -> int:
        """Bytes that wait for the reader."""
        return self._waiting_bytes

    def write(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        if self._waiting_bytes + len(data) > BACKLOG_BYTES_MAX:
            self.dropped += 1
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self.flush()

    def finish(self, limit_s: float) -> None:
        """Give the reader `limit_s` to take what is left."""
        deadline = time.monotonic() + limit_s
        while self._waiting and (remaining := deadline - time.monotonic()) > 0:
            self._poll.poll(remaining * 1000)
            self.flush()

    def flush(self) -> None:
        """Write what the reader takes now."""
        while self._waiting and (self._is_file or self._poll.poll(0)):
            chunk = self._waiting.popleft()
            while self._waiting and len(chunk) + len(self._waiting[0]) <= _ATOMIC_BYTES:
                chunk += self._waiting.popleft()
            now = chunk if self._is_file else chunk[:_ATOMIC_BYTES]
            try:
                written = os.write(self.fd, now)
            except BlockingIOError:
                written = 0
            except OSError:
                # The reader is gone or the disk is full: these lines have no place to go.
                self.dropped += chunk.count(b"\n")
                self._waiting_bytes -= len(chunk)
                continue
            if written < len(chunk):
                self._waiting.appendleft(chunk[written:])
            self._waiting_bytes -= written
            if written == 0:
                return

    def reopen(self) -> None:
        """Open the file again after it was moved away. Raises OSError and then keeps the old one."""
        if self._path is not None:
            fd = _opened(self._path)
            os.dup2(fd, self.fd, inheritable=False)
            os.close(fd)


def _opened(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
    return os.open(path, flags, 0o600)
