"""In which line of a TOML file something stands, which its parser does not tell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any


def lines_of(names: Iterable[str], text: str) -> dict[str, int]:
    """In which line of a correct TOML file each top-level name first appears, as a key or as a table's header."""
    found = dict.fromkeys(names, 1)
    lines = [f"{line}\n" for line in text.split("\n")]
    for name in found:
        start = re.compile(rf"""\s*(\[\s*)?(["']?){re.escape(name)}\2\s*[=.\]]""")
        for number, line in enumerate(lines):
            if start.match(line) and _table("".join(lines[:number])) is not None:
                found[name] = number + 1
                break
    return found


def line_of(path: Sequence[str], text: str) -> int:
    """In which line of a correct TOML file the value behind these names begins, however it is written; 1 without one.

    The file is read again up to each of its lines: for messages, not for every start.
    """
    begun, lines = 1, text.split("\n")
    for number in range(1, len(lines) + 1):
        table = _table("\n".join(lines[:number]) + "\n")
        if table is not None and _has(table, path):
            return begun
        begun = begun if table is None else number + 1
    return 1


def _table(text: str) -> dict[str, Any] | None:
    """What this beginning of a file says; None where it ends inside of a longer value."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _has(value: Any, path: Sequence[str]) -> bool:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True
