"""A supervisor on a stage: the tree of `supervisor.tree` whole, on simulated time, with an operating system of its own.

The loop, the nursery, slots, back-off, notices and shutdown are production's; what is replaced is what they ask of the
operating system: `select` waits on the hub, a fork makes a process of the simulation, and a link is two queues of the
bytes that production would send.
"""

from __future__ import annotations

import selectors
import signal
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from kernel.config import Config
from kernel.runtime.releasing import release_told
from kernel.runtime.roles import _obey
from supervisor.child import Order
from supervisor.forking import Exit
from supervisor.loop import READ, Loop
from supervisor.messages import (
    Acknowledge,
    AskRecycle,
    Drain,
    Failed,
    FromChild,
    Hasten,
    OwnerDead,
    Ready,
    Report,
    ToChild,
    encoded,
    from_child,
    to_child,
)
from supervisor.nursery import Nursery
from supervisor.slot import Slot
from supervisor.tree import Outcome, Tree
from tests.simulation.crash.fault import Point
from tests.simulation.crash.outside import Luckless
from tests.simulation.crash.stage import Stage
from tests.simulation.fibers import Dead
from tests.simulation.processes import Process
from tests.simulation.roles import EngineProcess

T = TypeVar("T")

START_MS = 300
"""From the fork until a child is ready."""


class SimSelector(selectors.SelectSelector):
    """Descriptors are numbers that nobody has opened; `select` lets the others move until one of them is ready."""

    def __init__(self, supervisor: Process) -> None:
        super().__init__()
        self.ready: set[int] = set()
        self._event = supervisor.event()

    def now_ready(self, fd: int) -> None:
        self.ready.add(fd)
        self._event.set()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self._found()
        if not found:
            self._event.clear()
            self._event.wait(timeout)
            found = self._found()
        return found

    def _found(self) -> list[tuple[selectors.SelectorKey, int]]:
        known = self.get_map()
        return [(known[fd], READ) for fd in sorted(self.ready) if fd in known]


class System(Luckless):
    """The operating system as the supervisor reaches it."""

    def fork(self, do: Callable[[], Child]) -> Child:
        child: Child = self._made("os.fork", do, 0.0, said=())
        return child

    @staticmethod
    def befall(point: Point, do: Callable[[], Any]) -> Any:
        """a: there is no process to be had. b: there is one, and no descriptor to watch it by, so that it must not live
        (`supervisor.forking`, M18). c: there is one, and a blow ends it before its first line."""
        if point == "a":
            raise BlockingIOError("fork: planted")
        child: Child = do()
        child.kill_group()
        if point == "b":
            raise OSError("pidfd_open: planted")
        return child


class Child:
    """A child as the operating system knows it (supervisor.forking.Process)."""

    def __init__(self, tree: SimTree, slot: Slot, pid: int) -> None:
        self.pid = pid
        self.pidfd = 10_000 + 2 * pid
        self.link_fd = self.pidfd + 1
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.exit: Exit | None = None
        self._tree = tree
        stage, dispatches = tree.stage, slot.kind == "dispatcher"
        self.process = ChildProcess(stage, self, slot, dispatches=dispatches)
        stage.processes.append(self.process)

    def says(self, message: FromChild) -> None:
        self.up.append(encoded(message))
        self._tree.selector.now_ready(self.link_fd)

    def hears(self, message: ToChild) -> None:
        self.down.append(encoded(message))
        self.process.order_came.set()

    def ended(self, found: Exit) -> None:
        """The process is gone; its supervisor may reap it."""
        if self.exit is None:
            self.exit = found
            self.process.die()
            self._tree.stage.bury(self.process)
            self._tree.selector.now_ready(self.pidfd)

    # --- what the supervisor does with it ------------------------------------------------------------------

    def send_signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            self.kill_group()
        elif number == signal.SIGTERM:
            self.hears(Drain(deadline_s=0.0))

    def kill_group(self) -> None:
        self.ended(Exit(signal=9))

    def reap(self) -> Exit | None:
        return self.exit

    def close(self) -> None:
        self._tree.selector.ready.discard(self.pidfd)


class ChildLink(Luckless):
    """The link as the child sees it (kernel.runtime.link.Link)."""

    def __init__(self, process: Process, child: Child, came: Any) -> None:
        super().__init__(process)
        self._child = child
        self._came = came

    def _says(self, name: str, message: FromChild) -> None:
        self._made(name, lambda: self._child.says(message), 0.0, said=())

    def ready(self) -> None:
        self._says("link.ready", Ready())

    def acknowledge(self, notice_id: int) -> None:
        self._says("link.acknowledge", Acknowledge(notice_id))

    def ask_recycle(self, reason: str) -> None:
        self._says("link.ask_recycle", AskRecycle(reason))

    def report(self, status: dict[str, Any]) -> None:
        self._child.says(Report(status))

    def failed(self, text: str) -> None:
        self._child.says(Failed(text))

    def next_order(self, timeout_s: float | None) -> Order | None:
        self._came.clear()
        if not self._child.down:
            self._came.wait(timeout_s)
        if not self._child.down:
            return None
        kind = type(to_child(self._child.down[0])).__name__
        message: ToChild = self._made(
            "link.next_order", lambda: to_child(self._child.down.popleft()), 0.0, said=(kind,)
        )
        match message:
            case Drain(deadline_s=deadline_s):
                return Order(kind="drain", deadline_s=deadline_s)
            case Hasten(deadline_s=deadline_s):
                return Order(kind="hasten", deadline_s=deadline_s)
            case OwnerDead(notice_id=notice_id, worker_id=worker_id, cause=cause):
                return Order(kind="owner_dead", worker_id=worker_id, cause=cause, notice_id=notice_id)


class ChildProcess(EngineProcess):
    """A worker, dispatcher or releaser that a supervisor has forked; its main thread is that of `kernel.runtime`."""

    def __init__(self, stage: Stage, child: Child, slot: Slot, *, dispatches: bool) -> None:
        app = stage.app(*stage.definitions)
        worker_id = slot.worker_id
        super().__init__(
            stage, f"{slot.name}/{child.pid}", stage.rng, app, dispatches=dispatches, worker_id=worker_id, begins=False
        )
        self.child = child
        self.releases = slot.kind == "releaser"
        self.order_came = self.event()
        self.link = ChildLink(self, child, self.order_came)
        self.spawn("main", self._main)

    def _main(self) -> None:
        self.world.hub.sleep(START_MS)
        if self.releases:
            self.link.ready()
            releasing: Any = self.link
            release_told(self.engine.sweeps, releasing)
            self._exit(0)
        self.engine.services.committer.on_first_commit = self._report
        self.loop.start()
        self.link.ready()
        link: Any = self.link
        while not self.loop.done.is_set():
            if not _obey(link, self.engine, self.loop, self._report):
                self._exit(1)
        self._exit(0)

    def _report(self) -> None:
        self.link.report(self.loop.status())

    def _exit(self, code: int) -> None:
        self.child.ended(Exit(code=code))
        raise Dead


class SimChannels:
    """The supervisor's ends of what it shares with one child (supervisor.channels.Channels)."""

    def __init__(self, selector: SimSelector, child: Child, on_message: Callable[[FromChild], None]) -> None:
        self._selector = selector
        self._child = child
        self._on_message = on_message

    def watch(self, loop: Loop) -> None:
        loop.watch(self._child.link_fd, READ, self._read)

    def _read(self) -> None:
        self._selector.ready.discard(self._child.link_fd)
        while self._child.up:
            self._on_message(from_child(self._child.up.popleft()))

    def send(self, message: ToChild) -> bool:
        if self._child.exit is not None:
            return False
        self._child.hears(message)
        return True

    def finish(self, loop: Loop) -> None:
        self._read()
        loop.forget(self._child.link_fd)


class SimNursery(Nursery):
    """The nursery, with children of the simulation and no guardian: nobody kills this supervisor."""

    def open(self) -> None:
        """There is no memory to share and no guardian to fork."""

    def _fork_role(self, slot: Slot) -> tuple[Any, Any]:
        tree: Any = self._decisions
        child = tree.system.fork(lambda: tree.forked(slot))
        selector = tree.selector
        return child, SimChannels(selector, child, lambda message: self._decisions.on_message(slot, message))


class SimTree(Tree):
    """One supervisor of the stage. `forks`: when a child was asked for, by the name of its slot."""

    def __init__(self, stage: Stage, *, workers: int = 2, dispatchers: int = 1) -> None:
        self.stage = stage
        self.supervisor = Process(stage, "supervisor", stage.rng)
        stage.processes.append(self.supervisor)
        self.selector = SimSelector(self.supervisor)
        self.system = System(self.supervisor)
        self.forks: list[tuple[str, int]] = []
        self.outcome: Outcome | None = None
        self.children: list[Child] = []
        self.signals: deque[signal.Signals] = deque()
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name)
        log: Any = SimpleNamespace(sink=SimpleNamespace(flush=lambda: None, backlog=0), redact=lambda text: text)
        run_dir: Any = SimpleNamespace(path=path, control_path=path / "control.sock")
        signals: Any = SimpleNamespace(fileno=lambda: 9_999, read=self._taken)
        config = Config(app="sim:app", redis_url="redis://sim", workers=workers, dispatchers=dispatchers)
        super().__init__(
            config, run_dir, log, signals, companions=[], nursery=SimNursery,
            loop=Loop(now_ms=lambda: stage.hub.now_ms - stage.start_ms, selector=self.selector),
        )  # fmt: skip
        self.drain_ms = round(config.drain_s * 1000)
        self.policy = self._policy
        self.supervisor.spawn("tree", self._live)

    def _live(self) -> None:
        try:
            self.outcome = self.run()
        finally:
            self.say_goodbye(self.outcome or Outcome(1))
            self._folder.cleanup()

    def _taken(self) -> list[signal.Signals]:
        self.selector.ready.discard(9_999)
        found, self.signals = list(self.signals), deque()
        return found

    def kill(self, number: signal.Signals) -> None:
        """Send the supervisor a signal."""
        self.signals.append(number)
        self.selector.now_ready(9_999)

    def forked(self, slot: Slot) -> Child:
        living = [child for child in self.children if child.exit is None and child.process.name.startswith(slot.name)]
        if living:
            self.stage.violation("tree", f"a second child for {slot.name} beside {living[0].process.name}")
        self.forks.append((slot.name, self.stage.hub.now_ms))
        self.children.append(Child(self, slot, len(self.children) + 1))
        return self.children[-1]

    def slot(self, name: str) -> Slot:
        return next(slot for slot in self.slots if slot.name == name)

    def child(self, name: str) -> Child:
        """The living child of that slot."""
        return next(c for c in reversed(self.children) if c.process.name.startswith(name) and c.exit is None)

    def running(self) -> bool:
        return bool(self.slots) and all(slot.state == "RUNNING" for slot in self.slots)
