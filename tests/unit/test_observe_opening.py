"""Opening the side path: settings are checked at the start, everything else waits for the first event."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel.clock import ManualClock, SystemClock
from kernel.config import Config
from kernel.definition import Plan, PlanStep
from kernel.engine.threads import ThreadRunner
from kernel.errors import InvalidConfig, StoreUnavailable
from kernel.observe.events import EVENTS, LogObserver
from kernel.observe.reading import Wanted
from kernel.observe.tee import COUNTED, EventCounter, Tee
from kernel.runtime import open_client
from kernel.runtime.observer import OBSERVE_FILE, Observing, open_observation_store, open_observer
from kernel.runtime.observing import open_observations, open_repair
from kernel.store.mongo_projection import MongoProjection
from kernel.store.sqlite_projection import SqliteProjection
from tests.support.observations import ended, record

PLAN = Plan(type="report", steps=(PlanStep(name="work", depends_on=()),))


def observer_of(config: Config, folder: Path) -> Observing:
    clock = SystemClock()
    return open_observer(config, folder, clock, ThreadRunner(clock), clock.wall_ms)


def test_a_client_that_starts_nothing_opens_nothing_and_has_no_thread_more(tmp_path: Path) -> None:
    before = threading.active_count()

    with open_client(Config(), tmp_path, None) as client:
        assert client.get("wf-nobody") is None
        assert threading.active_count() <= before

    assert not (tmp_path / OBSERVE_FILE).exists()


@pytest.mark.req("obs-drain-on-stop")
def test_closing_a_client_writes_what_it_told(tmp_path: Path) -> None:
    with open_client(Config(observe_flush_s=60.0), tmp_path, None) as client:
        workflow_id = client.start_or_resume(PLAN, biz_key="job-1").workflow_id
        client.start_many(PLAN, [("job-2", None), ("job-3", None)])
        client.supersede(workflow_id)

    read = open_observations(Config(), tmp_path, SystemClock(), prepare=False)
    try:
        lines = {line.biz_key: line.status for line in read.page(Wanted()).rows}
    finally:
        read.close()
    assert lines == {"job-1": "canceled", "job-2": "running", "job-3": "running"}


PUBLISHER = """
import gc, os, sys
from kernel.config import Config
from kernel.definition import Plan, PlanStep
from kernel.runtime import open_client
PLAN = Plan(type="report", steps=(PlanStep(name="work", depends_on=()),))
def publish():
    client = open_client(Config(observe_flush_s=60.0), sys.argv[1], None)
    client.start_or_resume(PLAN, biz_key="job-1")
    return client
client = publish()
"""
ENDINGS = {
    "the end of the script": "",
    "nobody holds the client": "client = None; gc.collect()",
    "sys.exit": "sys.exit(0)",
    # A child that ends like any program inherits the list of what is to be done then, and must do nothing.
    "a forked child ends first": "child = os.fork()\nif child == 0: sys.exit(0)\nassert os.waitpid(child, 0)[1] == 0",
}


@pytest.mark.req("obs-drain-on-stop", "obs-accepted-kept")
@pytest.mark.parametrize("ending", list(ENDINGS))
def test_a_publisher_that_ends_without_closing_its_client_has_told_what_it_registered(
    tmp_path: Path, ending: str
) -> None:
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PUBLISHER + ENDINGS[ending], str(tmp_path)]
    done = subprocess.run(program, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    read = open_observations(Config(), tmp_path, SystemClock(), prepare=False)
    try:
        assert [line.biz_key for line in read.page(Wanted()).rows] == ["job-1"]
    finally:
        read.close()


@pytest.mark.parametrize("closed", [True, False])
def test_what_observes_no_more_leaves_nothing_to_do_at_the_end_of_the_interpreter(tmp_path: Path, closed: bool) -> None:
    """A process may open many clients: the interpreter's list keeps neither them nor what would close them."""
    seen = observer_of(Config(), tmp_path)
    seen.close_at_exit()
    at_exit = weakref.ref(seen._at_exit)
    assert at_exit() is not None

    if closed:
        seen.close()
    del seen
    gc.collect()

    assert at_exit() is None


@pytest.mark.req("obs-no-affect")
def test_a_client_works_and_closes_in_time_where_nothing_can_be_observed(tmp_path: Path) -> None:
    (tmp_path / OBSERVE_FILE).mkdir()

    with open_client(Config(), tmp_path, None) as client:
        handle = client.start_or_resume(PLAN, biz_key="job-1")
        assert handle.branch == "created"


def test_switched_off_nothing_is_written_and_the_events_that_count_are_counted(tmp_path: Path) -> None:
    seen = observer_of(Config(observe="off"), tmp_path)

    seen.observer.note("workflow.completed", instance=ended("job"))
    seen.observer.note("claim.lost", instance=record("job"))
    seen.close()

    reported = seen.added_to({"loops": {"scan": 1.0}, "counters": {"commits": 3}})
    assert reported == {
        "loops": {"scan": 1.0},
        "counters": {"commits": 3, "claims_lost": 1, "claims_mismatched": 0, "claims_deferred": 0},
    }
    assert list(tmp_path.iterdir()) == []


def test_observations_lie_in_a_file_of_their_own_or_where_the_setting_says(tmp_path: Path) -> None:
    clock = ManualClock()
    embedded = open_observation_store(Config(durability="full"), tmp_path, clock)
    assert isinstance(embedded, SqliteProjection)
    assert embedded.path == str(tmp_path / OBSERVE_FILE)
    embedded.close()
    for config in (
        Config(mongodb_uri="mongodb://durable:1"),
        Config(mongodb_uri="mongodb://durable:1", observe_mongodb_uri="mongodb://apart:2"),
        Config(observe_mongodb_uri="mongodb://apart:2"),
    ):
        store = open_observation_store(config, tmp_path, clock)
        assert isinstance(store, MongoProjection)
        assert store._opener.hosts == ("apart:2" if config.observe_mongodb_uri else "durable:1")


def test_a_uri_that_is_none_is_refused_at_the_start_and_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"^observe_mongodb_uri: no valid MongoDB URI") as refusal:
        observer_of(Config(observe_mongodb_uri="mongodb//user:secret@host"), tmp_path)

    assert "secret" not in str(refusal.value)
    with pytest.raises(InvalidConfig, match=r"^observe_mongodb_uri"):
        open_client(Config(observe_mongodb_uri="nowhere"), tmp_path, None)


def test_a_server_that_is_away_delays_no_start(tmp_path: Path) -> None:
    seen = observer_of(Config(observe_mongodb_uri="mongodb://127.0.0.1:9"), tmp_path)

    assert seen.added_to({"loops": {}, "counters": {}})["counters"]["observation_errors"] == 0
    seen.close()


def test_where_nothing_was_observed_a_reader_is_told_so_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="nothing was observed here yet"):
        open_observations(Config(), tmp_path, SystemClock(), prepare=False)

    assert list(tmp_path.iterdir()) == []
    read = open_observations(Config(), tmp_path, SystemClock(), prepare=True)
    assert (read.page(Wanted()).rows, read.counts(Wanted()), read.get("job")) == ((), [], None)
    read.close()


def test_repair_is_opened_on_both_stores_of_a_folder(tmp_path: Path) -> None:
    with open_client(Config(observe="off"), tmp_path, None) as client:
        workflow_id = client.start_or_resume(PLAN, biz_key="job-1").workflow_id
        client.supersede(workflow_id)

    repair = open_repair(Config(), tmp_path, SystemClock())
    try:
        assert [one.workflow_id for one in repair.repair_all().repaired] == [workflow_id]
    finally:
        repair.close()

    read = open_observations(Config(), tmp_path, SystemClock())
    found = read.get("job-1")
    read.close()
    assert found is not None
    assert found.status == "canceled"


def test_an_observer_that_fails_keeps_no_other_from_being_told() -> None:
    class Failing:
        def note(self, event: str, **fields: object) -> None:
            raise RuntimeError(f"not {event}")

    counter, told = EventCounter(), list[str]()

    class Telling:
        def note(self, event: str, **fields: object) -> None:
            told.append(event)

    note: Callable[..., None] = Tee(Failing(), LogObserver(), counter, Telling()).note
    with pytest.raises(RuntimeError, match=r"not claim\.lost"):
        note("claim.lost", error="e", code="c")

    assert (counter.counters["claims_lost"], told) == (1, ["claim.lost"])
    assert set(COUNTED) <= set(EVENTS)
