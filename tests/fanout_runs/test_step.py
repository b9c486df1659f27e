"""The step of a fan-out, invocation by invocation, without an engine: pages, counts, faults, poison."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from fanout import (
    CURSOR_BYTES_MAX,
    PAGE_SIZE_MAX,
    FanOutEvent,
    Outcome,
    Page,
    Progress,
    Sample,
    Subscriber,
    Tally,
    make_fan_out,
    signal_id_for,
)
from kernel import (
    ClaimLost,
    Definition,
    InvalidDefinition,
    NonRetryable,
    Signal,
    Sleep,
    StepCanceled,
    WorkflowCanceled,
    Yield,
    workflow_id_for,
)
from kernel.codec import encode
from kernel.errors import (
    CheckpointError,
    CorruptRecord,
    OutcomeUnknown,
    SchemaMismatch,
    StoreUnavailable,
    UnknownVersion,
    WrongProcess,
)
from tests.fanout_runs.fake_flows import BYTES_MAX, FakeInbox, StepRun
from tests.fanout_runs.lists import SubscriberList, event

SECOND = timedelta(seconds=1)


def fan_out(read_page: Any, page_size: int = 10, **options: Any) -> Definition:
    return make_fan_out("notify", read_page, page_size=page_size, **options)


def run_of(subscribers: SubscriberList, inbox: FakeInbox | None = None, **options: Any) -> StepRun:
    return StepRun(fan_out(subscribers.read_page, **options), event(), FakeInbox() if inbox is None else inbox)


def waiting(count: int) -> FakeInbox:
    return FakeInbox(**{workflow_id_for(f"sub:{number}"): "waiting" for number in range(1, count + 1)})


# --- pages ----------------------------------------------------------------------------------------------


@pytest.mark.req("fan-page-signals", "fan-cursor")
@pytest.mark.parametrize("how", ["read_page", "read_page_later"])
def test_25_subscribers_in_pages_of_10_are_three_deliveries_with_the_cursor_between(how: str) -> None:
    subscribers, inbox = SubscriberList.of_keys(25), waiting(25)
    run = StepRun(fan_out(getattr(subscribers, how)), event(), inbox)

    outcome = run.to_the_end()

    assert subscribers.reads == [(None, 10), (10, 10), (20, 10)]
    assert [len(call) for call in inbox.calls] == [10, 10, 5]
    assert [type(directive) for directive in run.directives] == [Yield, Yield, Outcome]
    assert [directive.checkpoint.cursor for directive in run.directives[:2]] == [10, 20]
    assert outcome == Outcome(tally=Tally(pages=3, told=25, woken=25))
    assert len(inbox.stored) == 25


@pytest.mark.req("fan-empty")
def test_nobody_to_tell_completes_without_a_signal() -> None:
    run = run_of(SubscriberList())

    assert run.to_the_end() == Outcome(tally=Tally(pages=1))
    assert run.inbox.calls == []


def test_a_page_that_is_empty_but_not_the_last_goes_on() -> None:
    pages = {None: Page(next_cursor="b"), "b": Page(subscribers=[Subscriber(biz_key="sub:1")])}
    run = StepRun(fan_out(lambda ctx, cursor, limit: pages[cursor]), event(), waiting(1))

    assert run.to_the_end().tally == Tally(pages=2, told=1, woken=1)


def test_a_cursor_of_several_parts_comes_back_as_it_was() -> None:
    seen: list[Any] = []

    def read_page(ctx: Any, cursor: Any, limit: int) -> Page:
        seen.append(cursor)
        return Page(next_cursor=("2026-11-30", 17) if cursor is None else None)

    StepRun(fan_out(read_page), event(), FakeInbox()).to_the_end()

    assert seen == [None, ("2026-11-30", 17)]


@pytest.mark.req("fan-page-limit")
@pytest.mark.parametrize("size", [0, -1, PAGE_SIZE_MAX + 1, True, "10", 2.5])
def test_a_page_size_out_of_range_is_refused_when_it_is_declared(size: Any) -> None:
    with pytest.raises(InvalidDefinition, match="notify: page_size must be a whole number from 1 to 1000"):
        fan_out(SubscriberList().read_page, page_size=size)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"read_page": "no function"}, "read_page is not callable"),
        ({"backoff_first": SECOND, "backoff_max": timedelta(0)}, "initial_interval ≤ max_interval"),
        ({"timeout": timedelta(0)}, "timeout must be"),
    ],
)
def test_a_wrong_declaration_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidDefinition, match=words):
        make_fan_out("notify", **{"read_page": SubscriberList().read_page, **options})


# --- who is counted as what -----------------------------------------------------------------------------


def test_unknown_and_ended_subscribers_are_counted_and_told_all_the_same() -> None:
    keys = ["running", "waiting", "failing", "completed", "failed", "canceled", "nobody"]
    inbox = FakeInbox(**{workflow_id_for(key): key for key in keys[:-1]})
    subscribers = SubscriberList(Subscriber(biz_key=key) for key in keys)

    outcome = run_of(subscribers, inbox).to_the_end()

    assert outcome.tally == Tally(pages=1, told=3, ended=3, unknown=1, woken=1)
    assert len(inbox.stored) == 7


def test_one_who_is_in_the_list_twice_is_told_once() -> None:
    twice_in_a_page = [Subscriber(biz_key="sub:1"), Subscriber(workflow_id=workflow_id_for("sub:1"))]
    subscribers = SubscriberList([*twice_in_a_page, Subscriber(biz_key="sub:1")])
    run = run_of(subscribers, waiting(1), page_size=2)

    assert run.to_the_end().tally == Tally(pages=2, told=1, duplicates=2, woken=1)
    assert len(run.inbox.stored) == 1


def test_a_subscriber_may_wait_under_a_key_and_generation_of_its_own() -> None:
    subscribers = SubscriberList(
        [
            Subscriber(workflow_id="w"),
            Subscriber(workflow_id="w", wait_key="other"),
            Subscriber(workflow_id="w", generation=2),
        ]
    )
    run = run_of(subscribers, FakeInbox(w="waiting"))
    run.to_the_end()

    waits = {(signal.wait_key, signal.generation) for signal in run.inbox.stored.values()}
    assert waits == {("show-1", 0), ("other", 0), ("show-1", 2)}


WRONG: list[tuple[Any, str]] = [
    (Subscriber(biz_key=""), "must have 1–200 characters"),
    (Subscriber(biz_key="a\nb"), "holds control"),
    (Subscriber(biz_key="x" * 201), "must have 1–200 characters"),
    (Subscriber(workflow_id=" "), "only blanks"),
    (Subscriber(workflow_id=7), "expected text, got int"),  # type: ignore[arg-type]
    (Subscriber(), "exactly one of them"),
    (Subscriber(biz_key="a", workflow_id="b"), "exactly one of them"),
    (Subscriber(biz_key="a", wait_key=""), "wait_key"),
    (Subscriber(biz_key="a", generation=-1), "generation"),
    (Subscriber(biz_key="\ud800"), "Unicode|unprintable"),
    ("sub:7", "must be a fanout.Subscriber, is a str"),
    (None, "must be a fanout.Subscriber, is a NoneType"),
]


@pytest.mark.case("A40")
@pytest.mark.parametrize(("wrong", "words"), WRONG, ids=lambda value: ascii(value)[:40])
def test_one_who_can_not_be_addressed_does_not_block_its_page(wrong: Any, words: str) -> None:
    subscribers = SubscriberList([*SubscriberList.of_keys(2).rows.values(), wrong, Subscriber(biz_key="sub:3")])
    run = run_of(subscribers, waiting(3))

    outcome = run.to_the_end()

    assert outcome.tally == Tally(pages=1, told=3, woken=3, malformed=1)
    (sample,) = outcome.samples
    assert any(word in sample.reason for word in words.split("|")), sample
    assert len(sample.subscriber) <= 200


def test_samples_are_bounded_and_the_first_ones_are_kept() -> None:
    subscribers = SubscriberList(Subscriber(biz_key=f"bad\n{number}") for number in range(95))

    outcome = run_of(subscribers).to_the_end()

    assert outcome.tally == Tally(pages=10, malformed=95)
    assert [sample.subscriber for sample in outcome.samples] == [f"'bad\\n{number}'" for number in range(10)]


# --- faults ---------------------------------------------------------------------------------------------


@pytest.mark.req("fan-cursor")
@pytest.mark.parametrize("how", ["read_page", "read_page_later"])
def test_a_read_that_fails_is_a_counted_sleep_at_the_same_cursor(how: str) -> None:
    subscribers, left = SubscriberList.of_keys(25), [ConnectionError("no answer")] * 3

    def fail(cursor: Any) -> None:
        if cursor == 10 and left:
            raise left.pop()

    subscribers.before = fail
    run = StepRun(fan_out(getattr(subscribers, how)), event(), waiting(25))

    outcome = run.to_the_end()

    assert subscribers.cursors == [None, 10, 10, 10, 10, 20]
    sleeps = [directive for directive in run.directives if isinstance(directive, Sleep)]
    assert [sleep.interval for sleep in sleeps] == [SECOND, 2 * SECOND, 4 * SECOND]
    assert [(s.checkpoint.cursor, s.checkpoint.page_tries) for s in sleeps] == [(10, 1), (10, 2), (10, 3)]
    assert sleeps[0].checkpoint.fault == "ConnectionError: no answer"
    assert outcome.tally == Tally(pages=3, told=25, woken=25, tries=3)


def test_an_async_read_that_hangs_is_given_up_before_the_timeout_so_that_the_cursor_is_kept() -> None:
    async def read_page(ctx: Any, cursor: Any, limit: int) -> Page:
        await asyncio.Event().wait()
        raise AssertionError("never")

    run = StepRun(fan_out(read_page), event(), FakeInbox())
    run.left_s = 0.05

    sleep = run.once()

    assert isinstance(sleep, Sleep) and sleep.checkpoint.fault.startswith("TimeoutError")


def test_the_back_off_ends_at_its_maximum_and_the_tries_do_not() -> None:
    run = StepRun(
        fan_out(lambda ctx, cursor, limit: None, backoff_first=SECOND, backoff_max=5 * SECOND), event(), FakeInbox()
    )
    for _ in range(300):
        run.once()

    assert [directive.interval / SECOND for directive in run.directives[:5]] == [1, 2, 4, 5, 5]
    assert all(isinstance(directive, Sleep) for directive in run.directives)
    assert run.directives[-1].checkpoint.tally.tries == 300


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (None, "must return a fanout.Page, returned NoneType"),
        ([Subscriber(biz_key="a")], "must return a fanout.Page, returned list"),
        (Page(subscribers=[Subscriber(biz_key="a")] * 11), "at most 10 were asked for, 11 came"),
        (Page(subscribers=iter(())), "must be a list or tuple"),  # type: ignore[arg-type]
        (Page(next_cursor=1.5), "float is neither text, int nor a tuple"),  # type: ignore[arg-type]
        (Page(next_cursor=[1]), "list is neither text, int nor a tuple"),  # type: ignore[arg-type]
        (Page(next_cursor=True), "bool is neither text, int nor a tuple"),
        (Page(next_cursor="x" * CURSOR_BYTES_MAX), "1027 bytes encoded, at most 1024 are allowed"),
        (Page(next_cursor=2**64), "can not be encoded"),
        (Page(next_cursor="\ud800"), "can not be encoded"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_a_page_that_breaks_the_rules_is_not_told_and_tried_again(page: Any, words: str) -> None:
    run = StepRun(fan_out(lambda ctx, cursor, limit: page), event(), FakeInbox())

    sleep = run.once()

    assert isinstance(sleep, Sleep) and words in sleep.checkpoint.fault
    assert (sleep.checkpoint.cursor, run.inbox.calls) == (None, [])


def test_a_cursor_that_stands_still_is_a_fault_and_no_endless_list() -> None:
    run = StepRun(fan_out(lambda ctx, cursor, limit: Page(next_cursor="same")), event(), FakeInbox())

    assert isinstance(run.once(), Yield)
    assert "the list would never end" in run.once().checkpoint.fault


@pytest.mark.req("fan-rerun-dedup")
@pytest.mark.parametrize("error", [StoreUnavailable("away"), OutcomeUnknown("the answer got lost")])
def test_a_store_without_an_answer_repeats_the_page_under_the_same_ids(error: Exception) -> None:
    subscribers, inbox = SubscriberList.of_keys(10), waiting(10)
    faults = [error]
    inbox.fault_after = lambda signals: faults.pop() if faults else None
    run = run_of(subscribers, inbox)

    outcome = run.to_the_end()

    assert [len(call) for call in inbox.calls] == [10, 10], "the page was not halved: it is not a subscriber's fault"
    assert inbox.calls[0] == inbox.calls[1]
    assert outcome.tally == Tally(pages=1, duplicates=10, tries=1)


@pytest.mark.parametrize(
    "error",
    [CorruptRecord("instance 'w': no status"), UnknownVersion("instance 'w': layout version 9")],
    ids=["corrupt", "version"],
)
def test_a_row_that_makes_every_delivery_fail_stands_alone_after_halving(error: Exception) -> None:
    subscribers, inbox = SubscriberList.of_keys(30), waiting(30)
    poison = workflow_id_for("sub:13")
    inbox.fault_of = lambda signals: error if any(signal.workflow_id == poison for signal in signals) else None
    run = run_of(subscribers, inbox)

    outcome = run.to_the_end()

    assert outcome.tally == Tally(pages=3, told=29, woken=29, malformed=1)
    assert outcome.samples == (Sample(subscriber=poison, reason=f"{type(error).__name__}: {error}"),)
    assert len(run.directives) == 3, "nobody had to wait for it"
    assert len(inbox.calls) < 12


def test_a_foreign_fault_is_given_two_more_chances_before_its_subscriber_is_passed_over() -> None:
    subscribers, inbox = SubscriberList.of_keys(10), waiting(10)
    poison = workflow_id_for("sub:3")
    inbox.fault_of = lambda signals: ValueError("odd") if any(s.workflow_id == poison for s in signals) else None
    run = run_of(subscribers, inbox)

    run.once()
    assert len(inbox.stored) == 9, "everybody else is told by the first try"
    outcome = run.to_the_end()

    assert [type(directive) for directive in run.directives] == [Sleep, Sleep, Outcome]
    assert outcome.tally == Tally(pages=1, duplicates=9, malformed=1, tries=2)


def test_a_fault_that_meets_everybody_never_costs_anybody_their_signal() -> None:
    subscribers, inbox = SubscriberList.of_keys(10), waiting(10)
    broken = [True]
    inbox.fault_of = lambda signals: ValueError("a bug") if broken else None
    run = run_of(subscribers, inbox)
    for _ in range(50):
        assert isinstance(run.once(), Sleep)

    broken.clear()  # as a repaired program would
    assert run.to_the_end().tally == Tally(pages=1, told=10, woken=10, tries=50)


@pytest.mark.parametrize("error", [SchemaMismatch("the inbox is of another program"), WrongProcess("after a fork")])
def test_an_error_of_the_kernel_that_is_about_no_row_is_waited_out_as_well(error: Exception) -> None:
    subscribers, inbox = SubscriberList.of_keys(10), waiting(10)
    broken = [True]
    inbox.fault_of = lambda signals: error if broken else None
    run = run_of(subscribers, inbox)
    for _ in range(30):
        assert isinstance(run.once(), Sleep)

    broken.clear()
    assert run.to_the_end().tally == Tally(pages=1, told=10, woken=10, tries=30)


def test_a_page_of_nothing_but_damaged_rows_is_passed_over_at_the_tenth_try() -> None:
    subscribers, inbox = SubscriberList.of_keys(5), waiting(5)
    damaged = {workflow_id_for(f"sub:{number}") for number in (3, 4)}

    def fault(signals: Any) -> Exception | None:
        return CorruptRecord("no status") if any(signal.workflow_id in damaged for signal in signals) else None

    inbox.fault_of = fault
    outcome = run_of(subscribers, inbox, page_size=2).to_the_end()

    assert outcome.tally == Tally(pages=3, told=3, woken=3, malformed=2, tries=9), "the second page"


def test_an_id_that_somebody_has_used_for_another_signal_is_reported() -> None:
    run = run_of(SubscriberList.of_keys(2))
    target = workflow_id_for("sub:1")
    id_ = signal_id_for(run.event, target, "show-1", 0)
    run.inbox.stored[id_] = Signal(signal_id=id_, workflow_id=target, signal_type="other", wait_key="by_hand")

    outcome = run.to_the_end()

    assert outcome.tally == Tally(pages=1, unknown=1, malformed=1)
    assert outcome.samples == (Sample(subscriber=target, reason="the id of its signal was used for another signal"),)


def test_the_only_subscriber_of_a_page_does_not_block_the_list_for_ever() -> None:
    subscribers, inbox = SubscriberList.of_keys(3), waiting(3)
    poison = workflow_id_for("sub:2")
    inbox.fault_of = lambda signals: CorruptRecord("odd") if signals[0].workflow_id == poison else None

    outcome = run_of(subscribers, inbox, page_size=1).to_the_end()

    assert outcome.tally == Tally(pages=3, told=2, woken=2, malformed=1, tries=9)


@pytest.mark.parametrize("how", ["read_page", "read_page_later"])
@pytest.mark.parametrize(
    "error", [ClaimLost("gone"), StepCanceled("timeout"), WorkflowCanceled("not any more"), NonRetryable("no list")]
)
def test_the_end_of_the_invocation_and_the_authors_own_end_are_no_faults_of_a_page(error: Exception, how: str) -> None:
    subscribers = SubscriberList.of_keys(3)

    def fail(_: object) -> None:
        raise error

    subscribers.before = fail
    with pytest.raises(type(error)):
        StepRun(fan_out(getattr(subscribers, how)), event(), waiting(3)).once()


@pytest.mark.parametrize("how", ["read_page", "read_page_later"])
@pytest.mark.parametrize("error", [ClaimLost("gone"), StepCanceled("timeout")])
def test_a_claim_that_is_lost_while_telling_ends_the_invocation(error: Exception, how: str) -> None:
    inbox = waiting(3)
    inbox.fault_of = lambda signals: error

    with pytest.raises(type(error)):
        StepRun(fan_out(getattr(SubscriberList.of_keys(3), how)), event(), inbox).once()


def test_one_whose_row_can_not_be_read_is_reported_and_its_signal_stays() -> None:
    run = run_of(SubscriberList.of_keys(2), FakeInbox(**{workflow_id_for("sub:1"): "unreadable"}))

    outcome = run.to_the_end()

    assert outcome.tally == Tally(pages=1, unknown=1, unreadable=1)
    assert outcome.samples == (Sample(subscriber=workflow_id_for("sub:1"), reason="its row can not be read"),)
    assert len(run.inbox.stored) == 2


# --- what is stored -------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_version_is_left_alone_for_a_worker_that_knows_it() -> None:
    stored = {"v": 2, "cursor": [1, 2], "more": {"a": b"b"}}
    run = run_of(SubscriberList.of_keys(3))
    run.checkpoint = before = encode(stored, "checkpoint", BYTES_MAX)

    returned = run.once()

    assert isinstance(returned, Sleep) and returned.interval == timedelta(minutes=1)
    assert run.checkpoint == before
    assert run.inbox.calls == []


def test_a_checkpoint_that_does_not_decode_is_an_error_and_no_guess() -> None:
    run = run_of(SubscriberList.of_keys(3))
    run.checkpoint = encode({"v": 1, "tally": 7}, "checkpoint", BYTES_MAX)

    with pytest.raises(CheckpointError, match="tally"):
        run.once()


def test_an_input_that_can_not_be_understood_is_a_fault_that_is_shown() -> None:
    def read_page(ctx: Any, cursor: Any, limit: int) -> Page:
        raise CheckpointError("input of notify: Invalid enum value 2 - at `$.v`")

    sleep = StepRun(fan_out(read_page), event(), FakeInbox()).once()

    assert sleep.checkpoint.fault == "CheckpointError: input of notify: Invalid enum value 2 - at `$.v`"


def test_the_checkpoint_stays_small_whatever_comes_from_outside() -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even that")

    wrong = SubscriberList([Subscriber(biz_key="\ud800" * 10_000), "x" * 100_000] * 20)
    run = run_of(wrong, page_size=5)
    run.once()
    assert run.checkpoint is not None and len(run.checkpoint) < 6_000

    wrong.before = lambda cursor: (_ for _ in ()).throw(Nasty())
    assert run.once().checkpoint.fault == "Nasty"
    wrong.before = lambda cursor: (_ for _ in ()).throw(ValueError("\ud800 \n" + "y" * 9_999))
    assert len(run.once().checkpoint.fault) == 200
    assert isinstance(Progress(fault=run.directives[-1].checkpoint.fault), Progress)


def test_the_step_asks_the_inbox_for_nothing_but_its_event() -> None:
    run = StepRun(
        fan_out(SubscriberList.of_keys(1).read_page),
        FanOutEvent(event_id="e", signal_type="ready", wait_key="k", generation=3),
        waiting(1),
    )
    run.to_the_end()

    (signal,) = run.inbox.stored.values()
    target = workflow_id_for("sub:1")
    assert signal == Signal(
        signal_id=f"fan:3:ready:k:{target}:e", workflow_id=target, signal_type="ready", wait_key="k", generation=3
    )
