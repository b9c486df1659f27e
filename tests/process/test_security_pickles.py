"""Hostile bytes in every column of every row of every file that a tree keeps (RELIABILITY §8, serialisation; A84).

Fields inside a row, and other stores, are in engine/test_hostile_bytes; Redis is in `test_security_surface`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kernel.clock import SystemClock
from kernel.config import Config
from kernel.runtime import open_objects
from tests.faults.rig import tree
from tests.process.metered_flows import Job, metered, orders
from tests.support.pickle_bombs import bombs

APP = "tests.process.metered_flows:app"
COMMANDS = ("workflow list", "workflow show {}", "workflow attempts {}", "workflow record {}", "lanes", "limits list",
            "dispatch list", "doctor", "workflow repair")  # fmt: skip


@pytest.mark.fault
@pytest.mark.case("A84")
def test_no_column_of_any_row_is_run_by_the_tree_or_by_a_command(tmp_path: Path, operate: Any) -> None:
    folder, canary = tmp_path / "data", tmp_path / "canary"
    with tree(folder, app=APP, observe_flush_s=0.05) as running:
        requests = [(f"before:{number}", Job(number)) for number in range(12)]
        ids = [handle.workflow_id for handle in running.client.start_many(metered.plan, requests)]
        running.finish(*ids)
    accept(folder, "order-1", "order-2", "order-3")

    planted = {path.name: plant(path, bombs(canary)) for path in folder.glob("*.sqlite")}
    assert planted.keys() >= {"store.sqlite", "observe.sqlite", "objects.sqlite"}
    assert all(planted.values()), planted

    with tree(folder, app=APP, dispatch_scan_s=0.5) as running:
        good = running.client.start_or_resume(metered.plan, biz_key="after", input=Job(1)).workflow_id
        running.finish(good)
        accept(folder, "order-4")
        for command in COMMANDS:
            for workflow_id in (good, *ids[:3]):
                said = operate(*command.format(workflow_id).split(), environ={"KERNEL_APP": APP})
                assert "Traceback" not in said.stdout + said.stderr, command
                if "{}" not in command:
                    break

    assert not canary.exists()


def accept(folder: Path, *names: str) -> None:
    objects = open_objects(Config(data_dir=str(folder)), folder, [orders], SystemClock())["orders"]
    with closing(objects):
        for name in names:
            objects.accept(name, type_=metered.plan.type, biz_key=f"order:{name}", input=Job(1), priority=0)


def plant(path: Path, planted: list[bytes]) -> int:
    """Each row of each table gets one of the bombs in one of its columns, in turn; how many took it."""
    done = 0
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
            rows = [row[0] for row in db.execute(f'SELECT rowid FROM "{table}"')]
            for turn, rowid in enumerate(rows):
                bomb = planted[turn % len(planted)]
                value: Any = bomb if turn % 2 else bomb.decode("latin-1")
                change = f'UPDATE "{table}" SET "{columns[turn % len(columns)]}" = ? WHERE rowid = ?'
                try:
                    db.execute(change, (value, rowid))
                    done += 1
                except sqlite3.Error:
                    continue  # the table does not take such a value there
    return done
