"""The supervisor's ends of what it shares with one child: the link, the log socket, the pipe of its output."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial

from kernel.errors import Refused
from supervisor.child_output import LineReader
from supervisor.log_setup import RecordReader
from supervisor.loop import READ, Loop
from supervisor.messages import MESSAGE_BYTES_MAX, FromChild, ToChild, encoded, from_child

AT_ONCE = 64
"""Messages or records taken from one child before others have their turn."""
_READS_AT_END = 10_000
"""A bound for reading what a dead child left behind; its sockets hold far less."""


class ChannelPairs:
    """Both ends of a child's channels, before the fork. Raises OSError out of descriptors, and leaves nothing then."""

    def __init__(self) -> None:
        self._opened: list[socket.socket] = []
        try:
            for _ in range(2):
                self._opened.extend(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            self.output, self.child_output = os.pipe()
        except OSError:
            for sock in self._opened:
                sock.close()
            raise
        self.link, self.child_link, self.records, self.child_records = self._opened

    def close_child_ends(self) -> None:
        """In the parent after the fork: only then is a child's death the end of its channels."""
        self.child_link.close()
        self.child_records.close()
        os.close(self.child_output)

    def close(self) -> None:
        """The fork has failed."""
        self.close_child_ends()
        self.link.close()
        self.records.close()
        os.close(self.output)


class Channels:
    """Reads and writes the channels of one living child; nothing here ever blocks."""

    def __init__(
        self,
        pairs: ChannelPairs,
        records: RecordReader,
        output: LineReader,
        on_message: Callable[[FromChild], None],
        on_refused: Callable[[str], None],
    ) -> None:
        self._link = pairs.link
        self._records = pairs.records
        self._lines = output
        self._on_message = on_message
        self._on_refused = on_refused
        self._readings: dict[int, Callable[[], bool]] = {
            pairs.link.fileno(): self._read_link,
            pairs.records.fileno(): partial(records.read, AT_ONCE),
            pairs.output: output.read,
        }

    def watch(self, loop: Loop) -> None:
        for fd, read in self._readings.items():
            loop.watch(fd, READ, partial(self._pump, loop, fd, read))

    def _pump(self, loop: Loop, fd: int, read: Callable[[], bool]) -> None:
        try:
            read()
        except EOFError:
            loop.forget(fd)  # it would be ready for ever; the pidfd tells of the death

    def _read_link(self) -> bool:
        """True when something was read, False when there is nothing for now. Raises EOFError."""
        for _ in range(AT_ONCE):
            try:
                data = self._link.recv(MESSAGE_BYTES_MAX + 1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                raise EOFError from None
            if not data:
                raise EOFError
            try:
                self._on_message(from_child(data))
            except Refused as error:
                self._on_refused(str(error))
        return True

    def send(self, message: ToChild) -> bool:
        """False when the child is gone or has not read for long."""
        try:
            self._link.send(encoded(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def finish(self, loop: Loop) -> None:
        """The child is dead: take its last words, then close everything."""
        for fd, read in self._readings.items():
            try:
                for _ in range(_READS_AT_END):
                    if not read():
                        break
            except EOFError:
                pass
            loop.forget(fd)
        self._lines.finish()
        self._link.close()
        self._records.close()
        os.close(self._lines.fd)
