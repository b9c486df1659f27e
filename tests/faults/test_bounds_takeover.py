"""L1, measured: how long work lies still after its worker is gone. Proved by a supervisor, stopped, or gone with its
whole tree: then nobody can prove a death, and the lease must run out.

Judged by the boot clock of the ledger: from just before the signal to the next entry, in another process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.records import Document
from tests.faults import apps
from tests.faults.effects import Effect, boot_ms
from tests.faults.pausing import paused, stop_outside_commit
from tests.faults.rig import LIMIT_S, Tree, end, holder_of, kill, settings, store_file, tree
from tests.faults.stalls import slack_of
from tests.support.figures import Figures
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("l1", "dc-tests-fault")]

KILLS, PAUSES, HELD, OPEN = 12, 3, 8, 200
FAST = settings(Path("data"))
BOUND_S = FAST.lease_s + FAST.scan_s + FAST.poll_s
MEDIAN_S = FAST.lease_s + FAST.poll_s


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """Nobody is parked here: whom a kill hits beside its target is chance."""
    with tree(tmp_path_factory.mktemp("trio") / "data", workers=3, slots=8, deaths_max=0) as running:
        yield running


def check_takeover(figure: Figures, what: str, waits_ms: list[int], at_least: int) -> None:
    seconds = [wait_ms / 1000 for wait_ms in waits_ms]
    figure.check("L1", what, seconds, BOUND_S, at_least=at_least)
    assert sorted(seconds)[len(seconds) // 2] <= 3 * MEDIAN_S


def next_entry(running: Tree, workflow_id: str, pids: set[int], since_ms: int) -> Effect:
    """The first entry by a process that is none of `pids`."""

    def found() -> list[Effect]:
        return [e for e in running.effects.of(workflow_id) if e.at_ms >= since_ms and e.pid not in pids]

    return wait_until(found, f"{workflow_id} goes on", LIMIT_S, every=0.005)[0]


def claimed(running: Tree, workflow_ids: list[str]) -> list[Document]:
    """The rows of those that somebody holds at the moment."""
    return [row for row in map(running.row, workflow_ids) if "claim_token" in row]


@pytest.mark.bound("L1")
@pytest.mark.req("core-worker-replaceable", "clm-crash-lease")
def test_work_of_a_worker_killed_by_kill_9_goes_on_within_lease_scan_and_poll(trio: Tree, figure: Figures) -> None:
    waits_ms = []
    for number in range(KILLS):
        trio.wait_running()
        workflow_id = trio.start(apps.HELD, f"killed:{number}")
        # Killed at once: the lease of this tree is so short that a busy machine may take it away by itself.
        victim, at_ms = trio.entered(workflow_id, "b").pid, boot_ms()
        kill(victim)
        waits_ms.append(next_entry(trio, workflow_id, {victim}, at_ms).at_ms - at_ms)
        trio.finish(workflow_id)

    check_takeover(figure, "takeover after kill -9", waits_ms, KILLS)


@pytest.mark.bound("L1")
@pytest.mark.req("core-running-is-not-alive", "sch-expired-lease-found")
def test_work_of_a_worker_that_stands_still_goes_on_when_its_lease_has_run_out(trio: Tree, figure: Figures) -> None:
    """SIGSTOP: nothing proves a death, and the supervisor does not look for one."""
    waits_ms = []
    for number in range(PAUSES):
        trio.wait_running()
        ids = trio.start_many(apps.GATED, f"paused:{number}", HELD)
        for workflow_id in ids:
            trio.entered(workflow_id, "only")
        ((victim, _),) = Counter(holder_of(row) for row in claimed(trio, ids)).most_common(1)
        with paused(trio, [victim]):
            at_ms = boot_ms()
            # Only what it held when it stood still: a busy machine may have taken another claim away before.
            stranded = [row for row in claimed(trio, ids) if holder_of(row) == victim]
            resumed = [next_entry(trio, row["workflow_id"], {victim}, at_ms) for row in stranded]
        waits_ms += [entry.at_ms - at_ms for entry in resumed]
        early_ms = [row["claimable_time"] - entry.wall_ms for row, entry in zip(stranded, resumed, strict=True)]
        assert max(early_ms, default=0) <= 0, "a lease was stolen"
        trio.open_gate(*ids)
        trio.finish(*ids)

    check_takeover(figure, "takeover after SIGSTOP", waits_ms, PAUSES)


@pytest.mark.bound("L1")
@pytest.mark.case("A20")
@pytest.mark.req("clm-crash-lease", "sch-expired-lease-found")
def test_work_of_a_machine_that_is_gone_goes_on_when_its_leases_have_run_out(tmp_path: Path, figure: Figures) -> None:
    """Two trees on one store, as on two machines. All of one is gone at once; the other has no proof of it."""
    for folder in (tmp_path / "lost", tmp_path / "left"):
        folder.mkdir(mode=0o700)
    with tree(tmp_path / "lost", slots=8) as lost:
        ids = lost.start_many(apps.GATED, "machine", 2 * HELD)
        for workflow_id in ids:
            lost.entered(workflow_id, "only")
        store_file(tmp_path / "left").symlink_to(store_file(tmp_path / "lost"))
        with tree(tmp_path / "left", slots=16) as left:
            lost_pids, family = set(lost.pids()), lost.family()
            for pid in lost_pids:
                stop_outside_commit(lost.folder, pid)
            at_ms = boot_ms()
            held = [row for row in claimed(lost, ids) if holder_of(row) in lost_pids]
            end(family)
            waits_ms = [next_entry(left, row["workflow_id"], lost_pids, at_ms).at_ms - at_ms for row in held]
            left.open_gate(*ids)
            left.finish(*ids)

    check_takeover(figure, "takeover from a machine that is gone", waits_ms, HELD)


@pytest.mark.bound("kill with 200 open")
def test_200_open_workflows_of_a_killed_worker_are_done_a_second_later_than_undisturbed(
    tmp_path: Path, figure: Figures
) -> None:
    """Undisturbed time: a step of another 200 on the same tree, from the last entry to the last end. The step of the
    killed 200 begins anew, so that they need that time once more, and a second."""
    with tree(tmp_path / "data", workers=2, slots=OPEN, lease_s=30.0) as pair:
        undisturbed_ms = lasting_ms(pair, "undisturbed", killed=False)
        late_ms = lasting_ms(pair, "killed", killed=True) - undisturbed_ms

    late_s, bound_s = max(0, late_ms) / 1000, 1.0
    figure.check("kill with 200 open", "later than undisturbed", [late_s], bound_s, slack=slack_of(bound_s))


def lasting_ms(pair: Tree, prefix: str, *, killed: bool) -> int:
    """From the moment at which 200 steps of one worker run, and it is killed or not, to the end of all 200."""
    idle, busy = pair.pids()
    with paused(pair, [idle]):
        ids = pair.start_many(apps.ONE, prefix, OPEN, hold_s=2.0)
        wait_until(lambda: sum(len(pair.effects.of(key)) for key in ids) >= OPEN, "all are open", LIMIT_S)
    at_ms = boot_ms()
    if killed:
        kill(busy)
    pair.finish(*ids)
    ended_ms = max(pair.effects.of(key, "a", "leave")[-1].at_ms for key in ids)
    return ended_ms - at_ms
