"""Many want the same row at the same moment: one wins, by the store's own doing, and everybody knows (A03, A08).

On SQLite and MongoDB the racers are processes, on the memory store threads. Each round starts by a gun.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from tests.conformance.conftest import Shared
from tests.conformance.instances import read
from tests.conformance.races import set_up, start_together
from tests.support.program import Program

PROCESSES = 8
ROUNDS = {"claim": 200, "take_over": 60, "replay": 60, "activate_timer": 60, "create": 20}
RACERS = {"claim": 8, "take_over": 8, "replay": 8, "activate_timer": 8, "create": 50}


class Field:
    """Eight processes on one store, and the gun that starts their racers."""

    def __init__(self, shared: Shared, stack: ExitStack) -> None:
        read_end, self._gun = os.pipe()
        stack.callback(os.close, self._gun)
        address = (*shared.address, str(read_end))
        self.programs = [
            stack.enter_context(Program("tests.conformance.races", *address, pass_fds=[read_end]))
            for _ in range(PROCESSES)
        ]
        os.close(read_end)
        for program in self.programs:
            assert program.receive() == "here"

    def race(self, race: str, key: str) -> list[str]:
        """Run one round; the names of the winners."""
        names = [f"racer-{n}" for n in range(RACERS[race])]
        for n, program in enumerate(self.programs):
            program.send([race, key, names[n::PROCESSES]])
        for program in self.programs:
            assert program.receive() == "ready"
        os.write(self._gun, b"!" * len(names))
        return [winner for program in self.programs for winner in program.receive()]


@pytest.fixture
def field(shared: Shared) -> Iterator[Field]:
    with ExitStack() as stack:
        yield Field(shared, stack)


def check_winner(store: Store, race: str, key: str, winners: list[str]) -> None:
    """There is one, and the row is its own."""
    assert len(winners) == 1, f"{race} of {key} has the winners {winners}"
    if race == "create":
        found = store.find(INSTANCES, "biz_key", key)
        assert found is not None
        assert found["workflow_id"] == f"{key}-{winners[0]}"
        return
    instance = read(store, key)
    assert instance.commit_ids == ("commit-0", winners[0])
    expected = {
        "claim": (winners[0], 7, 0, 1),
        "take_over": (winners[0], 7, 1, 1),
        "replay": (None, 8, 0, 2),
        "activate_timer": (None, 8, 0, 1),
    }
    assert (instance.claim_token, instance.revision, instance.deaths, instance.workflow_run) == expected[race]


@pytest.mark.req("clm-atomic", "core-inv-one-instance", "slp-activate-once")
@pytest.mark.case("A03", "A08", "A50")
@pytest.mark.fault
@pytest.mark.timeout(300)  # 400 races on MongoDB: a minute where others want the processors as well
def test_of_many_processes_one_wins_each_race(field: Field, shared: Shared) -> None:
    for race, rounds in ROUNDS.items():
        keys = [f"{race}-{n}" for n in range(rounds)]
        set_up(shared.store, race, keys)
        for key in keys:
            check_winner(shared.store, race, key, field.race(race, key))


@pytest.mark.req("clm-atomic", "core-inv-one-instance")
@pytest.mark.parametrize("race", ROUNDS)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_of_many_threads_one_wins_each_race(kind: str, race: str, make_store: Callable[..., Store]) -> None:
    store = make_store(kind)
    keys = [f"{race}-{n}" for n in range(ROUNDS[race])]
    names = [f"racer-{n}" for n in range(RACERS[race])]
    set_up(store, race, keys)

    for key in keys:
        barrier = threading.Barrier(len(names))
        check_winner(store, race, key, start_together(store, race, key, names, barrier.wait))
