"""Owners of claims that are proved dead: who is told of them, and who is forked to act on it when nobody else is left.

Told are every dispatcher that lives, else every worker. When a tree ends, the last of them may have to be killed: then
a *releaser* acts on the proof, a child that does nothing else. It is forked a little before that may come, so that it
is ready in time, and let go when no owner lives and nothing is owed.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.events import tell
from supervisor.loop import Loop, Timer
from supervisor.messages import Cause, Drain
from supervisor.notices import NoticeBoard
from supervisor.slot import Slot


class DeadOwners:
    """Sends notices to children in `slots`, a list that the tree owns, until one of them has acted. `releaser`: the
    slot for one, which `fork` fills; None where there is no such role."""

    def __init__(
        self, loop: Loop, slots: list[Slot], lease_s: float, releaser: Slot | None, fork: Callable[[Slot], None]
    ) -> None:
        self._loop = loop
        self._slots = slots
        self._board = NoticeBoard(lifetime_ms=round(lease_s * 2000) + 60_000)
        self._releaser = releaser
        self._fork = fork
        self._limit_ms: int | None = None
        self._repeat: Timer | None = None

    def __len__(self) -> int:
        """How many of them nobody has acted upon yet."""
        return len(self._board)

    def announce(self, worker_id: str, cause: Cause, *, owed: bool) -> None:
        """That owner was reaped. `owed`: it has not given back by itself what it held."""
        self._board.post(worker_id, cause, self._loop.now_ms(), owed=owed)
        self._send()

    def greet(self, slot: Slot) -> None:
        """A child is ready: tell it what is open, if it is one that is told."""
        if slot in self._receivers():
            for message in self._board.messages():
                slot.send(message)

    def acknowledge(self, notice_id: int) -> None:
        if self._board.acknowledge(notice_id):
            tell("owner.released", "notice acknowledged", notice=notice_id)
            self._let_go()

    def _living(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.process is not None and slot.owns_claims]

    def _receivers(self) -> list[Slot]:
        owners = self._living()
        found = [slot for slot in owners if slot.kind == "dispatcher"] or owners
        return found if self._releaser is None or self._releaser.process is None else [*found, self._releaser]

    def _send(self) -> None:
        receivers = self._receivers()
        for notice in self._board.due(self._loop.now_ms()):
            for slot in receivers:
                slot.send(notice.message)
            notice.sent()
        if self._repeat is not None:
            self._repeat.cancel()
        next_ms = self._board.next_ms
        self._repeat = None if next_ms is None else self._loop.call_at(next_ms, self._send)

    # --- while everything ends ------------------------------------------------------------------------

    def provide(self) -> None:
        """Have a releaser, if an owner lives that may have to be killed, or something is owed."""
        slot = self._releaser
        if slot is None or slot.process is not None or not (self._living() or self._board.owed):
            return
        if slot not in self._slots:
            self._slots.append(slot)
        self._fork(slot)
        self._set_timer()

    def owner_ended(self) -> None:
        """When it was the last one, what is owed is the releaser's."""
        if not self._living():
            self.provide()
            self._let_go()

    def limit(self, limit_ms: int) -> None:
        """The releaser has so long from now on, or less if that was said before."""
        at_ms = self._loop.now_ms() + limit_ms
        self._limit_ms = at_ms if self._limit_ms is None else min(self._limit_ms, at_ms)
        self._set_timer()

    def _set_timer(self) -> None:
        slot = self._releaser
        if slot is not None and slot.process is not None and self._limit_ms is not None:
            slot.rest()
            slot.timer = self._loop.call_at(self._limit_ms, self._kill)

    def _kill(self) -> None:
        if self._releaser is not None and self._releaser.process is not None:
            tell("child.killed", "the releaser is killed: past its limit", child=self._releaser.name)
            self._releaser.kill()

    def _let_go(self) -> None:
        """Nobody will ask it any more: what it has noted it may write, and before it is ready it has not noted."""
        slot = self._releaser
        if slot is None or slot.process is None or self._living() or self._board.owed:
            return
        slot.state = "DRAINING"
        if not (slot.was_ready and slot.send(Drain(deadline_s=0.0))):
            slot.kill()
