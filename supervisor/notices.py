"""Notices that an owner of claims is proved dead: repeated until somebody has acted on them (DECISIONS detail 5).

Pure bookkeeping: who receives a notice and how it is sent is the tree's affair, time is handed in.
"""

from __future__ import annotations

from itertools import count

from supervisor.messages import Cause, OwnerDead

FIRST_REPEAT_MS = 1_000
REPEAT_MS = 5_000
"""A notice is sent at once, 1 s later, 5 s later, and then every 5 s until it is acknowledged."""


class Notice:
    """One dead owner, and when to speak of it next. `owed`: it has not given back by itself what it held."""

    def __init__(self, message: OwnerDead, now_ms: int, expires_ms: int, *, owed: bool) -> None:
        self.message = message
        self.owed = owed
        self.born_ms = now_ms
        self.next_ms = now_ms
        self.expires_ms = expires_ms
        self._sent = 0

    def sent(self) -> None:
        self.next_ms = self.born_ms + (REPEAT_MS * self._sent or FIRST_REPEAT_MS)
        self._sent += 1


class NoticeBoard:
    """All notices that nobody has acknowledged yet.

    `lifetime_ms`: after that long every lease of a dead owner has run out by itself and the notice says nothing new.
    """

    def __init__(self, lifetime_ms: int) -> None:
        self._lifetime_ms = lifetime_ms
        self._open: dict[int, Notice] = {}
        self._ids = count(1)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def owed(self) -> bool:
        """Whether one of them has left claims, for all that is known."""
        return any(notice.owed for notice in self._open.values())

    def post(self, worker_id: str, cause: Cause, now_ms: int, *, owed: bool = True) -> Notice:
        message = OwnerDead(notice_id=next(self._ids), worker_id=worker_id, cause=cause)
        notice = Notice(message, now_ms, now_ms + self._lifetime_ms, owed=owed)
        self._open[message.notice_id] = notice
        return notice

    def acknowledge(self, notice_id: int) -> bool:
        """True when this was the first acknowledgement."""
        return self._open.pop(notice_id, None) is not None

    def messages(self) -> list[OwnerDead]:
        """All that is not acknowledged: for a receiver that is new."""
        return [notice.message for notice in self._open.values()]

    def due(self, now_ms: int) -> list[Notice]:
        """Notices to send now; those that have outlived their use are dropped on the way."""
        for notice_id, notice in list(self._open.items()):
            if notice.expires_ms <= now_ms:
                del self._open[notice_id]
        return [notice for notice in self._open.values() if notice.next_ms <= now_ms]

    @property
    def next_ms(self) -> int | None:
        return min((notice.next_ms for notice in self._open.values()), default=None)
