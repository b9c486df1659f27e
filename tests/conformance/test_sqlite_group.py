"""The line of writers of one process: they share lock, transaction and fsync, and wait for the lock with a bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.clock import ManualClock
from kernel.errors import CorruptRecord, KernelError, OutcomeUnknown, StoreUnavailable
from kernel.store.conditional import MISSED, Add, Answer, Applied, Equals, Insert, PutNow, Transition
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_group import HELPER_IDLE_S, Slot, WriteGroup
from kernel.store.sqlite_lock import LockFile
from kernel.store.tables import INSTANCES
from tests.conformance.instances import instance_document, read
from tests.support.wait import wait_until

WAIT_MS = 400
PATIENT_MS = 60_000
"""How long a writer waits where none is to give up: however long a busy machine takes to bring all into the line."""
ROWS = 12


class Statements:
    """What the write connection of a store executes."""

    def __init__(self, store: SqliteStore) -> None:
        self.seen: list[str] = []
        connection = store._committer.connection()
        assert connection is not None
        connection.set_trace_callback(self.seen.append)

    def count(self, word: str) -> int:
        return sum(statement == word for statement in self.seen)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "store.db", ManualClock(), durability="normal", lock_wait_ms=PATIENT_MS)
    store.prepare()
    rows = [instance_document(f"wf-{n}", store.now_ms()) for n in range(ROWS)]
    store.insert_all([Insert("create", INSTANCES, row["workflow_id"], row) for row in rows])
    yield store
    store.close()


@pytest.fixture
def other(store: SqliteStore) -> Iterator[LockFile]:
    """The lock file as another process has it open."""
    lock = LockFile(f"{store.path}-lock")
    yield lock
    lock.close()


def count_up(key: str, *guards: Equals) -> Transition:
    return Transition("count", INSTANCES, key, guards, (Add("retry_count", 1),))


class Callers:
    """Threads that each apply one transition, and what they were told."""

    def __init__(self, store: SqliteStore, transitions: list[Transition]) -> None:
        self.answers: dict[int, Answer | KernelError] = {}
        self._store = store
        self._threads = [
            threading.Thread(target=self._call, args=(n, transition)) for n, transition in enumerate(transitions)
        ]
        for thread in self._threads:
            thread.start()

    def _call(self, number: int, transition: Transition) -> None:
        try:
            self.answers[number] = self._store.apply(transition)
        except KernelError as error:
            self.answers[number] = error

    def join(self) -> list[Answer | KernelError]:
        for thread in self._threads:
            thread.join()
        return [self.answers[number] for number in range(len(self._threads))]


def waiting(store: SqliteStore) -> int:
    return len(store._group._line)


def be_patient(store: SqliteStore, wait_ms: int) -> None:
    """From now on its writers wait so long for the lock."""
    store._group._wait_s = wait_ms / 1000


def test_writers_that_wait_together_share_one_commit(store: SqliteStore, other: LockFile) -> None:
    statements = Statements(store)
    assert other.try_acquire()
    callers = Callers(store, [count_up(f"wf-{n}") for n in range(ROWS)])
    wait_until(lambda: waiting(store) == ROWS, "all writers in the line")
    other.release()

    answers = callers.join()

    assert all(isinstance(answer, Applied) for answer in answers)
    assert [read(store, f"wf-{n}").retry_count for n in range(ROWS)] == [1] * ROWS
    assert (statements.count("BEGIN IMMEDIATE"), statements.count("COMMIT")) == (1, 1)


def test_writes_to_one_row_in_one_transaction_see_each_other(store: SqliteStore, other: LockFile) -> None:
    assert other.try_acquire()
    callers = Callers(store, [count_up("wf-0")] * ROWS)
    wait_until(lambda: waiting(store) == ROWS, "all writers in the line")
    other.release()

    counts = sorted(answer.document["retry_count"] for answer in callers.join() if isinstance(answer, Applied))

    assert counts == list(range(1, ROWS + 1))


def test_a_miss_and_a_broken_row_do_not_disturb_their_neighbours(store: SqliteStore, other: LockFile) -> None:
    connection = store._committer.connection()
    assert connection is not None
    connection.execute("UPDATE workflow_instances SET _document = x'c1ff00' WHERE workflow_id = 'wf-1'")
    assert other.try_acquire()
    writes = [
        count_up("wf-0"),
        count_up("wf-1"),
        count_up("wf-2", Equals("status", "failed")),
        Transition("count", INSTANCES, "wf-3", (), (Add("status", 1),)),
        count_up("wf-4"),
    ]
    callers = Callers(store, writes)
    wait_until(lambda: waiting(store) == len(writes), "all writers in the line")
    other.release()

    first, broken, missed, wrong, last = callers.join()

    assert isinstance(first, Applied)
    assert isinstance(broken, CorruptRecord)
    assert "'wf-1'" in str(broken)
    assert missed == MISSED
    assert isinstance(wrong, CorruptRecord)
    assert isinstance(last, Applied)
    assert read(store, "wf-3").status == "running"


def test_a_batch_that_changes_nothing_is_not_committed(store: SqliteStore) -> None:
    """So that a lost claim costs no fsync."""
    statements = Statements(store)
    log = Path(f"{store.path}-wal")
    size = log.stat().st_size

    for _ in range(20):
        assert store.apply(count_up("wf-0", Equals("status", "failed"))) == MISSED

    assert (statements.count("COMMIT"), statements.count("ROLLBACK")) == (0, 20)
    assert log.stat().st_size == size


def test_a_writer_waits_for_the_lock_only_so_long_and_then_has_certainly_not_written(
    store: SqliteStore, other: LockFile
) -> None:
    """Some other process stands still with the lock in its hand: this one must be able to fence itself."""
    be_patient(store, WAIT_MS)
    assert other.try_acquire()
    started = time.monotonic()
    callers = Callers(store, [count_up(f"wf-{n}") for n in range(4)])

    answers = callers.join()

    assert WAIT_MS / 1000 <= time.monotonic() - started < 30
    assert all(type(answer) is StoreUnavailable for answer in answers)
    assert waiting(store) == 0
    be_patient(store, PATIENT_MS)
    other.release()
    assert isinstance(store.apply(count_up("wf-9")), Applied)
    assert [read(store, f"wf-{n}").retry_count for n in range(4)] == [0] * 4


def test_who_comes_after_a_writer_that_gave_up_is_served(store: SqliteStore, other: LockFile) -> None:
    """The helper still waits for the lock on behalf of a line that is empty by now."""
    be_patient(store, WAIT_MS)
    assert other.try_acquire()
    with pytest.raises(StoreUnavailable):
        store.apply(count_up("wf-0"))
    be_patient(store, PATIENT_MS)
    late = Callers(store, [count_up("wf-1")])
    wait_until(lambda: waiting(store) == 1, "the late writer in the line")
    other.release()

    assert isinstance(late.join()[0], Applied)
    assert other.try_acquire(), "the lock was not given back"


def test_the_helper_thread_ends_when_nobody_needs_it(store: SqliteStore, other: LockFile) -> None:
    assert other.try_acquire()
    callers = Callers(store, [count_up("wf-0")])
    wait_until(lambda: store._group._helper is not None, "a helper that waits for the lock")
    other.release()
    callers.join()

    wait_until(lambda: store._group._helper is None, "the helper to end", timeout=HELPER_IDLE_S + 10)
    assert isinstance(store.apply(count_up("wf-0")), Applied)


def test_without_a_thread_to_wait_with_a_writer_gives_up_at_once(
    store: SqliteStore, other: LockFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter that is ending starts no threads: the line must not wait for one."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    assert other.try_acquire()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="can't start new thread"):
                store.apply(count_up("wf-0"))
    other.release()

    assert isinstance(store.apply(count_up("wf-0")), Applied)


def test_more_than_one_batch_is_split_so_that_other_processes_get_their_turn(tmp_path: Path) -> None:
    sizes: list[int] = []

    def run(slots: list[Slot[int]]) -> None:
        sizes.append(len(slots))
        for slot in slots:
            slot.done = [slot.work]

    lock, other = LockFile(str(tmp_path / "lock")), LockFile(str(tmp_path / "lock"))
    group: WriteGroup[int] = WriteGroup(lock, run, PATIENT_MS)
    assert other.try_acquire()
    threads = [threading.Thread(target=group.submit, args=(n, 100)) for n in range(7)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(group._line) == 7, "seven writers in the line")
    other.release()
    for thread in threads:
        thread.join()

    assert sizes == [2, 2, 2, 1]
    lock.close()
    other.close()


def test_who_is_told_that_nothing_was_done_had_nothing_done(tmp_path: Path) -> None:
    """Twelve writers with hardly any patience, and another process that comes and goes: every answer is the truth."""
    lock, other = LockFile(str(tmp_path / "lock")), LockFile(str(tmp_path / "lock"))
    done: list[tuple[int, int]] = []
    told: list[tuple[int, int]] = []
    refused: list[tuple[int, int]] = []
    ended = threading.Event()

    def run(slots: list[Slot[tuple[int, int]]]) -> None:
        for slot in slots:
            done.append(slot.work)
            slot.done = [slot.work]

    group: WriteGroup[tuple[int, int]] = WriteGroup(lock, run, 1)

    def write(writer: int) -> None:
        for number in range(400):
            try:
                told.append(group.submit((writer, number))[0])  # type: ignore[arg-type]
            except StoreUnavailable:
                refused.append((writer, number))

    def disturb() -> None:
        wait_until(lambda: refused, "a writer that gave up")
        while not ended.is_set():
            other.release()
            ended.wait(0.001)
            other.acquire()
            ended.wait(0.002)
        other.release()

    assert other.try_acquire()
    disturber = threading.Thread(target=disturb)
    writers = [threading.Thread(target=write, args=(n,)) for n in range(12)]
    for thread in (disturber, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    disturber.join()

    assert sorted(done) == sorted(told)
    assert sorted([*told, *refused]) == [(writer, number) for writer in range(12) for number in range(400)]
    assert refused
    assert told
    assert group.submit((99, 0)) == [(99, 0)]
    lock.close()
    other.close()


def test_a_commit_of_which_nobody_knows_is_told_to_everybody_in_it_as_unknown(
    store: SqliteStore, other: LockFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault of a disk at COMMIT (here: a driver that says so after the fact) is neither success nor failure."""

    def lose(committer: object, connection: object) -> None:
        connection.execute("COMMIT")  # type: ignore[attr-defined]
        raise OutcomeUnknown("the disk reports an error")

    monkeypatch.setattr("kernel.store.sqlite_commit.Committer._commit", lose)
    assert other.try_acquire()
    callers = Callers(store, [count_up(f"wf-{n}") for n in range(3)])
    wait_until(lambda: waiting(store) == 3, "all writers in the line")
    other.release()

    answers = callers.join()

    assert [type(answer) for answer in answers] == [OutcomeUnknown] * 3
    assert len({id(answer) for answer in answers}) == 3
    monkeypatch.undo()
    assert [read(store, f"wf-{n}").retry_count for n in range(3)] == [1] * 3
    assert isinstance(store.apply(count_up("wf-0")), Applied)


def test_an_interrupted_leader_hands_the_line_on(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control-C in the middle of a commit: this caller leaves, the others are told, and the next one writes."""
    begun: list[int] = []

    def interrupt(committer: object, connection: object) -> None:
        begun.append(1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("kernel.store.sqlite_commit.Committer._commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.apply(count_up("wf-0"))

    assert begun == [1]
    assert read(store, "wf-0").retry_count == 0
    assert isinstance(store.apply(count_up("wf-0")), Applied)


@pytest.mark.parametrize("threads", [8])
def test_threads_of_one_process_lose_nothing(threads: int, store: SqliteStore) -> None:
    each = 150

    def work(number: int) -> None:
        for _ in range(each):
            store.apply(count_up(f"wf-{number % 3}"))

    running = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()

    assert sum(read(store, f"wf-{n}").retry_count for n in range(3)) == threads * each


def test_a_closed_store_refuses_and_closing_twice_is_nothing(store: SqliteStore) -> None:
    store.close()
    store.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        store.apply(count_up("wf-0"))
    with pytest.raises(StoreUnavailable, match="closed"):
        store.get(INSTANCES, "wf-0")


def test_time_of_the_store_is_the_same_for_a_whole_batch(store: SqliteStore) -> None:
    stamped = Transition("stamp", INSTANCES, "wf-0", (), (PutNow("claim_time"),))
    other = Transition("stamp", INSTANCES, "wf-1", (), (PutNow("claim_time"),))

    store.apply_all([stamped, other])

    assert read(store, "wf-0").claim_time == read(store, "wf-1").claim_time == store.now_ms()
