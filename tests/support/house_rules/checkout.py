"""The source files of a checkout, parsed once, and the findings about them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("lua", "kernel", "supervisor", "fanout", "asr_demo", "bench")


class Finding(NamedTuple):
    """One place that breaks a rule, and what to do about it."""

    path: str
    line: int
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem} → {self.remedy}"


class Source:
    """One Python file: its path inside the checkout, its text and its syntax tree."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.lines = text.splitlines()
        self.tree = ast.parse(text, filename=path)

    @property
    def package(self) -> str:
        """The top-level folder."""
        return self.path.split("/", 1)[0]

    @property
    def in_tests(self) -> bool:
        return self.package == "tests"

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")

    @cached_property
    def module(self) -> str:
        """The dotted name: `kernel/store/__init__.py` is `kernel.store`."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree: most rules look at all of them."""
        return tuple(ast.walk(self.tree))

    def finding(self, where: ast.AST | int, problem: str, remedy: str) -> Finding:
        """A finding at a node or at a line."""
        line = where if isinstance(where, int) else getattr(where, "lineno", 1)
        return Finding(self.path, line, problem, remedy)


class Checkout:
    """All Python files below the ordered folders of `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sources = tuple(Source(path, (root / path).read_text()) for path in self._python_paths())
        self.modules = frozenset(source.module for source in self.sources)

    @property
    def product(self) -> Iterator[Source]:
        """The files that are not tests."""
        return (source for source in self.sources if not source.in_tests)

    @property
    def proofs(self) -> Iterator[Source]:
        """The files that are."""
        return (source for source in self.sources if source.in_tests)

    def paths(self, pattern: str) -> list[str]:
        """Files that match, without those below dot folders and build outputs."""
        found = (path.relative_to(self.root) for path in self.root.rglob(pattern))
        return sorted(
            path.as_posix()
            for path in found
            if not any(part.startswith(".") or part in {"build", "dist", "__pycache__"} for part in path.parts)
        )

    def _python_paths(self) -> list[str]:
        return [path for path in self.paths("*.py") if path.split("/", 1)[0] in {*PACKAGES, "tests"}]


Rule = Callable[[Checkout], Iterator[Finding]]
