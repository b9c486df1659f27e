"""Dispatchers that die while they register an intent: before and after each call of theirs, or its answer is lost
(RELIABILITY §5, 12 to 17). A dead one's lease runs out, and another registers, once.

A dispatcher has one slot, and nobody tells it of an order: it is the scan that finds them. Workers are never hurt here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.faults.arms import Arm, Point
from tests.faults.crash_app import REFUSED_WRITE
from tests.faults.crash_orders import Orders, State, id_of, orders_in
from tests.faults.pausing import paused
from tests.faults.rig import LIMIT_S, Tree
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("flt-process-exit", "dc-tests-fault")]

POINTS: tuple[Point, ...] = ("before", "lost", "after")
LEASE_S = 2.0
CALLS = {
    "12": "claim_dispatch",
    "13": "renew_dispatch",
    "14": "create",
    "15": "confirm_dispatch",
    "16": "release_dispatch",
}
CELLS = [(boundary, point) for boundary in CALLS for point in POINTS]
HELD, HELD_ON = "13-held-{}", "16-gate-{}"


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orders]:
    folder = tmp_path_factory.mktemp("dispatch") / "data"
    fields = {
        "workers": 1, "slots": 8, "dispatch_slots": 1, "dispatch_batch": 4, "dispatch_lease_s": LEASE_S,
        "dispatch_scan_s": 0.4, "dispatch_delay_s": 0.2, "dispatch_delay_max_s": 5.0,
        # One more than are held at the same time (13), so that somebody always goes on.
        "dispatchers": len(POINTS) + 1,
    }  # fmt: skip
    with orders_in(folder, **fields) as opened:
        yield opened


@pytest.fixture(scope="module")
def hurt(orders: Orders) -> None:
    """All cells, side by side: with one slot a death meets one order."""
    running = orders.tree
    for point in POINTS:  # 16: the first round is still under way, while a second one wants to be registered
        orders.accept(f"16-{point}", fails=True, gate=HELD_ON.format(point))
        running.entered(id_of(f"16-{point}"), "b")
        orders.wait_dispatched(f"16-{point}")
    with paused(running, running.pids("dispatcher")):
        for boundary, point in CELLS:
            cell, call = f"{boundary}-{point}", CALLS[boundary]
            key = id_of(cell) if call == "create" else cell
            running.arms.arm(cell, Arm(call=call, point=point, workflow_id=key, role="dispatcher"))
            if boundary == "13":  # its registration takes long, whoever makes it, so that the lease is renewed
                held = Arm(call="create", point="pause", workflow_id=id_of(cell), role="dispatcher", lasting=True)
                running.arms.arm(HELD.format(point), held)
            if boundary == "16":
                second_round(orders, cell)
            else:
                orders.accept(cell)


def second_round(orders: Orders, object_id: str) -> None:
    """As an owner does who gives the first round up while its workflow still runs."""
    first = orders.intent(object_id).fencing_token
    assert orders.objects.fail(object_id, first)
    intent = orders.intent(object_id)
    value = {"object_id": object_id}
    assert orders.objects.new_round(
        object_id, first, type_=intent.type, biz_key=intent.biz_key, input=value, priority=3
    )


def fired(orders: Orders, cell: str) -> str:
    """The lease under which the hurt call of that cell was made, if it was made under one."""
    (found,) = wait_until(lambda: orders.tree.arms.fired(cell), f"the fault of cell {cell}", LIMIT_S)
    return found.token


def marked(boundary: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("point", [pytest.param(p, marks=pytest.mark.crash(boundary, p)) for p in POINTS])


@marked("12")
@pytest.mark.req("dsp-lease-take", "dsp-takeover", "dsp-crash-holder")
def test_that_claims(orders: Orders, hurt: None, point: Point) -> None:
    lease = fired(orders, f"12-{point}")
    orders.check_served(f"12-{point}")
    orders.check_nobody_else_may_write(f"12-{point}", lease)


@marked("13")
@pytest.mark.req("dsp-lease-renew", "dsp-crash-holder", "dsp-takeover")
def test_that_renews(orders: Orders, hurt: None, point: Point) -> None:
    """It holds its order in the middle of the registration, which dies with it; one whose answer was lost goes on."""
    lease = fired(orders, f"13-{point}")
    assert orders.tree.arms.fired(HELD.format(point))
    orders.tree.arms.disarm(HELD.format(point))
    orders.check_served(f"13-{point}")
    orders.check_nobody_else_may_write(f"13-{point}", lease)


@marked("14")
@pytest.mark.req("dsp-crash-after-start", "sor-unique-race")
def test_that_starts(orders: Orders, hurt: None, point: Point) -> None:
    """The next one inserts, or meets the duplicate and confirms: the same instance, at its first revision when it was
    made, and no other."""
    fired(orders, f"14-{point}")
    orders.check_served(f"14-{point}")


@marked("15")
@pytest.mark.req("dsp-confirm-holder", "dsp-crash-after-confirm", "dsp-crash-after-start")
def test_that_confirms(orders: Orders, hurt: None, point: Point) -> None:
    """Registered either way: what is confirmed again is not run again, and under a wrong lease it is not confirmed."""
    lease = fired(orders, f"15-{point}")
    orders.check_served(f"15-{point}")
    orders.check_nobody_else_may_write(f"15-{point}", lease, "another")


@marked("16")
@pytest.mark.req("dsp-release", "dsp-release-fenced", "sor-old-input-guard", "fen-cas", "s7")
def test_that_releases(orders: Orders, hurt: None, point: Point) -> None:
    """Given back or not, the second round waits until the first has ended, and is registered then; of the first one
    the business object takes no result any more (S7)."""
    cell = f"16-{point}"
    lease = fired(orders, cell)
    assert orders.state(cell).run == 1
    assert orders.state(cell).intent in ("pending", "processing")
    if point == "lost":
        wait_until(lambda: orders.intent(cell).tries, "it was given back, by whomever", LIMIT_S)
    orders.tree.open_gate(HELD_ON.format(point))

    orders.check_served(cell, runs=2)
    assert [token.partition("-")[0] for token in orders.written(cell)] == ["f2"]
    assert [token.partition("-")[0] for token in orders.written(cell, REFUSED_WRITE)] == ["f1"]
    orders.check_nobody_else_may_write(cell, lease)


@marked("17")
@pytest.mark.req("dsp-scan-mutex", "dsp-scan-mutex-redis-down")
def test_that_has_the_turn_to_scan(orders: Orders, hurt: None, point: Point) -> None:
    """The dead one's mutex is free after its time; where the answer was lost nobody knows who has it, and it is wiped
    besides: two scan at once, and each order is dispatched once."""
    running = orders.tree
    wait_for_the_others(orders)
    running.wait_running()
    cell = f"17-{point}"
    touches = "asked" if point == "before" else "turn"
    running.arms.arm(cell, Arm(call="hold_scan", point=point, role="dispatcher", touches=touches))
    (found,) = wait_until(lambda: running.arms.fired(cell), "a scan is hurt", LIMIT_S)
    if point == "lost":
        flush(running)
    ids = [f"{cell}:{number}" for number in range(5)]
    orders.accept(*ids)

    for object_id in ids:
        orders.check_served(object_id)
    running.wait_running(without=[] if point == "lost" else [found.pid])


def wait_for_the_others(orders: Orders) -> None:
    """Until all other cells are over, and no dispatcher has anything in hand."""
    for point in POINTS:
        orders.tree.arms.disarm(HELD.format(point))
        orders.tree.open_gate(HELD_ON.format(point))
    orders.wait_dispatched(*(f"{boundary}-{point}" for boundary, point in CELLS))


def flush(running: Tree) -> None:
    client = redis.Redis.from_url(running.session.redis_url)
    client.flushall()
    client.close()


def test_afterwards_every_invariant_holds(orders: Orders, hurt: None) -> None:
    assert {orders.state(f"{b}-{p}") for b, p in CELLS} == {
        State("completed", "dispatched", "f1", "completed", 1),
        State("completed", "dispatched", "f2", "completed", 2),
    }
    orders.check_all()
