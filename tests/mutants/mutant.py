"""One fault, and the tests that must fail because of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Edit(NamedTuple):
    """In `file`, `old` becomes `new`. `old` stands there exactly once, or the mutant is out of date."""

    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    """RELIABILITY §10: `name` and `fault` are its; each of `tests` is a pytest node id without parameters."""

    name: str
    fault: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]

    def apply(self, root: Path) -> dict[Path, str]:
        """Put the fault in; what the files held before, for `restore`. Raises OutOfDate before any write."""
        before: dict[Path, str] = {}
        after: dict[Path, str] = {}
        for edit in self.edits:
            path = root / edit.file
            text = after.get(path, path.read_text(encoding="utf-8"))
            if text.count(edit.old) != 1:
                raise OutOfDate(f"{self.name}: {edit.file} holds {text.count(edit.old)} times: {edit.old.strip()!r}")
            before.setdefault(path, text)
            after[path] = text.replace(edit.old, edit.new)
        for path, text in after.items():
            path.write_text(text, encoding="utf-8")
        return before


class OutOfDate(Exception):
    """The code that a mutant changes has changed itself."""


def restore(before: dict[Path, str]) -> None:
    """Take the fault out again."""
    for path, text in before.items():
        path.write_text(text, encoding="utf-8")
