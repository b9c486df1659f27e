"""Pytest plugin: which cell of the crash matrix is run by which test with real processes (RELIABILITY §5).

`@pytest.mark.crash("19", "after")` says that a real process is killed at that boundary and point. What a mark says is
held against what happened: a test that passed although no arm of that point was seen to have fired fails.

`pytest FOLDERS --crash-report` collects the tests, runs none, and prints each boundary with its tests. It exits with 1
when a boundary lacks a test that kills before the call, or one that kills behind it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

import pytest

from tests.support.crash_proof import proved
from tests.support.workers import REAL_PROCESSES

FOLDERS = tuple(f"tests/{folder}/" for folder in REAL_PROCESSES)
"""Where a mark with a point stands for a real process."""
KILLED = ("before", "after")
POINTS = ("before", "lost", "after")
"""Killed before the call leaves; alive, and the answer lost; killed when the answer is there."""

BOUNDARIES = {
    "01": "business object insert with pending dispatch",
    "02": "instance insert (StartOrResume)",
    "03": "duplicate-key branch read",
    "04": "replay CAS failed→running (input replaced, failed steps reset, checkpoint cleared)",
    "05": "priority raise",
    "06": "ready-lane enqueue",
    "07": "wakeup publish",
    "08": "stream reset on activation",
    "09": "ConfirmDispatched pending→dispatched",
    "10": "RetryFailedWorkflowDispatch CAS",
    "11": "dispatch ZSET batch pop (100)",
    "12": "dispatch claim pending→processing d1",
    "13": "dispatch lease renew",
    "14": "StartOrResume inside dispatch",
    "15": "confirm processing→dispatched (f, d)",
    "16": "release processing→pending with delay",
    "17": "low-rate dispatch scan under mutex",
    "18": "PopReady",
    "19": "claim CAS",
    "20": "fingerprint mismatch: defer 1 h with claim",
    "21": "claim renew",
    "22": "permit acquire",
    "23": "permit wait: defer + release claim",
    "24": "permit renew",
    "25": "permit release",
    "26": "step running, attempt+1",
    "27": "external submit done, checkpoint not written",
    "28": "CompleteStep (status + output)",
    "29": "retry: step→pending, claim released",
    "30": "re-enqueue after retry/yield/activation",
    "31": "skip on failure",
    "32": "running→failing",
    "33": "FailureFinalizer business write",
    "34": "failing→failed",
    "35": "SuccessFinalizer",
    "36": "running→completed",
    "37": "terminal frame, snapshot",
    "38": "SuspendClaim for Sleep",
    "39": "SuspendClaim for signal",
    "40": "inbox re-check after suspend",
    "41": "Yield",
    "42": "activity reports canceled",
    "43": "supersede",
    "44": "timer / poll-fallback activation",
    "45": "enqueue after activation",
    "46": "inbox insert",
    "47": "activation with resume.signal_id",
    "48": "inbox match_time",
    "49": "enqueue + wakeup after signal",
    "50": "pending-signal sweep",
    "51": "fan-out page read",
    "52": "per-subscriber DeliverSignal",
    "53": "Yield with cursor",
    "54": "stream append",
    "55": "terminal frame + reference",
    "56": "stream generation reset",
    "57": "observation batch insert",
    "58": "snapshot upsert by revision",
    "59": "fork → child ready",
    "60": "drain → exit",
    "61": "respawn",
}
"""The table's own words."""

Cells = dict[str, dict[str, list[str]]]
"""Tests by boundary and point."""


def points_of(item: pytest.Item) -> list[tuple[str, str]]:
    """The cells that a test with real processes says it runs."""
    if not item.nodeid.startswith(FOLDERS) or item.get_closest_marker("fault") is None:
        return []
    return [(marker.args[0], point) for marker in item.iter_markers("crash") for point in marker.args[1:]]


def cells_of(items: Iterable[pytest.Item]) -> Cells:
    """The tests of each cell; the cases of one parametrised test count as one."""
    cells: Cells = {boundary: {} for boundary in BOUNDARIES}
    for item in items:
        for boundary, point in points_of(item):
            tests = cells.setdefault(boundary, {}).setdefault(point, [])
            name = item.nodeid.split("[", 1)[0]
            if name not in tests:
                tests.append(name)
    return cells


def lacking(cells: Cells) -> list[str]:
    """The boundaries at which no process is killed, or only on one side of the call."""
    return [boundary for boundary in BOUNDARIES if not all(cells.get(boundary, {}).get(point) for point in KILLED)]


def report(cells: Cells) -> list[str]:
    """The lines of `--crash-report`: each boundary with its points, and the tests below it; then the sum."""
    lines: list[str] = []
    for boundary, points in sorted(cells.items()):
        found = " ".join(point if points.get(point) else "-" * len(point) for point in POINTS)
        lines.append(f"{boundary} {found}  {BOUNDARIES.get(boundary, 'no boundary of the matrix')}")
        lines += [f"     {test}" for test in dict.fromkeys(test for tests in points.values() for test in tests)]
    without = lacking(cells)
    lines.append(f"{len(BOUNDARIES) - len(without)} of {len(BOUNDARIES)} boundaries: killed on both sides of the call")
    lines += [f"{boundary} lacks a real process that is killed on each side of the call" for boundary in without]
    return lines


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("crash matrix")
    group.addoption("--crash-report", action="store_true", help="list each boundary with its real processes; run none")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Stand in for the loop that runs the tests when only the report is wanted."""
    if not session.config.option.crash_report:
        return None
    cells = cells_of(session.items)
    for line in report(cells):
        print(line)
    if lacking(cells):
        raise session.Failed("the crash matrix is not complete")
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Hold a test's marks against the arms that it has seen to have fired."""
    proved.clear()
    yield
    unseen = {point for _, point in points_of(item)} - proved
    assert not unseen, f"marked as killed, and no arm was seen to have fired: {sorted(unseen)}"
