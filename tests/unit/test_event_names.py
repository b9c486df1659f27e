"""The closed lists of event names against the source text: what is listed is emitted, what is emitted is listed."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kernel.observe.events import EVENTS, LOGGED
from supervisor.events import TREE_EVENTS, UNNAMED

ROOT = Path(__file__).resolve().parents[2]
LISTS = {ROOT / "kernel" / "observe" / "events.py", ROOT / "supervisor" / "events.py"}
NAMES = {*EVENTS, *LOGGED, *TREE_EVENTS}
SPEAKERS = {"tell", "note", "placed", "_show", "_note_drain", "_context"}
"""The functions that take an event's name."""


def sources(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path not in LISTS and path != Path(__file__):
                yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


@cache
def places(*folders: str) -> dict[str, list[str]]:
    """Listed name → where it stands as a text of its own, or as `f"permit.{outcome}"` with a known outcome."""
    found: dict[str, list[str]] = defaultdict(list)
    texts: dict[str, list[str]] = defaultdict(list)
    heads: dict[str, str] = {}
    for path, tree in sources(*folders):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts[node.value].append(f"{path}:{node.lineno}")
            elif isinstance(node, ast.JoinedStr) and isinstance(head := node.values[0], ast.Constant):
                heads[str(head.value)] = f"{path}:{node.lineno}"
    for name in NAMES:
        head, _, tail = name.partition(".")
        if name in texts:
            found[name] = texts[name]
        elif f"{head}." in heads and tail in texts:
            found[name] = [heads[f"{head}."]]
    return found


def emitted(*folders: str) -> Iterator[tuple[str, str]]:
    """Names that look like events and are given to a function that takes one, or stand in an `extra`."""
    for path, tree in sources(*folders):
        for node in ast.walk(tree):
            texts: list[ast.expr] = []
            if isinstance(node, ast.Call) and _name_of(node.func) in SPEAKERS:
                texts = [*node.args]
            elif isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                texts = [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "event"]
            for text in texts:
                if isinstance(text, ast.Constant) and isinstance(text.value, str) and _is_like_an_event(text.value):
                    yield text.value, f"{path}:{text.lineno}"


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_like_an_event(text: str) -> bool:
    head, dot, tail = text.partition(".")
    return bool(dot) and head.isidentifier() and tail.isidentifier()


def test_the_lists_share_no_name_and_none_is_the_word_for_no_name() -> None:
    assert len(NAMES) == len(EVENTS) + len(LOGGED) + len(TREE_EVENTS)
    assert UNNAMED not in NAMES


@pytest.mark.req("dc-logging")
def test_every_listed_event_is_emitted_somewhere() -> None:
    assert sorted(NAMES - places("kernel", "supervisor", "fanout").keys()) == []


@pytest.mark.req("dc-logging")
def test_every_emitted_event_is_listed() -> None:
    assert [f"{place}: {name}" for name, place in emitted("kernel", "supervisor", "fanout") if name not in NAMES] == []


UNSEEN = {"child.unkillable"}
"""It takes a process in an uninterruptible sleep of the operating system to see it."""


@pytest.mark.parametrize("event", sorted(NAMES - UNSEEN))
def test_some_test_sees_each_event(event: str) -> None:
    assert places("tests")[event], f"no test looks at {event}"
