"""Workers with long activities and a suspect, which runs only in an empty one: their free slots are not idle for it
(DECISIONS detail 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kernel.config import Limit
from kernel.context import Context
from kernel.definition import Definition
from kernel.limits import change_limit
from tests.engine.flows import flow, seconds, step
from tests.engine.test_claims import set_fields
from tests.engine.test_deaths import make_suspect
from tests.engine.test_permits import waits
from tests.support.engine_rig import RigWorker, SteppedRig


class LongWork:
    """One activity in each of some workers, all of them as long as what happens meanwhile."""

    def __init__(self, rig: SteppedRig) -> None:
        self.definition = flow(rig, step(rig, "long", self._hold, timeout=seconds(86_400)), type="long")
        self._rig = rig
        self._left: list[RigWorker] = []
        self._meanwhile: Callable[[], None] = lambda: None
        self._errors: list[BaseException] = []

    def run(self, workers: Sequence[RigWorker], meanwhile: Callable[[], None]) -> None:
        """Occupy a slot of each, call `meanwhile`, and let the activities end. Raises what that raises."""
        self._left, self._meanwhile = list(workers), meanwhile
        self._enter()
        if self._errors:
            raise self._errors[0]

    def _enter(self) -> None:
        worker = self._left.pop(0)
        self._rig.start(self.definition, f"long in {worker.worker_id}")
        self._rig.pass_once(worker)

    def _hold(self, ctx: Context) -> None:
        if self._left:
            self._enter()
            return
        try:
            self._meanwhile()
        except BaseException as error:
            self._errors.append(error)


def waiting_times(rig: SteppedRig, plain: Definition, scans: int) -> list[int]:
    """How long plain work waits, a piece of it after the other, for so many scan periods at least."""
    ends_ms = rig.clock.boot_ms() + scans * rig.settings.scan_ms
    times: list[int] = []
    while rig.clock.boot_ms() < ends_ms:
        began_ms = rig.clock.boot_ms()
        workflow_id = rig.start(plain, f"plain-{len(times)}")
        rig.run(lambda workflow_id=workflow_id: rig.ended(workflow_id), "plain work in a free slot", limit_ms=60_000)
        times.append(rig.clock.boot_ms() - began_ms)
        rig.advance(rig.settings.poll_ms // 2)
    return times


@pytest.mark.req("sch-fill-until-full")
def test_a_suspect_that_finds_no_empty_worker_does_not_stop_the_other_work_of_all_of_them(rig: SteppedRig) -> None:
    """Each has one activity of hours. They make room for four scan periods in vain, work again, and so on, for less
    than half of the time. As soon as one of them is empty the suspect runs alone there."""
    work, alone, times = LongWork(rig), [], []
    suspect = flow(rig, step(rig, "a", lambda ctx: alone.append(owner(ctx).busy)), type="suspect")
    plain = flow(rig, "p", type="plain")
    workers = [rig.worker(suspect, plain, work.definition, slots=8) for _ in range(3)]
    key: list[str] = []

    def owner(ctx: Context) -> RigWorker:
        return next(worker for worker in workers if worker.worker_id == ctx.worker_id)

    def meanwhile() -> None:
        assert [worker.busy for worker in workers] == [1, 1, 1]
        key.append(make_suspect(rig, suspect, "s"))
        times.extend(waiting_times(rig, plain, scans=60))
        assert not rig.ended(*key)

    work.run(workers, meanwhile)
    rig.finish(*key, limit_ms=2 * rig.settings.scan_ms)

    stops = [time_ms for time_ms in times if time_ms > rig.settings.poll_ms]
    assert len(stops) > 1, "all of them made room at once, again and again"
    assert stops[0] <= 4 * rig.settings.scan_ms + rig.settings.poll_ms
    assert sum(times) < 60 * rig.settings.scan_ms / 2
    assert alone == [1]
    assert rig.status(key[0]) == "completed"


@pytest.mark.req("prm-pause", "flt-redis-flush")
def test_a_suspect_that_waits_for_a_paused_resource_keeps_no_slot_free(rig: SteppedRig) -> None:
    """Redis was emptied, so that it is queued again; it has no place, and would not run in an empty worker either."""
    rig.limits["printer"] = Limit(paused=True)
    work, alone, times = LongWork(rig), [], []
    gated = flow(rig, step(rig, "a", lambda ctx: alone.append(worker.busy), resource="printer"), type="gated")
    plain = flow(rig, "p", type="plain")
    worker = rig.worker(gated, plain, work.definition, slots=2, permit_wait_ms=600_000)
    workflow_id = rig.start(gated, "s")
    waits(rig, workflow_id)
    set_fields(rig, workflow_id, deaths=2)

    def meanwhile() -> None:
        assert worker.busy == 1
        rig.permits.wipe()
        times.extend(waiting_times(rig, plain, scans=20))
        popped = [candidate.workflow_id for candidate in rig.queue.popped]
        assert popped.count(workflow_id) > 5, "it was met all the time"

    work.run([worker], meanwhile)
    assert max(times) <= rig.settings.poll_ms
    assert alone == []

    change_limit(rig.store, "printer", paused=False)
    rig.finish(workflow_id, limit_ms=3 * rig.settings.scan_ms)

    assert alone == [1]
