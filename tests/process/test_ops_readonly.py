"""Looking needs no more than reading: the operator's commands with a store that this user can not write.

For the embedded store the files and their folder are made read-only, and the command runs without the capabilities by
which root passes over that. For MongoDB the commands that reach the server are listened to.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from kernel.clock import SystemClock
from kernel.config import Config
from kernel.limits import change_limit
from kernel.observe.tables import OBSERVE_TABLES
from kernel.records import PermitWaitRecord, to_document
from kernel.runtime import open_objects
from kernel.store.conditional import Insert
from kernel.store.mongo_projection import MongoProjection
from kernel.store.protocol import Store
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_projection import SqliteProjection
from kernel.store.tables import INSTANCES
from tests.process.shop import SHOWS
from tests.process.test_ops_mongo import AROUND, LOG, READS
from tests.support import observations
from tests.support.mongo_server import MongoStores
from tests.support.program import CHECKOUT
from tests.support.rightless import rightless
from tests.support.snapshots import attempt, keep, snapshot

Operate = Callable[..., CompletedProcess[str]]
APP = ("--app", "tests.process.shop:app")
LOOKING: tuple[tuple[str, ...], ...] = (
    ("workflow", "list"),
    ("workflow", "list", "--type", "parcel", "--older-than", "1s", "--lane", "P1"),
    ("workflow", "list", "--count"),
    ("workflow", "show", "k", *APP, "--json"),
    ("workflow", "watch", "k"),
    ("workflow", "attempts", "k"),
    ("workflow", "record", "waits"),
    ("limits", "list", *APP),
    ("limits", "explain", "waits"),
    ("dispatch", "pending", *APP),
    ("status", "--json"),
)
"""Every command that looks at a store; `lanes` asks Redis alone, and `doctor` is below."""
ANSWERS = {"status": 3}
"""No tree runs here, and that is what this one says."""


def fill(observed: SqliteProjection | MongoProjection, durable: Store, folder: Path, config: Config) -> None:
    """One workflow that has ended, one that waits for a permit, a limit, an object with an open intent."""
    at_ms = SystemClock().wall_ms()
    done: dict[str, Any] = {"status": "completed", "waiting": None, "waiting_since": None, "finish_time": at_ms}
    keep(observed, snapshot("k", created_time=at_ms - 5_000, **done), attempt(biz_key="k", updated_time=at_ms))
    keep(observed, snapshot("other", created_time=at_ms))
    refused = {"waiting": "permit", "waiting_on": "printer", "current_step": "work"}
    keep(observed, snapshot("waits", created_time=at_ms, **refused))
    wait = PermitWaitRecord(resource="printer", step="work", since_time=at_ms)
    row = observations.record("waits", created_time=at_ms, permit_wait=wait, claim_token=None, claim_time=None)
    durable.insert(Insert("create", INSTANCES, row.workflow_id, to_document(row)))
    change_limit(durable, "printer", max_concurrency=1)
    objects = open_objects(config, folder, (SHOWS,), SystemClock())[SHOWS.name]
    objects.accept("s1", type_="t", biz_key="t:s1", input={"a": 1}, priority=1)
    objects.close()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Inside the block nobody without special rights can write in that folder."""
    files = [path for path in folder.iterdir() if path.is_file()]
    for path in files:
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        yield
    finally:
        folder.chmod(0o700)
        for path in files:
            path.chmod(0o600)


def looked(folder: Path, *words: str) -> CompletedProcess[str]:
    command = rightless("supervisor", *words, "--data-dir", str(folder))
    return subprocess.run(command, cwd=CHECKOUT, env={}, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.req("ops-readonly", "obs-never-instances")
@pytest.mark.parametrize("state", ["open elsewhere", "left behind"])
def test_all_that_only_looks_works_where_nothing_can_be_written(
    observed: SqliteProjection, durable: SqliteStore, data_dir: Path, state: str
) -> None:
    """`open elsewhere`: a tree runs, and its log's files are there; `left behind`: it has ended in order."""
    fill(observed, durable, data_dir, Config())
    if state == "left behind":
        observed.close()
        durable.close()
        assert not list(data_dir.glob("*-wal"))
    with read_only(data_dir):
        before = contents(data_dir)
        found = {words: looked(data_dir, *words) for words in LOOKING}
        doctor = looked(data_dir, "doctor")
        writing = {verb: looked(data_dir, "workflow", verb, "waits") for verb in ("repair", "unpark", "supersede")}

        assert contents(data_dir) == before
    for words, done in found.items():
        assert done.returncode == ANSWERS.get(words[0], 0), (words, done.stderr)
    assert "printer" in found["limits", "explain", "waits"].stdout and "k" in found["workflow", "list"].stdout
    assert "shows  s1  pending" in found["dispatch", "pending", *APP].stdout
    # What it can not do is told: by the doctor as a failed check, by what writes in one line.
    assert doctor.returncode == 1 and "Permission denied" in doctor.stdout
    for verb, done in writing.items():
        assert (done.returncode, done.stdout) == (69 if verb != "supersede" else done.returncode, ""), done.stderr
        assert done.returncode != 0 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def contents(folder: Path) -> dict[str, bytes]:
    """Names and bytes; the index of the log, in which readers note how far they are, apart."""
    return {path.name: b"" if path.name.endswith("-shm") else path.read_bytes() for path in folder.iterdir()}


@pytest.mark.req("ops-readonly", "obs-never-instances")
def test_on_mongodb_all_that_only_looks_sends_reads_alone(
    operate: Operate, mongo_store: MongoStores, data_dir: Path
) -> None:
    """So a user with the role `read` suffices; the server of these tests knows no roles, and so can not refuse."""
    observed = mongo_store(kind=MongoProjection, tables=OBSERVE_TABLES)
    assert isinstance(observed, MongoProjection)
    database = mongo_store.databases[-1]
    config = Config(mongodb_uri=mongo_store.server.uri, mongodb_database=database)
    fill(observed, mongo_store(database=database), data_dir, config)
    environ = {"MONGODB_URI": mongo_store.server.uri, "KERNEL_MONGODB_DATABASE": database}

    for words in (*LOOKING, ("doctor",)):
        LOG.commands.clear()
        LOG.listening = True
        done = operate(*words, environ=environ)
        LOG.listening = False
        assert {name for name, _ in LOG.commands} <= READS | AROUND | {"buildinfo"}, words
        assert done.returncode == ANSWERS.get(words[0], 0) or words == ("doctor",), (words, done.stderr)
        read = {collection for name, collection in LOG.commands if name in READS}
        # `record` is no view: it prints the row that was named; the doctor counts rows that wait for help.
        assert INSTANCES not in read or words[-2:-1] == ("record",) or words == ("doctor",), words
        assert LOG.commands or words[0] == "status", f"{words}: nothing was heard of it"
