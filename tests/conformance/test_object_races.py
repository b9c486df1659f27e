"""Many want the same object at the same moment: one round, one lease, and no result of an old round (group 4, 7, 11).

On SQLite and MongoDB the racers are processes, on the memory store threads. Each repetition starts by a gun.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kernel.clock import SystemClock
from kernel.store.sqlite import SqliteStore
from tests.conformance.articles import TABLES, Articles
from tests.conformance.conftest import MakeStore
from tests.conformance.object_racers import start_together
from tests.support.mongo_server import MongoStores
from tests.support.program import Program
from tests.support.stores import SHARED_STORES, Address

PROCESSES = 4
RACERS = [f"racer-{n}" for n in range(8)]
REPETITIONS = {"retry": 100, "take": 40, "late": 40}


class Field:
    """Processes on one store, and the gun that starts their racers."""

    def __init__(self, articles: Articles, address: Address, stack: ExitStack) -> None:
        self.articles = articles
        read_end, self._gun = os.pipe()
        stack.callback(os.close, self._gun)
        self.programs = [
            stack.enter_context(
                Program("tests.conformance.object_racers", *address, str(read_end), pass_fds=[read_end])
            )
            for _ in range(PROCESSES)
        ]
        os.close(read_end)
        for program in self.programs:
            assert program.receive() == "here"

    def race(self, race: str, key: str) -> list[str]:
        for n, program in enumerate(self.programs):
            program.send([race, key, RACERS[n::PROCESSES]])
        for program in self.programs:
            assert program.receive() == "ready"
        os.write(self._gun, b"!" * len(RACERS))
        return [winner for program in self.programs for winner in program.receive()]


@pytest.fixture(params=SHARED_STORES)
def field(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Field]:
    with ExitStack() as stack:
        if request.param == "mongo":
            stores: MongoStores = request.getfixturevalue("mongo_store")
            articles = Articles(stores(tables=TABLES))
            yield Field(articles, Address("mongo", stores.server.uri, stores.databases[-1]), stack)
            return
        store = SqliteStore(tmp_path / "objects.db", SystemClock(), durability="normal", tables=TABLES)
        stack.callback(store.close)
        store.prepare()
        yield Field(Articles(store), Address("sqlite", store.path), stack)


def failed(articles: Articles, key: str) -> str:
    token = articles.add(key).fencing_token
    assert articles.confirm(key, token, None)
    assert articles.fail(key, token, {"error": "no sound"})
    return token


@pytest.mark.req("req-round-race", "req-round-change-cas")
@pytest.mark.crash("10")
def test_of_racing_retries_exactly_one_installs_its_round(field: Field) -> None:
    for repetition in range(REPETITIONS["retry"] if isinstance(field.articles.store, SqliteStore) else 40):
        key = f"a{repetition}"
        old = failed(field.articles, key)

        winners = field.race("retry", key)

        assert len(winners) == 1, (repetition, winners)
        row = field.articles.row(key)
        assert row["status"] == "initial" and "error" not in row
        assert row["workflow_dispatch"]["fencing_token"].startswith("f2-")
        assert row["workflow_dispatch"]["fencing_token"] != old


@pytest.mark.req("dsp-lease-take")
@pytest.mark.crash("12")
def test_of_racing_dispatchers_one_has_the_lease_and_its_token_is_in_the_row(field: Field) -> None:
    for repetition in range(REPETITIONS["take"]):
        key = f"a{repetition}"
        field.articles.add(key)

        winners = field.race("take", key)

        assert len(winners) == 1, (repetition, winners)
        assert field.articles.intent(key)["claim_token"] == winners[0]


@pytest.mark.req("fen-zero-rows", "fen-cas", "req-round-change-cas")
def test_no_result_of_an_old_round_is_in_the_row_once_the_next_is_installed(field: Field) -> None:
    """Whatever came before the new round was cleared by it; whatever comes after changes nothing."""
    for repetition in range(REPETITIONS["late"]):
        key = f"a{repetition}"
        failed(field.articles, key)

        winners = field.race("late", key)

        assert winners == ["racer-0"]
        row = field.articles.row(key)
        assert "text" not in row.get("result", {}), row


@pytest.mark.parametrize("race", ["retry", "take", "late"])
def test_the_reference_store_decides_the_same_races_between_threads(race: str, make_store: MakeStore) -> None:
    articles = Articles(make_store("memory", TABLES))
    for repetition in range(REPETITIONS[race]):
        key = f"a{repetition}"
        if race == "take":
            articles.add(key)
        else:
            failed(articles, key)
        barrier = threading.Barrier(len(RACERS))

        winners = start_together(articles, race, key, RACERS, lambda barrier=barrier: barrier.wait(30))

        assert len(winners) == 1
