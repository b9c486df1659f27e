"""The Mongo store under real faults: answers lost by a proxy, a server killed and started again, a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kernel.clock import SystemClock
from kernel.errors import InvalidConfig, KernelError, OutcomeUnknown, StoreUnavailable, Unavailable
from kernel.store.conditional import MISSED, Applied, Duplicate, Inserted
from kernel.store.mongo import MongoStore
from kernel.store.protocol import Query
from kernel.store.tables import INSTANCES
from tests.conformance.instances import row
from tests.conformance.mongo_rows import claim, created
from tests.support.mongo_server import CHECKOUT, MongoServer, MongoStores, StandIn, stand_in
from tests.support.proxy import Proxy
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault
TIMEOUT_MS = 1_000
PATIENT_MS = 20_000
"""For calls that nothing befalls: a busy machine may need long for one."""
LONGEST_CALL_S = TIMEOUT_MS / 1000 + 9
"""What a call may take in all, with some seconds for a busy machine: the driver's own limit would be 30."""
EVERY = 1_000_000
RESTARTS = int(os.environ.get("KERNEL_TEST_MONGO_RESTARTS", "2"))
"""50 by hand (RELIABILITY §3.3); each after more than a hundred acknowledged writes."""


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    """A server that these tests may kill; whoever does starts it again."""
    with stand_in() as server:
        yield server


@pytest.fixture
def stores(server: StandIn) -> Iterator[MongoStores]:
    """Makes stores on that server, under the allow-list."""
    own = MongoServer(server.uri)
    stores = MongoStores(own)
    yield stores
    stores.end()
    own.driver.close()
    assert stores.allow_list.refused == []


@pytest.fixture
def proxy(server: StandIn) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def store(stores: MongoStores, proxy: Proxy) -> MongoStore:
    """A store that reaches its server through the proxy."""
    return through(proxy, stores, timeout_ms=TIMEOUT_MS)


@pytest.fixture
def patient(store: MongoStore, stores: MongoStores, proxy: Proxy) -> MongoStore:
    """The same database."""
    return through(proxy, stores, database=stores.databases[-1], timeout_ms=PATIENT_MS, prepare=False)


def through(proxy: Proxy, stores: MongoStores, **options: Any) -> MongoStore:
    return stores(uri=f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true", **options)


def test_one_lost_answer_is_fetched_again_and_nothing_is_done_twice(stores: MongoStores, proxy: Proxy) -> None:
    store = through(proxy, stores, timeout_ms=PATIENT_MS)
    inserts = [created(key, store.now_ms()) for key in ("a", "b", "c")]
    proxy.lose_replies(b"insert")
    assert store.insert(inserts[0]) == Inserted(inserts[0].document)
    proxy.lose_replies(b"insert")
    assert store.insert_all(inserts[1:]) == [Inserted(insert.document) for insert in inserts[1:]]
    proxy.lose_replies(b"findAndModify")
    answer = store.apply(claim("a"))
    assert isinstance(answer, Applied)
    assert answer.document["commit_ids"] == ["commit-0", "commit of t1"]
    assert proxy.lost == 3


@pytest.mark.req("clm-uncertain")
def test_a_lost_answer_is_unknown_and_the_row_tells_what_became_of_the_write(
    store: MongoStore, patient: MongoStore, proxy: Proxy
) -> None:
    a, b, c = (created(key, patient.now_ms()) for key in ("a", "b", "c"))
    calls: list[tuple[bytes, Any]] = [
        (b"insert", lambda: store.insert(a)),
        (b"insert", lambda: store.insert_all([b, c])),
        (b"findAndModify", lambda: store.apply(claim("a"))),
        (b"findAndModify", lambda: store.apply_all([claim("b")])),
    ]
    for marker, call in calls:
        proxy.lose_replies(marker, EVERY)  # the driver asks again by itself until its time is up
        with pytest.raises(OutcomeUnknown):
            call()
    proxy.lose_replies(b"", 0)
    assert row(patient, "c") == c.document
    for key in ("a", "b"):
        assert row(patient, key)["commit_ids"] == ["commit-0", "commit of t1"]
    # Sending the same thing again is harmless: its guards, and the unique key, know.
    assert patient.apply(claim("a")) is MISSED
    assert patient.insert(a) == Duplicate("workflow_id")


def test_a_read_whose_answer_is_lost_says_unavailable(store: MongoStore, patient: MongoStore, proxy: Proxy) -> None:
    calls: list[Any] = [
        lambda store: store.get(INSTANCES, "wf"),
        lambda store: store.scan(Query(INSTANCES, (), "claimable_time", ("workflow_id",), 5)),
    ]
    for call in calls:
        proxy.lose_replies(b"find", EVERY)
        with pytest.raises(StoreUnavailable):
            call(store)
        proxy.lose_replies(b"", 0)
        call(patient)


@pytest.mark.req("dc-mongo-required")
def test_a_server_that_hangs_costs_a_bounded_wait_and_afterwards_everything_goes_on(
    store: MongoStore, patient: MongoStore, proxy: Proxy
) -> None:
    patient.insert(created("wf", store.now_ms()))
    proxy.blackhole()
    started = time.monotonic()
    with pytest.raises(OutcomeUnknown, match="timed out"):
        store.apply(claim("wf"))
    with pytest.raises(Unavailable):
        store.get(INSTANCES, "wf")
    assert time.monotonic() - started < 2 * LONGEST_CALL_S, "two calls"
    assert abs(store.now_ms() - SystemClock().wall_ms()) < 2_000, "the estimate outlives its server"
    proxy.blackhole(False)
    proxy.cut()
    wait_until(lambda: _reads(store, "wf"), "the store to work again", timeout=30)
    assert isinstance(patient.apply(claim("wf")), Applied) or row(patient, "wf")["claim_token"] == "t1"


def _reads(store: MongoStore, key: str) -> bool:
    try:
        return store.get(INSTANCES, key) is not None
    except Unavailable:
        return False


def test_a_slow_answer_is_an_answer(patient: MongoStore, proxy: Proxy) -> None:
    patient.insert(created("wf", patient.now_ms()))
    proxy.delay(0.2)
    assert isinstance(patient.apply(claim("wf")), Applied)


@pytest.mark.req("dc-mongo-required")
def test_a_server_that_is_gone_is_told_at_once_and_found_again_without_a_new_store(
    server: StandIn, stores: MongoStores
) -> None:
    store = stores(timeout_ms=TIMEOUT_MS)
    store.insert(created("wf", store.now_ms()))
    server.kill()
    try:
        for call in (lambda: store.get(INSTANCES, "wf"), lambda: store.apply(claim("wf"))):
            # The first call may find a connection that looks alive; from then on nothing is sent.
            wait_until(lambda call=call: _is_refused(call), "a refusal", timeout=LONGEST_CALL_S)
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"MongoDB at 127.0.0.1:\d+ does not answer") as caught:
            store.apply(claim("wf"))
        assert time.monotonic() - started < LONGEST_CALL_S
        assert "\n" not in str(caught.value)
    finally:
        server.start()
    wait_until(lambda: _reads(store, "wf"), "the store to work again", timeout=30)
    assert isinstance(store.apply(claim("wf")), Applied)


def _is_refused(call: Any) -> bool:
    try:
        call()
    except StoreUnavailable:
        return True
    except OutcomeUnknown:
        return False
    return False


class Writer(threading.Thread):
    """Inserts and claims until told to stop, and remembers what was acknowledged."""

    def __init__(self, store: MongoStore, name: str) -> None:
        super().__init__(name=name)
        self.store = store
        self.inserted: list[str] = []
        self.claimed: list[str] = []
        self.lost = 0
        self.failure: BaseException | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.ended.is_set():
            number += 1
            key = f"{self.name}-{number}"
            try:
                self._write(key)
            except Unavailable:
                self.lost += 1
            except BaseException as error:
                self.failure = error
                return

    def _write(self, key: str) -> None:
        if isinstance(self.store.insert(created(key, self.store.now_ms())), Inserted):
            self.inserted.append(key)
        if isinstance(self.store.apply(claim(key, token=key)), Applied):
            self.claimed.append(key)


def test_no_acknowledged_write_is_lost_when_the_server_is_killed_under_the_writers(
    server: StandIn, stores: MongoStores
) -> None:
    store = stores(timeout_ms=TIMEOUT_MS)
    writers = [Writer(store, f"writer-{number}") for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(RESTARTS):
            before = [len(writer.claimed) for writer in writers]
            wait_until(
                lambda before=before: all(len(w.claimed) > n + 25 for w, n in zip(writers, before, strict=True)),
                "every writer to be at work",
                timeout=45,
            )
            server.kill()
            server.start()
    finally:
        for writer in writers:
            writer.ended.set()
        for writer in writers:
            writer.join()
    assert [writer.failure for writer in writers] == [None] * 3
    for writer in writers:
        for key in writer.inserted:
            assert row(store, key)["biz_key"] == f"biz:{key}"
        for key in writer.claimed:
            assert row(store, key)["commit_ids"] == ["commit-0", f"commit of {key}"]


@pytest.mark.case("A52")
def test_the_drivers_own_second_copy_of_an_insert_is_no_duplicate(
    server: StandIn, stores: MongoStores, proxy: Proxy
) -> None:
    """The server dies after it journaled the row, and with it the record by which it would know the repeated write."""

    def crash() -> None:
        server.kill()
        server.start()

    store = through(proxy, stores, timeout_ms=PATIENT_MS)
    insert = created("wf", store.now_ms())
    proxy.lose_replies(b"insert", on_loss=crash)
    assert store.insert(insert) == Inserted(insert.document)
    assert proxy.lost == 1
    assert row(store, "wf") == insert.document
    assert store.insert(insert) == Duplicate("workflow_id")


@pytest.mark.req("clm-uncertain")
def test_a_write_that_a_majority_did_not_confirm_is_unknown_and_in_place(stores: MongoStores) -> None:
    store = stores(timeout_ms=PATIENT_MS)
    store.insert(created("wf", store.now_ms()))
    failure = {"failCommands": ["findAndModify"], "writeConcernError": {"code": 64, "errmsg": "waiting timed out"}}
    stores.server.driver.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=failure)
    with pytest.raises(OutcomeUnknown, match="does not confirm"):
        store.apply(claim("wf"))
    assert row(store, "wf")["commit_ids"] == ["commit-0", "commit of t1"]


PASSWORD = "canary pa/ss"


@pytest.mark.req("dc-mongo-required")
@pytest.mark.case("A69")
def test_wrong_credentials_are_one_line_at_once_and_never_shown() -> None:
    with stand_in() as server:
        admin = MongoServer(server.uri).driver
        roles = [{"role": "readWriteAnyDatabase", "db": "admin"}]
        admin.admin.command("createUser", "kernel", pwd=PASSWORD, roles=roles)
        admin.close()
        server.stop()
        server.options = ("--auth",)
        server.start()
        credentials = {"right": "kernel:canary%20pa%2Fss@", "wrong": "kernel:canary%20pa%2Fsss@", "none": ""}
        for case, user in credentials.items():
            uri = f"mongodb://{user}127.0.0.1:{server.port}/?directConnection=true&authSource=admin"
            timeout_ms = PATIENT_MS if case == "right" else TIMEOUT_MS
            store = MongoStore(uri, "kernel_test_auth", SystemClock(), timeout_ms=timeout_ms)
            started = time.monotonic()
            try:
                store.prepare()
                assert case == "right"
            except InvalidConfig as error:
                assert case != "right"
                assert f"MongoDB at 127.0.0.1:{server.port}" in str(error)
                assert "canary" not in str(error)
                assert "\n" not in str(error)
            assert case == "right" or time.monotonic() - started < LONGEST_CALL_S
            store.close()


FORK = """
import os, sys
from kernel.clock import SystemClock
from kernel.errors import WrongProcess
from kernel.store.mongo import MongoStore

def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except WrongProcess as error:
            assert "after the fork" in str(error)
            os._exit(3)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

uri, database = sys.argv[1:]
unopened, opened = (MongoStore(uri, database, SystemClock()) for _ in range(2))
print(in_child(lambda: unopened.get("workflow_instances", "wf")["status"]))
opened.get("workflow_instances", "wf")
for use in (lambda: opened.get("workflow_instances", "wf"), opened.now_ms, opened.prepare):
    print(in_child(use))
print(in_child(opened.close))
print(opened.get("workflow_instances", "wf")["status"], unopened.get("workflow_instances", "wf")["status"])
opened.close()
unopened.close()
"""


@pytest.mark.req("dc-fork-safety")
@pytest.mark.case("A55", "A56")
def test_a_store_is_opened_after_the_fork_or_refused(stores: MongoStores) -> None:
    """In a fresh process: this one has threads of other tests."""
    store = stores()
    store.insert(created("wf", store.now_ms()))
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", FORK]
    ended = subprocess.run(
        [*command, stores.server.uri, stores.databases[-1]], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    assert ended.stderr == ""
    assert ended.stdout.split() == ["0", "3", "3", "3", "0", "running", "running"]


def test_only_errors_of_the_kernel_leave_a_store_whose_server_never_was() -> None:
    store = MongoStore("mongodb://127.0.0.1:1/?directConnection=true", "kernel_test", SystemClock(), timeout_ms=100)
    insert = created("wf", 0)
    calls: list[Any] = [
        store.prepare,
        store.now_ms,
        lambda: store.insert(insert),
        lambda: store.insert_all([insert]),
        lambda: store.apply(claim("wf")),
        lambda: store.get(INSTANCES, "wf"),
        lambda: store.scan(Query(INSTANCES, (), "claimable_time", ("workflow_id",), 5)),
    ]
    for call in calls:
        with pytest.raises(KernelError) as caught:
            call()
        assert type(caught.value) is StoreUnavailable
    store.close()
