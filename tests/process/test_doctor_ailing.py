"""What `doctor` says of a tree and of stores that are there and do not work: hung, locked, or with nobody to work."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from kernel.clock import SystemClock
from kernel.config import Config
from kernel.ids import workflow_id_for
from kernel.records import to_document
from kernel.runtime import STORE_FILE
from kernel.store import sqlite_files
from kernel.store.conditional import Insert
from kernel.store.sqlite import SqliteStore
from kernel.store.tables import DEFINITIONS, INSTANCES
from supervisor.ops_checks import Check, folder_check, store_checks
from supervisor.ops_tree import Tree
from tests.process.test_doctor import diagnosed
from tests.support.observations import record
from tests.support.wait import wait_until

START = "kernel-supervisor start --data-dir {} --app MODULE:ATTRIBUTE"


@pytest.mark.fault
def test_an_embedded_redis_that_hangs_or_is_dead_beside_its_tree_is_69(supervise, data_dir) -> None:
    tree = supervise(redis_url=None, restart_first_s=60.0, restart_max_s=60.0)
    tree.wait_running()
    server = tree.process_of("valkey")
    server.suspend()

    hung = diagnosed(data_dir, code=69)["redis"]
    server.kill()
    wait_until(lambda: tree.child("valkey")["pid"] is None, "the server has ended and waits for its restart")
    dead = diagnosed(data_dir, code=69)["redis"]

    assert (hung["verdict"], dead["verdict"]) == ("fail", "fail")
    assert hung["remedy"].startswith(f"kill -9 {server.pid}: the supervisor starts another")
    assert dead["remedy"].startswith("the supervisor starts it again by itself")


_HOLDER = """
import fcntl, os, signal, sqlite3, sys
lock = open(sys.argv[1] + "-lock", "ab")
if "lock file" in sys.argv:
    fcntl.flock(lock, fcntl.LOCK_EX)
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.fault
@pytest.mark.parametrize("lock", ["lock file", "SQLite's own"])
def test_a_store_that_a_stopped_process_has_locked_is_a_failure_that_names_it(durable, data_dir, lock) -> None:
    path = data_dir / STORE_FILE
    holder = psutil.Popen([sys.executable, "-c", _HOLDER, str(path), lock])
    try:
        wait_until(lambda: holder.status() == psutil.STATUS_STOPPED, "it stands still with the lock in its hand")
        locked = diagnosed(data_dir, code=1)["store"]
    finally:
        holder.kill()
        holder.wait()
    free = diagnosed(data_dir)["store"]

    assert locked["verdict"] == "fail"
    assert "can be read, and takes no writes now" in locked["text"]
    assert f"process {holder.pid} (" in locked["text"] and ", stopped) holds the lock" in locked["text"]
    assert locked["remedy"].startswith(f"kill -CONT {holder.pid}, or kill -9 {holder.pid}")
    assert free["verdict"] == "ok"


def test_a_store_that_the_disk_does_not_let_write_blames_nobody(durable, data_dir, monkeypatch) -> None:
    """A read-only disk, told by the driver: root, who may write everything, runs these tests as well."""

    def refuse(_path: str) -> None:
        error = sqlite3.OperationalError("attempt to write a readonly database")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_READONLY, "SQLITE_READONLY"
        raise error

    monkeypatch.setattr(sqlite_files, "try_write", refuse)
    config = Config(data_dir=str(data_dir))

    check = next(store_checks(config, Tree(folder=str(data_dir)), SystemClock()))

    assert check.verdict == "fail"
    assert check.text.endswith("it can not be written (read-only) (SQLITE_READONLY)")
    assert check.remedy == "look at the rights of the file and its folder, and at the disk"


class SmallDisk:
    """A disk of one MiB, which only root may mount; for others the answer of a full one stands for it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(folder)]
        self.is_mounted = os.getuid() == 0 and not subprocess.call(command)

    def fill(self) -> None:
        if not self.is_mounted:
            self._monkeypatch.setattr(os, "posix_fallocate", _no_space)
            return
        with pytest.raises(OSError, match="No space left"), open(self.folder / "fill", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        (self.folder / "fill").unlink() if self.is_mounted else self._monkeypatch.undo()


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDisk]:
    (tmp_path / "small").mkdir()
    disk = SmallDisk(tmp_path / "small", monkeypatch)
    yield disk
    if disk.is_mounted:
        subprocess.run(["umount", str(disk.folder)], check=True)


@pytest.mark.fault
def test_a_full_disk_is_a_failure_although_its_store_can_be_locked(small_disk) -> None:
    config = Config(data_dir=str(small_disk.folder))

    def looked() -> tuple[Check, Check]:
        return next(store_checks(config, Tree(folder=config.data_dir), SystemClock())), folder_check(config)

    with closing(SqliteStore(small_disk.folder / STORE_FILE, SystemClock(), durability="normal")) as store:
        store.prepare()
        before = looked()
        small_disk.fill()
        names = sorted(small_disk.folder.iterdir())
        full, folder = looked()
        left = sorted(small_disk.folder.iterdir())
        small_disk.make_room()
        after = looked()

    assert {check.verdict for check in (*before, *after)} == {"ok"}
    assert (full.verdict, folder.verdict) == ("fail", "fail")
    assert "can be read, and takes no writes now" in full.text
    assert full.text.endswith("the disk is full (No space left on device)")
    assert full.remedy == f"make room: df -h {small_disk.folder}; then work goes on by itself"
    assert left == names


@pytest.mark.fault
def test_where_no_store_was_made_a_full_disk_is_told_of_the_folder(small_disk) -> None:
    small_disk.fill()
    folder = small_disk.folder / "data"

    check = folder_check(Config(data_dir=str(folder)))

    assert check.verdict == "fail"
    assert check.text.startswith(f"{folder} can not be made in {small_disk.folder}: the disk is full")


@pytest.mark.parametrize(
    ("flag", "text", "remedy"),
    [
        (os.ST_RDONLY, "{} lies on a read-only file system", "choose another --data-dir"),
        (0, "{} is read-only", "chmod u+rwx {}"),
    ],
)
def test_what_no_chmod_mends_is_not_told_to_be_mended_by_it(data_dir, monkeypatch, flag, text, remedy) -> None:
    data_dir.mkdir(mode=0o700)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flag))

    check = folder_check(Config(data_dir=str(data_dir)))

    assert (check.verdict, check.text, check.remedy) == ("fail", text.format(data_dir), remedy.format(data_dir))


def test_looking_at_the_write_side_changes_no_store(durable, data_dir) -> None:
    """Also not its journal mode: a copy made for a backup has another one, and is nobody's to convert."""
    durable.close()
    path = data_dir / STORE_FILE
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    before = path.read_bytes()

    assert diagnosed(data_dir)["store"]["verdict"] == "ok"

    assert path.read_bytes() == before


def make_due(store: SqliteStore, count: int, *, ago_ms: int, **damage: Any) -> None:
    due_ms = store.now_ms() - ago_ms
    version = {"type": "billing", "definition_fingerprint": "a" * 64, "definition_key": f"billing@{'a' * 64}"}
    times = {"created_time": due_ms, "claimable_time": due_ms, "claim_token": None, "claim_time": None}
    for n in range(count):
        row = record(f"{'damaged' if damage else 'due'}:{n}", **version, **times)
        store.insert(Insert("w", INSTANCES, row.workflow_id, {**to_document(row), **damage}))


@pytest.mark.parametrize(("ago_ms", "verdict"), [(300_000, "warn"), (-300_000, "ok")])
def test_due_work_without_a_tree_is_told(durable, data_dir, ago_ms, verdict) -> None:
    make_due(durable, 3, ago_ms=ago_ms)
    key = f"billing@{'a' * 64}"
    seen = {"definition_key": key, "type": "billing", "seen_time": durable.now_ms()}
    durable.insert(Insert("d", DEFINITIONS, key, seen))

    checks = diagnosed(data_dir)

    assert checks["rows.due"]["verdict"] == verdict
    if verdict == "warn":
        assert (
            checks["rows.due"]["text"] == "3 workflows due, the oldest for 5 min, and nobody to take them: no tree runs"
        )
        assert checks["rows.due"]["remedy"] == START.format(data_dir)
    assert "live versions" not in checks["rows.version"]["text"], "nobody lives here"
    assert checks["rows.damaged"]["verdict"] == "ok"


@pytest.mark.case("A45")
def test_due_rows_that_no_worker_can_read_are_named_and_not_counted_as_work(durable, data_dir) -> None:
    make_due(durable, 1, ago_ms=300_000, retry_count="many")
    make_due(durable, 1, ago_ms=1_000)

    checks = diagnosed(data_dir)

    damaged = workflow_id_for("damaged:0")
    assert checks["rows.damaged"]["verdict"] == "warn"
    assert checks["rows.damaged"]["text"] == f"1 workflow due, and its row does not decode: {damaged}"
    assert checks["rows.damaged"]["remedy"].startswith("kernel-supervisor workflow record ID --data-dir ")
    assert checks["rows.due"]["text"].startswith("1 workflow due, the oldest for ")
    assert "5 min" not in checks["rows.due"]["text"]


@pytest.mark.fault
def test_due_work_beside_a_tree_goes_by_its_workers(supervise, durable, data_dir) -> None:
    make_due(durable, 2, ago_ms=300_000)
    idle = supervise(workers=0)
    idle.wait_running()
    nobody = diagnosed(data_dir, code=1, environ={"REDIS_URL": ""})["rows.due"]
    idle.process.terminate()
    idle.process.wait(60)
    tree = supervise(workers=1)
    tree.wait_running()
    busy = diagnosed(data_dir)
    tree.process.kill()
    wait_until(lambda: tree.status() is None, "the supervisor is gone")
    left = diagnosed(data_dir, code=1)

    assert nobody["verdict"] == "fail"
    assert nobody["text"].endswith("and nobody to take them: this tree has no worker")
    assert "--workers" in nobody["remedy"]
    assert busy["rows.due"]["verdict"] == "warn", "so late that somebody should look"
    assert busy["rows.due"]["text"].endswith("; 1 worker can take them")
    assert "versions seen within 90.0 s: none" in busy["rows.version"]["text"], "these workers tell of none"
    assert busy["redis"]["verdict"] == "warn", "a Redis that these settings do not name is no dead one"
    assert left["rows.due"]["verdict"] == "fail"
    assert left["rows.due"]["remedy"] == START.format(data_dir)
