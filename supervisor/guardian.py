"""A small process that outlives a killed supervisor by seconds and ends its children for certain (dc-supervisor-death).

When the supervisor is killed, each child sees the end of its link and drains for at most 4 s. A child that is stopped,
or whose interpreter is held by native code, sees nothing; no timer or death signal inside it would help without also
cutting the drain of the healthy ones. So one process, forked before all others, holds a pidfd of every child (handed
over as a descriptor, so that no number can come to mean another process). It waits for the supervisor's end of a socket
to close. At a normal stop there is no child left and it just ends. Otherwise it waits 4.3 s and sends SIGKILL to the
process group of every child that is still there; what a child leaves behind in its group is killed at the child's end.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time

from supervisor.forking import Process, close_all_but, fork, unblock_signals

PATIENCE_S = 4.3
_PIDFD_SIGNAL_PROCESS_GROUP = 4  # Linux 6.9


class Guardian:
    """The supervisor's handle on it."""

    def __init__(self) -> None:
        # Made before the fork, so that the guardian closes its copy of the supervisor's end: only then is the end of
        # the supervisor the end of the stream.
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.process: Process = fork(lambda: _guard(theirs), name="guardian", death_signal=None)
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()

    def watch_over(self, child: Process) -> None:
        """Hand over the pidfd of a new child."""
        try:
            socket.send_fds(self._socket, [b"w"], [child.pidfd], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            pass  # the guardian is dead: its successor is told of all children

    def dismiss(self) -> None:
        """Nothing is left to guard: let it end."""
        self._socket.close()


def _guard(sock: socket.socket) -> int:
    # Nothing that ends the supervisor may end the guardian before it has done its work.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    unblock_signals()
    close_all_but({sock.fileno()})
    _let_go_of_terminal()
    return _watch(sock)


def _let_go_of_terminal() -> None:
    """Whoever waits for the end of the supervisor's output must not wait for the guardian."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)


def _watch(sock: socket.socket) -> int:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    children: set[int] = set()
    deadline: float | None = None
    while deadline is None or children:
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            for pidfd in children:
                _kill_group(pidfd)
            return 0
        for fd, _ in poll.poll(None if remaining is None else remaining * 1000):
            if fd in children:
                _kill_group(fd)
                poll.unregister(fd)
                children.discard(fd)
                os.close(fd)
                continue
            try:
                data, received, _, _ = socket.recv_fds(sock, 16, 1)
            except OSError:
                data, received = b"", []  # not a clean end, but an end
            for pidfd in received:
                children.add(pidfd)
                poll.register(pidfd, select.POLLIN)
            if not data:
                poll.unregister(sock)
                deadline = time.monotonic() + PATIENCE_S
    return 0


def _kill_group(pidfd: int) -> None:
    """SIGKILL to the group that this process leads; exact even after the leader was reaped."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL, None, _PIDFD_SIGNAL_PROCESS_GROUP)
        return
    except ProcessLookupError:
        return
    except OSError:
        pass  # an older kernel: the leader alone is what can be named without a doubt
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        pass
