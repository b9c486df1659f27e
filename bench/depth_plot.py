"""A report of `bench lanes`, `permits` or `streams` as a picture: depth against calls a second, one line each (SVG)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 860, 440
_LEFT, _TOP, _RIGHT, _BOTTOM = 80, 40, 620, 380
_COLOURS = ("#1b6ca8", "#c4521a", "#2e8540", "#8a3ea8", "#b8860b", "#444444", "#c2185b", "#00838f")

Lines = dict[str, list[tuple[int, int]]]


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
    """The picture; both axes are logarithmic. Text from outside is escaped."""
    points = [point for line in lines.values() for point in line]
    depths, rates = _decades([depth for depth, _ in points]), _decades([rate for _, rate in points])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
        *_axes(depths, rates),
    ]
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        at = [(_x(depth, depths), _y(rate, rates)) for depth, rate in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in at]
        parts.append(f'<text x="{_RIGHT + 16}" y="{_TOP + 12 + 18 * number}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def write(title: str, rows: list[dict[str, Any]], path: Path) -> None:
    """Write the picture of these rows. Raises OSError."""
    path.write_text(svg_of(title, lines_of(rows)), encoding="utf-8")


def _axes(depths: tuple[int, int], rates: tuple[int, int]) -> Iterator[str]:
    for power in range(depths[0], depths[1] + 1):
        x = _x(10**power, depths)
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_BOTTOM}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{10**power:,}</text>'
    for power in range(rates[0], rates[1] + 1):
        y = _y(10**power, rates)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>'
    yield f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 40}" text-anchor="middle">depth</text>'
    yield f'<text x="{_LEFT - 6}" y="{_TOP - 6}" text-anchor="end">per s</text>'


def _decades(values: list[int]) -> tuple[int, int]:
    """The powers of ten around these values, at least one decade."""
    sound = [value for value in values if value > 0] or [1]
    low, high = math.floor(math.log10(min(sound))), math.ceil(math.log10(max(sound)))
    return low, max(high, low + 1)


def _x(depth: int, decades: tuple[int, int]) -> float:
    return _LEFT + (_RIGHT - _LEFT) * _part(depth, decades)


def _y(rate: int, decades: tuple[int, int]) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * _part(rate, decades)


def _part(value: int, decades: tuple[int, int]) -> float:
    low, high = decades
    return (math.log10(max(1, value)) - low) / (high - low)
