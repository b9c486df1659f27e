"""How a process is forked, watched, killed and reaped. Nothing here knows what a child does.

Each rule closes a hole that was seen in the field:

- All handled signals are blocked over the fork and unblocked by the child when its own handlers stand, so that none
  is lost or answered by a handler of the parent (A59).
- A child leads its own process group; both sides set it, so that it holds whoever runs first. Killing the group ends
  what the child has started itself.
- The death of a child is known by its pidfd. The group is killed while the zombie still pins the number of the group,
  then the child is reaped; a number is never used after that (A61, DECISIONS detail 5).
- PR_SET_PDEATHSIG tells the child that its parent has died. The kernel sends it when the forking *thread* ends, so the
  parent must have one thread only; a parent that died before the call is found by comparing getppid.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable

import msgspec

from kernel.ids import RandomIds
from supervisor.messages import Cause

log = logging.getLogger("supervisor")

HANDLED = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD}
)
EXIT_FAULT = 70

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None, use_errno=True)


class Exit(msgspec.Struct, frozen=True):
    """How a process ended. `proved` is False when somebody else had reaped it: that says nothing of its threads."""

    code: int | None = None
    signal: int | None = None
    proved: bool = True

    @property
    def clean(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        if self.signal is not None:
            try:
                return f"killed by {signal.Signals(self.signal).name}"
            except ValueError:
                return f"killed by signal {self.signal}"
        return "ended unseen" if self.code is None else f"exit status {self.code}"


class Process:
    """A child that was forked and not yet reaped: known by its pidfd, never by its number alone."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.reaped = False

    def send_signal(self, number: int) -> None:
        """Signal the process; a process that has ended is no error (A66)."""
        if self.reaped:
            return
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            pass

    def kill_group(self) -> None:
        """SIGKILL to the process and all that it started; it has an effect only until it is reaped."""
        if self.reaped:
            return
        self.send_signal(signal.SIGKILL)
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # the group is empty or, between fork and setpgid, not there yet

    def reap(self) -> Exit | None:
        """None while it lives. Kills the group, then reaps; after that `close` the pidfd."""
        try:
            if os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            self.kill_group()
            found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            found = None
        self.reaped = True
        if found is None:
            return Exit(proved=False)
        if found.si_code == os.CLD_EXITED:
            return Exit(code=found.si_status)
        return Exit(signal=found.si_status)

    def close(self) -> None:
        os.close(self.pidfd)


def fork(body: Callable[[], int], *, name: str, death_signal: int | None) -> Process:
    """Fork a process that runs `body` and ends with the status it returns. Raises OSError, and then nothing is left.

    `body` starts with all HANDLED signals blocked and default, and must call `unblock_signals` when its handlers
    stand. It never returns into the caller's frames: neither `finally` blocks nor exit hooks of the parent run in it.
    `death_signal` is sent to it when this process dies.
    """
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    parent_pid = os.getpid()
    gc.disable()  # a collection in the child before it has settled would only copy pages
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(body, name, death_signal, parent_pid)
        return _watched(pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        gc.enable()


def _watched(pid: int) -> Process:
    try:
        os.setpgid(pid, pid)
    except (PermissionError, ProcessLookupError):
        pass  # it has called exec or ended: it had set the group itself before
    try:
        return Process(pid, os.pidfd_open(pid))
    except OSError:
        # Out of descriptors. A child that can not be watched must not live (mutant M18).
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _run_child(body: Callable[[], int], name: str, death_signal: int | None, parent_pid: int) -> None:
    status = EXIT_FAULT
    try:
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)
        # Ctrl-C goes to the whole terminal group; how children end is the supervisor's decision.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.setpgid(0, 0)
        _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)
        if death_signal is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(death_signal), 0, 0, 0)
        if death_signal is None or os.getppid() == parent_pid:
            gc.enable()
            status = body()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        os._exit(status & 0xFF)


def _flush(stream: object) -> None:
    try:
        stream.flush()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        pass  # a closed or broken stream has nothing more to say


def unblock_signals() -> None:
    """Called by a child when it is ready for signals: those that came since the fork are delivered now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor above 2 that is not in `keep`: selector, other children's sockets, lock, whatever.

    Descriptors are closed by number while their Python objects live on in the parent's frames, which a child never
    leaves: so nothing closes such a number a second time when it has got a new meaning.
    """
    for entry in os.listdir("/proc/self/fd"):
        fd = int(entry)
        if fd > 2 and fd not in keep:
            try:
                os.close(fd)
            except OSError:
                pass  # the descriptor of the listing itself


def reap_adopted(mine: set[int]) -> int:
    """Reap orphans that this process has inherited because it is the init of its container; how many."""
    if os.getpid() != 1:
        return 0
    count = 0
    with open("/proc/thread-self/children", encoding="ascii") as listing:
        children = [int(text) for text in listing.read().split()]
    for pid in children:
        if pid not in mine:
            try:
                count += os.waitpid(pid, os.WNOHANG)[0] != 0
            except ChildProcessError:
                continue
    return count


def cause_of(ended: Exit, *, draining: bool, killed_by_order: bool) -> Cause:
    """Whether a death counts against the work that it interrupted (DECISIONS detail 4).

    The supervisor ordered it when it killed the child for its drain limit, or when a draining child ended by itself.
    A draining child that some signal of another hand ends has crashed.
    """
    return "ordered" if killed_by_order or (draining and ended.signal is None) else "death"


def mint_worker_id() -> str:
    """A name for one fork: 128 random bits as 32 hex digits, never issued before (DECISIONS detail 5)."""
    return RandomIds().token()
