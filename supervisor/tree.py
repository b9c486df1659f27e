"""The supervisor: which children there are, what follows from a death, and in which order everything ends.

    probe ─> companions' sockets ─> embedded server ─> companions, dispatchers, workers ─> … ─> drain

All decisions are taken here, in one thread, one event after the other. Ways to the end: an order (signal, control
socket, end of the lifeline), or a slot that never got going (DECISIONS detail 23). Workers and dispatchers drain in
parallel; companions and the embedded server, which they may need, come last (dc-signal-cascade).
"""

from __future__ import annotations

import logging
import os
import signal
from functools import partial
from typing import Any

import msgspec

from kernel.config import Config
from kernel.errors import Refused
from supervisor import embedded
from supervisor.control import ControlServer, Request
from supervisor.embedded import EmbeddedServer
from supervisor.events import tell
from supervisor.exposing import clear_counts, metrics_server
from supervisor.forking import Exit, cause_of
from supervisor.listening import open_listener
from supervisor.log_setup import TreeLog
from supervisor.loop import READ, Loop
from supervisor.messages import Acknowledge, AskRecycle, Failed, FromChild, Ready, Report
from supervisor.nursery import Nursery
from supervisor.os_signals import STOPPING, SignalPipe
from supervisor.owners import DeadOwners
from supervisor.probe import ProbeAnswer
from supervisor.restart import Death, RestartPolicy
from supervisor.roles import EXIT_CONFIG, Companion, Roles
from supervisor.run_dir import RunDir
from supervisor.shutdown import Shutdown
from supervisor.slot import Slot

PROBE_LIMIT_MS = 60_000
_TICK_MS = 1_000
_FLUSH_MS = 50
_END_LIMIT_MS = 5_000


class Outcome(msgspec.Struct, frozen=True):
    """How the tree ended: exit status, and one line when it was not by order."""

    code: int
    line: str | None = None


class Tree:
    """One supervisor. `companions` None: ask the probe. `lifeline_fd`: the tree drains when that descriptor ends.

    `loop` may be given more descriptors and timers before `run`; their callbacks must not block. It and the `nursery`,
    which forks, are what a simulation has others of.
    """

    def __init__(
        self,
        config: Config,
        run_dir: RunDir,
        tree_log: TreeLog,
        signals: SignalPipe,
        *,
        roles: Roles | None = None,
        companions: list[Companion] | None = None,
        lifeline_fd: int | None = None,
        loop: Loop | None = None,
        nursery: type[Nursery] = Nursery,
    ) -> None:
        self.loop = loop or Loop()
        self.slots: list[Slot] = []
        self._config = config
        self._run_dir = run_dir
        self._log = tree_log
        self._signals = signals
        self._roles = roles or Roles()
        self._companions = companions
        self._lifeline_fd = lifeline_fd
        self._policy = RestartPolicy.of(config)
        self._nursery = nursery(self.loop, config, run_dir.path, tree_log, self)
        self._owners = DeadOwners(self.loop, self.slots, config.lease_s, self._releaser(), self._nursery.fork)
        self._shutdown = Shutdown(self.loop, self.slots, config.drain_s, self._owners)
        self._control: ControlServer | None = None
        self._answer: ProbeAnswer | None = None
        self._failure: Outcome | None = None
        self._types: list[str] = []
        self._started_ms = self.loop.now_ms()
        self._was_started = self._was_ready = self._is_begun = False

    # --- life -------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Start everything, keep it running, end it. Whatever happens, no child is left."""
        try:
            self._begin()
            while not self._shutdown.is_over:
                self.loop.run_once()
        finally:
            left = self._nursery.end_all(_END_LIMIT_MS)
        if left:
            tell("child.unkillable", f"could not be ended: {', '.join(left)}")
        outcome = self._failure or Outcome(1 if left or self._shutdown.was_unclean else 0)
        if self._nursery.embedded is not None:
            self._nursery.embedded.remove_files(log_too=outcome.code != 1)
        if self._was_started:
            tell("supervisor.ended", "nothing is left running", exit=outcome.code)
        return outcome

    def _begin(self) -> None:
        self._nursery.open()
        self.loop.watch(self._signals.fileno(), READ, self._on_signals)
        if self._lifeline_fd is not None:
            self.loop.watch(self._lifeline_fd, READ, self._on_lifeline)
        self._control = ControlServer(self.loop, self._run_dir.control_path, self._on_request)
        metrics = self._open_sockets(metrics_server(self._config))  # first: a taken port leaves no store behind
        companions = self._probed() if self._companions is None else self._companions
        if not self._shutdown.level:
            self._was_started = True
            tell("supervisor.started", f"supervisor of {self._run_dir.path}", app=self._config.app)
            self.slots += [*self._open_sockets(companions), *metrics]
            clear_counts(self._config, self._run_dir.path, companions)
        if not self._shutdown.level:
            self._start_embedded()
        if not self._shutdown.level:
            for number in range(self._config.dispatchers):
                self._add(Slot("dispatcher", "dispatcher", number, self._policy, function=self._roles.dispatcher))
            for number in range(self._config.workers):
                self._add(Slot("worker", "worker", number, self._policy, function=self._roles.worker))
            self._is_begun = True  # from here on all slots are known
            for slot in self.slots:
                if slot.state == "STOPPED" and slot.kind != "probe":
                    self._nursery.fork(slot)
        self._tick()

    def _add(self, slot: Slot) -> Slot:
        self.slots.append(slot)
        return slot

    def _releaser(self) -> Slot | None:
        function = self._roles.releaser
        if function is None:
            return None
        return Slot("releaser", "releaser", 0, self._policy, function=function, ends_last=True)

    def _probed(self) -> list[Companion]:
        """Ask a child what the application needs: the application's code never runs in this process."""
        if self._roles.probe is None or self._shutdown.level > 0:
            return []
        slot = self._add(Slot("probe", "probe", 0, self._policy, function=self._roles.probe))
        self._nursery.fork(slot)
        self.loop.run_until(
            lambda: self._answer is not None or slot.process is None or self._shutdown.level > 0, PROBE_LIMIT_MS
        )
        answer, ended = self._answer, slot.process is None
        if slot.process is not None:
            slot.process.kill_group()  # it has said what there is to say
            self.loop.run_until(lambda: slot.process is None, _END_LIMIT_MS)
        self.slots.remove(slot)
        if self._shutdown.level:
            return []
        if answer is None or answer.error is not None:
            why = slot.words or (slot.last_exit.text if slot.last_exit is not None and ended else "no answer")
            answer = answer or ProbeAnswer.amiss(self._config.app, why)
            self._fail(answer.exit_status, str(answer.error))
            return []
        self._types = answer.types
        return answer.companions

    def _open_sockets(self, companions: list[Companion]) -> list[Slot]:
        """The listening sockets belong to this process: a restart of a companion refuses no connection."""
        opened: list[Slot] = []
        for companion in companions:
            listener = open_listener(companion.name, companion.port, self._is_ordered_within, companion.host)
            if listener is None:
                break
            last = companion.stop == "after_workers"
            role, name = companion.role, companion.name
            opened.append(Slot("companion", name, 0, self._policy, function=role, listener=listener, ends_last=last))
            self._nursery.addresses[name] = str(opened[-1].url)
        return opened

    def _is_ordered_within(self, limit_ms: int) -> bool:
        return self.loop.run_until(lambda: self._shutdown.level > 0, limit_ms)

    def _start_embedded(self) -> None:
        if self._config.redis_url is not None:
            return
        server = EmbeddedServer(self._run_dir.redis_path, self._run_dir.path)
        self._nursery.embedded, self._nursery.redis_url = server, server.url
        slot = self._add(Slot("embedded", "valkey", 0, self._policy, ends_last=True))
        self._fork_embedded(slot)
        self.loop.run_until(
            lambda: slot.state == "RUNNING" or self._shutdown.level > 0, embedded.START_LIMIT_MS + _TICK_MS
        )

    def _fork_embedded(self, slot: Slot) -> None:
        self._nursery.fork(slot)
        if slot.process is not None:
            slot.timer = self.loop.call_in(embedded.PING_EVERY_MS, partial(self._ping, slot))

    def _ping(self, slot: Slot) -> None:
        server = self._nursery.embedded
        if server is None or slot.process is None or slot.state != "STARTING":
            return
        if server.answers():
            self._became_ready(slot)
        elif self.loop.now_ms() - slot.forked_ms > embedded.START_LIMIT_MS:
            slot.process.kill_group()
        else:
            slot.timer = self.loop.call_in(embedded.PING_EVERY_MS, partial(self._ping, slot))

    # --- what happens -----------------------------------------------------------------------------

    def on_message(self, slot: Slot, message: FromChild) -> None:
        match message:
            case Ready():
                self._became_ready(slot)
            case Report(status=status) if slot.kind == "probe":
                self._answer = ProbeAnswer.of(self._config.app, status)
            case Report(status=status):
                slot.health.note(status, self.loop.now_ms())
            case AskRecycle(reason=reason):
                if slot.state in ("STARTING", "RUNNING"):
                    tell("child.recycled", f"{slot.name} is replaced: {reason}", child=slot.name)
                    self._shutdown.drain_one(slot)
            case Acknowledge(notice_id=notice_id):
                self._owners.acknowledge(notice_id)
            case Failed(text=text):
                slot.words = self._log.redact(text)

    def _became_ready(self, slot: Slot) -> None:
        now = self.loop.now_ms()
        slot.became_ready(now)
        tell("child.ready", f"{slot.name} is ready", child=slot.name)
        self._owners.greet(slot)
        if not self._was_ready and self._is_begun and self._is_all_running():
            self._was_ready = True
            tell("supervisor.ready", "everything is running", elapsed_ms=now - self._started_ms)

    def on_end(self, slot: Slot, found: Exit) -> None:
        if slot.kind == "embedded" and not slot.was_ready and self._nursery.embedded is not None:
            slot.words = self._nursery.embedded.last_words()
        cause = cause_of(found, draining=slot.state == "DRAINING", killed_by_order=slot.killed_by_order)
        pid = slot.process.pid if slot.process is not None else None
        death = slot.ended(found, cause)
        level = logging.DEBUG if slot.kind == "probe" else logging.INFO if cause == "ordered" else logging.WARNING
        text = f"{slot.name} ended: {found}{f' ({slot.words})' if slot.words else ''}"
        tell("child.exited", text, level=level, child=slot.name, child_pid=pid, cause=cause)
        if slot.owns_claims and found.proved:
            # Who ends by itself before it was ready has claimed nothing.
            has_claimed = slot.was_ready or found.signal is not None
            self._owners.announce(slot.worker_id, cause, owed=has_claimed and not found.clean)
        if self._shutdown.level:
            self._shutdown.ended(slot, found)
        elif slot.kind == "probe":
            slot.state = "STOPPED"
        elif found.code == EXIT_CONFIG and not slot.was_ready:
            self._give_up(slot, EXIT_CONFIG, slot.words or str(found))
        else:
            self._restart(slot, death)

    def on_fork_failed(self, slot: Slot, error: OSError) -> None:
        slot.words = f"can not fork: {error.strerror or error}"
        tell("child.fork_failed", f"{slot.name}: {slot.words}", child=slot.name)
        if slot.kind not in ("probe", "releaser"):
            self._restart(slot, Death())

    def _restart(self, slot: Slot, death: Death) -> None:
        verdict = slot.history.died(death, self.loop.now_ms())
        if verdict.give_up:
            last = slot.words or (slot.last_exit.text if slot.last_exit is not None else "")
            self._give_up(slot, 1, f"failed {slot.history.start_failures} times in a row at start: {last}")
            return
        slot.state = "BACKOFF"
        slot.timer = self.loop.call_in(
            verdict.delay_ms, partial(self._fork_embedded if slot.kind == "embedded" else self._nursery.fork, slot)
        )
        if verdict.delay_ms:
            text = f"{slot.name} is restarted in {verdict.delay_ms} ms"
            tell("child.backoff", text, child=slot.name, delay_ms=verdict.delay_ms)

    def _give_up(self, slot: Slot, code: int, why: str) -> None:
        slot.state = "FATAL"
        tell("child.fatal", f"{slot.name} {why}", child=slot.name)
        self._fail(code, f"{slot.name}: {why}")

    def _fail(self, code: int, line: str) -> None:
        self._failure = self._failure or Outcome(code, line)
        self._shutdown.raise_to(1)

    # --- the world outside ------------------------------------------------------------------------

    def _tick(self) -> None:
        """What nothing else wakes the loop for: log lines that wait for their reader, orphans of others."""
        self._log.sink.flush()
        self._nursery.reap_adopted()
        self.loop.call_in(_FLUSH_MS if self._log.sink.backlog else _TICK_MS, self._tick)

    def _on_signals(self) -> None:
        for number in self._signals.read():
            if number == signal.SIGHUP:
                tell("supervisor.no_reload", "SIGHUP: settings are read at the start only; this tree drains and ends")
            if number in STOPPING:
                self._shutdown.raise_to(max(self._shutdown.level + 1, 2 if number == signal.SIGQUIT else 1))
            elif number == signal.SIGUSR1:
                self._show_stacks()
            elif number == signal.SIGUSR2:
                self._reopen_log()

    def _on_lifeline(self) -> None:
        assert self._lifeline_fd is not None
        if not os.read(self._lifeline_fd, 4096):
            self.loop.forget(self._lifeline_fd)
            self._shutdown.raise_to(1)

    def _reopen_log(self) -> None:
        try:
            self._log.sink.reopen()
        except OSError as error:
            tell("log.reopen_failed", f"log file: {error.strerror}")

    def _show_stacks(self) -> int:
        """Every role writes the stacks of its threads to stderr, and so into the log."""
        shown = [slot for slot in self.slots if slot.process is not None and slot.kind not in ("embedded", "probe")]
        for slot in shown:
            if slot.process is not None:
                slot.process.send_signal(signal.SIGUSR1)
        return len(shown)

    def _on_request(self, request: Request) -> dict[str, Any]:
        match request.op:
            case "status":
                return self.status()
            case "stop":
                self._shutdown.raise_to(1)
                return {"pid": os.getpid()}
            case "stacks":
                return {"children": self._show_stacks()}
            case "kill_child":
                return {"pid": self._kill_child(request.role, request.slot)}

    def _kill_child(self, role: str, number: int) -> int:
        for slot in self.slots:
            if slot.role == role and slot.number == number and slot.process is not None:
                slot.kill_requested = True
                slot.process.kill_group()
                return slot.process.pid
        raise Refused(f"kill_child: {role} {number} is not running")

    def _is_all_running(self) -> bool:
        return bool(self.slots) and all(slot.state == "RUNNING" for slot in self.slots)

    def status(self) -> dict[str, Any]:
        """What `kernel-supervisor status` shows (dc-status)."""
        now = self.loop.now_ms()
        starting = (
            "RUNNING" if self._is_begun and self._is_all_running() else "DEGRADED" if self._was_ready else "STARTING"
        )
        return {
            "pid": os.getpid(),
            "state": "DRAINING" if self._shutdown.level else starting,
            "uptime_s": round((now - self._started_ms) / 1000, 3),
            "data_dir": str(self._run_dir.path),
            "app": self._config.app,
            "types": self._types,
            "redis": "embedded" if self._config.redis_url is None else "configured",
            "guardian_pid": self._nursery.guardian_pid,
            "notices_open": len(self._owners),
            "log": {"lost_in_children": self._log.lost_in_children, "lost_at_sink": self._log.sink.dropped},
            "log_records": dict(self._log.handler.records),
            "failure": self._failure.line if self._failure is not None else None,
            "children": [slot.shown(now) for slot in self.slots],
        }

    def say_goodbye(self, outcome: Outcome) -> None:
        """After the data folder was let go: tell those who wait for the end."""
        if self._control is not None:
            self._control.close({"ok": True, "event": "ended", "exit": outcome.code})
