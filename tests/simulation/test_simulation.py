"""A few runs of the simulation in the suite, and that a run is its seed and nothing else. CI runs thousands."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.campaign import run, summary
from tests.simulation.counters import SOMETIMES, Sometimes

SEEDS = range(900_001, 900_026)


@pytest.mark.req("flt-random", "core-inv-token", "core-inv-one-instance", "core-inv-reach")
def test_25_runs_break_no_promise() -> None:
    results = [run(seed) for seed in SEEDS]
    line, _, violations = summary(results)

    assert violations == 0, "\n".join(str(result.violation) for result in results if result.violation)
    assert line.startswith(f"simulation: seeds=25 steps={sum(result.steps for result in results)} violations=0 ")
    assert sum(result.steps for result in results) > 20_000


def test_a_seed_is_the_whole_run_also_in_another_process_with_another_hash_seed() -> None:
    first, again = run(77), run(77)
    other = run(78)
    elsewhere = [_run_elsewhere(hash_seed) for hash_seed in ("1", "4242")]

    assert (first.steps, first.hash) == (again.steps, again.hash)
    assert elsewhere == [[str(first.steps), str(first.hash)]] * 2
    assert other.hash != first.hash


def _run_elsewhere(hash_seed: str) -> list[str]:
    script = "from tests.simulation.campaign import run; r = run(77); print(r.steps, r.hash)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_closing_line_counts_what_never_happened() -> None:
    results = [run(77)]
    line, total, _ = summary(results)

    assert line.endswith(f"counters_at_zero={len(total.zeros())}")
    assert set(total.counts) == set(SOMETIMES)
    assert Sometimes.sum([dict.fromkeys(SOMETIMES, 1)]).zeros() == []


def test_an_unknown_counter_is_refused() -> None:
    with pytest.raises(AssertionError, match="not in SOMETIMES"):
        Sometimes().add("a thing that nobody declared")
