"""Fan-outs on the engine: pages, the yield between them, who is woken, and that nobody else has to wait for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fanout import FanOutEvent, Outcome, Subscriber, Tally, make_fan_out, signal_id_for, start_fan_out
from kernel import Definition, NonRetryable, Step, WaitForSignal, workflow_id_for
from kernel.context import Context
from tests.engine.flows import seconds
from tests.engine.test_claims import set_fields
from tests.fanout_runs.lists import SubscriberList, event
from tests.fanout_runs.shows import Show
from tests.support.engine_rig import LiveRig, SteppedRig


def outcome(rig: SteppedRig | LiveRig, workflow_id: str) -> Outcome:
    return rig.client.result(workflow_id, seconds(0), Outcome)


def waiting_followers(show: Show, rig: SteppedRig, count: int) -> list[str]:
    ids = show.follow_all(count)
    rig.run(show.all_wait(ids), "all wait")
    return ids


# --- pages and signals ----------------------------------------------------------------------------------


@pytest.mark.req("fan-page-signals", "fan-cursor")
def test_25_followers_are_woken_once_each_in_three_pages(durable_rig: SteppedRig) -> None:
    show = Show(durable_rig, 25)
    durable_rig.worker(*show.definitions)
    ids = waiting_followers(show, durable_rig, 25)
    show.ready = True
    fan_out = show.start_fan_out()
    durable_rig.finish(fan_out, *ids)

    assert show.subscribers.cursors == [None, 10, 20]
    assert outcome(durable_rig, fan_out) == Outcome(tally=Tally(pages=3, told=25, woken=25))
    assert {row["signal_id"] for row in show.signals()} == {signal_id_for(event(), key, "show-1", 0) for key in ids}
    assert all(row["status"] == "matched" for row in show.signals())
    assert show.woken_once(ids)


@pytest.mark.req("yld-effect", "yld-no-wait")
def test_a_yield_is_one_write_and_the_next_page_is_queued_at_once(durable_rig: SteppedRig) -> None:
    show = Show(durable_rig, 25)
    worker = durable_rig.worker(*show.definitions)
    fan_out = show.start_fan_out()
    before, wakeups = len(durable_rig.queue.pushed), durable_rig.queue.wakeups
    show.subscribers.before = lambda cursor: worker.scheduler.stop() if cursor is None else None
    durable_rig.pass_once(worker)

    row = durable_rig.row(fan_out)
    (step,) = row["steps"]
    assert worker.store.names()[-1] == "yield_step"
    assert [name for name in worker.store.names() if "step" in name] == ["begin_step", "yield_step"]
    assert (row["status"], step["status"], step["attempt"]) == ("running", "pending", 0)
    assert "checkpoint" in step and row["claimable_time"] <= durable_rig.store.now_ms()
    assert not {"claim_token", "claim_time", "worker_id", "worker", "resume", "wait"} & row.keys()
    assert "resume" not in step and "wait" not in step
    queued = [c for c in durable_rig.queue.pushed[before:] if c.workflow_id == fan_out]
    assert queued[-1].at_ms == row["claimable_time"]
    assert durable_rig.queue.wakeups > wakeups

    other = durable_rig.worker(*show.definitions)
    durable_rig.run(lambda: durable_rig.ended(fan_out), "no timer and no signal was needed", other, limit_ms=1_000)
    assert show.subscribers.cursors == [None, 10, 20]


@pytest.mark.req("yld-fair")
def test_one_slot_serves_five_other_workflows_between_fifty_pages(rig: SteppedRig) -> None:
    show = Show(rig, 50, page_size=1)
    others: list[str] = []

    def read(cursor: Any) -> None:
        number = 0 if cursor is None else int(cursor)
        if number % 10 == 5:
            others.append(rig.start(show.other, f"other:{number}", priority="background"))
        rig.clock.advance(1)  # a page takes its time, as everything does outside of a test

    show.subscribers.before = read
    rig.worker(*show.definitions, slots=1)
    fan_out = show.start_fan_out()
    rig.finish(fan_out)

    pages_before = [show.read_before[key] for key in others]
    assert len(show.subscribers.reads) == 50
    assert pages_before == [6, 16, 26, 36, 46], "each ran right after the page during which it was started"


@pytest.mark.req("fan-empty")
def test_an_event_for_nobody_completes_with_no_signal(durable_rig: SteppedRig) -> None:
    show = Show(durable_rig, 0)
    durable_rig.worker(*show.definitions)
    fan_out = show.start_fan_out()
    durable_rig.finish(fan_out)

    assert durable_rig.status(fan_out) == "completed"
    assert outcome(durable_rig, fan_out).tally == Tally(pages=1)
    assert show.signals() == []


@pytest.mark.req("fan-page-limit")
def test_10_000_subscribers_are_read_in_bounded_pages_one_per_claim(rig: SteppedRig) -> None:
    show = Show(rig, 10_000, page_size=500)
    worker = rig.worker(*show.definitions)
    fan_out = show.start_fan_out()
    rig.finish(fan_out)

    assert show.subscribers.reads == [(None if k == 0 else 500 * k, 500) for k in range(20)]
    assert worker.scheduler.claims_taken == 20
    assert outcome(rig, fan_out).tally == Tally(pages=20, unknown=10_000)
    assert len(rig.step(fan_out, "tell_subscribers").checkpoint) < 500


def test_unknown_ended_and_wrong_subscribers_are_counted_and_block_nobody(durable_rig: SteppedRig) -> None:
    show = Show(durable_rig, 3)
    durable_rig.worker(*show.definitions)
    ids = waiting_followers(show, durable_rig, 3)
    show.ready = True
    done = show.follow("done")
    durable_rig.finish(done)
    gone = durable_rig.start(show.follower, "superseded", start_delay=seconds(3600))
    durable_rig.client.supersede(gone)
    for subscriber in [Subscriber(biz_key="done"), Subscriber(workflow_id=gone), Subscriber(biz_key="nobody"), "odd"]:
        show.subscribers.add(subscriber)
    fan_out = show.start_fan_out()
    durable_rig.finish(fan_out, *ids)

    assert outcome(durable_rig, fan_out).tally == Tally(pages=1, told=3, woken=3, ended=2, unknown=1, malformed=1)
    assert [sample.subscriber for sample in outcome(durable_rig, fan_out).samples] == ["'odd'"]
    assert durable_rig.status(done) == "completed" and durable_rig.status(gone) == "canceled"


@pytest.mark.parametrize("damage", [{"retry_count": "many"}, {"v": 99}], ids=["corrupt", "version"])
def test_a_subscriber_whose_row_is_damaged_is_reported_and_blocks_nobody(
    durable_rig: SteppedRig, damage: dict[str, Any]
) -> None:
    show = Show(durable_rig, 12)
    durable_rig.worker(*show.definitions)
    ids = waiting_followers(show, durable_rig, 12)
    damaged = ids.pop(4)
    set_fields(durable_rig, damaged, **damage)
    show.ready = True
    fan_out = show.start_fan_out()
    durable_rig.finish(fan_out, *ids)

    found = outcome(durable_rig, fan_out)
    assert found.tally == Tally(pages=2, told=11, woken=11, unreadable=1)
    assert [sample.subscriber for sample in found.samples] == [damaged]
    assert show.subscribers.cursors == [None, 10]
    assert show.woken_once(ids)


def test_one_who_is_addressed_before_it_exists_finds_its_signal(durable_rig: SteppedRig) -> None:
    """DECISIONS detail 21; the fact stays unknown to it, so that only the signal can have woken it."""
    show = Show(durable_rig, 1)
    durable_rig.worker(*show.definitions)
    fan_out = show.start_fan_out()
    durable_rig.finish(fan_out)
    follower = show.follow("sub:1")

    def woken() -> bool:
        return durable_rig.ledger.count("follow", follower) == 2

    durable_rig.run(woken, "the early signal", limit_ms=1_000)
    assert outcome(durable_rig, fan_out).tally == Tally(pages=1, unknown=1)


def test_an_async_read_page_serves_as_well(live: LiveRig) -> None:
    subscribers = SubscriberList.of_keys(25)
    definition = make_fan_out("later", subscribers.read_page_later, page_size=10)
    live.worker(definition)
    fan_out = start_fan_out(live.client, definition, event())
    live.wait_ended(fan_out, timeout=60)

    assert subscribers.cursors == [None, 10, 20]
    assert outcome(live, fan_out).tally == Tally(pages=3, unknown=25)


# --- the two uses ---------------------------------------------------------------------------------------


@pytest.mark.req("fan-separate", "fan-two-uses", "fan-start-idempotent", "fin-fanout-only-publish")
def test_a_finished_main_job_distributes_to_its_followers(durable_rig: SteppedRig) -> None:
    show = Show(durable_rig, 25)
    durable_rig.worker(*show.definitions, slots=1)
    ids = waiting_followers(show, durable_rig, 25)
    main = durable_rig.start(show.main, "main")
    durable_rig.run(lambda: durable_rig.ended(main), "the main job")
    assert len(show.subscribers.reads) < 3, "the main job ended before the last page"
    durable_rig.finish(show.fan_out_id, *ids)

    assert [durable_rig.status(key) for key in (main, show.fan_out_id, *ids)] == ["completed"] * 27
    assert show.woken_once(ids)


@pytest.mark.req("fan-observer", "fan-two-uses")
def test_an_observer_of_a_resource_asks_for_all_who_depend_on_it(durable_rig: SteppedRig) -> None:
    show = Show(durable_rig, 25)
    durable_rig.worker(*show.definitions)
    ids = waiting_followers(show, durable_rig, 25)
    observer = durable_rig.start(show.observer, "recording-1")
    durable_rig.run(lambda: show.asked["observer"] == 4, "four polls")
    show.ready = True
    durable_rig.finish(observer, *ids)

    assert show.asked == {"observer": 5, "follower": 50}, "one reading at the start of each follower, one per wake"
    assert durable_rig.status(show.fan_out_id) == "completed"


@pytest.mark.req("fan-main-not-delayed")
def test_the_main_jobs_end_costs_the_same_for_nobody_and_for_500(make_rig: Callable[..., SteppedRig]) -> None:
    def cost(count: int) -> tuple[list[str], int, int]:
        rig = make_rig()
        show = Show(rig, count)
        worker = rig.worker(*show.definitions, slots=1)
        main = rig.start(show.main, "main")
        rig.run(lambda: rig.ended(main), "the main job")
        instance = rig.instance(main)
        return worker.store.names(), (instance.finish_time or 0) - instance.created_time, len(show.subscribers.reads)

    assert cost(500) == cost(0)


# --- isolation ------------------------------------------------------------------------------------------


@pytest.mark.req("fan-failure-isolated")
def test_a_fan_out_that_fails_leaves_the_main_job_as_it_was(durable_rig: SteppedRig) -> None:
    show = Show(durable_rig, 25)
    worker = durable_rig.worker(*show.definitions)

    def fail(cursor: Any) -> None:
        raise NonRetryable("there is no such list")

    show.subscribers.before = fail
    main = durable_rig.start(show.main, "main")
    durable_rig.run(lambda: durable_rig.ended(main), "the main job", worker)
    before = durable_rig.row(main)
    durable_rig.finish(show.fan_out_id)

    assert durable_rig.status(show.fan_out_id) == "failed"
    assert durable_rig.row(main) == before
    assert durable_rig.ledger.count("work", main) == 1

    show.subscribers.before = lambda cursor: None
    assert show.start_fan_out() == show.fan_out_id  # the same event again: the failed one is replayed
    durable_rig.finish(show.fan_out_id)
    assert durable_rig.status(show.fan_out_id) == "completed"
    assert durable_rig.row(main) == before


@pytest.mark.req("fan-waiter-isolated")
def test_a_follower_that_fails_concerns_neither_the_main_job_nor_the_others(durable_rig: SteppedRig) -> None:
    show = Show(durable_rig, 12)
    durable_rig.worker(*show.definitions)
    ids = waiting_followers(show, durable_rig, 12)
    show.fails.add("sub:5")
    main = durable_rig.start(show.main, "main")
    durable_rig.finish(main, show.fan_out_id if durable_rig.ended(main) else main, *ids)
    durable_rig.finish(show.fan_out_id)

    states = {key: durable_rig.status(key) for key in ids}
    assert states.pop(workflow_id_for("sub:5")) == "failed"
    assert set(states.values()) == {"completed"}
    assert (durable_rig.status(main), durable_rig.status(show.fan_out_id)) == ("completed", "completed")
    assert durable_rig.ledger.count("work", main) == 1
    assert outcome(durable_rig, show.fan_out_id).tally == Tally(pages=2, told=12, woken=12)


@pytest.mark.req("fan-new-subscriber")
def test_one_who_subscribes_meanwhile_is_told_or_sees_for_itself(durable_rig: SteppedRig) -> None:
    show = Show(durable_rig, 30)
    durable_rig.worker(*show.definitions)
    ids = waiting_followers(show, durable_rig, 30)
    show.ready = True
    added: list[str] = []

    def subscribe(cursor: Any) -> None:
        if cursor == 10:
            show.subscribers.add(Subscriber(biz_key="in front"))  # number 31
            show.subscribers.add(Subscriber(biz_key="behind"), number=0)
            added.extend(show.follow(key) for key in ("in front", "behind"))

    show.subscribers.before = subscribe
    fan_out = show.start_fan_out()
    durable_rig.finish(fan_out, *ids)
    durable_rig.finish(*added)

    assert [durable_rig.status(key) for key in added] == ["completed", "completed"]
    assert outcome(durable_rig, fan_out).tally.pages == 4
    told = {row["workflow_id"] for row in show.signals()}
    assert [key in told for key in added] == [True, False], "the cursor's order covers who comes in front of it"
    assert show.woken_once(ids)


# --- starting -------------------------------------------------------------------------------------------


@pytest.mark.req("fan-start-idempotent")
def test_publishing_one_event_again_finds_its_fan_out_and_another_event_has_its_own(durable_rig: SteppedRig) -> None:
    show = Show(durable_rig, 2)
    durable_rig.worker(*show.definitions)
    first = [show.start_fan_out(), start_fan_out(durable_rig.client, show.notify.plan, event())]
    durable_rig.finish(*first)
    again = show.start_fan_out()
    other = show.start_fan_out(event(generation=1))
    durable_rig.finish(other)

    assert {*first, again} == {show.fan_out_id} and other != show.fan_out_id
    assert len(show.rows_of("notify")) == 2
    assert len(show.signals()) == 4


@pytest.mark.req("fan-page-signals", "fan-start-idempotent")
@pytest.mark.parametrize("types", [("tell_paid", "tell_shipped"), ("tell", "tell")], ids=["two fan-outs", "one"])
def test_two_notifications_with_one_event_id_are_two(durable_rig: SteppedRig, types: tuple[str, str]) -> None:
    """An order is paid and later shipped; its number is the id of both events, and one follower waits for both."""
    subscribers = SubscriberList([Subscriber(biz_key="f")])
    paid, shipped = (make_fan_out(type_, subscribers.read_page) for type_ in types)
    follow = Definition(type="follow", steps=[_awaiting("paid"), _awaiting("shipped")])
    durable_rig.worker(*{paid.type: paid, shipped.type: shipped}.values(), follow)
    follower = durable_rig.start(follow, "f")
    told = []
    for fan_out, what in ((paid, "paid"), (shipped, "shipped")):
        durable_rig.run(lambda: durable_rig.status(follower) == "waiting", f"the wait for {what}")
        of = FanOutEvent(event_id="o7", signal_type=what, wait_key="o7")
        told.append(start_fan_out(durable_rig.client, fan_out, of))
        durable_rig.finish(told[-1])
    durable_rig.finish(follower)

    assert len(set(told)) == 2
    assert [outcome(durable_rig, key).tally for key in told] == [Tally(pages=1, told=1, woken=1)] * 2


def _awaiting(what: str) -> Step:
    return Step(what, lambda ctx: "told" if ctx.resume else WaitForSignal(what, "o7"))


@pytest.mark.req("fan-start-idempotent", "fin-fanout-only-publish")
@pytest.mark.parametrize("fault", ["kill_before", "kill_after", "lose_reply", "lose_request"])
def test_a_finalizer_that_dies_while_publishing_starts_one_fan_out(durable_rig: SteppedRig, fault: Any) -> None:
    show = Show(durable_rig, 3)
    worker = durable_rig.worker(*show.definitions)
    worker.store.fail_once("create", fault)
    durable_rig.worker(*show.definitions)
    ids = waiting_followers(show, durable_rig, 3)
    main = durable_rig.start(show.main, "main")
    durable_rig.finish(main, *ids)

    (row,) = show.rows_of("notify")
    assert row["biz_key"] == "fan:notify:0:show_ended:show-1:show-1:ended"
    assert durable_rig.ledger.count(None, main) <= 2
    assert show.woken_once(ids)


def test_a_wrong_event_starts_nothing(rig: SteppedRig) -> None:
    show = Show(rig)
    later: Any = event(v=2)

    with pytest.raises(Exception, match=r"\$\.v") as raised:
        show.start_fan_out(later)

    assert getattr(raised.value, "code", "") == "invalid_input"
    assert show.rows_of("notify") == []


def test_read_page_finds_the_events_identities_in_its_input(rig: SteppedRig) -> None:
    seen: list[Any] = []

    def read_page(ctx: Context, cursor: Any, limit: int) -> Any:
        seen.append((ctx.input.identities["tenant"], limit))
        return SubscriberList().read_page(ctx, cursor, limit)

    definition = make_fan_out("by_tenant", read_page)
    rig.worker(definition)
    rig.finish(start_fan_out(rig.client, definition, event(identities={"tenant": "t1"})))

    assert seen == [("t1", 200)]
