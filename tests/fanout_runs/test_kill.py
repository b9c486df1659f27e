"""Fan-outs in real workers that are killed with -9: the list goes on from its cursor, everybody is woken once.

The lease outlasts every wait here: what goes on does so because the death was proved.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fanout import Outcome, Tally, signal_id_for
from kernel import workflow_id_for
from kernel.store.tables import SIGNALS
from tests.fanout_runs.process_app import FOLLOWER, HELD, MAIN, PAGE_SIZE, Show, reads
from tests.faults.arms import Arm, Point
from tests.faults.rig import ARMED, Tree, kill, tree
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]
APP = "tests.fanout_runs.process_app:app"
LEASE_S = 300.0


def waiting_followers(proof: Tree, show: Show) -> list[str]:
    requests = [(show.key(number), show) for number in range(1, show.count + 1)]
    ids = [handle.workflow_id for handle in proof.client.start_many(FOLLOWER.plan, requests)]
    wait_until(lambda: {proof.row(key)["status"] for key in ids} == {"waiting"}, "all wait", every=0.1)
    return ids


def start_main(proof: Tree, show: Show) -> str:
    return proof.client.start_or_resume(MAIN.plan, biz_key=f"main:{show.name}", input=show).workflow_id


def outcome(proof: Tree, show: Show) -> Outcome:
    return msgspec.convert(proof.output(show.fan_out_id), Outcome)


def woken_once(proof: Tree, workflow_id: str) -> bool:
    """Entered at its start and for its signal. A kill may also meet a follower between its begin and its entry, or in
    the middle of it: then the same wake is entered again, as the step's record says."""
    entries = len(proof.effects.of(workflow_id))
    return 2 <= entries <= 2 + proof.instance(workflow_id).steps[0].takeovers


@pytest.mark.crash("51")
@pytest.mark.req("fan-cursor", "fan-rerun-dedup", "fan-separate")
def test_killed_at_page_3_of_10_it_reads_no_page_again_and_wakes_everybody_once(tmp_path: Path) -> None:
    show, folder = Show(HELD, 100), tmp_path / "data"
    with tree(folder, app=APP, lease_s=LEASE_S) as proof:
        ids = waiting_followers(proof, show)
        main = start_main(proof, show)
        wait_until(lambda: len(reads(folder, show)) == 3, "page 3")
        # So that the kill meets the fan-out alone.
        proof.finish(main, *ids[: 2 * PAGE_SIZE])
        before = proof.row(main)
        kill(reads(folder, show)[2].pid)
        proof.finish(show.fan_out_id, *ids)

        found = reads(folder, show)
        assert [read.cursor for read in found] == [None, 10, 20, 20, 30, 40, 50, 60, 70, 80, 90]
        assert found[3].pid != found[2].pid
        assert {len(proof.effects.of(key)) for key in ids} == {2}, "once at the start, once for the signal"
        assert proof.row(main) == before
        tally = outcome(proof, show).tally
        # A sweep of another process may wake somebody between the inbox row and the fan-out's own activation.
        assert tally == Tally(pages=10, told=100, woken=tally.woken)


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with tree(tmp_path_factory.mktemp("armed") / "data", ARMED, app=APP, lease_s=LEASE_S, renew_s=0.5) as running:
        yield running


CELLS = [("52", "receive_signal"), ("52", "activate_signal"), ("52", "mark_matched"), ("53", "yield_step")]
POINTS: tuple[Point, ...] = ("before", "lost", "after")


@pytest.mark.req("fan-two-layers", "fan-rerun-dedup")
@pytest.mark.parametrize(
    ("call", "point"),
    [
        pytest.param(call, point, id=f"{boundary}-{call}-{point}", marks=pytest.mark.crash(boundary, point))
        for boundary, call in CELLS
        for point in POINTS
    ],
)
def test_around_each_write_of_a_page(armed: Tree, call: str, point: Point) -> None:
    show = Show(f"{call}-{point}", 25)
    armed.wait_running()
    ids = waiting_followers(armed, show)
    follower = workflow_id_for(show.key(15))
    signal_id = signal_id_for(show.event, follower, show.name, 0)
    row = {"yield_step": show.fan_out_id, "activate_signal": follower}.get(call, signal_id)
    name = f"{call}-{point}"
    armed.arms.arm(name, Arm(call=call, point=point, workflow_id=row))
    main = start_main(armed, show)
    armed.finish(main, show.fan_out_id, *ids)

    (fired,) = armed.arms.fired(name)
    found = reads(armed.folder, show)
    repeated = [read.cursor for read in found if [r.cursor for r in found].count(read.cursor) > 1]
    assert [read.cursor for read in found] == sorted((r.cursor for r in found), key=lambda cursor: cursor or 0)
    assert len(found) == (4 if repeated else 3)
    told_by = {read.pid for read in found}
    if fired.pid in told_by:  # and not a sweep of another process, which may be first to wake or mark somebody
        killed = point != "lost" and (call, point) != ("yield_step", "after")
        assert bool(repeated) == killed, (found, outcome(armed, show))
    assert [key for key in ids if not woken_once(armed, key)] == []
    tally = outcome(armed, show).tally
    assert (tally.pages, tally.told + tally.duplicates) == (3, 25)

    def all_matched() -> bool:
        wanted = [signal_id_for(show.event, key, show.name, 0) for key in ids]
        stored = [armed.store.get(SIGNALS, key) for key in wanted]
        return all(document is not None and document["status"] == "matched" for document in stored)

    wait_until(all_matched, "the marks")


@pytest.mark.req("fan-cursor", "fan-rerun-dedup")
@pytest.mark.parametrize("point", [pytest.param(point, marks=pytest.mark.crash("51", point)) for point in POINTS])
def test_around_the_reading_of_a_page(armed: Tree, point: Point) -> None:
    """The cursor has not moved: the same page again, of which nobody had been told, and none of the page before."""
    show = Show(f"read-{point}", 25)
    armed.wait_running()
    ids = waiting_followers(armed, show)
    name = f"read_page-{point}"
    armed.arms.arm(name, Arm(call="read_page", point=point, workflow_id=show.fan_out_id, touches=str(PAGE_SIZE)))
    main = start_main(armed, show)
    armed.finish(main, show.fan_out_id, *ids)

    (fired,) = armed.arms.fired(name)
    found = reads(armed.folder, show)
    again = [10] if point == "before" else [10, 10]  # a reading that died before it began left no line
    assert [read.cursor for read in found] == [None, *again, 20]
    assert point == "lost" or fired.pid not in {read.pid for read in found[-2:]}
    assert [key for key in ids if not woken_once(armed, key)] == []
    tally = outcome(armed, show).tally
    assert tally == Tally(pages=3, told=25, woken=tally.woken, tries=1 if point == "lost" else 0)
