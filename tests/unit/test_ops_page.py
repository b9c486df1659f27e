"""One workflow on one screen, by exact text."""

from __future__ import annotations

from typing import Any

import click
import pytest

from kernel.permit_words import Holder, Owner, PermitStats
from kernel.records import ErrorRecord, FinalizerRecord, RunRecord
from supervisor.ops_now import Beside
from supervisor.ops_page import attempt_line, page, unknown_line
from supervisor.ops_shell import clock_text
from supervisor.ops_surroundings import ObjectRow, SignalRow, Surroundings
from tests.support.snapshots import BEGIN_MS, attempt, snapshot, split, step_view

NOW_MS = BEGIN_MS + 6_000
BROKEN = ErrorRecord(code="step_timeout", type="StepTimeout", message="slow", kind="timeout", attempt=1, worker_id="w2")
SEEN = snapshot(
    "shop:order:7",
    revision=9,
    workflow_run=2,
    round="f2-bb",
    current_step="ship",
    waiting="permit",
    waiting_on="courier",
    waiting_since=BEGIN_MS + 3_000,
    waiting_until=BEGIN_MS + 36_000,
    updated_time=BEGIN_MS + 4_000,
    split=split(scheduling=500, traffic=1_000, execution=1_500, external=1_000),
    steps=(
        step_view(
            "pack", "completed", attempt=1, worker_id="w1", ready_time=BEGIN_MS, finish_time=BEGIN_MS + 2_000,
            last_signal_id="s-1", split=split(scheduling=300, execution=700, external=1_000),
        ),
        step_view(
            "ship", attempt=1, failures=1, worker_id="w2", ready_time=BEGIN_MS + 2_000, traffic_wait_count=1,
            split=split(scheduling=200, traffic=1_000, execution=800), error=BROKEN,
        ),
    ),
    runs=(RunRecord(workflow_run=1, status="failed", finish_time=BEGIN_MS - 9_000, error=BROKEN, round="f1-aa"),),
)  # fmt: skip
ID = SEEN.workflow_id
AROUND = Surroundings(
    signals=(
        SignalRow(
            signal_id="s-1", status="matched", signal_type="paid", wait_key="7", generation=0,
            created_time=BEGIN_MS + 100, match_time=BEGIN_MS + 200, step="pack",
        ),
        SignalRow(
            signal_id="s-2", status="pending", signal_type="paid", wait_key="7", generation=1,
            created_time=BEGIN_MS + 300,
        ),
        SignalRow(signal_id="s-0", status="forgotten", step="ship"),
    ),
    more_signals=True,
    object=ObjectRow(
        source="orders", object_id="7", fencing_token="f2-bb", status="dispatched", tries=1,
        accepted_time=BEGIN_MS - 1_000,
    ),
    permit=PermitStats(
        resource="courier", server_ms=NOW_MS, epoch=1, held=1, starts_last_second=0, reserved=0, waiting=3,
        waiting_by_lane=(0, 3, 0, 0), place=2, place_lane=1, handed=False,
        holders=[Holder(Owner("wf-other", "ship", "t"), BEGIN_MS + 20_000)],
    ),
)  # fmt: skip


def t(after_ms: int) -> str:
    return clock_text(BEGIN_MS + after_ms)


@pytest.mark.req("ops-find", "ops-chain", "lat-split")
def test_the_whole_screen() -> None:
    lines = [click.unstyle(line) for line in page(SEEN, AROUND, NOW_MS, plain=False)]

    assert lines == [
        f"ship waits for a place of courier, since {t(3_000)} (3.0 s), asks again by itself at {t(36_000)} (in 30.0 s)",
        f"  try: kernel-supervisor limits explain {ID}",
        "  1 place held, 3 waiting for one, place 2 of its lane",
        f"  held by wf-other ship, lease until {t(20_000)}",
        "",
        f"{ID}  parcel  running  run 2  lane P1",
        "biz_key   shop:order:7",
        f"created   {t(0)} (6.0 s ago)",
        f"seen      {t(4_000)} (2.0 s ago), revision 9",
        "workers   w1, w2",
        "",
        "timeline",
        "  pack  ▏░░────────██████                                  completed",
        "  ship  ▏                ░░▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒██████  pending, attempt 1, 1 failed, 1 permit wait",
        "         ░░ scheduling   ▒▒ permit   ── external   ██ execution",
        "",
        "where time went, in seconds",
        "            scheduling      permit    external   execution       total",
        "  pack           0.300       0.000       1.000       0.700       2.000",
        "  ship           0.200       3.000       0.000       0.800       4.000",
        "  workflow       0.500       3.000       1.000       1.500       6.000",
        "",
        "errors",
        "  ship: step_timeout StepTimeout: slow (attempt 1, w2)",
        f"  each attempt with its error: kernel-supervisor workflow attempts {ID}",
        "",
        "signals",
        f"  matched    s-1  paid, key 7, generation 0, sent {t(100)}, woke pack at {t(200)}",
        f"  pending    s-2  paid, key 7, generation 1, sent {t(300)}",
        "  forgotten  s-0, woke ship; its row is not kept any more",
        "  … and more",
        "",
        "chain",
        "  object    orders 7",
        f"  dispatch  dispatched, round f2-bb, accepted {t(-1_000)}, 1 vain try",
        f"  instance  {ID} of shop:order:7, run 2, version 0123456789ab, serves round f2-bb",
        "  step      ship, pending",
        f"  attempt   {ID}/2/ship/1",
        "  worker    w2",
        f"  trace     {SEEN.trace_id}",
        "",
        "earlier runs",
        f"  run 1 for round f1-aa  failed at {t(-9_000)}: step_timeout StepTimeout: slow (attempt 1, w2)",
    ]


def test_what_is_out_of_reach_says_so_in_a_line_and_hides_nothing_else() -> None:
    around = Surroundings(signals_note="the store is away", object_note="no application", permit_note="no Redis")

    lines = list(page(SEEN, around, NOW_MS, plain=False))

    assert "  who holds it is not known: no Redis" in lines
    assert "  not known: the store is away" in lines
    assert "  object    not known: no application" in lines
    assert f"  trace     {SEEN.trace_id}" in lines


@pytest.mark.req("ops-chain")
def test_a_round_that_is_over_is_told() -> None:
    """The object has gone on to its next round; this run still serves the one before."""
    newer = ObjectRow(
        source="orders", object_id="7", fencing_token="f3-cc", status="pending", tries=0, accepted_time=BEGIN_MS
    )

    lines = list(page(SEEN, Surroundings(object=newer), NOW_MS, plain=False))

    assert any(line.endswith("serves round f2-bb, which is over") for line in lines)


def test_text_of_others_moves_no_cursor() -> None:
    evil = "\x1b[2J\x9b\x07\u202e\n"
    broken = ErrorRecord(code=f"c{evil}", type=f"t{evil}", message=f"m{evil}", worker_id=f"w{evil}")
    seen = snapshot(
        f"k{evil}", workflow_id=f"i{evil}", trace_id=f"x{evil}", type=f"y{evil}", error=broken, round=evil,
        waiting="signal", waiting_on=evil, worker=evil, current_step=f"s{evil}", definition_fingerprint=evil,
        steps=(step_view(f"s{evil}", attempt=1, worker_id=evil, error=broken, ready_time=BEGIN_MS),),
        runs=(RunRecord(workflow_run=1, status="failed", error=broken, round=evil),),
    )  # fmt: skip
    row = SignalRow(signal_id=evil, status="matched", signal_type=evil, wait_key=evil, step=evil)
    held = ObjectRow(source=evil, object_id=evil, fencing_token=evil, status=evil, tries=1, accepted_time=0, error=evil)
    around = Surroundings(signals=(row,), signals_note=evil, object=held, permit_note=evil)

    said = "".join(click.unstyle(line) for line in page(seen, around, NOW_MS, plain=False))
    said += attempt_line(attempt(f"s{evil}", outcome="failed", error=broken, worker_id=evil), NOW_MS)
    said += unknown_line(1, evil, 2)

    assert not set(said) & set("\x1b\x9b\x07\u202e\n")


def test_an_attempt_is_a_line_with_its_time_its_worker_and_its_error() -> None:
    lost = attempt(
        "ship", 2, "timeout", elapsed_ms=1_500, traffic_wait_ms=250, takeovers=1, worker_id="w9", error=BROKEN
    )

    assert attempt_line(lost, NOW_MS) == (
        f"run 1  ship  attempt 2  timeout  {t(0)}  ran 1.500 s, waited 0.250 s for a permit, taken over 1 time, on w9  "
        "step_timeout StepTimeout: slow (attempt 1, w2)"
    )


def test_an_attempt_that_has_not_returned_says_that_its_worker_never_will() -> None:
    ran = attempt("ship", outcome="running", worker_id="w9")

    gone = attempt_line(ran, NOW_MS, names={"w9": "host/7/worker-0"}, holder="gone")

    assert gone.endswith("  entered 6.0 s ago, has not returned, its worker is gone, on w9 (host/7/worker-0)")
    assert "its worker" not in attempt_line(attempt("ship", outcome="completed"), NOW_MS, holder="gone")


def test_workers_are_named_as_others_know_them() -> None:
    """`status` and the log say worker-0, errors its id: the screen has both."""
    lines = list(page(SEEN, AROUND, NOW_MS, plain=False, beside=Beside(names={"w2": "host/7/worker-0"})))

    assert "workers   w1, w2 (host/7/worker-0)" in lines
    assert "  worker    w2 (host/7/worker-0)" in lines


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"outcome": "running"}, "entered 6.0 s ago, has not returned"),
        ({"outcome": "lost"}, "ran for a time that is not known"),
        ({"outcome": "lost", "elapsed_ms": 1_500}, "ran 1.500 s before that"),
        ({"outcome": "failed", "started_time": None}, "ran for a time that is not known"),
        ({"outcome": "unbegun"}, "ran 0.000 s"),
    ],
)
def test_how_long_an_attempt_ran_is_said_only_when_it_has_returned(fields: dict[str, Any], says: str) -> None:
    assert attempt_line(attempt("ship", **fields), NOW_MS).endswith(f"  {says}")


def test_an_error_beside_the_steps_says_of_what_it_is() -> None:
    failed = FinalizerRecord(attempt=2, error=BROKEN, next_time=NOW_MS, what="prepare")

    lines = list(page(snapshot(finalizer=failed), Surroundings(), NOW_MS, plain=False))

    assert "  prepare, try 2: step_timeout StepTimeout: slow (attempt 1, w2)" in lines
