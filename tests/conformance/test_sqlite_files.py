"""The files of a SQLite store: who may read them, which schema they must have, and how faults of theirs are told."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.clock import ManualClock
from kernel.errors import CorruptRecord, KernelError, SchemaMismatch, StoreUnavailable
from kernel.store import sqlite_commit, sqlite_files, sqlite_schema
from kernel.store.conditional import Add, Applied, Insert, Inserted, Put, Transition
from kernel.store.protocol import Query
from kernel.store.sqlite import SqliteStore
from kernel.store.tables import INSTANCES, TABLES, Index, Table
from tests.conformance.instances import instance_document, put, read, row
from tests.support.stores import sqlite_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = sqlite_store(tmp_path)
    yield store
    store.close()


def raw(store: SqliteStore, *statements: str) -> list[tuple[object, ...]]:
    """What somebody does to the file behind the store's back."""
    connection = sqlite3.connect(store.path, isolation_level=None)
    try:
        return [found for statement in statements for found in connection.execute(statement).fetchall()]
    finally:
        connection.close()


def again(store: SqliteStore) -> SqliteStore:
    """The same file as another process opens it."""
    return SqliteStore(store.path, ManualClock(), durability="normal", lock_wait_ms=500)


def count_up(key: str = "wf") -> Transition:
    return Transition("count", INSTANCES, key, (), (Add("retry_count", 1),))


# --- files --------------------------------------------------------------------------------------------


def test_only_the_owner_may_read_what_is_stored(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = sqlite_store(tmp_path)
        put(store, instance_document("wf", 1))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(before)

    assert modes == dict.fromkeys(("store.db", "store.db-lock", "store.db-wal", "store.db-shm"), 0o600)


def test_a_planted_link_in_place_of_the_lock_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "store.db-lock").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StoreUnavailable, match="lock"):
        sqlite_store(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_two_names_of_one_file_have_one_lock_file(tmp_path: Path, store: SqliteStore) -> None:
    (tmp_path / "alias").symlink_to(store.path)

    alias = SqliteStore(tmp_path / "alias", ManualClock())

    assert alias.path == store.path
    alias.close()


def test_the_log_is_moved_into_the_database_and_cut_by_a_checkpoint(store: SqliteStore) -> None:
    put(store, instance_document("wf", 1))
    log = Path(f"{store.path}-wal")
    assert log.stat().st_size > 0

    assert store.checkpoint() is True

    assert log.stat().st_size == 0
    assert row(store, "wf")["revision"] == 7


def test_a_checkpoint_says_when_a_reader_still_needs_the_log(store: SqliteStore) -> None:
    reader = sqlite3.connect(store.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM workflow_instances").fetchall()
    put(store, instance_document("wf", 1))

    assert store.checkpoint() is False

    reader.close()
    assert store.checkpoint() is True


SLOW_READ = """
    WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < 20000)
    SELECT (SELECT count(*) FROM workflow_instances), count(*) FROM counted
"""


def test_the_log_stays_bounded_even_under_readers_that_always_overlap(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite starts its log anew only when nobody reads from it, which may never be the case."""
    monkeypatch.setattr(sqlite_commit, "LOG_CHECK_COMMITS", 8)
    monkeypatch.setattr(sqlite_commit, "LOG_BYTES_MAX", 1_000_000)
    put(store, instance_document("wf", 1))
    ended = threading.Event()

    def read_on() -> None:
        connection = sqlite3.connect(store.path, isolation_level=None)
        while not ended.is_set():
            connection.execute(SLOW_READ).fetchall()
        connection.close()

    readers = [threading.Thread(target=read_on) for _ in range(3)]
    for reader in readers:
        reader.start()
    sizes = []
    try:
        for number in range(500):  # 20 MB of changed pages
            content = number.to_bytes(2, "big") * 20_000
            store.apply(Transition("change", INSTANCES, "wf", (), (Put("input", content),)))
            sizes.append(Path(f"{store.path}-wal").stat().st_size)
    finally:
        ended.set()
        for reader in readers:
            reader.join()

    assert max(sizes) < 10_000_000
    assert min(sizes[100:]) < 1_000_000


# --- schema -------------------------------------------------------------------------------------------


@pytest.mark.req("rec-indexes")
def test_every_declared_index_is_there(store: SqliteStore) -> None:
    found = {name for (name,) in raw(store, "SELECT name FROM sqlite_master WHERE type = 'index'")}

    assert {index.name for table in TABLES.values() for index in table.indexes} <= found
    assert "instances_biz_key" in found


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("normal", 1)])
def test_full_durability_waits_for_the_disk_at_every_commit(durability: str, synchronous: int, tmp_path: Path) -> None:
    store = sqlite_store(tmp_path, durability=durability)
    connection = store._committer.connection()
    assert connection is not None

    assert connection.execute("PRAGMA synchronous").fetchall() == [(synchronous,)]
    assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    store.close()


def test_full_durability_is_the_default(tmp_path: Path) -> None:
    """What may not be lost includes a loss of power (DECISIONS 22)."""
    store = SqliteStore(tmp_path / "store.db", ManualClock())
    store.prepare()
    connection = store._committer.connection()
    assert connection is not None

    assert connection.execute("PRAGMA synchronous").fetchall() == [(2,)]
    store.close()


@pytest.mark.case("A50")
@pytest.mark.req("rec-indexes")
@pytest.mark.parametrize("index", ["instances_biz_key", "instances_due", "instances_worker"])
def test_a_store_that_lost_an_index_does_not_start(index: str, store: SqliteStore) -> None:
    """It is not made again in silence: rows that the index would have refused may be there by now."""
    raw(store, f"DROP INDEX {index}")

    other = again(store)
    with pytest.raises(SchemaMismatch, match=index):
        other.prepare()
    other.close()


@pytest.mark.case("A50")
@pytest.mark.parametrize(
    "change",
    [
        "CREATE INDEX instances_biz_key ON workflow_instances (biz_key)",
        "CREATE UNIQUE INDEX instances_biz_key ON workflow_instances (biz_key) WHERE status = 'running'",
        "CREATE UNIQUE INDEX instances_biz_key ON workflow_instances (type)",
    ],
    ids=["not unique", "partial", "another column"],
)
def test_an_index_that_is_not_what_it_is_called_stops_the_start(change: str, store: SqliteStore) -> None:
    raw(store, "DROP INDEX instances_biz_key", change)

    other = again(store)
    with pytest.raises(SchemaMismatch, match="instances_biz_key differs"):
        other.prepare()
    other.close()


def test_a_table_with_other_columns_stops_the_start(store: SqliteStore) -> None:
    raw(store, "ALTER TABLE workflow_instances ADD COLUMN more")

    other = again(store)
    with pytest.raises(SchemaMismatch, match="workflow_instances differs"):
        other.prepare()
    other.close()


def test_a_store_of_a_newer_kernel_is_refused_for_reading_and_writing(store: SqliteStore) -> None:
    put(store, instance_document("wf", 1))
    raw(store, f"PRAGMA user_version = {sqlite_schema.SCHEMA_VERSION + 1}")

    other = again(store)
    for call in (
        other.prepare,
        lambda: other.get(INSTANCES, "wf"),
        lambda: other.apply(count_up()),
        lambda: other.scan(Query(INSTANCES, (), "workflow_id", ("workflow_id",), 1)),
    ):
        with pytest.raises(SchemaMismatch, match="newer"):
            call()
    other.close()
    assert read(store, "wf").retry_count == 0


def test_the_database_of_another_program_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE contacts (name)")
    connection.commit()
    connection.close()
    before = path.read_bytes()

    store = SqliteStore(path, ManualClock())
    with pytest.raises(SchemaMismatch, match="another program"):
        store.prepare()
    with pytest.raises(SchemaMismatch, match="another program"):
        store.get(INSTANCES, "wf")
    store.close()

    assert path.read_bytes() == before


def test_a_store_that_was_never_prepared_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db", ManualClock())

    with pytest.raises(SchemaMismatch, match="prepare"):
        store.insert(Insert("create", INSTANCES, "wf", instance_document("wf", 1)))
    store.close()


def test_preparing_twice_and_many_at_once_gives_one_store(tmp_path: Path) -> None:
    stores = [SqliteStore(tmp_path / "store.db", ManualClock()) for _ in range(6)]
    barrier = threading.Barrier(len(stores))
    faults: list[KernelError] = []

    def prepare(store: SqliteStore) -> None:
        barrier.wait()
        try:
            store.prepare()
            store.prepare()
        except KernelError as error:
            faults.append(error)

    threads = [threading.Thread(target=prepare, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert faults == []
    for number, store in enumerate(stores):
        assert isinstance(
            store.insert(Insert("create", INSTANCES, f"wf-{number}", instance_document(f"wf-{number}", 1))), Inserted
        )
        store.close()


def test_a_new_table_is_added_to_an_old_store(tmp_path: Path, store: SqliteStore) -> None:
    """With its indexes, and beside rows that are there already."""
    put(store, instance_document("wf", 1))
    table = Table("extra", "id", ("id", "name", "at"), (Index("extra_name", ("name",), unique=True),))

    wider = SqliteStore(store.path, ManualClock(), durability="normal", tables={**TABLES, "extra": table})
    wider.prepare()
    wider.insert(Insert("create", "extra", "x", {"id": "x", "name": "first"}))

    assert wider.find("extra", "name", "first") == {"id": "x", "name": "first"}
    assert row(wider, "wf")["revision"] == 7
    wider.close()
    store.prepare()


# --- faults -------------------------------------------------------------------------------------------


def test_a_row_that_does_not_decode_is_told_alone(store: SqliteStore) -> None:
    put(store, instance_document("good", 1))
    put(store, instance_document("bad", 1))
    for broken in ("x'c1'", "x'93'", "x''", "x'01'", "'text'", "x'81a161'"):
        raw(store, f"UPDATE workflow_instances SET _document = {broken} WHERE workflow_id = 'bad'")

        for call in (
            lambda: store.get(INSTANCES, "bad"),
            lambda: store.find(INSTANCES, "biz_key", "biz:bad"),
            lambda: store.apply(count_up("bad")),
        ):
            with pytest.raises(CorruptRecord, match="bad"):
                call()
    assert isinstance(store.apply(count_up("good")), Applied)
    assert len(store.scan(Query(INSTANCES, (), "workflow_id", ("workflow_id",), 9))) == 2
    assert raw(store, "SELECT hex(_document) FROM workflow_instances WHERE workflow_id = 'bad'") == [("81A161",)]


def test_a_column_that_does_not_decode_is_told_by_the_scan(store: SqliteStore) -> None:
    put(store, instance_document("bad", 1))
    raw(store, "UPDATE workflow_instances SET parked = x'c1'")

    with pytest.raises(CorruptRecord, match="column"):
        store.scan(Query(INSTANCES, (), "workflow_id", ("parked",), 9))


def test_a_write_that_breaks_a_unique_field_is_refused_alone(store: SqliteStore) -> None:
    """No transition of the kernel does this; a wrong one must not take its neighbours with it."""
    put(store, instance_document("a", 1))
    put(store, instance_document("b", 1))
    wrong = Transition("rename", INSTANCES, "a", (), (Put("biz_key", "biz:b"),))

    with pytest.raises(KernelError, match="rule of the table"):
        store.apply_all([count_up("b"), wrong, count_up("a")])

    assert (read(store, "a").retry_count, read(store, "b").retry_count) == (1, 1)
    assert read(store, "a").biz_key == "biz:a"


def test_another_program_that_holds_the_databases_own_lock_makes_writes_unavailable(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, instance_document("wf", 1))
    monkeypatch.setattr(sqlite_files, "BUSY_MS", 50)
    other = again(store)
    holder = sqlite3.connect(store.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreUnavailable, match="another program holds its lock"):
        other.apply(count_up())
    assert read(other, "wf").retry_count == 0

    holder.close()
    assert isinstance(other.apply(count_up()), Applied)
    other.close()


def test_a_full_disk_is_told_and_nothing_was_written(store: SqliteStore) -> None:
    """SQLite's own limit on the file stands for the disk's: the same error at the same place."""
    put(store, instance_document("wf", 1))
    connection = store._committer.connection()
    assert connection is not None
    connection.execute("PRAGMA max_page_count = 1")
    big = instance_document("big", 1, input=b"x" * 200_000)

    with pytest.raises(StoreUnavailable, match="disk is full"):
        store.insert_all(
            [Insert("a", INSTANCES, "small", instance_document("small", 1)), Insert("b", INSTANCES, "big", big)]
        )

    assert store.get(INSTANCES, "small") is None
    assert isinstance(store.insert(Insert("b", INSTANCES, "big", big)), Inserted)


@pytest.mark.parametrize(
    "content",
    [b"this is no database, but long enough to look like a file " * 20, b"SQLite format 3\0" + b"\xff" * 4096],
)
def test_a_file_that_is_no_database_is_told_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(content)
    store = SqliteStore(tmp_path / "store.db", ManualClock())

    for call in (store.prepare, lambda: store.get(INSTANCES, "wf")):
        with pytest.raises((SchemaMismatch, StoreUnavailable)) as told:
            call()
        assert "\n" not in str(told.value)
        assert str(tmp_path / "store.db") in str(told.value)
    store.close()
    assert (tmp_path / "store.db").read_bytes() == content


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="No such file"):
        SqliteStore(tmp_path / "nowhere" / "store.db", ManualClock())
