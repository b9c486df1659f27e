"""Lines over two axes as a picture (SVG), without any other program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 860, 440
_LEFT, _TOP, _RIGHT, _BOTTOM = 80, 40, 620, 380
_COLOURS = ("#1b6ca8", "#c4521a", "#2e8540", "#8a3ea8", "#b8860b", "#444444", "#c2185b", "#00838f")

Lines = dict[str, list[tuple[int, int]]]
"""The points of each line, by its name."""


@dataclass(frozen=True)
class Axis:
    """One axis: its name, where it has marks, and how far along it a value lies, from 0 to 1."""

    name: str
    marks: Sequence[int]
    part: Callable[[int], float]


def svg_of(title: str, lines: Lines, across: Axis, up: Axis) -> str:
    """The picture. Text from outside is escaped."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
        *_marks(across, up),
    ]
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        at = [(_x(across.part(one)), _y(up.part(other))) for one, other in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in at]
        parts.append(f'<text x="{_RIGHT + 16}" y="{_TOP + 12 + 18 * number}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _marks(across: Axis, up: Axis) -> Iterator[str]:
    for value in across.marks:
        x = _x(across.part(value))
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_BOTTOM}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{value:,}</text>'
    for value in up.marks:
        y = _y(up.part(value))
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,}</text>'
    middle = (_LEFT + _RIGHT) / 2
    yield f'<text x="{middle}" y="{_BOTTOM + 40}" text-anchor="middle">{escape(across.name)}</text>'
    yield f'<text x="{_LEFT - 6}" y="{_TOP - 6}" text-anchor="end">{escape(up.name)}</text>'


def _x(part: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * part


def _y(part: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * part
