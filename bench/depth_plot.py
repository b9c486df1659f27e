"""A report of `bench lanes`, `permits` or `streams` as a picture: depth against calls a second, one line each (SVG)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from bench import picture
from bench.picture import Axis, Lines


def lines_of(rows: list[dict[str, Any]]) -> Lines:
    """(depth, per second) of each operation that has a depth, and of the no-op beside them, by its name."""
    lines: Lines = {}
    noop: dict[int, list[int]] = {}
    for row in rows:
        if "ratio" not in row or not row["depth"]:
            continue
        unit = " (ids)" if row["unit"] == "ids" else ""
        lines.setdefault(f"{row['op']}({row['n']}){unit}", []).append((row["depth"], row["per_s"]))
        noop.setdefault(row["depth"], []).append(row["noop_per_s"])
    if noop:
        lines["no-op"] = [(depth, round(sum(rates) / len(rates))) for depth, rates in sorted(noop.items())]
    return lines


def svg_of(title: str, lines: Lines) -> str:
    """The picture; both axes are logarithmic."""
    points = [point for line in lines.values() for point in line]
    depths = _decades("depth", [depth for depth, _ in points])
    return picture.svg_of(title, lines, depths, _decades("per s", [rate for _, rate in points]))


def write(title: str, rows: list[dict[str, Any]], path: Path) -> None:
    """Write the picture of these rows. Raises OSError."""
    path.write_text(svg_of(title, lines_of(rows)), encoding="utf-8")


def _decades(name: str, values: list[int]) -> Axis:
    """The powers of ten around these values, at least one decade."""
    sound = [value for value in values if value > 0] or [1]
    low = math.floor(math.log10(min(sound)))
    high = max(math.ceil(math.log10(max(sound))), low + 1)
    marks = [10**power for power in range(low, high + 1)]
    return Axis(name, marks, lambda value: (math.log10(max(1, value)) - low) / (high - low))
