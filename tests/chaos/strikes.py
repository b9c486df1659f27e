"""The tree under chaos, and how each blow of the schedule meets it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, ClassVar, NamedTuple
from urllib.parse import unquote

import psutil

from kernel.config import Config
from kernel.errors import KernelError
from kernel.records import Document
from kernel.runtime import embedded_redis_url
from kernel.store.conditional import OneOf
from kernel.store.protocol import Query
from kernel.store.tables import INSTANCES
from supervisor.boot import Program
from supervisor.session import Session, running
from tests.chaos.hits import Hits, Pause, Span
from tests.chaos.schedule import Blow
from tests.chaos.staff import Staff
from tests.chaos.window import Window
from tests.faults.arms import Arm, Arms, Fired
from tests.faults.effects import boot_ms
from tests.faults.pausing import stop_outside_commit
from tests.support.wait import wait_until

READY_S = 60.0
_OF_LONG_HEIRS = tuple(f"outputs.{step}" for step in ("a", "c", "d", "z", "root", "side_0", "join"))
LATE = (*((("complete_step", _OF_LONG_HEIRS),) * 3), ("suspend_step", ("",)), ("begin_step", ("",)))
"""The writes in the middle of which a worker is stopped, and the fields that they touch: steps of which an heir is long
inside."""
MET_S, HEIR_S = 5.0, 20.0
"""How long a worker that is to be stopped in the middle of a write is waited for, and then, while it stands still, the
one who takes over."""


def settings(folder: Path, **more: Any) -> Config:
    """The fast profile of RELIABILITY §3, three workers and two dispatchers. Any of them may die for ever."""
    fast: dict[str, Any] = {
        "app": "tests.chaos.app:app",
        "data_dir": str(folder),
        "workers": 3,
        "dispatchers": 2,
        "slots": 4,
        "lease_s": 1.5,
        "poll_s": 0.2,
        "scan_s": 1.0,
        "drain_s": 3.0,
        "permit_lease_s": 1.5,
        "permit_wait_s": 1.0,
        "dispatch_lease_s": 1.5,
        "dispatch_scan_s": 1.0,
        "dispatch_delay_s": 0.2,
        "stream_check_s": 1.0,
        "durability": "normal",
        "restart_first_s": 0.05,
        "restart_max_s": 0.2,
        "restart_give_up": 1_000_000,
        "log_file": str(folder / "log.jsonl"),
    }
    return Config(**(fast | more))


class Tree:
    """A tree that is started again, on the same folder, whenever its supervisor was killed."""

    def __init__(self, config: Config, stderr: IO[bytes], program: Program | None = None) -> None:
        self.config = config
        self._program = program
        self.folder = Path(config.data_dir)
        self._stderr = stderr
        self._stack = ExitStack()
        self._session: Session | None = None

    def __enter__(self) -> Tree:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    def _begin(self) -> None:
        self._session = self._stack.enter_context(
            running(self.config, self._program, stderr=self._stderr, ready_timeout_s=READY_S)
        )

    def children(self, role: str = "") -> list[dict[str, Any]]:
        """The rows of `status`; none while the supervisor does not answer."""
        try:
            found: list[dict[str, Any]] = self.session.status()["children"]
        except (KernelError, TimeoutError, OSError):
            return []
        return [child for child in found if role in ("", child["role"])]

    def pids(self, role: str = "") -> list[int]:
        """Of the ready ones, in the order of their births."""
        ready = [child["pid"] for child in self.children(role) if child["pid"] and child["state"] == "RUNNING"]
        return sorted(ready, key=_born)

    def kill_supervisor(self) -> None:
        """And start another one; what is left of the old tree ends by itself meanwhile."""
        os.kill(self.session.pid, signal.SIGKILL)
        self.begin_again()

    def begin_again(self) -> None:
        """After the death of the supervisor."""
        self._stack.close()
        self._begin()

    def kill_everybody(self) -> None:
        """SIGKILL to each process of the tree, until none is left."""
        supervisor = psutil.Process(self.session.pid)
        everybody = [supervisor, *supervisor.children(recursive=True)]
        for process in everybody:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until(lambda: not any(map(_lives, everybody)), "everybody is dead", READY_S)

    def redis_says(self, *words: bytes) -> bytes:
        """The beginning of what the embedded Redis answers; b"" when it does not."""
        url = embedded_redis_url(self.folder)
        if url is None:
            return b""
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(2.0)
            connection.connect(unquote(url.removeprefix("unix://")))
            connection.sendall(b" ".join(words) + b"\r\n")
            return connection.recv(64)
        return b""


def _born(pid: int) -> tuple[float, int]:
    """Numbers alone do not say it: they begin anew."""
    try:
        return psutil.Process(pid).create_time(), pid
    except psutil.NoSuchProcess:
        return 0.0, pid


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Stopped(NamedTuple):
    """A process that stands still."""

    process: psutil.Process
    from_ms: int
    until_ms: int
    held: Sequence[Document] = ()
    """Rows that it had claimed: it stands still until they have been begun anew."""


class Striker:
    """Lets the blows fall: upon the tree, and upon the staff of producers. `window` is shut where nobody may look."""

    def __init__(self, tree: Tree, hits: Hits, staff: Staff, window: Window) -> None:
        self._tree = tree
        self._hits = hits
        self._staff = staff
        self._window = window
        self._arms = Arms(tree.folder)
        self._stopped: list[Stopped] = []
        self.log: list[str] = []

    def strike(self, blow: Blow) -> None:
        """One blow. A place that is empty at the moment is spared."""
        done = self.BLOWS[blow.kind](self, blow)
        self.log.append(f"{boot_ms()} {blow.kind} {done}")

    def go_on(self, at_once: bool = False) -> None:
        """Let those go on whose pause is over."""
        for stopped in list(self._stopped):
            if at_once or self._is_over(stopped):
                self._stopped.remove(stopped)
                # The span ends behind the signal: what the process does first is still inside.
                with suppress(psutil.NoSuchProcess):
                    stopped.process.resume()
                self._hits.pauses.append(Pause(stopped.process.pid, Span(stopped.from_ms, boot_ms())))

    def _is_over(self, stopped: Stopped) -> bool:
        late_ms = boot_ms() - stopped.until_ms
        return late_ms >= 0 and (late_ms >= 1000 * HEIR_S or all(map(self._has_heir, stopped.held)))

    def _has_heir(self, held: Document) -> bool:
        """Who holds it stands still: what has been written since is another's."""
        row = self._window.view.store.get(INSTANCES, held["workflow_id"])
        return row is None or row["revision"] > held["revision"]

    def _standing(self) -> list[int]:
        return [stopped.process.pid for stopped in self._stopped]

    def _chosen(self, role: str, blow: Blow) -> int | None:
        pids = [pid for pid in self._tree.pids(role) if pid not in self._standing()]
        return pids[blow.choice % len(pids)] if pids else None

    def _kill(self, role: str, blow: Blow) -> int | None:
        pid = self._chosen(role, blow)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._hits.kills += 1
            self._hits.deaths += 1
            self._hits.processes += role == "worker"
        return pid

    def _kill_worker(self, blow: Blow) -> int | None:
        return self._kill("worker", blow)

    def _kill_dispatcher(self, blow: Blow) -> int | None:
        return self._kill("dispatcher", blow)

    def _kill_a_producer(self, blow: Blow) -> object:
        self._hits.kills += 1
        return self._staff.kill_one(blow.choice)

    def _pause(self, role: str, blow: Blow) -> int | None:
        pid = self._chosen(role, blow)
        if pid is not None:
            self._stop(pid, role, self._tree.config.lease_s + blow.beyond_s)
        return pid

    def _stop(self, pid: int, role: str, seconds: float, held: Sequence[Document] = ()) -> None:
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            process, from_ms = psutil.Process(pid), boot_ms()
            stop_outside_commit(self._tree.folder, pid)
            self._stopped.append(Stopped(process, from_ms, boot_ms() + round(1000 * seconds), held))
            self._hits.processes += role == "worker"

    def _pause_worker(self, blow: Blow) -> int | None:
        return self._pause("worker", blow)

    def _pause_at_write(self, blow: Blow) -> object:
        """Stopped when the right to make the write has been looked at, and the store has not been asked yet: whichever
        worker comes there first. When it goes on it sends what was its own to send before (S3)."""
        call, fields = LATE[blow.choice % len(LATE)]
        names = {f"late-{len(self.log)}-{field}": field for field in fields}
        for name, field in names.items():
            self._arms.arm(name, Arm(call=call, touches=field, point="pause", role="worker"))
        met: list[Fired] = []
        with suppress(AssertionError):
            met = wait_until(lambda: [fired for name in names for fired in self._arms.fired(name)], f"a {call}", MET_S)
        held = self._held_by(met[0].pid) if met else []
        if met:
            self._stop(met[0].pid, "worker", self._tree.config.lease_s + blow.beyond_s, held)
        for name in names:
            self._arms.disarm(name)
        return call, [fired.pid for fired in met], len(held)

    def _held_by(self, pid: int) -> list[Document]:
        store = self._window.view.store
        owners = tuple(child["worker_id"] for child in self._tree.children("worker") if child["pid"] == pid)
        query = Query(INSTANCES, (OneOf("worker_id", owners),), "worker_id", ("workflow_id",), 100)
        rows = [store.get(INSTANCES, workflow_id) for (workflow_id,) in (store.scan(query) if owners else ())]
        return [row for row in rows if row is not None]

    def _pause_dispatcher(self, blow: Blow) -> int | None:
        return self._pause("dispatcher", blow)

    def _wipe(self, blow: Blow) -> bool:
        from_ms = boot_ms()
        done = self._tree.redis_says(b"FLUSHALL").startswith(b"+OK")
        self._hits.flushes += done
        self._hits.wipes.append(Span(from_ms, boot_ms()))
        return done

    def _kill_redis(self, blow: Blow) -> int | None:
        from_ms, pid = boot_ms(), self._kill("valkey", blow)
        wait_until(lambda: self._tree.redis_says(b"PING").startswith(b"+PONG"), "Redis is back", READY_S)
        self._hits.wipes.append(Span(from_ms, boot_ms()))
        return pid

    def _kill_supervisor(self, blow: Blow) -> int:
        from_ms, pid = boot_ms(), self._tree.session.pid
        self._hits.kills += 1
        self._hits.restarts += 1
        self._hits.processes += self._tree.config.workers
        self._tree.kill_supervisor()
        self._hits.wipes.append(Span(from_ms, boot_ms()))
        return pid

    def _kill_everybody(self, blow: Blow) -> int:
        """The tree and all producers at once, so that nobody is left who has the stores open."""
        from_ms, children = boot_ms(), len(self._tree.pids())
        self._window.shut()
        try:
            self._tree.kill_everybody()
            self._staff.kill_all()
            self._hits.store_restarts.append(boot_ms())
            self._tree.begin_again()
        finally:
            self._window.open()
        self._staff.start_all()
        self._hits.kills += 1
        self._hits.deaths += children
        self._hits.restarts += 1
        self._hits.processes += self._tree.config.workers
        self._hits.wipes.append(Span(from_ms, boot_ms()))
        return children

    def _roll(self, blow: Blow) -> list[int]:
        """SIGTERM to one worker after the other, each when the one before is back."""
        old = self._tree.pids("worker")
        for pid in old:
            if pid in self._standing():
                continue
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            self._hits.processes += 1
            self._wait_gone(pid)
        self._hits.restarts += 1
        return old

    def _wait_gone(self, pid: int) -> None:
        def back() -> bool:
            self.go_on()
            now = self._tree.pids("worker")
            return pid not in now and len(now) >= self._tree.config.workers - len(self._stopped)

        wait_until(back, f"another worker in the place of {pid}", READY_S)

    BLOWS: ClassVar[Mapping[str, Callable[[Striker, Blow], object]]] = MappingProxyType(
        {
            "kill_worker": _kill_worker,
            "kill_dispatcher": _kill_dispatcher,
            "kill_producer": _kill_a_producer,
            "pause_worker": _pause_worker,
            "pause_at_write": _pause_at_write,
            "pause_dispatcher": _pause_dispatcher,
            "wipe": _wipe,
            "kill_redis": _kill_redis,
            "kill_supervisor": _kill_supervisor,
            "kill_everybody": _kill_everybody,
            "roll": _roll,
        }
    )
