"""Pytest plugin: which requirement is proved by which test.

`pytest --req-report` collects the tests, runs none, and prints each requirement key with the tests that bear it in
`@pytest.mark.req(...)`. The list of all keys lies outside the checkout (`../shared/spec/REQUIREMENTS.md`); where it
is absent the report knows only the keys that tests name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
REQUIREMENTS = CHECKOUT.parent / "shared" / "spec" / "REQUIREMENTS.md"

_GROUP = re.compile(r"# (\d+)\. (.+)")
_ENTRY = re.compile(r"- \*\*(R-\d+)\*\* `([a-z0-9-]+)`")


class Requirement(NamedTuple):
    """One rule of the specification: its number, its key, and the group where it stands."""

    number: str
    key: str
    group: str


def read_requirements(path: Path = REQUIREMENTS) -> dict[str, Requirement]:
    """All requirements by key, in their order; empty if the list is not at hand."""
    if not path.exists():
        return {}
    found: dict[str, Requirement] = {}
    group = ""
    for line in path.read_text().splitlines():
        if heading := _GROUP.match(line):
            group = f"{heading[1]}. {heading[2]}"
        elif entry := _ENTRY.match(line):
            found[entry[2]] = Requirement(number=entry[1], key=entry[2], group=group)
    return found


def proofs_of(items: Iterable[pytest.Item]) -> dict[str, list[str]]:
    """The tests of each key; the cases of one parametrised test count as one."""
    proofs: dict[str, list[str]] = defaultdict(list)
    for item in items:
        test = item.nodeid.split("[", 1)[0]
        for key in (key for marker in item.iter_markers("req") for key in marker.args):
            if test not in proofs[key]:
                proofs[key].append(test)
    return dict(proofs)


def report(proofs: dict[str, list[str]], known: dict[str, Requirement]) -> list[str]:
    """The lines of `--req-report`: per group its keys with their tests, then the sum."""
    lines: list[str] = []
    unlisted = [Requirement(number="-", key=key, group="not in the list") for key in sorted(proofs) if key not in known]
    group = None
    for requirement in [*known.values(), *unlisted]:
        if requirement.group != group:
            group = requirement.group
            lines.append(group)
        tests = proofs.get(requirement.key, [])
        lines.append(f"  {requirement.number} {requirement.key}: {', '.join(tests) or 'NO TEST'}")
    if known:
        lines.append(f"{sum(key in proofs for key in known)} of {len(known)} requirements have a test")
    else:
        lines.append(f"{len(proofs)} requirement keys have a test (no list of all keys at {REQUIREMENTS})")
    return lines


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("requirements")
    group.addoption("--req-report", action="store_true", help="list each requirement key with its tests; run none")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Stand in for the loop that runs the tests when only the report is wanted."""
    if not session.config.option.req_report:
        return None
    for line in report(proofs_of(session.items), read_requirements()):
        print(line)
    return True
