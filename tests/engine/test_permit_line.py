"""Who waits for a place: woken when one becomes free, whatever gets lost, and at little cost (DECISIONS 12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kernel.config import Limit
from kernel.context import Context
from kernel.definition import Definition
from kernel.limits import change_limit
from kernel.records import Instance
from tests.engine.flows import flow, step
from tests.engine.occupied import Occupied
from tests.engine.test_permits import asked, waits
from tests.support.engine_rig import LiveRig, RigWorker, SteppedRig
from tests.support.engine_store import Write
from tests.support.wait import wait_until


def hits(*workers: RigWorker) -> Counter[str]:
    """The instance writes of these workers that changed something."""
    counted: Counter[str] = Counter()
    for worker in workers:
        counted.update(worker.store.names())
        counted.subtract(name for name in worker.store.missed if name in worker.store.names())
    return +counted


@pytest.mark.req("prm-release", "prm-wake-lost")
@pytest.mark.parametrize("deaf", [False, True])
def test_a_place_that_becomes_free_starts_who_waits(rig: SteppedRig, deaf: bool) -> None:
    """Long before its own time; and when the wakeup is lost, with the next look at the lanes."""
    occupied = Occupied(rig, "printer")
    worker = rig.worker(definition := flow(rig, step(rig, "a", resource="printer")))
    workflow_id = rig.start(definition)
    row = waits(rig, workflow_id)
    rig.queue.deaf = deaf
    rig.advance(1_000)

    assert occupied.free() == 1
    freed_ms = rig.clock.wall_ms()
    rig.finish(workflow_id)

    assert rig.clock.wall_ms() - freed_ms <= (rig.settings.poll_ms if deaf else 0)
    assert row.claimable_time is not None
    assert rig.clock.wall_ms() < row.claimable_time
    assert hits(worker)["claim_handed_over"] == 1
    assert hits(worker)["defer_for_permit"] == 1


@pytest.mark.req("prm-wake-lost")
def test_without_any_hand_over_the_net_brings_it_back(rig: SteppedRig) -> None:
    """The lanes and the line are gone and nobody noticed, not even the look at the line: its time comes, and a scan
    finds it."""
    rig.permits.missing = lambda resource, pairs: [False] * len(pairs)  # type: ignore[method-assign]
    occupied = Occupied(rig, "printer")
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=5_000)
    workflow_id = rig.start(definition)
    row = waits(rig, workflow_id)
    occupied.free()
    model = rig.permits.of("printer")
    model.line.clear()
    model.reserved.clear()
    rig.queue.model.wipe()

    rig.finish(workflow_id)

    assert row.claimable_time is not None
    late_ms = rig.instance(workflow_id).steps[0].started_time - row.claimable_time  # type: ignore[operator]
    assert 0 <= late_ms <= rig.settings.scan_ms + rig.settings.poll_ms


def test_after_a_wipe_who_waits_does_not_rest_until_its_time(rig: SteppedRig) -> None:
    """DECISIONS detail 20: the lanes' new epoch makes everybody ask again, who finds no place pays no write."""
    occupied = Occupied(rig, "printer")
    worker = rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=600_000)
    ids = [rig.start(definition, f"k{number}") for number in range(3)]
    for workflow_id in ids:
        waits(rig, workflow_id)
    before = [rig.row(workflow_id) for workflow_id in ids]
    rig.permits.wipe()
    occupied = Occupied(rig, "printer")
    wiped_ms = rig.clock.wall_ms()
    refused = len(rig.permits.refusals)

    rig.run(lambda: len(rig.permits.refusals) == refused + 3, "all ask again")
    assert [rig.row(workflow_id) for workflow_id in ids] == before
    assert rig.clock.wall_ms() - wiped_ms <= rig.settings.poll_ms
    occupied.free()
    rig.finish(*ids)
    assert rig.clock.wall_ms() - wiped_ms <= 10_000
    assert hits(worker)["defer_for_permit"] == 3


@pytest.mark.req("prm-wake-lost", "flt-redis-flush")
def test_after_a_wipe_between_refusal_and_commit_it_does_not_rest_until_its_time(rig: SteppedRig) -> None:
    """Its row said nothing of a wait yet when those that wait were queued again, and the line has forgotten it."""
    Occupied(rig, "printer")
    definition = flow(rig, step(rig, "a", resource="printer"))
    refused = rig.worker(definition, permit_wait_ms=600_000)
    wiped_ms: list[int] = []

    def wipe_before_the_deferral(write: Write) -> None:
        if "defer_for_permit" in write.names and not wiped_ms:
            rig.permits.wipe()
            refused.scheduler.schedule_runnable_workflows()  # on the worker's own thread, beside the claim's
            wiped_ms.append(rig.clock.wall_ms())

    refused.store.fault_of = wipe_before_the_deferral
    workflow_id = rig.start(definition)
    rig.run(lambda: bool(wiped_ms), "Redis is wiped", refused)
    row = waits(rig, workflow_id)
    rig.finish(workflow_id)

    assert row.claimable_time is not None
    assert rig.clock.wall_ms() - wiped_ms[0] <= 2 * rig.settings.poll_ms < row.claimable_time - wiped_ms[0]


def forgotten(rig: SteppedRig, definition: Definition) -> tuple[Instance, int]:
    """One that waits for a place and stands nowhere, while the lanes' epoch is the same, so that nobody sees a wipe.
    The row, and since when that is so."""
    occupied = Occupied(rig, "printer")
    rig.worker(definition, permit_wait_ms=600_000)
    row = waits(rig, workflow_id := rig.start(definition))
    rig.permits.of("printer").line.clear()
    rig.queue.model.remove([workflow_id])
    occupied.free()
    return row, rig.clock.wall_ms()


@pytest.mark.req("prm-wake-lost")
def test_who_stands_in_no_line_is_asked_about_at_the_next_scan(rig: SteppedRig) -> None:
    row, lost_ms = forgotten(rig, flow(rig, step(rig, "a", resource="printer")))

    rig.finish(row.workflow_id)

    assert row.claimable_time is not None
    assert rig.clock.wall_ms() - lost_ms <= rig.settings.scan_ms + rig.settings.poll_ms < row.claimable_time - lost_ms


@pytest.mark.req("prm-wake-lost", "dc-roles-split")
def test_a_dispatcher_finds_it_as_well(rig: SteppedRig) -> None:
    row, lost_ms = forgotten(rig, definition := flow(rig, step(rig, "a", resource="printer")))
    _, loop = rig.dispatcher(definition)

    loop.pass_once()

    assert rig.queue.due_of(row.workflow_id) == lost_ms


@pytest.mark.req("prm-wake-lost")
@pytest.mark.parametrize("lost", ["a", "b"])
def test_of_two_steps_in_two_lines_each_is_looked_after(rig: SteppedRig, lost: str) -> None:
    """The row shows one of them."""
    resources = {"a": "printer", "b": "scanner"}
    places = {name: Occupied(rig, resource) for name, resource in resources.items()}
    steps = [step(rig, name, depends_on=[], resource=resource) for name, resource in resources.items()]
    rig.worker(definition := flow(rig, *steps), permit_wait_ms=600_000)
    workflow_id = rig.start(definition)
    rig.run(lambda: all(s.traffic_since_time for s in rig.instance(workflow_id).steps), "both steps are refused")
    row = waits(rig, workflow_id)
    rig.permits.of(resources[lost]).line.clear()
    places[lost].free()
    lost_ms = rig.clock.wall_ms()

    rig.run(lambda: rig.step(workflow_id, lost).status == "completed", "the step whose place is free runs")

    assert row.claimable_time is not None
    assert rig.clock.wall_ms() - lost_ms <= rig.settings.scan_ms + rig.settings.poll_ms < row.claimable_time - lost_ms


@pytest.mark.req("prm-wake-lost", "prm-refused")
def test_no_number_of_those_in_line_hides_one_that_is_not(rig: SteppedRig) -> None:
    """A pass looks at so many pages, and the next one goes on there."""
    Occupied(rig, "printer")
    definition = flow(rig, step(rig, "a", resource="printer"))
    worker = rig.worker(definition, permit_wait_ms=600_000, scan_page=2, scan_pages=2)
    ids = sorted(rig.start(definition, f"k{number}") for number in range(12))
    for workflow_id in ids:
        waits(rig, workflow_id)
    rows = worker.engine.sweeps.permit_rows
    rows.queue_forgotten()  # wherever the scans meanwhile have got to
    while rows._after is not None:
        rows.queue_forgotten()
    del rig.permits.of("printer").line[ids[-1], "a"]

    assert [rows.queue_forgotten() for _ in range(4)] == [0, 0, 1, 0]


@pytest.mark.req("prm-wake-lost", "prm-fail-closed")
def test_a_redis_that_is_away_is_asked_once_however_many_resources_there_are(rig: SteppedRig) -> None:
    """Each question may cost a timeout, and the scan is not to stand still for it (L3)."""
    resources = [f"printer_{number}" for number in range(5)]
    for resource in resources:
        Occupied(rig, resource)
    definitions = [flow(rig, step(rig, "a", resource=name), type=name) for name in resources]
    worker = rig.worker(*definitions, permit_wait_ms=600_000)
    for definition in definitions:
        waits(rig, rig.start(definition, definition.type))
    rows, before = worker.engine.sweeps.permit_rows, asked(rig, "missing")
    assert rows.queue_forgotten() == 0
    assert asked(rig, "missing") == before + len(resources)

    rig.permits.wipe()
    rig.permits.loses_replies = True

    assert rows.queue_forgotten() == 0
    assert asked(rig, "missing") == before + len(resources) + 1
    rig.permits.loses_replies = False
    assert rows.queue_forgotten() == len(resources)


@pytest.mark.req("prm-raise", "prm-pause", "prm-zero")
@pytest.mark.parametrize("change", ["raised", "resumed", "unlimited"])
def test_a_wider_limit_wakes_who_waits_at_the_scan_rate(rig: SteppedRig, change: str) -> None:
    """Set in the store alone: whoever sweeps hands the places over, 16 at a time."""
    if change == "resumed":
        rig.limits["printer"] = Limit(max_concurrency=50, paused=True)
    else:
        Occupied(rig, "printer")
    worker = rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=600_000)
    ids = [rig.start(definition, f"k{number}") for number in range(40)]
    rig.run(lambda: all(rig.instance(key).permit_wait for key in ids), "all wait")
    changed_ms = rig.clock.wall_ms()

    match change:
        case "raised":
            change_limit(rig.store, "printer", max_concurrency=60)
        case "resumed":
            change_limit(rig.store, "printer", paused=False)
        case "unlimited":
            change_limit(rig.store, "printer", max_concurrency=0)
    rig.finish(*ids)

    assert rig.clock.wall_ms() - changed_ms <= 4 * rig.settings.scan_ms
    assert hits(worker)["defer_for_permit"] == 40


def test_the_scan_moves_no_handed_id_to_its_later_time(rig: SteppedRig) -> None:
    """Both the deferral's own push and the recovery scan know the time of the net only."""
    occupied = Occupied(rig, "printer")
    worker = rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), permit_wait_ms=1_500)
    workflow_id = rig.start(definition)
    row = waits(rig, workflow_id)
    assert row.claimable_time is not None
    assert row.claimable_time - rig.clock.wall_ms() < 2 * rig.settings.scan_ms, "within the scan's horizon"

    occupied.free()
    worker.sweep()

    assert rig.queue.due_of(workflow_id) == rig.clock.wall_ms()
    rig.finish(workflow_id)


def test_a_place_handed_over_between_refusal_and_deferral_is_not_missed(rig: SteppedRig) -> None:
    occupied = Occupied(rig, "printer")
    worker = rig.worker(definition := flow(rig, step(rig, "a", resource="printer")))
    workflow_id = rig.start(definition)

    def freed(write: object) -> None:
        if "defer_for_permit" in write.names and occupied.taken:  # type: ignore[attr-defined]
            assert occupied.free() == 1
            rig.queue.pop(1)  # taken by somebody who finds the claim still held

    worker.store.fault_of = freed  # type: ignore[assignment]
    rig.finish(workflow_id)

    started = rig.instance(workflow_id).steps[0].started_time
    assert started is not None
    assert started - rig.instance(workflow_id).created_time <= rig.settings.poll_ms


def test_a_hand_over_that_nobody_takes_up_stops_the_line_for_a_moment_only(rig: SteppedRig) -> None:
    """The id was popped by a worker that died: no other call passes the place on, and the scan is far away."""
    rig.limits["printer"] = Limit(max_concurrency=1)
    printing = step(rig, "a", lambda ctx: rig.base_runner.event().wait(1), resource="printer")
    rig.worker(definition := flow(rig, printing), scan_ms=600_000, permit_wait_ms=600_000, lease_ms=600_000)
    ids = [rig.start(definition, f"k{number}") for number in range(3)]
    release, stolen = rig.permits.release, []

    def steals(*args: Any) -> Any:
        released = release(*args)
        if released.handed and not stolen:
            stolen.extend(rig.queue.pop(1)[0])
        return released

    rig.permits.release = steals  # type: ignore[method-assign]
    rig.finish(*ids, limit_ms=20_000)

    assert len(stolen) == 1


@pytest.mark.req("prm-refused")
@pytest.mark.crash("23")
def test_who_waits_keeps_its_lane(rig: SteppedRig) -> None:
    occupied = Occupied(rig, "printer")
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), slots=1)
    slow = rig.start(definition, "slow", priority="compensation")
    waits(rig, slow)
    fast = rig.start(definition, "fast", priority="realtime")
    waits(rig, fast)

    occupied.free()

    assert (rig.queue.lane_of(fast), rig.queue.lane_of(slow)) == (0, 3)
    rig.finish(fast, slow)
    assert [entry.workflow_id for entry in rig.ledger.of("a")] == [fast, slow]
    assert rig.row(slow)["business_priority"] == 3


def test_a_thousand_waiting_cost_at_most_half_more_writes(make_rig: Callable[..., SteppedRig]) -> None:
    """DECISIONS 12: against the same definition with limits 0/0, for steps that do nothing else."""
    writes: dict[int, float] = {}
    for at_once in (0, 8):
        rig = make_rig()
        rig.limits["printer"] = Limit(max_concurrency=at_once)

        def works(ctx: Context, rig: SteppedRig = rig) -> str:
            rig.base_runner.event().wait(0.02)
            return "printed"

        definition = flow(rig, step(rig, "a", works, resource="printer"))
        workers = [rig.worker(definition, slots=8) for _ in range(2)]
        ids = [rig.start(definition, f"k{number}") for number in range(1_000)]
        rig.finish(*ids)
        completed = sum(rig.instance(key).status == "completed" for key in ids)
        assert completed == 1_000
        writes[at_once] = (hits(*workers).total() + len(ids)) / completed  # and one insert each
        assert rig.permits.most.get("printer", 0) <= at_once
    assert writes[0] == 4
    assert writes[8] <= 1.5 * writes[0]


def test_the_same_with_real_threads(live: LiveRig) -> None:
    live.limits["printer"] = Limit(max_concurrency=8)
    definition = flow(live, step(live, "a", resource="printer"))
    workers = [live.worker(definition, slots=8) for _ in range(2)]
    ids = [live.start(definition, f"k{number}") for number in range(300)]

    live.wait_ended(*ids, timeout=60)

    assert live.permits.most["printer"] <= 8
    wait_until(lambda: not live.permits.owners("printer"), "every place is free")
    assert (hits(*workers).total() + 300) / 300 <= 1.5 * 4
    assert max(live.step(key, "a").attempt for key in ids) == 1


@pytest.mark.req("prm-window", "prm-two-limits")
def test_a_start_is_counted_when_the_call_begins(rig: SteppedRig) -> None:
    """The commit of the attempt lies between grant and call: in no window of a second do more calls begin."""
    rig.limits["printer"] = Limit(max_starts_per_second=3)
    slow = [700, 0, 0, 1_400, 300, 0, 900, 0, 50]

    def late(write: object) -> None:
        if "begin_step" in write.names and slow:  # type: ignore[attr-defined]
            rig.clock.advance(slow.pop(0))

    worker = rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), slots=9, lease_ms=60_000)
    worker.store.fault_of = late  # type: ignore[assignment]
    ids = [rig.start(definition, f"k{number}") for number in range(24)]
    rig.finish(*ids)

    starts = sorted(entry.begin_ms for entry in rig.ledger.of("a"))
    assert len(starts) == 24
    assert all(later - first >= 1_000 for first, later in zip(starts, starts[3:], strict=False))
    assert asked(rig, "start") >= 24


@pytest.mark.req("prm-one-zero")
def test_one_zero_leaves_the_other_limit(rig: SteppedRig) -> None:
    rig.limits["printer"] = Limit(max_starts_per_second=2)
    rig.worker(definition := flow(rig, step(rig, "a", resource="printer")), slots=9)
    ids = [rig.start(definition, f"k{number}") for number in range(6)]

    rig.finish(*ids)

    starts = sorted(entry.begin_ms for entry in rig.ledger.of("a"))
    assert 2_000 <= starts[-1] - starts[0] <= 4_000
    assert all(later - first >= 1_000 for first, later in zip(starts, starts[2:], strict=False))
