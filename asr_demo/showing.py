"""Showing a text while it is made: at once, or, where a page lets somebody read along, at a writer's pace."""

from __future__ import annotations

from collections.abc import Iterator

from asr_demo.composer import pieces

PACE_S = 0.12
"""Between two pieces: longer than the kernel gathers text, so that each is a frame of its own."""
SHOWN_MAX_S = 1.5
"""The whole text, however long: a step that shows holds its place among those that compose."""


def paced(text: str, pace_s: float) -> Iterator[tuple[str, float]]:
    """The pieces of `text`, each with the seconds to wait after it. A pace of 0: all of it at once, and no wait."""
    if not pace_s:
        yield text, 0.0
        return
    parts = list(pieces(text))
    pause_s = min(pace_s, SHOWN_MAX_S / max(1, len(parts)))
    for part in parts:
        yield part, pause_s
