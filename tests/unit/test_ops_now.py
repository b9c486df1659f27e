"""Why is it not moving? One thing, since when, until when, and what to do: by exact text."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from kernel.observe.views import Snapshot, Waiting
from kernel.records import DeferredRecord, ErrorRecord, FinalizerRecord, ParkedRecord, Wait
from supervisor.ops_hindrance import Hindrance
from supervisor.ops_now import Beside, Holder, brief, error_text, is_due, reading
from supervisor.ops_shell import Given, clock_text
from tests.support.snapshots import BEGIN_MS, snapshot, split, step_view

ID = snapshot().workflow_id
NOW_MS = BEGIN_MS + 60_000
SINCE_MS, UNTIL_MS = BEGIN_MS + 50_000, BEGIN_MS + 90_000
SINCE = f"since {clock_text(SINCE_MS)} (10.0 s)"
UNTIL = f"{clock_text(UNTIL_MS)} (in 30.0 s)"
BROKEN = ErrorRecord(code="step_timeout", type="StepTimeout", message="slow", kind="timeout", attempt=2, worker_id="w2")


def waits(waiting: Waiting, on: str | None = None, until: int | None = UNTIL_MS, **fields: Any) -> Snapshot:
    return snapshot(
        waiting=waiting, waiting_on=on, waiting_since=SINCE_MS, waiting_until=until, updated_time=SINCE_MS, **fields
    )


def at(**fields: Any) -> tuple[Any, ...]:
    return (step_view("pack", ready_time=BEGIN_MS, **fields), step_view("ship"))


WAIT = Wait(wait_id="x", kind="signal", step="pack", step_index=0, signal_type="paid", wait_key="o 7", generation=3)
READINGS: dict[Waiting, tuple[Snapshot, str, str | None]] = {
    "worker": (
        waits("worker", until=None),
        f"due: no worker has taken it yet for pack, {SINCE}",
        "kernel-supervisor lanes",
    ),
    "step": (
        waits(
            "step", "pack", until=None, worker="host/12/worker-0", steps=at(status="running", attempt=2, takeovers=1)
        ),
        f"pack is executed by host/12/worker-0, attempt 2, taken over 1 time, {SINCE}",
        f"kernel-supervisor workflow attempts {ID} pack",
    ),
    "signal": (
        waits("signal", "paid", steps=at(status="waiting", wait=WAIT)),
        f"pack waits for the signal paid, key o 7, generation 3, {SINCE}, looks again by itself at {UNTIL}",
        f"kernel-supervisor workflow signal {ID} paid --key 'o 7' --generation 3 --id SIGNAL_ID",
    ),
    "timer": (waits("timer"), f"pack sleeps, {SINCE}, until {UNTIL}", None),
    "permit": (
        waits("permit", "printer"),
        f"pack waits for a place of printer, {SINCE}, asks again by itself at {UNTIL}",
        f"kernel-supervisor limits explain {ID}",
    ),
    "retry": (
        waits("retry", steps=at(attempt=2, failures=2, error=BROKEN)),
        f"pack has failed 2 times and is tried again: step_timeout StepTimeout: slow (attempt 2, w2), {SINCE}, "
        f"until {UNTIL}",
        f"kernel-supervisor workflow attempts {ID} pack",
    ),
    "finalizer": (
        waits("finalizer", finalizer=FinalizerRecord(attempt=4, error=BROKEN, next_time=UNTIL_MS)),
        "its finalizer, or prepare, has failed 4 times and is tried again: step_timeout StepTimeout: slow "
        f"(attempt 2, w2), {SINCE}, until {UNTIL}",
        None,
    ),
    "version": (
        waits("version", deferred=DeferredRecord(stored="aaaabbbbccccdddd", offered=("eeee",), since_time=SINCE_MS)),
        f"no live worker has version aaaabbbbcccc of parcel, offered: eeee, {SINCE}, is looked at again at {UNTIL}",
        "kernel-supervisor start --app MODULE:ATTRIBUTE, of the release that has this version",
    ),
    "parked": (
        waits("parked", until=None, parked=ParkedRecord(reason="3 deaths", since_time=SINCE_MS)),
        f"put aside until somebody helps: 3 deaths, {SINCE}",
        f"kernel-supervisor workflow unpark {ID}",
    ),
}


def test_every_kind_of_waiting_has_a_reading_here() -> None:
    assert set(READINGS) == set(get_args(Waiting))


@pytest.mark.req("ops-find", "ops-where-stuck")
@pytest.mark.parametrize("waiting", list(READINGS))
def test_it_names_the_one_thing_that_is_waited_for_since_when_until_when_and_what_helps(waiting: Waiting) -> None:
    seen, sentence, remedy = READINGS[waiting]

    found = reading(seen, NOW_MS)

    assert (found.waiting, found.sentence, found.help) == (waiting, sentence, remedy)


@pytest.mark.req("ops-where-stuck")
@pytest.mark.parametrize("waiting", ["timer", "retry", "finalizer", "signal", "version", "worker"])
def test_what_should_have_gone_on_by_itself_waits_for_a_worker(waiting: Waiting) -> None:
    """No event tells that a time has come: the snapshot still says `timer` when nobody wakes it."""
    found = reading(waits(waiting, until=BEGIN_MS + 55_000), NOW_MS)

    assert (found.waiting, found.since, found.until) == ("worker", BEGIN_MS + 55_000, None)
    assert found.sentence == (
        f"due: no worker has taken it yet for pack, since {clock_text(BEGIN_MS + 55_000)} (5.0 s)"
    )
    assert brief(waiting, None, BEGIN_MS + 55_000, NOW_MS) == "worker (due)"


@pytest.mark.req("ops-where-stuck")
def test_whose_time_to_ask_again_has_come_waits_for_the_same_place() -> None:
    """Due for a moment, asked for, refused: to who looks it is one thing, and not two that take turns."""
    asks = waits("permit", "printer", until=BEGIN_MS + 55_000)

    found = reading(asks, NOW_MS)

    assert (found.waiting, found.since, found.until) == ("permit", SINCE_MS, None)
    assert found.sentence == f"pack waits for a place of printer, {SINCE}, asks again now"
    assert found.help == f"kernel-supervisor limits explain {ID}"
    assert brief("permit", "printer", BEGIN_MS + 55_000, NOW_MS) == "permit printer, asks again now"


@pytest.mark.req("ops-where-stuck")
@pytest.mark.parametrize("until", [UNTIL_MS, BEGIN_MS + 55_000])
def test_a_place_that_nobody_can_give_is_told_as_that(until: int) -> None:
    found = reading(waits("permit", "printer", until=until), NOW_MS, Beside(is_redis_away=True))

    assert found.sentence.endswith("; none can be given: Redis is out of reach")
    assert (found.waiting, found.help) == ("permit", "kernel-supervisor doctor")


@pytest.mark.req("ops-where-stuck")
@pytest.mark.parametrize(("waiting", "on"), [("worker", None), ("permit", "printer"), ("timer", None)])
def test_what_hinders_is_said_of_what_is_due_and_leads_on(waiting: Waiting, on: str | None) -> None:
    why = Hindrance("no supervisor runs in /x", "kernel-supervisor start --app a:b")

    found = reading(waits(waiting, on, until=BEGIN_MS + 55_000), NOW_MS, Beside(hindrance=why))

    assert found.sentence.endswith("; no supervisor runs in /x")
    assert (found.help, found.more_help) == ("kernel-supervisor start --app a:b", None)


def test_nobody_takes_over_from_a_dead_worker_where_no_tree_runs() -> None:
    seen = waits("step", "pack", until=None, worker="host/12/worker-0", worker_id="w1", lease_until=LEFT_MS)
    why = Hindrance("no supervisor runs in /x", "kernel-supervisor start --app a:b")

    found = reading(seen, NOW_MS, Beside(holder="gone", hindrance=why))

    assert found.sentence.endswith("; host/12/worker-0 does not run any more; no supervisor runs in /x")
    assert (found.waiting, found.help) == ("step", "kernel-supervisor start --app a:b")


def test_where_nothing_is_seen_that_hinders_two_views_may_know() -> None:
    found = reading(waits("worker", until=None), NOW_MS)

    assert (found.help, found.more_help) == ("kernel-supervisor lanes", "kernel-supervisor doctor")


def test_what_was_interrupted_is_no_timer_and_tells_when_another_may_take_it() -> None:
    found = reading(waits("worker"), NOW_MS)

    assert found.sentence == (f"pack was interrupted, and another worker goes on with it, {SINCE}, not before {UNTIL}")
    assert brief("worker", None, UNTIL_MS, NOW_MS) == f"worker, not before {clock_text(UNTIL_MS)}"
    due = [is_due("worker", UNTIL_MS, at, lease_until=None, holder="unknown") for at in (NOW_MS, UNTIL_MS)]
    assert due == [False, True]


def test_commands_that_are_named_carry_the_options_of_the_one_that_names_them() -> None:
    given = Given("a folder", "k.toml", "flows:app")
    failed = snapshot(status="failed", waiting=None, waiting_since=None, finish_time=BEGIN_MS, current_step=None)

    again = reading(failed, NOW_MS, Beside(given=given)).help
    lanes = reading(waits("worker", until=None), NOW_MS, Beside(given=given)).help

    options = "--data-dir 'a folder' --config k.toml"
    assert again == f"kernel-supervisor workflow replay {ID} {options} --app flows:app"
    assert lanes == f"kernel-supervisor lanes {options}"


def test_a_fingerprint_is_shown_by_its_beginning() -> None:
    assert brief("version", "aaaabbbbccccdddd", None, NOW_MS) == "version aaaabbbbcccc"


EXECUTED = f"pack is executed by host/12/worker-0, attempt 1, {SINCE}"
OVER_MS, LEFT_MS = NOW_MS - 48_000, NOW_MS + 12_000
REPAIR = f"kernel-supervisor workflow repair {ID}"
ATTEMPTS = f"kernel-supervisor workflow attempts {ID} pack"
HELD: tuple[tuple[Holder, int | None, Waiting, str, str, str], ...] = (
    ("runs", LEFT_MS, "step", EXECUTED, ATTEMPTS, "step pack"),
    (
        "silent", OVER_MS, "step",
        f"{EXECUTED}; host/12/worker-0 is silent: it was stopped, or it hangs. Another worker takes it when its lease "
        "ends",
        "kernel-supervisor status", "step pack, its worker is silent",
    ),
    # Its lease is renewed without an event.
    ("runs", OVER_MS, "step", EXECUTED, ATTEMPTS, "step pack"),
    ("unknown", LEFT_MS, "step", EXECUTED, ATTEMPTS, "step pack"),
    ("unknown", None, "step", EXECUTED, ATTEMPTS, "step pack"),
    (
        "unknown", OVER_MS, "step",
        f"{EXECUTED}; its lease as last seen ended at {clock_text(OVER_MS)} (48.0 s ago): it is renewed unseen, or "
        "host/12/worker-0 is dead",
        REPAIR, "step pack, or its worker is gone",
    ),
    (
        "gone", OVER_MS, "worker",
        f"due: no worker has taken it yet for pack, since {clock_text(OVER_MS)} (48.0 s), when the lease of "
        "host/12/worker-0, which does not run any more, ran out as last seen",
        "kernel-supervisor lanes", "worker (due)",
    ),
    (
        "gone", LEFT_MS, "step",
        f"{EXECUTED}; host/12/worker-0 does not run any more: another worker takes it when the lease ends, not before "
        f"{clock_text(LEFT_MS)} (in 12.0 s)",
        ATTEMPTS, "step pack, its worker is gone",
    ),
    (
        "gone", None, "step", f"{EXECUTED}; host/12/worker-0 does not run any more", REPAIR,
        "step pack, its worker is gone",
    ),
)  # fmt: skip


@pytest.mark.req("ops-where-stuck", "ops-find")
@pytest.mark.parametrize(("holder", "lease", "waiting", "sentence", "remedy", "row"), HELD)
def test_executed_is_said_of_a_dead_worker_only_where_nobody_can_know(
    holder: Holder, lease: int | None, waiting: Waiting, sentence: str, remedy: str, row: str
) -> None:
    """A dead worker makes no event, and a renewed lease makes none."""
    seen = waits(
        "step", "pack", until=None, worker="host/12/worker-0", worker_id="w1", lease_until=lease,
        steps=at(status="running", attempt=1),
    )  # fmt: skip

    found = reading(seen, NOW_MS, Beside(holder=holder))

    assert (found.waiting, found.sentence, found.help) == (waiting, sentence, remedy)
    assert brief("step", "pack", None, NOW_MS, lease_until=lease, holder=holder) == row


@pytest.mark.req("fin-error-visible")
@pytest.mark.parametrize("what", ["prepare", "success finalizer", "failure finalizer"])
def test_it_says_which_of_them_has_failed(what: str) -> None:
    failed = FinalizerRecord(attempt=1, error=BROKEN, next_time=UNTIL_MS, what=what)

    found = reading(waits("finalizer", finalizer=failed), NOW_MS)

    assert found.sentence.startswith(f"its {what} has failed 1 time and is tried again: step_timeout")


def test_a_signal_that_has_no_poll_names_no_time() -> None:
    found = reading(waits("signal", "paid", until=None, steps=at(status="waiting", wait=WAIT)), NOW_MS)

    assert found.sentence == f"pack waits for the signal paid, key o 7, generation 3, {SINCE}"


def test_a_claim_that_is_in_no_step_says_so() -> None:
    found = reading(waits("step", None, until=None, worker_id="w1"), NOW_MS)

    assert found.sentence == f"executed by w1: prepare, a finalizer, or what lies between two steps, {SINCE}"
    assert found.help == f"kernel-supervisor workflow attempts {ID}"


def test_a_failing_workflow_says_what_it_fails_of() -> None:
    found = reading(waits("worker", until=None, status="failing", error=BROKEN), NOW_MS)

    assert found.sentence.endswith("(10.0 s); it is failing: step_timeout StepTimeout: slow (attempt 2, w2)")


@pytest.mark.parametrize(
    ("status", "error", "ending", "remedy"),
    [
        ("completed", None, "", None),
        ("canceled", None, "", None),
        (
            "failed",
            BROKEN,
            ": step_timeout StepTimeout: slow (attempt 2, w2)",
            f"kernel-supervisor workflow replay {ID} --app MODULE:ATTRIBUTE",
        ),
    ],
)
def test_one_that_has_ended_says_how_and_when(
    status: str, error: ErrorRecord | None, ending: str, remedy: str | None
) -> None:
    ended = snapshot(
        status=status, error=error, waiting=None, waiting_since=None, finish_time=BEGIN_MS + 5_000,
        split=split(execution=5_000), current_step=None,
    )  # fmt: skip

    found = reading(ended, NOW_MS)

    assert (found.waiting, found.help) == (None, remedy)
    assert found.sentence == f"{status} at {clock_text(BEGIN_MS + 5_000)} after 5.0 s{ending}"


def test_a_row_of_a_list_says_it_in_a_few_words() -> None:
    assert brief(None, None, None, NOW_MS) == ""
    assert brief("worker", None, None, NOW_MS) == "worker"
    assert brief("permit", "printer", UNTIL_MS, NOW_MS) == f"permit printer, until {clock_text(UNTIL_MS)}"
    assert brief("signal", "paid", None, NOW_MS) == "signal paid"


def test_a_long_error_is_cut_in_the_sentence() -> None:
    long = ErrorRecord(code="error", type="ValueError", message="x" * 2_000)

    assert error_text(long) == f"error ValueError: {'x' * 300}…"


def test_a_command_to_paste_quotes_what_others_have_named() -> None:
    found = reading(waits("parked", until=None, workflow_id="a b; rm -rf"), NOW_MS)

    assert found.help == "kernel-supervisor workflow unpark 'a b; rm -rf'"
