"""Pytest plugin: what the tests of the bounds L1–L12 (RELIABILITY §3.2) measured, told at the end of the run.

`figure` is for tests that are marked `bound("L1")`. It judges what was measured with a slack of three, because these
machines are shared, and its lines stand in the summary however many workers the run has:

    L1 takeover after kill -9: n=12 median=0.41 s max=1.2 s bound=2.7 s
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import pytest

SLACK = 3.0
PROPERTY = "figure"
"""The name under which a test's report carries its lines, from a worker of the run to the process with the terminal."""


class Figures:
    """The figures of one test."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node
        self.promised = {bound for mark in node.iter_markers("bound") for bound in mark.args}
        self.told: set[str] = set()

    def check(
        self,
        bound: str,
        what: str,
        samples: Sequence[float],
        limit: float,
        unit: str = "s",
        *,
        at_least: int = 1,
        slack: float = SLACK,
    ) -> None:
        """At least so many samples, and none of them over `slack` times the limit. What does not depend on the speed of
        the machine has a slack of 1."""
        self._tell(bound, what, samples, f"max={_text(max(samples, default=0.0), unit)}", limit, unit, at_least)
        assert max(samples) <= slack * limit, f"{bound}: {_text(max(samples), unit)}, {_text(limit, unit)} is promised"

    def check_least(
        self, bound: str, what: str, samples: Sequence[float], limit: float, *, at_least: int = 1, slack: float = SLACK
    ) -> None:
        """At least so many samples, and none of them under `1/slack` of the limit."""
        self._tell(bound, what, samples, f"min={_text(min(samples, default=0.0), '')}", limit, "", at_least)
        assert min(samples) >= limit / slack, f"{bound}: {min(samples):.3g}, at least {limit:.3g} is promised"

    def _tell(
        self, bound: str, what: str, samples: Sequence[float], worst: str, limit: float, unit: str, at_least: int
    ) -> None:
        assert bound in self.promised, f"this test is not marked bound({bound!r})"
        assert len(samples) >= at_least, f"{len(samples)} samples of {what}, {at_least} are wanted"
        middle = _text(median(samples), unit)
        line = f"{bound} {what}: n={len(samples)} median={middle} {worst} bound={_text(limit, unit)}"
        self._node.user_properties.append((PROPERTY, line))
        self.told.add(bound)


def _text(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}".rstrip()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Iterator[Figures]:
    """Judges and tells what this test measures of the bounds that it is marked with: each of them, unless it fails."""
    figures = Figures(request.node)
    failed_before = request.session.testsfailed
    yield figures
    if request.session.testsfailed == failed_before:
        assert figures.told >= figures.promised, f"nothing is told of {sorted(figures.promised - figures.told)}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    lines = {
        (str(line), getattr(report, "nodeid", ""))
        for report in reports
        for name, line in getattr(report, "user_properties", ())
        if name == PROPERTY
    }
    if lines:
        terminalreporter.section("bounds as measured")
    for line, _ in sorted(lines, key=lambda told: (_number(told[0]), told)):
        terminalreporter.write_line(line)


def _number(line: str) -> int:
    digits = line.partition(" ")[0].lstrip("L")
    return int(digits) if digits.isdigit() else 99
