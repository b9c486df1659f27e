"""A report of `bench workflows` as a picture: numbers of workers against workflows a second (SVG)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from bench import picture
from bench.picture import Axis, Lines

_MARKS = 5


def lines_of(rows: list[dict[str, Any]]) -> Lines:
    """(workers, workflows per second), the fewest workers first, a line for each durability and number of slots."""
    lines: Lines = {}
    for row in sorted(rows, key=lambda row: int(row["workers"])):
        name = f"durability {row['durability']}, {row['slots']} slots"
        lines.setdefault(name, []).append((row["workers"], round(row["per_s"])))
    return lines


def svg_of(title: str, lines: Lines) -> str:
    """The picture; both axes begin at 0, so that twice as fast is twice as high."""
    points = [point for line in lines.values() for point in line]
    workers = _from_zero("workers", [number for number, _ in points])
    return picture.svg_of(title, lines, workers, _from_zero("workflows/s", [rate for _, rate in points]))


def write(title: str, rows: list[dict[str, Any]], path: Path) -> None:
    """Write the picture of these rows. Raises OSError."""
    path.write_text(svg_of(title, lines_of(rows)), encoding="utf-8")


def _from_zero(name: str, values: list[int]) -> Axis:
    """From 0 to the first mark that no value passes; marks are 1, 2 or 5 times a power of ten apart."""
    most = max([*values, 1])
    power = 10 ** math.floor(math.log10(max(1, most / _MARKS)))
    step = next(times * power for times in (1, 2, 5, 10) if times * power * _MARKS >= most)
    last = step * math.ceil(most / step)
    return Axis(name, range(0, last + 1, step), lambda value: value / last)
