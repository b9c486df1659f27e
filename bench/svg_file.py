"""The file that a picture is written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class SvgFile(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A path that ends in `.svg`: what is drawn is SVG, and under another name no viewer would take it for that."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        if not path.name.lower().endswith(".svg"):
            self.fail(f"{path}: a picture is SVG, so its name must end in .svg", param, ctx)
        return path
