"""The operator's commands on MongoDB, by the commands that reach the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from pymongo import monitoring

from kernel.clock import SystemClock
from kernel.observe.tables import ATTEMPTS, OBSERVE_TABLES, SNAPSHOTS
from kernel.store.conditional import Insert
from kernel.store.mongo_projection import MongoProjection
from kernel.store.tables import INSTANCES, SIGNALS
from tests.conformance.instances import instance_document
from tests.support.mongo_server import MongoStores
from tests.support.snapshots import attempt, keep, snapshot

Operate = Callable[..., CompletedProcess[str]]
READS = {"find", "aggregate", "getMore"}
AROUND = {"hello", "ping", "buildInfo", "endSessions", "listIndexes", "listCollections"}
"""What a client says besides: nothing of it reads or writes a document."""


class CommandLog(monitoring.CommandListener):
    """(command, collection) of everything that clients of this process send while it listens."""

    def __init__(self) -> None:
        self.listening = False
        self.commands: list[tuple[str, str]] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if self.listening:
            named = event.command.get(event.command_name)
            name = named if isinstance(named, str) else str(event.command.get("collection", ""))
            self.commands.append((event.command_name, name))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


LOG = CommandLog()
monitoring.register(LOG)  # for every client that is made from now on; the driver knows no way back


@pytest.fixture
def log() -> Iterator[CommandLog]:
    LOG.commands.clear()
    LOG.listening = True
    yield LOG
    LOG.listening = False


@pytest.mark.req("obs-never-instances", "obs-snapshot-use", "ops-readonly", "ops-find", "layer-read-write-split")
def test_views_send_reads_of_snapshots_only_and_no_write(
    operate: Operate, mongo_store: MongoStores, log: CommandLog, data_dir: Path
) -> None:
    observed = mongo_store(kind=MongoProjection, tables=OBSERVE_TABLES)
    assert isinstance(observed, MongoProjection)
    database = mongo_store.databases[-1]
    durable = mongo_store(database=database)
    at_ms = SystemClock().wall_ms()
    one = snapshot("k", created_time=at_ms, status="completed", waiting=None, waiting_since=None, finish_time=at_ms)
    keep(observed, one, attempt(biz_key="k", updated_time=at_ms))
    for start in range(0, 60, 20):
        keep(observed, *(snapshot(f"job:{n}", created_time=at_ms - n) for n in range(start, start + 20)))
    durable.insert(Insert("create", INSTANCES, "wf-unseen", instance_document("wf-unseen", at_ms)))
    environ = {"MONGODB_URI": mongo_store.server.uri, "KERNEL_MONGODB_DATABASE": database}

    def sent(*arguments: str, status: int = 0) -> set[str]:
        """The collections that a command reads."""
        log.commands.clear()
        done = operate("workflow", *arguments, environ=environ)
        assert done.returncode == status, done.stderr
        assert {name for name, _ in log.commands} <= READS | AROUND
        return {collection for name, collection in log.commands if name in READS}

    assert sent("list") == sent("list", "--json", "--limit", "100", "--waiting", "worker") == {SNAPSHOTS}
    assert sent("list", "--count") == sent("list", "--by", "type", "--since", "1h") == {SNAPSHOTS}
    assert sent("show", "k") == sent("show", one.workflow_id, "--json") == {SNAPSHOTS, SIGNALS}
    assert sent("watch", "k") == {SNAPSHOTS}
    assert sent("attempts", "k") == {SNAPSHOTS, ATTEMPTS}
    # What the side path has not seen is not looked for anywhere else ...
    assert sent("show", "wf-unseen", status=1) == sent("attempts", "wf-unseen", status=1) == {SNAPSHOTS}
    assert not data_dir.exists()


@pytest.mark.req("obs-repair", "ops-aggregate")
def test_pages_counts_and_the_repair_are_those_of_the_embedded_store(
    operate: Operate, mongo_store: MongoStores, log: CommandLog
) -> None:
    observed = mongo_store(kind=MongoProjection, tables=OBSERVE_TABLES)
    assert isinstance(observed, MongoProjection)
    durable = mongo_store(database=mongo_store.databases[-1])
    at_ms = SystemClock().wall_ms()
    keep(observed, *(snapshot(f"job:{n}", created_time=at_ms - n) for n in range(30)))
    durable.insert(Insert("create", INSTANCES, "wf-unseen", instance_document("wf-unseen", at_ms)))
    environ = {"MONGODB_URI": mongo_store.server.uri, "KERNEL_MONGODB_DATABASE": mongo_store.databases[-1]}

    def answer(*arguments: str) -> dict[str, Any]:
        done = operate("workflow", *arguments, "--json", environ=environ)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    first = answer("list", "--limit", "20")
    second = answer("list", "--limit", "20", "--after", first["next"])
    assert [row["biz_key"] for row in first["workflows"] + second["workflows"]] == [f"job:{n}" for n in range(30)]
    assert answer("list", "--count")["counts"][0]["n"] == 30
    log.commands.clear()
    assert answer("repair", "wf-unseen")["workflows"][0]["repaired"]["status"] == "running"
    # ... and only a repair, which was asked for, reads it; what it writes is observations.
    assert ("find", INSTANCES) in log.commands
    written = {collection for name, collection in log.commands if name in ("update", "insert", "findAndModify")}
    assert written <= {SNAPSHOTS, ATTEMPTS, "kernel_meta"}
    assert answer("show", "wf-unseen")["status"] == "running"
