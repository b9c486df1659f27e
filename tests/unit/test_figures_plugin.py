"""The plugin that judges and tells figures, in a run of pytest of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.unit.test_pytest_plugins import alone_and_divided, run

TESTS = """
import pytest

@pytest.mark.bound("L2")
def test_kept(figure):
    figure.check("L2", "again in the queue", [0.25, 3.5, 0.75], 1.2, at_least=3)

@pytest.mark.bound("L10")
def test_broken(figure):
    figure.check("L10", "too many", [1.0, 4.0], 1.0, "")

@pytest.mark.bound("L3")
def test_too_slow(figure):
    figure.check_least("L3", "of normal", [0.1], 0.5)

@pytest.mark.bound("L4")
def test_few(figure):
    figure.check("L4", "back", [0.1], 10.0, at_least=2)

@pytest.mark.bound("L5", "L6")
def test_forgotten(figure):
    figure.check("L5", "start", [0.1], 1.0)

def test_unmarked(figure):
    figure.check("L1", "takeover", [0.1], 1.0)
"""


@alone_and_divided
def test_figures_are_told_in_their_order_and_judged_with_a_slack_of_three(
    tmp_path: Path, workers: Sequence[str]
) -> None:
    ended = run(tmp_path, "figures", TESTS, "-o", "markers=bound(*ids): bounds", *workers)

    told = [line for line in ended.stdout.splitlines() if line.startswith("L") and ": n=" in line]
    assert told == [
        "L2 again in the queue: n=3 median=0.75 s max=3.5 s bound=1.2 s",
        "L3 of normal: n=1 median=0.1 min=0.1 bound=0.5",
        "L5 start: n=1 median=0.1 s max=0.1 s bound=1 s",
        "L10 too many: n=2 median=2.5 max=4 bound=1",
    ]
    for failed in (
        "L10: 4, 1 is promised",
        "L3: 0.1, at least 0.5 is promised",
        "1 samples of back, 2 are wanted",
        "nothing is told of ['L6']",
        "this test is not marked bound('L1')",
    ):
        assert failed in ended.stdout, ended.stdout
    assert "test_kept" not in ended.stdout.partition("short test summary")[2]
