"""Forks children into slots, reads what they say, and reaps them. What follows from a death the tree decides."""

from __future__ import annotations

import gc
import logging
import signal
from functools import partial
from pathlib import Path
from typing import Protocol

from kernel.config import Config
from supervisor.channels import ChannelPairs, Channels
from supervisor.child import Place
from supervisor.child_output import LineReader
from supervisor.embedded import EmbeddedServer
from supervisor.events import tell
from supervisor.forking import Exit, Process, fork, mint_worker_id, reap_adopted
from supervisor.guardian import Guardian
from supervisor.log_setup import RecordReader, TreeLog
from supervisor.loop import READ, Loop
from supervisor.messages import FromChild
from supervisor.roles import ChildSetup, run_child
from supervisor.slot import Slot

_GUARDIAN_LIMIT_MS = 1_000


class Decisions(Protocol):
    """Who is told what happened."""

    def on_message(self, slot: Slot, message: FromChild) -> None: ...

    def on_end(self, slot: Slot, found: Exit) -> None: ...

    def on_fork_failed(self, slot: Slot, error: OSError) -> None: ...


class Nursery:
    """The living children of one tree."""

    def __init__(self, loop: Loop, config: Config, data_dir: Path, tree_log: TreeLog, decisions: Decisions) -> None:
        self.redis_url: str | None = config.redis_url
        self.addresses: dict[str, str] = {}
        self.embedded: EmbeddedServer | None = None
        self._loop = loop
        self._config = config
        self._data_dir = data_dir
        self._log = tree_log
        self._decisions = decisions
        self._alive: set[Slot] = set()
        self._guardian: Guardian | None = None

    def open(self) -> None:
        """Before the first fork: move what exists out of the collector's sight, so that children share its pages."""
        gc.collect()
        gc.freeze()
        self._new_guardian()

    # --- children ---------------------------------------------------------------------------------

    def fork(self, slot: Slot) -> None:
        """Put a new child into an empty slot, or tell why that did not work."""
        assert slot.process is None, f"{slot.name} is not empty"
        slot.rest()
        slot.worker_id = mint_worker_id()
        try:
            process, channels = self._fork_server() if slot.kind == "embedded" else self._fork_role(slot)
        except OSError as error:
            slot.history.forked()
            self._decisions.on_fork_failed(slot, error)
            return
        slot.began(process, channels, self._loop.now_ms())
        self._alive.add(slot)
        if self._guardian is not None:
            self._guardian.watch_over(process)
        if channels is not None:
            channels.watch(self._loop)
        self._loop.watch(process.pidfd, READ, partial(self._reap, slot))
        level = logging.DEBUG if slot.kind == "probe" else logging.INFO
        tell("child.started", f"{slot.name} started", level=level, child=slot.name, child_pid=process.pid)

    def _fork_server(self) -> tuple[Process, None]:
        assert self.embedded is not None
        return self.embedded.start(), None

    def _fork_role(self, slot: Slot) -> tuple[Process, Channels]:
        pairs = ChannelPairs()
        setup = ChildSetup(
            function=slot.function,
            place=Place(
                role=slot.role,
                slot=slot.number,
                worker_id=slot.worker_id,
                redis_url=None if slot.kind == "probe" else self.redis_url,
                data_dir=self._data_dir,
                addresses=self.addresses,
            ),
            config=self._config,
            link=pairs.child_link,
            records=pairs.child_records,
            output_fd=pairs.child_output,
            listener=slot.listener,
            log_handler=self._log.tree_handler,
        )
        try:
            process = fork(lambda: run_child(setup), name=slot.name, death_signal=signal.SIGTERM)
        except OSError:
            pairs.close()
            raise
        pairs.close_child_ends()
        records = RecordReader(pairs.records, self._log, slot.role, slot.number, slot.worker_id)
        channels = Channels(
            pairs,
            records,
            LineReader(pairs.output, lambda text: records.line(text, process.pid)),
            on_message=lambda message: self._decisions.on_message(slot, message),
            on_refused=lambda why: tell("link.refused", why, child=slot.name),
        )
        return process, channels

    def _reap(self, slot: Slot) -> None:
        process = slot.process
        assert process is not None
        found = process.reap()
        if found is None:
            return
        self._alive.discard(slot)
        self._loop.forget(process.pidfd)
        process.close()
        try:
            if slot.channels is not None:
                slot.channels.finish(self._loop)
        finally:
            # Whatever its last words led to, the place must not stay taken by a process that is gone.
            slot.rest()
            self._decisions.on_end(slot, found)

    def reap_adopted(self) -> None:
        """As the init of a container: reap the orphans that came to this process."""
        mine = {slot.process.pid for slot in self._alive if slot.process is not None}
        if self._guardian is not None:
            mine.add(self._guardian.process.pid)
        reap_adopted(mine)

    # --- the guardian -----------------------------------------------------------------------------

    @property
    def guardian_pid(self) -> int | None:
        return self._guardian.process.pid if self._guardian is not None else None

    def _new_guardian(self) -> None:
        try:
            guardian = self._guardian = Guardian()
        except OSError as error:
            self._guardian = None
            tell("guardian.failed", f"no guardian: {error}")
            self._loop.call_in(_GUARDIAN_LIMIT_MS, self._new_guardian)
            return
        for slot in self._alive:
            if slot.process is not None:
                guardian.watch_over(slot.process)
        self._loop.watch(guardian.process.pidfd, READ, self._guardian_ended)

    def _guardian_ended(self) -> None:
        guardian = self._guardian
        if guardian is None or (found := guardian.process.reap()) is None:
            return
        self._loop.forget(guardian.process.pidfd)
        guardian.process.close()
        guardian.dismiss()
        tell("guardian.ended", f"the guardian ended: {found}")
        self._new_guardian()

    # --- the end ----------------------------------------------------------------------------------

    def end_all(self, limit_ms: int) -> list[str]:
        """Kill whatever is still alive, reap it, and let the guardian go. Returns the names of what would not die."""
        for slot in list(self._alive):
            if slot.process is not None:
                slot.process.kill_group()
        self._loop.run_until(lambda: not self._alive, limit_ms)
        left = [slot.name for slot in self._alive]
        self._end_guardian()
        return left

    def _end_guardian(self) -> None:
        if self._guardian is None:
            return
        process = self._guardian.process
        self._guardian.dismiss()
        self._guardian = None
        if not self._loop.run_until(lambda: process.reap() is not None, _GUARDIAN_LIMIT_MS):
            process.kill_group()
            self._loop.run_until(lambda: process.reap() is not None, _GUARDIAN_LIMIT_MS)
        self._loop.forget(process.pidfd)
        process.close()
