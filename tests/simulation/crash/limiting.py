"""Boundaries 22–25: the places of a limited service, asked for, kept, given back, and waited for."""

from __future__ import annotations

from kernel.config import Limit
from kernel.permit_words import Owner
from tests.simulation.crash.claiming import holds
from tests.simulation.crash.scenes import scene
from tests.simulation.crash.stage import INDEX_MS, SETTINGS, TAKEOVER_MS, WORK_MS, Stage
from tests.simulation.flows import RESOURCES

PRESS, GATE = RESOURCES
"""One place; two starts a second."""
SECOND_MS = 15_000


def press(s: Stage, ms: int = 3_000, resource: str = PRESS) -> None:
    """Workers, and workflows `one` and `two` of one limited step to come."""
    s.flow(s.work("a", ms, resource=resource))
    s.staff()
    s.rest(1_000)


def start(s: Stage, key: str) -> str:
    return s.start(s.flows[0], key)


def places(s: Stage, workflow_id: str = "") -> list[tuple[str, str, str]]:
    return [owner for owner in s.redis.permits.owners(PRESS) if owner[0].startswith(workflow_id)]


def all_done(s: Stage, *ids: str, within_ms: int = 2 * TAKEOVER_MS) -> None:
    """Everybody ends, and no more than one place is ever given out."""
    for workflow_id in ids:
        end = s.ended(workflow_id, within_ms)
        assert end.status == "completed"
    assert s.redis.permits.most.get(PRESS, 0) <= 1
    s.until(lambda: not places(s), "all places are free", SETTINGS.permit_lease_ms)


@scene("22", "permits.acquire")
def a_place_is_asked_for(s: Stage) -> None:
    """b: granted, and nobody has heard of it. c: held by a dead owner."""
    press(s)
    s.arm("permits.acquire", by="worker")
    one = start(s, "one")
    victim = s.fired()
    held = places(s)
    assert len(held) == s.pick(0, 1, 1)
    assert s.attempts(one) == (0,), "asked for before the attempt"
    if held:
        resource, (workflow_id, step, token) = PRESS, held[0]
        again = s.redis.permits.acquire(resource, Owner(workflow_id, step, token), Limit(1), lane=0, request=1)
        assert len(places(s)) == 1, f"the same owner does not take two: {again}"
    two = start(s, "two")
    if s.point == "b":
        s.until(lambda: s.entries(two, "a") == (1,) or s.entries(one, "a") == (1,), "it is given back", SECOND_MS)
        assert not victim.dead
    s.until(lambda: s.entries(two, "a") == (1,), "the place is free", SETTINGS.permit_lease_ms + INDEX_MS)
    all_done(s, one, two)
    assert (s.attempts(one), s.entries(one, "a"), s.entries(two, "a")) == ((1,), (1,), (1,))


@scene("22", "permits.start")
def a_start_is_counted(s: Stage) -> None:
    """Right before the call: no window of a second sees more starts than the rate."""
    press(s, 200, GATE)
    s.arm("permits.start", by="worker")
    ids = [start(s, key) for key in ("one", "two", "three", "four")]
    s.fired()
    for workflow_id in ids:
        assert s.ended(workflow_id, TAKEOVER_MS + WORK_MS).status == "completed"
    assert [s.entries(workflow_id, "a") for workflow_id in ids] == [(1,)] * 4


def two_in_line(s: Stage, ms: int = 10_000) -> tuple[str, str]:
    """`one` is with the service; `two` is to be refused."""
    press(s, ms)
    one = start(s, "one")
    s.until(lambda: s.entries(one, "a") == (1,), "the first is there")
    return one, start(s, "two")


@scene("23", "defer_for_permit")
def one_waits_for_a_place(s: Stage) -> None:
    """One write: attempt unchanged, wait counted, claim released; its lane is kept."""
    press(s, 10_000)
    one = start(s, "one")
    s.until(lambda: s.entries(one, "a") == (1,), "the first is there")
    s.arm("defer_for_permit", by="worker")
    two = s.start(s.flows[0], "two", priority=1)
    s.fired()
    row = s.instance(two)
    waits = row.permit_wait is not None
    assert waits == (s.point != "a") == (row.claim_token is None)
    assert (row.steps[0].attempt, row.steps[0].traffic_wait_count) == (0, int(waits))
    assert (row.status, row.business_priority) == ("running", 1)
    if row.permit_wait is not None:
        assert (row.permit_wait.resource, row.permit_wait.step) == (PRESS, "a")
        assert row.steps[0].traffic_since_time == row.permit_wait.since_time
        assert row.claimable_time == row.steps[0].due_time and (row.claimable_time or 0) > s.hub.now_ms
    all_done(s, one, two)
    assert (s.attempts(two), s.entries(two, "a"), s.instance(two).business_priority) == ((1,), (1,), 1)


@scene("23", "permits.deferred")
def redis_is_told_who_waits(s: Stage) -> None:
    one, two = two_in_line(s)
    s.arm("permits.deferred", by="worker")
    s.fired()
    all_done(s, one, two)
    assert (s.attempts(two), s.entries(two, "a")) == ((1,), (1,))


@scene("24", "permits.renew")
def a_place_is_renewed(s: Stage) -> None:
    """b: and then Redis forgets it: noticed, counted, and the call is not cut."""
    press(s, 45_000)
    s.arm("permits.renew", by="worker")
    one = start(s, "one")
    victim = s.fired()
    if s.point == "b":
        s.rest(1_000)
        s.redis.wipe()
        counters = s.engine_of(victim).services.permits.counters
        s.until(lambda: counters["permit_restored"] + counters["permit_lost"] == 1, "it is noticed", SECOND_MS)
    all_done(s, one)
    assert s.entries(one, "a") == s.pick((2,), (1,), (2,))


@scene("25", "permits.release")
def a_place_is_given_back(s: Stage) -> None:
    """b: freed, and given back once more when it is another's: that takes nothing from the new owner."""
    one, two = two_in_line(s, SECOND_MS)
    s.until(lambda: s.instance(two).permit_wait is not None, "the second waits")
    s.arm("permits.release", by="worker", when=lambda call: bool(places(s, one)))
    s.fired()
    assert len(places(s, one)) == s.pick(1, 0, 0)
    s.until(lambda: s.entries(two, "a") == (1,), "the next one has it", SETTINGS.permit_lease_ms + INDEX_MS)
    (owner,) = places(s, two)
    if s.point == "b":
        s.rest(SETTINGS.permit_lease_ms // 3 + 1_000)
        assert places(s, two) == [owner], "the late release was of another owner"
    all_done(s, one, two)
    assert s.entries(one, "a") == s.pick((2,), (1,), (2,))
    assert s.entries(two, "a") == (1,)


@scene("25", "permits.sweep")
def a_free_place_is_handed_on(s: Stage) -> None:
    """The net beneath the line: who was to be called was not, and the next look finds that."""
    one, two = two_in_line(s)
    s.until(lambda: s.instance(two).permit_wait is not None, "the second waits")
    s.arm("permits.sweep")
    s.fired()
    all_done(s, one, two)
    assert s.entries(two, "a") == (1,)


@scene("25", "permits.leave")
def who_has_ended_leaves_the_line(s: Stage) -> None:
    """Called all the same, because whoever ended it from outside tells Redis nothing. Without the call the place is
    nobody's for 2 s, and then the next one's, who is called at the next look: a scan's, where its process died."""
    one, two = two_in_line(s)
    s.until(lambda: s.instance(two).permit_wait is not None, "the second waits")
    three = start(s, "three")
    s.until(lambda: s.instance(three).permit_wait is not None, "the third waits")
    s.arm("permits.leave", by="worker")
    s.answered(lambda api: api.client.supersede(two))
    s.fired()
    s.until(lambda: s.entries(three, "a") == (1,), "the third has the place", INDEX_MS)
    all_done(s, one, three)
    assert (s.instance(two).status, s.entries(two, "a")) == ("canceled", (0,))


@scene("19", "claim_handed_over")
def a_place_is_handed_over_with_the_claim(s: Stage) -> None:
    """Taken before its time, because a place is there; whoever takes it has asked for the place before."""
    one, two = two_in_line(s)
    s.until(lambda: s.instance(two).permit_wait is not None, "the second waits")
    s.arm("claim_handed_over", by="worker", key=two)
    victim = s.fired()
    held = s.instance(two)
    if held.claim_token is not None:
        holds(s, two, victim)
    assert (held.claim_token is None, s.attempts(two)) == (s.point == "a", (0,))
    all_done(s, one, two)
    assert (s.attempts(two), s.entries(two, "a")) == ((1,), (1,))
