"""What a child last said about itself, and how old that is (dc-status; RELIABILITY seam 7).

"Alive" means that every loop of the child moved lately, not that a process exists: the age of a loop is what the child
reported plus the time since that report came. Silence is shown, never acted on: a stopped process may go on later, and
its claims are safe either way.
"""

from __future__ import annotations

from typing import Any

SILENT_MS = 10_000
"""A child that has reported once and then nothing for this long is shown as silent."""


class Health:
    """The last report of one child."""

    def __init__(self) -> None:
        self._status: dict[str, Any] = {}
        self._came_ms: int | None = None

    def note(self, status: dict[str, Any], now_ms: int) -> None:
        self._status = status
        self._came_ms = now_ms

    @property
    def has_committed(self) -> bool:
        """Whether the child has reported at least one commit."""
        counters = self._status.get("counters")
        commits = counters.get("commits") if isinstance(counters, dict) else None
        return isinstance(commits, int | float) and commits > 0

    def is_silent(self, now_ms: int) -> bool:
        return self._came_ms is not None and now_ms - self._came_ms > SILENT_MS

    def shown(self, now_ms: int) -> dict[str, Any]:
        """For `status`: ages in seconds as of now, the rest as reported."""
        if self._came_ms is None:
            return {"report_age_s": None, "loops": {}, "claims": None, "slots_busy": None, "counters": {}}
        age_s = (now_ms - self._came_ms) / 1000
        loops = self._status.get("loops")
        ages = loops.items() if isinstance(loops, dict) else ()
        counters = self._status.get("counters")
        known = {"loops", "claims", "slots_busy", "counters"}
        return {
            "report_age_s": round(age_s, 3),
            "loops": {name: round(value + age_s, 3) for name, value in ages if isinstance(value, int | float)},
            "claims": self._status.get("claims"),
            "slots_busy": self._status.get("slots_busy"),
            "counters": counters if isinstance(counters, dict) else {},
            **{f"x_{name}": value for name, value in self._status.items() if name not in known},
        }
