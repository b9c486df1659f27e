"""The index of due intents and the turn to scan in plain Python: what lua/v1/dispatch_*.lua must do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class DispatchModel:
    """One source. `held` is (token, until ms), None while nobody holds the turn."""

    most: int = 100_000
    due: dict[str, int] = field(default_factory=dict)
    held: tuple[str, int] | None = None

    def add(self, entries: Iterable[tuple[str, int]]) -> int:
        """How many ids were new; an id that is known keeps its earlier time."""
        new = 0
        for object_id, due_ms in entries:
            new += object_id not in self.due
            self.due[object_id] = min(due_ms, self.due.get(object_id, due_ms))
        self.due = dict(self._ordered()[: self.most])
        return new

    def take(self, count: int, until_ms: int) -> tuple[list[str], int | None]:
        """The ids that are due, and when the first that is left is."""
        taken = [object_id for object_id, due_ms in self._ordered()[:count] if due_ms <= until_ms]
        for object_id in taken:
            del self.due[object_id]
        return taken, min(self.due.values(), default=None)

    def hold(self, token: str, hold_ms: int, now_ms: int) -> int:
        """0 when the turn is the asker's, else how long it is another's."""
        if self.held is not None and now_ms < self.held[1]:
            return self.held[1] - now_ms
        self.held = (token, now_ms + hold_ms)
        return 0

    def free(self, token: str, now_ms: int) -> int:
        if self.held is None or self.held[0] != token or now_ms >= self.held[1]:
            return 0
        self.held = None
        return 1

    def wipe(self) -> None:
        """What FLUSHALL does."""
        self.due, self.held = {}, None

    def _ordered(self) -> list[tuple[str, int]]:
        return sorted(self.due.items(), key=lambda item: (item[1], item[0].encode()))
