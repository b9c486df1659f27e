"""`bench workflows --observation-outage`: pairs of runs, in one of which that store is stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import outage_row
from bench.measured_run import Measured
from bench.outage import Observed, Outage
from bench.plan import Plan
from bench.workflow_row import findings_of, row_of, shares_of
from kernel.runtime.observer import OBSERVE_FILE
from kernel.store.sqlite_lock import LockFile
from tests.bench_runs.command import Run, run_workflows
from tests.bench_runs.test_counting import measured, plan

NONE = {"written": 20, "dropped": 0, "errors": 0, "poisoned": 0}
TOLD = {"written": 10, "dropped": 10, "errors": 3, "poisoned": 0}


def seen(**changes: object) -> Observed:
    facts: dict[str, object] = {
        "outage_s": 2.0, "meanwhile": 3, "outlasted": True, "settled": True, "counters": TOLD, "gaps": 1,
        "repair_s": 0.1, "wrong": 0, "gaps_left": 0,
    }  # fmt: skip
    return Observed(**{**facts, **changes})  # type: ignore[arg-type]


def around(*, outage: bool) -> Plan:
    return replace(plan(), around_outage_s=2.0, outage=outage)


def with_outage(seconds: float = 0.5, **changes: object) -> Measured:
    return measured(plan=around(outage=True), seconds=seconds, observed=seen(**changes))


def without(seconds: float = 0.5, **changes: object) -> Measured:
    facts: dict[str, object] = {"outage_s": 0.0, "meanwhile": 0, "counters": NONE, "gaps": 0} | changes
    return measured(plan=around(outage=False), seconds=seconds, observed=seen(**facts))


def run_pair(folder: Path) -> Run:
    """A pair of which the load outlasted the outage: it does not where the bench itself stood still for a second, which
    says nothing of the product. Then it is run once more."""
    for number in (1, 2):
        place = folder / str(number)
        place.mkdir()
        run = run_workflows(
            place, "--count", "160", "--observation-outage", "2.5s", "--idle-samples", "2", "--durability", "normal",
        )  # fmt: skip
        if not any("did not end within the load" in line for line in run.report["findings"]):
            break
    return run


@pytest.mark.fault
@pytest.mark.timeout(360)
@pytest.mark.req("dc-bench-repeatable", "obs-counters", "obs-repair")
def test_a_pair_of_runs_tells_what_the_outage_cost_and_that_the_lists_are_right_after_the_repair(
    tmp_path: Path,
) -> None:
    run = run_pair(tmp_path)

    # How fast the two were on a shared machine is no matter of this test.
    assert [line for line in run.report["findings"] if "slower" not in line] == [], run.stderr
    plain, stopped = run.report["rows"]
    assert (plain["outage_s"], plain["completed"]) == (0, 160)
    assert stopped["outage_s"] >= 2.5 and stopped["completed"] == 160
    # A process that stood still for a second with that store's lock in its hand is an outage, too, of one write.
    assert stopped["observation_errors"] > plain["observation_errors"]
    assert 0 < stopped["steps_meanwhile"] < 480
    assert [(row["gaps_left"], row["listed_wrong"]) for row in (plain, stopped)] == [(0, 0), (0, 0)]
    assert run.report["settings"]["around_outage_s"] == 2.5
    assert "with the outage" in run.stdout and run.left == []


def test_the_order_changes_from_pair_to_pair() -> None:
    plans = outage_row.plans_of(around(outage=False), 3)

    assert [one.outage for one in plans] == [False, True, True, False, False, True]
    assert {one.outage_s for one in plans if one.outage} == {2.0}
    assert {one.outage_s for one in plans if not one.outage} == {0.0}
    assert len({one.hold_ms for one in plans}) == 1, "both are paced alike"


@pytest.mark.parametrize(("count", "outage_s", "hold_ms"), [(5_000, 60.0, 96), (160, 2.0, 100), (20_000, 5.0, 0)])
def test_the_steps_hold_their_claim_so_that_the_load_outlasts_the_outage(
    count: int, outage_s: float, hold_ms: int
) -> None:
    assert replace(plan(), count=count, around_outage_s=outage_s).hold_ms == hold_ms


def test_the_outage_begins_in_the_load_and_holds_the_stores_lock_for_its_time(tmp_path: Path) -> None:
    now_s = 0.0
    other = LockFile(f"{tmp_path / OBSERVE_FILE}-lock")
    outage = Outage(tmp_path, 5.0, lambda: now_s)
    outage.step(lambda: 9, 60)
    assert other.try_acquire(), "a sixth of the steps comes first"
    other.release()

    outage.step(lambda: 10, 60)
    now_s = 4.9
    outage.step(lambda: 30, 60)
    assert not other.try_acquire() and not outage.is_over
    now_s = 5.2
    outage.step(lambda: 40, 60)

    assert other.try_acquire()
    assert (outage.is_over, outage.lasted_s, outage.meanwhile) == (True, 5.2, 30)
    outage.step(lambda: 50, 60)
    assert outage.meanwhile == 30, "there is one of them"
    outage.close()
    other.close()


def test_a_run_without_an_outage_never_stops_the_store(tmp_path: Path) -> None:
    outage = Outage(tmp_path, 0.0)
    outage.step(lambda: 60, 60)

    assert (outage.is_over, outage.lasted_s) == (True, 0.0)
    assert list(tmp_path.iterdir()) == []


def test_a_good_pair_breaks_no_promise_and_its_rows_carry_the_counters() -> None:
    runs = [without(), with_outage()]

    assert findings_of(runs) == []
    row = row_of(runs[1])
    assert (row["outage_s"], row["observation_dropped"], row["observation_errors"], row["gaps"]) == (2.0, 10, 3, 1)
    assert shares_of(runs) == {}
    assert "observation_dropped" not in row_of(measured()), "a run that was not looked at tells nothing"


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([without(0.5), with_outage(0.6)], "16.7% slower, at most 5% may be"),
        ([without(), with_outage(gaps_left=2)], "2 workflows still lack observations"),
        ([without(), with_outage(wrong=1)], "1 are listed wrongly"),
        ([without(wrong=1), with_outage()], "without: after the repair"),
        ([without(), with_outage(settled=False)], "accepted are not written"),
        ([without(), with_outage(outlasted=False)], "did not end within the load"),
        ([without(), with_outage(meanwhile=0)], "no step was entered"),
        ([without(), with_outage(counters={**TOLD, "errors": 0})], "no counter of errors tells it"),
        ([without(), with_outage(counters={**TOLD, "dropped": 0})], "no counter tells that any were dropped"),
        ([without(counters=TOLD), with_outage()], "but their store was never stopped"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_broken_promise_is_told(runs: list[Measured], words: str) -> None:
    (line,) = findings_of(runs)
    assert words in line


def test_rates_are_medians_and_five_percent_are_allowed() -> None:
    runs = [without(0.5), with_outage(0.52), with_outage(5.0), without(0.5), without(0.1), with_outage(0.52)]

    assert outage_row.rates_of(runs) == (4.0, 2 / 0.52)
    assert outage_row.slower_of(runs) == []
    assert "with the outage" in outage_row.text_of(runs)[0] and "medians of 3" in outage_row.text_of(runs)[0]


@pytest.mark.parametrize(
    "options", [["--workers", "1", "--workers", "2"], ["--kill-every", "1s"], ["--plot", "a.svg"]], ids=" ".join
)
def test_with_other_faults_or_several_numbers_of_workers_it_is_refused(tmp_path: Path, options: list[str]) -> None:
    run = run_workflows(tmp_path, "--observation-outage", "1s", *options)

    assert (run.status, run.stdout, run.left) == (2, "", [])
    assert run.stderr.startswith("error: --observation-outage: ") and run.stderr.count("\n") == 1
