"""A publisher dies between two of its writes: nothing accepted is lost, nothing is started twice (S1, S2)."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernel.app import App
from kernel.business_objects import BusinessObjects
from kernel.codec import decode
from kernel.engine.settings import Settings
from kernel.engine.takeover import Worker
from kernel.ids import RandomIds, workflow_id_for
from kernel.records import Document
from kernel.runtime import Engine, NoQueue
from kernel.store.conditional import Put, Transition
from kernel.store.protocol import Query
from kernel.store.sqlite import SqliteStore
from kernel.store.tables import INSTANCES
from tests.engine.articles_rig import ArticlesRig
from tests.engine.request_process import ARTICLES, SUMMARY, kernel_store, object_store, requests_of
from tests.support.engine_runner import Killed
from tests.support.program import Program
from tests.support.wait import wait_until

SEED = 20_261_130


# --- in one process, at every call --------------------------------------------------------------------


@pytest.mark.req("dsp-crash-before-object")
@pytest.mark.crash("01")
def test_a_publisher_that_dies_before_the_object_has_accepted_nothing() -> None:
    rig = ArticlesRig()
    rig.die_at("objects.accept", after=False)
    with pytest.raises(Killed):
        rig.request()
    rig.settle(rig.desk())

    assert rig.object_ids() == []
    assert rig.instance() is None
    rig.publisher()
    answer = rig.request()
    assert (answer.outcome, answer.created) == ("registered", True)


@pytest.mark.req(
    "dsp-crash-after-object", "dsp-crash-after-start", "dsp-symmetric-failures", "core-inv-reach", "req-order"
)
@pytest.mark.crash("01")
@pytest.mark.crash("02")
@pytest.mark.crash("09")
@pytest.mark.parametrize("who_goes_on", ["dispatcher", "the client asks again", "both"])
@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("objects.accept", True),
        ("client.start_or_resume", False),
        ("client.start_or_resume", True),
        ("objects.confirm", False),
        ("objects.confirm", True),
    ],
)
def test_whoever_comes_next_goes_on_from_what_is_stored(call: str, after: bool, who_goes_on: str) -> None:
    rig = ArticlesRig()
    rig.die_at(call, after=after)
    with pytest.raises(Killed):
        rig.request()
    stored = rig.intent()
    registered = rig.instance()
    assert (registered is not None) == (call == "objects.confirm" or (call, after) == ("client.start_or_resume", True))

    if who_goes_on != "dispatcher":
        rig.publisher()
        rig.request()
    if who_goes_on != "the client asks again":
        rig.settle(rig.desk())

    intent, instance = rig.intent(), rig.instance()
    assert (intent.status, intent.fencing_token, intent.input) == ("dispatched", stored.fencing_token, stored.input)
    assert instance is not None
    assert (instance.input, instance.retry_count, instance.workflow_run) == (stored.input, 0, 1)
    assert registered is None or instance == registered
    assert rig.object_ids() == ["k"]


@pytest.mark.req("dsp-crash-after-confirm")
@pytest.mark.crash("09")
def test_after_the_confirmation_nothing_is_left_to_do_and_nobody_touches_the_object() -> None:
    rig = ArticlesRig()
    rig.die_at("objects.confirm", after=True)
    with pytest.raises(Killed):
        rig.request()
    before = rig.row()
    desk = rig.desk()
    rig.pass_time(120_000)

    rig.settle(desk)

    assert rig.row() == before
    assert desk.source.of("claim") == []


@pytest.mark.req("dsp-crash-after-round-cas", "req-round-then-start")
@pytest.mark.crash("10")
@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("objects.new_round", True),
        ("client.start_or_resume", False),
        ("client.start_or_resume", True),
        ("objects.confirm", False),
    ],
)
def test_a_round_that_was_installed_is_completed_by_a_dispatcher(call: str, after: bool) -> None:
    rig = ArticlesRig()
    first = rig.failed_round()
    rig.publisher()
    rig.die_at(call, after=after)
    with pytest.raises(Killed):
        rig.request(input={"object_id": "k", "stream": False})
    row = rig.row()
    assert (row["status"], rig.intent().status, "error" in row) == ("initial", "pending", False)
    assert rig.token() != first

    rig.settle(rig.desk())

    instance = rig.instance()
    assert instance is not None
    assert rig.intent().status == "dispatched"
    assert (instance.status, instance.retry_count) == ("running", 1)
    assert decode(instance.input, dict, "input") == {"object_id": "k", "stream": False, "fencing_token": rig.token()}


@pytest.mark.req("req-round-change-cas")
@pytest.mark.crash("10")
def test_a_retry_that_dies_before_its_round_leaves_the_failed_object_as_it_was() -> None:
    rig = ArticlesRig()
    rig.failed_round()
    rig.publisher()
    before = rig.row()
    rig.die_at("objects.new_round", after=False)
    with pytest.raises(Killed):
        rig.request()
    rig.settle(rig.desk())

    assert rig.row() == before
    assert rig.instance().retry_count == 0  # type: ignore[union-attr]


# --- many at once -------------------------------------------------------------------------------------


class Place:
    """The SQLite stores of a publisher, and what a test looks for in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store, self.object_store = kernel_store(folder), object_store(folder)
        self.objects = BusinessObjects(ARTICLES, self.object_store, RandomIds())
        self.requests = requests_of(self.store, self.object_store)

    def dispatch(self) -> None:
        """A real dispatcher's rounds, until every intent has ended."""
        engine = Engine(
            App(definitions=[SUMMARY]),
            Settings(poll_ms=50, dispatch_slots=4, dispatch_lease_ms=2_000, dispatch_scan_ms=50, dispatch_delay_ms=50),
            store=self.store,
            queue=NoQueue(),
            worker=Worker("d1", "test/d1"),
            sources=[self.objects],
        )

        def settled() -> bool:
            for source in engine.outbox.sources:
                source.round()
            return not self.objects.due(after=None, limit=1)

        wait_until(settled, "the end of every intent", 60)

    def row(self, object_id: str) -> Document:
        document = self.object_store.get(ARTICLES.place, object_id)
        assert document is not None
        return document

    def instances(self) -> list[str]:
        return self._all(self.store, INSTANCES, "workflow_id", "biz_key")

    def accepted(self) -> list[str]:
        return self._all(self.object_store, ARTICLES.place, "object_id", "object_id")

    @staticmethod
    def _all(store: SqliteStore, table: str, key: str, column: str) -> list[str]:
        found: list[str] = []
        after: tuple[Any, str] | None = None
        while rows := store.scan(Query(table, (), key, (key, column), 500, after)):
            found += [row[1] for row in rows]
            after = (rows[-1][0], rows[-1][0])
        return found

    def fail_both_sides(self, object_id: str) -> str:
        """As after a failed run and its finalizer."""
        token = self.objects.get(object_id).fencing_token  # type: ignore[union-attr]
        assert token is not None
        key = workflow_id_for(f"summary:{object_id}")
        self.store.apply(Transition("by_hand", INSTANCES, key, (), (Put("status", "failed"),)))
        assert self.objects.fail(object_id, token, {"error": "no sound"})
        return token


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.store.close()
    made.object_store.close()


def all_at_once(callers: int, call: Any) -> list[Any]:
    barrier = threading.Barrier(callers)

    def one(number: int) -> Any:
        barrier.wait(30)
        return call(number)

    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(one, range(callers)))


@pytest.mark.req("req-resolve-object", "core-inv-one-instance", "sor-unique-race")
def test_twenty_equal_requests_are_one_object_and_one_instance(place: Place) -> None:
    for number in range(10):
        key = f"a{number}"

        answers = all_at_once(20, lambda _, key=key: place.requests.request({"object_id": key}, object_id=key))

        assert sum(answer.created for answer in answers) == 1
        assert {answer.outcome for answer in answers} <= {"registered", "in_progress"}
        assert len({answer.stream for answer in answers}) == 1
        assert place.row(key)["workflow_dispatch"]["status"] == "dispatched"
    assert sorted(place.instances()) == sorted(f"summary:a{number}" for number in range(10))


@pytest.mark.req("id-client-idem", "req-resolve-object")
def test_twenty_posts_of_one_client_id_are_one_object_and_one_instance(place: Place) -> None:
    for number in range(10):
        client = f"client-{number}"

        answers = all_at_once(20, lambda _, client=client: place.requests.request({"stream": True}, client_id=client))

        assert sum(answer.created for answer in answers) == 1
        assert len({answer.object_id for answer in answers}) == 1
    assert len(place.accepted()) == len(place.instances()) == 10
    assert {f"summary:{key}" for key in place.accepted()} == set(place.instances())


@pytest.mark.req("req-round-race", "req-round-then-start", "sor-replay-race")
def test_of_racing_retries_one_opens_the_round_and_the_others_find_it_under_way(place: Place) -> None:
    place.requests.request({"object_id": "a"}, object_id="a")
    for repetition in range(100):
        old = place.fail_both_sides("a")

        answers = all_at_once(2, lambda _: place.requests.request({"object_id": "a"}, object_id="a"))

        assert sorted(answer.new_round for answer in answers) == [False, True], repetition
        # The loser reads the object before or after the winner has confirmed; it changes the round in neither case.
        assert {answer.outcome for answer in answers} <= {"registered", "in_progress"}
        intent = place.row("a")["workflow_dispatch"]
        assert intent["fencing_token"].startswith(f"f{repetition + 2}-")
        assert intent["fencing_token"] != old
        assert intent["status"] == "dispatched"
        instance = place.store.get(INSTANCES, workflow_id_for("summary:a"))
        assert instance is not None
        assert (instance["retry_count"], instance["input"]) == (repetition + 1, intent["input"])


# --- real processes -----------------------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.req("dsp-crash-before-object", "dsp-crash-after-object", "dsp-crash-after-start", "req-atomic-intent")
@pytest.mark.parametrize(
    ("point", "object_there", "instance_there"),
    [
        ("before:accept_object", False, False),
        ("after:accept_object", True, False),
        ("before:create", True, False),
        ("after:create", True, True),
        ("before:confirm_dispatch", True, True),
        ("after:confirm_dispatch", True, True),
    ],
)
def test_a_publisher_that_is_killed_at_a_write_leaves_what_a_dispatcher_completes(
    point: str, object_there: bool, instance_there: bool, place: Place
) -> None:
    with Program("tests.engine.request_process", str(place.folder), point) as program:
        assert program.receive() == "here"
        program.send("k")
        assert program.process.wait(60) == -signal.SIGKILL

    assert (place.accepted(), place.instances()) == (
        ["k"] if object_there else [],
        ["summary:k"] if instance_there else [],
    )
    if object_there:
        intent = place.row("k")["workflow_dispatch"]
        assert intent["status"] == ("dispatched" if point == "after:confirm_dispatch" else "pending")
        assert {"type", "status", "fencing_token", "input"} <= set(intent)
        place.dispatch()
        assert place.row("k")["workflow_dispatch"]["status"] == "dispatched"
        assert place.instances() == ["summary:k"]


@pytest.mark.fault
@pytest.mark.req("dsp-crash-after-round-cas", "req-round-then-start")
@pytest.mark.parametrize("point", ["after:new_round", "before:replay_failed", "after:replay_failed"])
def test_a_retry_that_is_killed_after_its_round_was_installed_is_completed(point: str, place: Place) -> None:
    place.requests.request({"object_id": "k"}, object_id="k")
    place.fail_both_sides("k")
    with Program("tests.engine.request_process", str(place.folder), point) as program:
        assert program.receive() == "here"
        program.send("k")
        assert program.process.wait(60) == -signal.SIGKILL
    row = place.row("k")
    assert (row["status"], row["workflow_dispatch"]["status"]) == ("initial", "pending")

    place.dispatch()

    intent = place.row("k")["workflow_dispatch"]
    instance = place.store.get(INSTANCES, workflow_id_for("summary:k"))
    assert instance is not None
    assert (intent["status"], instance["retry_count"], instance["input"]) == ("dispatched", 1, intent["input"])


@pytest.mark.fault
@pytest.mark.req("core-inv-reach", "core-inv-one-instance", "dsp-symmetric-failures")
def test_what_a_publisher_accepted_before_each_of_its_deaths_ends_in_one_instance(place: Place) -> None:
    """Killed eight times at random; a client whose answer was lost asks again with the same id (S1, S2)."""
    chance = random.Random(SEED)
    answered: list[str] = []
    number = 0
    for _ in range(8):
        with Program("tests.engine.request_process", str(place.folder), "-") as program:
            assert program.receive() == "here"
            for _ in range(chance.randint(1, 25)):
                program.send(f"k{number}")
                answered.append(program.receive()[0])
                number += 1
            program.send(f"k{number}")
            if chance.random() < 0.5:
                program.send(f"k{number + 1}")
            program.kill()
    accepted = set(place.accepted())
    assert set(answered) <= accepted

    place.dispatch()

    assert sorted(place.instances()) == sorted(f"summary:{key}" for key in accepted)
    assert {place.row(key)["workflow_dispatch"]["status"] for key in accepted} == {"dispatched"}
