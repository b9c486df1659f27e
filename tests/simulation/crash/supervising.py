"""Boundaries 59–61: children are forked, drained and replaced, and blows meet them on the way."""

from __future__ import annotations

import random
import signal

from tests.simulation.crash.fault import Call
from tests.simulation.crash.scenes import scene
from tests.simulation.crash.stage import SETTINGS, TAKEOVER_MS, WORK_MS, Stage
from tests.simulation.crash.tree_stage import SimTree

PROMPT_MS = SETTINGS.lease_ms - 5_000
"""Sooner than any lease ends: only a proof of death brings work back within that time."""
OFFSETS = 20


def tree(s: Stage, *, workers: int = 2, dispatchers: int = 1, ready: bool = True) -> SimTree:
    """A supervisor with its children, and web processes beside it."""
    for _ in range(2):
        s.start_api()
    found = SimTree(s, workers=workers, dispatchers=dispatchers)
    if ready:
        s.until(found.running, "everything runs", 5_000)
    return found


def worker_0(call: Call) -> bool:
    return call.process.name.startswith("worker-0")


def works_again(s: Stage, found: SimTree, restarts: int) -> None:
    """Every place is taken, and what is started now runs."""
    s.until(found.running, "every place is taken again", WORK_MS)
    assert found.slot("worker-0").restarts == restarts
    workflow_id = s.start(s.flows[0], "after")
    s.ended(workflow_id, WORK_MS)
    assert s.entries(workflow_id, "a", "b") == (1, 1)


@scene("59", "link.ready")
def a_child_says_that_it_is_ready(s: Stage) -> None:
    """a: dies before, which is a failed start. b: has said it, and dies before anybody read it. c: was heard."""
    s.flow(s.work("a"), s.work("b"))
    found = tree(s, ready=False)
    s.arm("link.ready", when=worker_0, effect=s.pick("a", "", ""))
    if s.point == "b":
        s.until(lambda: len(found.forks) == 3, "all are forked")
        found.supervisor.pause(1_000)
    victim = s.fired()
    slot = found.slot("worker-0")
    if s.point == "c":
        s.until(lambda: slot.state == "RUNNING", "it is heard")
    s.crash(victim)
    s.until(lambda: slot.last_exit is not None, "it is reaped")
    assert slot.history.start_failures == s.pick(1, 0, 0)
    assert slot.was_ready == (s.point != "a")
    works_again(s, found, restarts=1)


@scene("59", "os.fork")
def a_child_is_forked(s: Stage) -> None:
    """a: it can not be. b: it can not be watched, and so must not live. c: it dies before its first line."""
    s.flow(s.work("a"), s.work("b"))
    found = tree(s, ready=False)
    s.arm("os.fork", when=lambda call: len(found.forks) == 1)
    s.fired()
    slot = found.slot("worker-0")
    s.until(lambda: slot.history.start_failures == 1, "that is a failed start")
    s.until(found.running, "and another one is made", WORK_MS)
    works_again(s, found, restarts=s.pick(0, 0, 1))


def drained(s: Stage, found: SimTree, workflow_id: str, *, killed: bool) -> None:
    """Everything has ended in time; what was not finished the next release does, and no attempt counts twice."""
    s.until(lambda: found.outcome is not None, "the tree is gone (L8)", found.drain_ms + 2_000)
    assert found.outcome is not None and found.outcome.code == int(killed)
    assert all(child.exit is not None for child in found.children), "nothing is left running"
    places = [name for name, _ in found.forks if name != "releaser"]
    assert len(places) == 3, "and nothing was forked again"
    assert s.instance(workflow_id).claim_token is None, "what a dead owner held was released"
    s.staff(apis=0)
    assert s.ended(workflow_id, TAKEOVER_MS + WORK_MS).status == "completed"
    first, second = s.entries(workflow_id, "a", "b")
    assert (first, second) in ((1, 1), (2, 1), (1, 2))
    assert first + second <= 2 + int(killed)


@scene("60", "link.next_order")
def a_child_drains(s: Stage) -> None:
    """a: dies before it has the order. b: heard, and nobody kills: all end by themselves. c: dies with the order."""
    s.flow(s.work("a", 3_000), s.work("b"))
    found = tree(s)
    workflow_id = s.start(s.flows[0])
    s.until(lambda: s.entries(workflow_id, "a") == (1,), "it works")
    holder = s.holder(workflow_id)
    s.arm(
        "link.next_order",
        when=lambda call: call.process is holder and call.said == ("Drain",),
        effect=s.pick("a", "", "c"),
    )
    found.kill(signal.SIGTERM)
    s.fired()
    drained(s, found, workflow_id, killed=s.killed)


def at_offset(number: int, offset: float) -> None:
    """One more scene: killed so long after it has heard that it is to end."""

    def killed_in_its_drain(s: Stage) -> None:
        s.flow(s.work("a", 3_000), s.work("b"))
        found = tree(s)
        workflow_id = s.start(s.flows[0])
        s.until(lambda: s.entries(workflow_id, "a") == (1,), "it works")
        holder = s.holder(workflow_id)
        s.arm("link.next_order", when=lambda call: call.process is holder and call.said == ("Drain",), effect="")
        found.kill(signal.SIGTERM)
        s.fired()
        s.rest(max(1, round(offset * 3_300)))
        killed = not holder.dead
        s.crash(holder)
        drained(s, found, workflow_id, killed=killed)

    killed_in_its_drain.__name__ = f"killed_in_its_drain_{number}"
    scene("60", "link.next_order", "b")(killed_in_its_drain)


for _number, _offset in enumerate(random.Random(60).random() for _ in range(OFFSETS)):
    at_offset(_number, _offset)


@scene("60", "release")
def a_claim_is_given_back_in_a_drain(s: Stage) -> None:
    """The step that ran is committed; the next one is another's."""
    workflow_id = in_a_drain(s, "release")
    s.ended(workflow_id)
    assert (s.entries(workflow_id, "a", "b"), s.attempts(workflow_id)) == ((1, 1), (1, 1))


@scene("60", "unbegin")
def an_entry_is_taken_back_in_a_drain(s: Stage) -> None:
    """The order came between the commit of the entry and the entry: no attempt happened."""
    s.plant.slow["begin_step", "worker"] = 2_000
    workflow_id = in_a_drain(s, "unbegin")
    s.ended(workflow_id)
    assert s.entries(workflow_id, "a", "b") == (1, 1)
    assert s.attempts(workflow_id) == (s.pick(2, 1, 1), 1)


def in_a_drain(s: Stage, call: str) -> str:
    """A worker with a claim is told to end, and the fault comes with that write; its successor goes on."""
    flow = s.flow(s.work("a", 3_000), s.work("b"))
    s.staff(workers=1)
    s.arm(call, "worker")
    workflow_id = s.start(flow)
    s.until(lambda: s.instance(workflow_id).claim_token is not None, "it is claimed")
    holder = s.holder(workflow_id)
    s.rest(500)
    holder.loop.drain()
    s.at_last.append(lambda: s.crash(holder))  # its supervisor waits for it, and then no longer
    victim = s.fired()
    assert victim is holder
    assert (s.instance(workflow_id).claim_token is None) == (s.point != "a")
    if s.point == "b":
        s.until(lambda: bool(holder.loop.done.is_set()), "it has ended", WORK_MS)
        s.crash(holder)
    return workflow_id


@scene("61", "os.fork")
def a_child_is_replaced(s: Stage) -> None:
    """Never two for one place; and the time between two tries doubles."""
    s.flow(s.work("a"), s.work("b"))
    found = tree(s, workers=1)
    workflow_id = at_work_in(s, found)
    first = found.child("worker-0")
    s.arm("os.fork", when=lambda call: len(found.forks) >= 2)
    died_ms = s.hub.now_ms
    s.crash(first.process)
    s.fired()
    assert s.main is not None
    at_ms = s.main.fired[0].at_ms
    s.until(found.running, "the place is taken again", WORK_MS)
    first_ms = found.policy.first_ms
    assert at_ms - died_ms >= first_ms and found.forks[-1][1] - at_ms >= 2 * first_ms
    assert found.slot("worker-0").history.start_failures == 1
    assert s.ended(workflow_id, PROMPT_MS).status == "completed", "proof of death: nobody waits for a lease"
    assert (s.entries(workflow_id, "a", "b"), s.instance(workflow_id).deaths) == ((2, 1), 0)
    works_again(s, found, restarts=s.pick(1, 1, 2))


def at_work_in(s: Stage, found: SimTree) -> str:
    flow = s.flows[0]
    workflow_id = s.start(flow)
    s.until(lambda: s.entries(workflow_id, "a") == (1,), "it works")
    return workflow_id


@scene("61", "link.acknowledge")
def a_proof_of_death_is_acknowledged(s: Stage) -> None:
    """Told again until somebody has said that he has acted on it; acted on twice it counts once."""
    s.flow(s.work("a"), s.work("b"))
    found = tree(s, workers=1, dispatchers=2)
    workflow_id = at_work_in(s, found)
    s.arm("link.acknowledge", effect=s.pick("a", "c", "c"))
    s.crash(found.child("worker-0").process)
    s.fired()
    assert s.ended(workflow_id, PROMPT_MS).status == "completed"
    s.until(lambda: not len(found._owners), "nobody has to be told any more", WORK_MS)
    assert s.plant.hits["release_dead"] == 1
    assert s.entries(workflow_id, "a", "b") == (2, 1)
