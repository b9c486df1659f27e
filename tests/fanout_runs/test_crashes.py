"""The worker dies, or its store is unsure, at each write of a page: it is repeated, and nobody is woken twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fanout import Outcome, Tally
from kernel.store.conditional import Answer, Exists, Insert, InsertAnswer, Put, Transition
from kernel.store.tables import INSTANCES
from tests.engine.flows import seconds
from tests.fanout_runs.shows import Show
from tests.support.engine_rig import RigWorker, SteppedRig
from tests.support.engine_runner import Killed
from tests.support.engine_store import Fault, Write


class _Page:
    """25 followers that wait, a worker that meets a fault in the second page, and a healthy one that goes on."""

    def __init__(self, rig: SteppedRig) -> None:
        self.rig = rig
        self.show = Show(rig, 25)
        self.helper = rig.worker(*self.show.definitions)
        self.ids = self.show.follow_all(25)
        rig.run(self.show.all_wait(self.ids), "all wait")
        self.show.ready = True
        # One after the other in pages, so that the followers of a page end before the next: the fault is the fan-out's.
        self.hurt = rig.worker(*self.show.definitions, slots=1)

    def run(self) -> Outcome:
        """The hurt worker goes first; whatever it leaves is done by the other. The fan-out's outcome."""
        rig, fan_out = self.rig, self.show.start_fan_out()
        rig.run(lambda: self.hurt.dead or rig.ended(fan_out), "the fault", self.hurt, limit_ms=600_000)
        rig.finish(fan_out, *self.ids)
        assert all(rig.status(key) == "completed" for key in (fan_out, *self.ids))
        return rig.client.result(fan_out, seconds(0), Outcome)

    def check_told_once(self) -> None:
        def all_marked() -> bool:
            return all(row["status"] == "matched" for row in self.show.signals())

        self.rig.run(all_marked, "marks that were lost are completed by the sweep", limit_ms=60_000)
        assert len(self.show.signals()) == 25
        assert self.show.woken_once(self.ids)


def in_second_page(page: _Page, name: str, fault: Fault) -> Callable[[Write], Fault | None]:
    """`fault` for the first write of that name after the second page was read."""
    left = [True]

    def fault_of(write: Write) -> Fault | None:
        hit = name in write.names and len(page.show.subscribers.reads) == 2 and bool(left)
        return fault if hit and left.pop() else None

    return fault_of


@pytest.mark.req("fan-two-layers", "fan-rerun-dedup", "fan-cursor")
@pytest.mark.crash("53")
def test_between_the_last_signal_and_the_yield_the_page_is_repeated_and_nobody_told_twice(
    durable_rig: SteppedRig,
) -> None:
    page = _Page(durable_rig)
    page.hurt.store.fault_of = in_second_page(page, "yield_step", "kill_before")

    outcome = page.run()

    assert page.hurt.dead
    assert page.show.subscribers.cursors == [None, 10, 10, 20]
    assert outcome.tally == Tally(pages=3, told=15, duplicates=10, woken=15)
    page.check_told_once()


@pytest.mark.req("fan-two-layers", "fan-cursor")
@pytest.mark.crash("53")
def test_after_the_yield_nothing_is_repeated(durable_rig: SteppedRig) -> None:
    page = _Page(durable_rig)
    page.hurt.store.fault_of = in_second_page(page, "yield_step", "kill_after")

    outcome = page.run()

    assert page.hurt.dead
    assert page.show.subscribers.cursors == [None, 10, 20]
    assert outcome.tally == Tally(pages=3, told=25, woken=25)
    page.check_told_once()


@pytest.mark.req("fan-cursor")
@pytest.mark.crash("51")
def test_before_the_page_was_read_the_cursor_has_not_moved(durable_rig: SteppedRig) -> None:
    page = _Page(durable_rig)

    def die(cursor: Any) -> None:
        if len(page.show.subscribers.reads) == 2:
            page.hurt.kill()
            raise Killed

    page.show.subscribers.before = die
    outcome = page.run()

    assert page.show.subscribers.cursors == [None, 10, 10, 20]
    assert outcome.tally == Tally(pages=3, told=25, woken=25)
    page.check_told_once()


WRITES = ["receive_signal", "activate_signal", "mark_matched"]
FAULTS: list[Fault] = ["kill_before", "kill_after", "lose_request", "lose_reply", "unavailable"]


@pytest.mark.req("fan-rerun-dedup", "fan-page-signals")
@pytest.mark.crash("52")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", WRITES)
def test_whatever_befalls_a_write_of_a_page_everybody_is_woken_once(
    durable_rig: SteppedRig, name: str, fault: Fault
) -> None:
    page = _Page(durable_rig)
    page.hurt.store.fault_of = in_second_page(page, name, fault)

    outcome = page.run()

    assert any(name in write.names for write in page.hurt.store.writes)
    assert page.hurt.dead == fault.startswith("kill")
    assert outcome.tally.told + outcome.tally.duplicates == 25
    page.check_told_once()


class _HalfDone:
    """A worker's store that dies in the middle of one call: the first half of it is done."""

    def __init__(self, worker: RigWorker, page: _Page, name: str) -> None:
        self._worker = worker
        self._page = page
        self._name = name
        inner = worker.store.inner
        self._insert_all, self._apply_all = inner.insert_all, inner.apply_all
        worker.store.inner = self  # type: ignore[assignment]
        self._rest = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest, name)

    def insert_all(self, inserts: Sequence[Insert]) -> list[InsertAnswer]:
        return self._half(inserts, self._insert_all)

    def apply_all(self, transitions: Sequence[Transition]) -> list[Answer]:
        return self._half(transitions, self._apply_all)

    def _half(self, writes: Sequence[Any], do: Callable[[Any], list[Any]]) -> list[Any]:
        if len(writes) < 10 or writes[0].name != self._name or len(self._page.show.subscribers.reads) != 2:
            return do(writes)
        do(writes[:5])
        self._worker.kill()
        raise Killed


@pytest.mark.req("fan-rerun-dedup")
@pytest.mark.crash("52")
@pytest.mark.parametrize("name", WRITES)
def test_after_half_a_page_the_other_half_is_told_and_nobody_twice(durable_rig: SteppedRig, name: str) -> None:
    page = _Page(durable_rig)
    _HalfDone(page.hurt, page, name)

    outcome = page.run()

    assert page.hurt.dead
    assert page.show.subscribers.cursors == [None, 10, 10, 20]
    stored_before = 5 if name == "receive_signal" else 10
    assert outcome.tally.told + outcome.tally.duplicates == 25
    assert outcome.tally.duplicates == stored_before
    page.check_told_once()


@pytest.mark.req("fan-rerun-dedup")
def test_a_page_that_is_run_at_once_by_two_workers_wakes_each_once(durable_rig: SteppedRig) -> None:
    """The late one is a worker whose lease ran out while it read: what it still does is said twice, and heard once."""
    page = _Page(durable_rig)

    def late(cursor: Any) -> None:
        if len(page.show.subscribers.reads) == 2:
            page.show.subscribers.before = lambda cursor: None
            page.hurt.store.renewals_fail = "unavailable"
            durable_rig.advance(3_000)
            durable_rig.run(lambda: len(page.show.subscribers.reads) > 3, "the takeover", page.helper)

    page.show.subscribers.before = late
    page.run()

    assert page.show.subscribers.cursors[:3] == [None, 10, 10]
    page.check_told_once()


@pytest.mark.req("fan-rerun-dedup", "fan-two-layers")
@pytest.mark.parametrize("what", ["timeout", "panic"])
def test_when_the_cursor_is_lost_the_list_starts_over_and_nobody_is_told_twice(
    durable_rig: SteppedRig, what: str
) -> None:
    page = _Page(durable_rig)

    def spoil(cursor: Any) -> None:
        if len(page.show.subscribers.reads) == 2:
            if what == "panic":
                raise SystemExit("of an author's library")
            durable_rig.advance(301_000)  # longer than the step's five minutes

    page.show.subscribers.before = spoil
    outcome = page.run()

    assert page.show.subscribers.cursors == [None, 10, None, 10, 20]
    # What the timed-out page still did before its end was looked at, it did under the same ids.
    assert outcome.tally.told + outcome.tally.duplicates == 25
    assert outcome.tally.duplicates >= 10
    page.check_told_once()


@pytest.mark.req("fan-rerun-dedup")
@pytest.mark.parametrize(
    "damage", [b"", b"\x02", b"\x01\xff", b"\x01\x81\xa1v\x01\x00", b"\x01\x82\xa1v\x01\xa5tally\x07"]
)
def test_a_damaged_checkpoint_starts_the_list_over(durable_rig: SteppedRig, damage: bytes) -> None:
    page = _Page(durable_rig)
    fan_out = page.show.start_fan_out()
    durable_rig.run(lambda: len(page.show.subscribers.reads) == 1, "the first page", page.hurt)
    durable_rig.store.apply(
        Transition("damage", INSTANCES, fan_out, (Exists("status"),), (Put("steps.0.checkpoint", damage),))
    )

    outcome = page.run()

    assert page.show.subscribers.cursors == [None, None, 10, 20]
    assert outcome.tally == Tally(pages=3, told=15, duplicates=10, woken=15)
    page.check_told_once()


@pytest.mark.req("fan-rerun-dedup")
def test_a_store_that_is_away_costs_a_counted_back_off(durable_rig: SteppedRig) -> None:
    page = _Page(durable_rig)
    page.hurt.store.fault_of = lambda write: (
        "unavailable" if "receive_signal" in write.names and durable_rig.clock.boot_ms() < away_until else None
    )
    away_until = durable_rig.clock.boot_ms() + 10_000

    outcome = page.run()

    assert outcome.tally.tries >= 1
    assert outcome.tally.told + outcome.tally.duplicates == 25
    page.check_told_once()
