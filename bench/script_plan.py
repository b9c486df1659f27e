"""What a run of `bench lanes`, `bench permits` or `bench streams` shall do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

ScriptBench = Literal["lanes", "permits", "streams"]

DEPTHS: dict[ScriptBench, tuple[int, ...]] = {
    "lanes": (1_000, 10_000, 100_000, 1_000_000),
    "permits": (8, 1_000, 100_000),
    "streams": (1_000, 100_000, 1_000_000),
}
"""What is measured when nothing else is asked for: entries, holders, frames."""
DEPTH_MAX: dict[ScriptBench, int] = {"lanes": 1_000_000, "permits": 900_000, "streams": 1_000_000}
"""A resource has a million places, and those who are timed need some."""
WARM_PAIRS = 3
"""Pairs of slices before those that count."""
CHARACTERS = 10_000
"""Of the text that is streamed, as the requirement has it (dc-bench-stream)."""


@dataclass(frozen=True, kw_only=True)
class ScriptPlan:
    """The settings of a run, as its report repeats them. Durations in seconds where the name says so."""

    bench: ScriptBench
    depths: tuple[int, ...]
    """How much already lies there, the least first: entries of the lanes, holders of the resource, frames."""
    repeats: int
    """Slices of each row; each has a slice of the no-op beside it."""
    slice_s: float
    limit_s: float
    """All rows must be measured by then; what is missing is a violation."""
    observe_s: float = 3.0
    """How long the limits of a resource are watched (permits)."""
    redis_url: str | None = None
    """None: an embedded server of its own."""

    def settings(self) -> dict[str, Any]:
        """For the report; the address of a server may hold a password and is left out."""
        settings = asdict(self)
        del settings["redis_url"]
        return {**settings, "depths": list(self.depths), "embedded": self.redis_url is None}
