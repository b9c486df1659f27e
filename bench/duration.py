"""Times as options give them."""

from __future__ import annotations

import re
from typing import Any

import click

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s)?")
_DURATION_MIN_S, _DURATION_MAX_S = 0.05, 3600.0


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """`2`, `2s` or `500ms`, as seconds."""

    name = "duration"

    def __init__(self, min_s: float = _DURATION_MIN_S) -> None:
        self._min_s = min_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = _DURATION.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is no duration such as 2, 0.5s or 500ms", param, ctx)
        seconds = float(found[1]) / (1000 if found[2] == "ms" else 1)
        if not self._min_s <= seconds <= _DURATION_MAX_S:
            self.fail(f"{value!r} is not between {self._min_s * 1000:g}ms and 3600s", param, ctx)
        return seconds
