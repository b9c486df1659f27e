"""When a releaser is forked while a tree ends, and when it is let go: decisions alone, without a process."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.loop import Loop
from supervisor.messages import Drain, OwnerDead, ToChild
from supervisor.owners import DeadOwners
from supervisor.restart import RestartPolicy
from supervisor.slot import Slot

POLICY = RestartPolicy(first_ms=200, max_ms=3_000, give_up=5, stable_ms=10_000)


class Child:
    """A process and its channels."""

    def __init__(self) -> None:
        self.heard: list[ToChild] = []
        self.killed = False

    def send(self, message: ToChild) -> bool:
        self.heard.append(message)
        return True

    def kill_group(self) -> None:
        self.killed = True


class Ending:
    """One worker of a tree that ends."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.loop = Loop(now_ms=lambda: self.now_ms)
        self.worker = Slot("worker", "worker", 0, POLICY)
        self.releaser = Slot("releaser", "releaser", 0, POLICY, ends_last=True)
        self.slots = [self.worker]
        self.forked: list[Child] = []
        self.owners = DeadOwners(self.loop, self.slots, 30.0, self.releaser, self._fork)
        self._fill(self.worker)

    def _fill(self, slot: Slot) -> Child:
        child: Any = Child()
        slot.began(child, child, self.now_ms)
        return child  # type: ignore[no-any-return]

    def _fork(self, slot: Slot) -> None:
        self.forked.append(self._fill(slot))

    def ready(self) -> Child:
        self.releaser.became_ready(self.now_ms)
        self.owners.greet(self.releaser)
        return self.forked[-1]

    def worker_ends(self, *, owed: bool) -> None:
        self.worker.process = self.worker.channels = None
        self.owners.announce("w", "ordered", owed=owed)
        self.owners.owner_ended()

    def at(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.loop.run_once(0)


@pytest.fixture
def ending() -> Ending:
    return Ending()


def test_none_is_forked_where_nothing_is_owed(ending: Ending) -> None:
    ending.worker_ends(owed=False)
    ending.owners.provide()

    assert ending.forked == []
    assert ending.slots == [ending.worker]


def test_one_is_forked_at_the_last_death_and_let_go_when_it_has_acted(ending: Ending) -> None:
    ending.worker_ends(owed=True)
    releaser = ending.ready()
    (told,) = releaser.heard
    assert isinstance(told, OwnerDead) and told.worker_id == "w"
    assert len(ending.owners) == 1

    ending.owners.acknowledge(told.notice_id)

    assert releaser.heard[1:] == [Drain(deadline_s=0.0)]
    assert len(ending.owners) == 0 and len(ending.forked) == 1 and not releaser.killed


def test_one_that_was_forked_ahead_is_told_of_the_death(ending: Ending) -> None:
    ending.owners.provide()
    releaser = ending.ready()

    ending.worker_ends(owed=True)

    assert [type(message) for message in releaser.heard] == [OwnerDead]
    assert len(ending.forked) == 1


def test_one_that_was_forked_ahead_in_vain_is_let_go(ending: Ending) -> None:
    ending.owners.provide()
    releaser = ending.ready()

    ending.worker_ends(owed=False)

    assert [type(message) for message in releaser.heard] == [OwnerDead, Drain]


def test_one_that_is_not_ready_yet_is_not_waited_for_in_vain(ending: Ending) -> None:
    ending.owners.provide()

    ending.worker_ends(owed=False)

    assert ending.forked[0].killed and ending.releaser.killed_by_order


def test_one_that_found_no_store_is_forked_once_more_at_the_last_death(ending: Ending) -> None:
    ending.owners.provide()
    ending.releaser.process = ending.releaser.channels = None

    ending.worker_ends(owed=True)

    assert len(ending.forked) == 2
    assert ending.slots == [ending.worker, ending.releaser]


@pytest.mark.parametrize("limits", [(1_500, 300), (300, 1_500)])
def test_the_shortest_limit_counts(ending: Ending, limits: tuple[int, int]) -> None:
    ending.owners.limit(limits[0])
    ending.worker_ends(owed=True)
    ending.owners.limit(limits[1])
    ending.at(299)
    assert not ending.forked[0].killed

    ending.at(300)

    assert ending.forked[0].killed


def test_without_the_role_nothing_is_forked() -> None:
    ending = Ending()
    ending.owners = DeadOwners(ending.loop, ending.slots, 30.0, None, ending._fork)

    ending.worker_ends(owed=True)
    ending.owners.limit(100)
    ending.at(100)

    assert ending.forked == []
