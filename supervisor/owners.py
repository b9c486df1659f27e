"""Owners of claims that are proved dead, and who is told of them: every dispatcher that lives, else every worker."""

from __future__ import annotations

from supervisor.events import tell
from supervisor.loop import Loop, Timer
from supervisor.messages import Cause
from supervisor.notices import NoticeBoard
from supervisor.slot import Slot


class DeadOwners:
    """Sends notices to children in `slots`, a list that the tree owns, until one of them has acted."""

    def __init__(self, loop: Loop, slots: list[Slot], lease_s: float) -> None:
        self._loop = loop
        self._slots = slots
        self._board = NoticeBoard(lifetime_ms=round(lease_s * 2000) + 60_000)
        self._repeat: Timer | None = None

    def __len__(self) -> int:
        """How many of them nobody has acted upon yet."""
        return len(self._board)

    def announce(self, worker_id: str, cause: Cause) -> None:
        """That owner was reaped."""
        self._board.post(worker_id, cause, self._loop.now_ms())
        self._send()

    def greet(self, slot: Slot) -> None:
        """A child is ready: tell it what is open, if it is one that is told."""
        if slot in self._receivers():
            for message in self._board.messages():
                slot.send(message)

    def acknowledge(self, notice_id: int) -> None:
        if self._board.acknowledge(notice_id):
            tell("owner.released", "notice acknowledged", notice=notice_id)

    def _receivers(self) -> list[Slot]:
        """Every dispatcher that lives; where none does, the workers, which run the same pass."""
        owners = [slot for slot in self._slots if slot.process is not None and slot.owns_claims]
        return [slot for slot in owners if slot.kind == "dispatcher"] or owners

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
