"""How a tree, or one child of it, is brought to its end (dc-signal-cascade, RELIABILITY L8).

Level 1, drain: workers, dispatchers and companions that stop with them are told at once and have the grace time side by
side, none waits for another (shd-concurrent-callbacks). When the last of them has ended, the other companions, which
activities may need while they drain, and the embedded server follow. Level 2, hasten: everything within two seconds.
Level 3: SIGKILL. A child past its limit is killed with its process group, and the tree then ends with status 1. What
it held is released before the end (supervisor.owners), within the time that is promised for that.
"""

from __future__ import annotations

import signal
from functools import partial

from supervisor.child import HASTEN_S
from supervisor.events import tell
from supervisor.forking import Exit
from supervisor.loop import Loop
from supervisor.messages import Drain, Hasten
from supervisor.owners import DeadOwners
from supervisor.slot import Slot

HASTEN_LIMIT_MS = 1_400
REST_LIMIT_MS = 1_500
REST_HASTEN_LIMIT_MS = 300
_TOLD_SHARE = 0.9
_TOLD_EARLIER_MAX_S = 1.0
"""A child is told a little less than its limit: what it can still give back by itself need not be taken over."""
_RELEASER_AHEAD_MAX_MS = 1_000
"""The releaser is forked so long before the first kill, and at the half of a short grace time."""


class Shutdown:
    """The end of the children in `slots`, a list that the tree owns."""

    def __init__(self, loop: Loop, slots: list[Slot], drain_s: float, owners: DeadOwners) -> None:
        self.level = 0
        self.was_unclean = False
        self._loop = loop
        self._slots = slots
        self._drain_s = drain_s
        self._owners = owners
        self._rest_told = False
        self._began_ms = 0

    @property
    def is_over(self) -> bool:
        return self.level > 0 and not any(slot.process is not None for slot in self._slots)

    def raise_to(self, level: int) -> None:
        """Begin to drain, hasten or kill; a lower level than the present one changes nothing."""
        if level <= self.level:
            return
        first, self.level = self.level == 0, min(level, 3)
        if first:
            self._began_ms = self._loop.now_ms()
        if any(slot.process is not None for slot in self._slots):
            tell("drain.begin", ("drain", "hasten", "kill")[self.level - 1], order=self.level)
        if first:
            for slot in self._slots:
                if slot.process is None and slot.state != "FATAL":
                    slot.rest()
                    slot.state = "STOPPED"
        self._provide_releaser()
        for slot in self._slots:
            if slot.process is None or slot.kind == "releaser":
                continue
            if self.level == 3:
                self._kill(slot)
            elif self.level == 2:
                self._hasten(slot)
            elif not slot.ends_last and slot.state != "DRAINING":
                self.drain_one(slot)
        self._tell_the_rest()

    def _provide_releaser(self) -> None:
        if self.level == 1:
            drain_ms = round(self._drain_s * 1000)
            ahead_ms = min(_RELEASER_AHEAD_MAX_MS, drain_ms // 2)
            self._loop.call_in(drain_ms - ahead_ms, self._owners.provide)
        else:
            self._owners.provide()
            self._owners.limit(HASTEN_LIMIT_MS + REST_HASTEN_LIMIT_MS)

    def drain_one(self, slot: Slot) -> None:
        """Let one child end its work within the grace time."""
        told_s = max(self._drain_s * _TOLD_SHARE, self._drain_s - _TOLD_EARLIER_MAX_S)
        self._tell(slot, Drain(deadline_s=told_s), round(self._drain_s * 1000))

    def ended(self, slot: Slot, found: Exit) -> None:
        """A child was reaped while everything ends."""
        if slot.state != "FATAL":
            slot.state = "STOPPED"
        if slot.kind not in ("probe", "releaser") and (slot.killed_by_order or not found.clean):
            self.was_unclean = True
        if slot.owns_claims:
            self._owners.owner_ended()
        self._tell_the_rest()
        if self.is_over:
            how = "somebody had to be killed" if self.was_unclean else "everything has ended by itself"
            tell("drain.end", how, elapsed_ms=self._loop.now_ms() - self._began_ms)

    def _hasten(self, slot: Slot) -> None:
        if slot.ends_last and not self._rest_told:
            return
        self._tell(slot, Hasten(deadline_s=HASTEN_S), REST_HASTEN_LIMIT_MS if slot.ends_last else HASTEN_LIMIT_MS)

    def _tell_the_rest(self) -> None:
        """Those that others need until they have ended, when nobody needs them any more."""
        if self._rest_told or self.level == 0:
            return
        if any(slot.process is not None for slot in self._slots if not slot.ends_last):
            return
        self._rest_told = True
        limit_ms = REST_LIMIT_MS if self.level == 1 else REST_HASTEN_LIMIT_MS
        if self.level == 1:
            self._owners.limit(limit_ms)
        for slot in [slot for slot in self._slots if slot.ends_last and slot.kind != "releaser"]:
            self._tell(slot, Drain(deadline_s=limit_ms / 1000 * _TOLD_SHARE), limit_ms)

    def _tell(self, slot: Slot, message: Drain | Hasten, limit_ms: int) -> None:
        if slot.process is None:
            return
        slot.rest()
        slot.state = "DRAINING"
        # A child that has not read its link for so long that it is full still has a signal handler.
        if not slot.send(message):
            slot.process.send_signal(signal.SIGTERM)
        slot.timer = self._loop.call_in(limit_ms, partial(self._kill, slot))

    def _kill(self, slot: Slot) -> None:
        if slot.process is not None:
            tell("child.killed", f"{slot.name} is killed: past its limit", child=slot.name)
            slot.kill()
