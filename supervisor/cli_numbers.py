"""Numbers as options give them, refused in words when they are none."""

from __future__ import annotations

import math
from typing import Any

import click


class WholeNumber(click.IntRange):
    """A whole number in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not (text.isascii() and text.removeprefix("-").isdecimal()):
            self.fail(f"{value!r} is no whole number", param, ctx)
        return super().convert(value, param, ctx)


class Seconds(click.FloatRange):
    """So many seconds, at least 0 and at most `most`."""

    def __init__(self, most: float | None = None) -> None:
        super().__init__(min=0, max=most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            is_number = math.isfinite(float(value))
        except ValueError:
            is_number = False
        if not is_number:
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return super().convert(value, param, ctx)
