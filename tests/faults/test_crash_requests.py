"""Requests, when a process dies in the middle of one: a publisher is killed before and after each of its writes, or its
answer is lost (RELIABILITY §5, 01, 04, 09 and 10); and a dispatcher, with a batch of intents in its hands (11).

All of a cell's tree stands still while its publisher dies: what is seen then is what the dead one left. The lease of an
intent is longer than any wait here, so that what a dead dispatcher had claimed would not be dispatched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from kernel.clock import SystemClock
from kernel.coordination import DispatchIndex, Keys
from kernel.dispatch import DueIntent
from kernel.ids import RandomIds
from kernel.runtime import open_lanes
from tests.faults.arms import Arm, Point
from tests.faults.crash_app import ORDERS, REFUSED_WRITE
from tests.faults.crash_orders import APP, Orders, State, id_of, orders_in
from tests.faults.pausing import paused
from tests.faults.publisher import Said, publishers
from tests.faults.rig import LIMIT_S
from tests.faults.stalls import patient
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("flt-process-exit", "dc-tests-fault")]

POINTS: tuple[Point, ...] = ("before", "lost", "after")
BATCH = 20

NOTHING = State()
ACCEPTED = State("initial", "pending", "f1")
STARTED = State("initial", "pending", "f1", "running", 1)
CONFIRMED = State("initial", "dispatched", "f1", "running", 1)
FAILED = State("failed", "dispatched", "f1", "failed", 1)
INSTALLED = State("initial", "pending", "f2", "failed", 1)
REPLAYED = State("initial", "pending", "f2", "running", 2)
RETRIED = State("initial", "dispatched", "f2", "running", 2)

LEFT = {
    # The write of a request, and how the order stands when it met each of the points.
    ("01", "accept_object"): (NOTHING, CONFIRMED, ACCEPTED),
    ("04", "replay_failed"): (INSTALLED, RETRIED, REPLAYED),
    ("09", "confirm_dispatch"): (STARTED, CONFIRMED, CONFIRMED),
    ("10", "new_round"): (FAILED, RETRIED, INSTALLED),
}
ASKED_AGAIN = ("01-before", "10-before")
"""Nothing was accepted, so that nobody but the client goes on."""
LATER_ROUND = ("04", "10")
"""Orders that have failed, and are asked for once more."""
CELLS = [(boundary, point) for boundary, _ in LEFT for point in POINTS]


class Seen(msgspec.Struct, frozen=True):
    """What a publisher was told, and what it left: the order's state, and its instance's steps."""

    said: Said
    state: State
    steps: tuple[str, ...]


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orders]:
    folder = tmp_path_factory.mktemp("orders") / "data"
    fields = {"dispatchers": 2, "dispatch_lease_s": 600.0, "dispatch_scan_s": 0.5, "dispatch_batch": BATCH}
    with orders_in(folder, **fields) as opened:
        yield opened


@pytest.fixture(scope="module")
def seen(orders: Orders) -> dict[str, Seen]:
    """All publishers, one after the other, while nobody else moves."""
    running, cells = (
        orders.tree,
        {f"{b}-{p}": Arm(call=call, point=p, role="publisher") for b, call in LEFT for p in POINTS},
    )
    with publishers(running.folder, running.session.redis_url, APP) as publisher:
        retried = [cell for cell in cells if cell.startswith(LATER_ROUND)]
        for cell in retried:
            assert publisher.request(cell, fails=True).answer is not None
        wait_until(lambda: all(orders.state(cell) == FAILED for cell in retried), "the first rounds failed", LIMIT_S)
        found = {}
        with paused(running, [*running.pids(), *running.pids("dispatcher")]):
            for cell, arm in cells.items():
                key = id_of(cell) if arm.call == "replay_failed" else cell
                running.arms.arm(cell, msgspec.structs.replace(arm, workflow_id=key))
                said = publisher.request(cell)
                instance = running.client.get(id_of(cell))
                steps = () if instance is None else tuple(step.status for step in instance.steps)
                found[cell] = Seen(said, orders.state(cell), steps)
        for cell in ASKED_AGAIN:
            answer = publisher.request(cell).answer
            assert answer is not None and answer["outcome"] == "registered"
        return found


@pytest.mark.parametrize(
    ("boundary", "point"), [pytest.param(b, p, id=f"{b}-{p}", marks=pytest.mark.crash(b, p)) for b, p in CELLS]
)
@pytest.mark.req(
    "dsp-crash-before-object", "dsp-crash-after-object", "dsp-crash-after-start", "dsp-crash-after-confirm"
)
@pytest.mark.req("dsp-crash-after-round-cas", "req-round-then-start", "sor-replay-steps", "s1", "s2", "s7")
def test_a_publisher(orders: Orders, seen: dict[str, Seen], boundary: str, point: Point) -> None:
    """What it left is all or nothing of its write; a dispatcher goes on from there, or the client, and only once."""
    cell = f"{boundary}-{point}"
    assert orders.tree.arms.fired(cell)
    said, left = seen[cell].said, dict(zip(POINTS, next(v for k, v in LEFT.items() if k[0] == boundary), strict=True))

    assert said.killed == (point != "lost")
    assert said.killed or (said.answer is not None and said.answer["outcome"] == "registered")
    assert seen[cell].state == left[point]
    if boundary == "04":
        replayed = ("completed", "pending")
        assert seen[cell].steps == (("completed", "failed") if point == "before" else replayed)

    orders.check_served(cell, runs=2 if boundary in LATER_ROUND else 1)
    rounds = [written.partition("-")[0] for written in orders.written(cell)]
    assert rounds == (["f1", "f2"] if boundary in LATER_ROUND else ["f1"])
    assert orders.written(cell, REFUSED_WRITE) == []
    orders.check_nobody_else_may_write(cell)
    if boundary in LATER_ROUND:
        row = orders.objects.get(cell)
        assert not orders.objects.confirm(cell, orders.written(cell)[0], None), "f1 is over"
        assert orders.objects.new_round(cell, orders.written(cell)[0], **again(cell)) is None
        assert orders.objects.get(cell) == row


def again(cell: str) -> dict[str, object]:
    """A round that somebody wants to install who has read the first one."""
    return {"type_": "served", "biz_key": f"served:{cell}", "input": {"object_id": cell}, "priority": 3}


@pytest.mark.parametrize("point", [pytest.param(point, marks=pytest.mark.crash("11", point)) for point in POINTS])
@pytest.mark.req("dsp-pop-crash", "dsp-candidate-add")
def test_a_dispatcher_that_takes_a_batch(orders: Orders, seen: dict[str, Seen], point: Point) -> None:
    """Whatever it had taken, it had claimed nothing, and the scan finds all of it again."""
    running = orders.tree
    running.wait_running()
    ids = [f"11-{point}:{number}" for number in range(3 if point == "before" else BATCH)]
    first = Arm(call="take", point=point, role="dispatcher")
    batch = Arm(call="taken", point=point, role="dispatcher", workflow_id=ids[0], touches=str(BATCH))
    opened = open_lanes(patient(running.config), running.session.redis_url, SystemClock())
    assert opened is not None
    with closing(opened[1]), paused(running, running.pids("dispatcher")):
        orders.accept(*ids)
        orders.wait_due(*ids)
        index = DispatchIndex(opened[1], Keys(running.config.namespace), RandomIds())
        index.add(ORDERS.name, [DueIntent(object_id, orders.objects.now_ms()) for object_id in ids])
        running.arms.arm(f"11-{point}", first if point == "before" else batch)

    (found,) = wait_until(lambda: running.arms.fired(f"11-{point}"), "a batch is taken", LIMIT_S)
    orders.wait_dispatched(*ids)
    running.wait_running(without=[] if point == "lost" else [found.pid])
    for object_id in ids:
        orders.check_served(object_id)
        assert orders.intent(object_id).tries == 0


def test_afterwards_every_invariant_holds(orders: Orders, seen: dict[str, Seen]) -> None:
    orders.check_all()
