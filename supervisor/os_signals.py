"""Signals of the operating system to the supervisor: a handler writes a byte, the loop decides (A60).

TERM, INT, HUP: drain; again: hasten; a third time: kill. QUIT: hasten at once. USR1: stacks of all children.
USR2: open the log file again.
"""

from __future__ import annotations

import os
import signal
import socket
from types import FrameType

from supervisor.forking import HANDLED

STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


class SignalPipe:
    """Signals as bytes on a descriptor. Made first of all, before anything exists that a signal could orphan."""

    def __init__(self) -> None:
        _hold_standard_descriptors()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._catch()

    def fileno(self) -> int:
        return self._reader.fileno()

    def _catch(self) -> None:
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in HANDLED - {signal.SIGCHLD}:
            # nohup has said that the end of the terminal shall not matter
            if not (number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN):
                signal.signal(number, _noted)
        # An inherited SIG_IGN would reap children unseen.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)

    def read(self) -> list[signal.Signals]:
        """The signals since the last call, in their order."""
        try:
            return [signal.Signals(number) for number in self._reader.recv(4096)]
        except BlockingIOError:
            return []


def _hold_standard_descriptors() -> None:
    """Open what is missing of 0, 1, 2: else a socket would get such a number, and a print would go into it."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return


def _noted(number: int, frame: FrameType | None) -> None:
    """Python needs a handler for the byte to be written; the work is done in the loop."""
