"""`kernel-supervisor workflow record`: what a step has remembered, for the author of its activity."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout import FanOutEvent, Page, make_fan_out, start_fan_out
from kernel.clock import SystemClock
from kernel.context import Context
from kernel.runtime import STORE_FILE
from kernel.store.sqlite import SqliteStore
from tests.support.engine_rig import LiveRig
from tests.support.program import CHECKOUT
from tests.support.wait import wait_until


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LiveRig]:
    """A workflow's tree, as far as it fits into this process, on the data folder that the command is given."""
    store = SqliteStore(tmp_path / STORE_FILE, SystemClock(), durability="normal")
    store.prepare()
    made = LiveRig(store)
    yield made
    made.close()
    store.close()


def recorded(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "supervisor", "workflow", "record", *arguments, "--data-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fan_out_that_can_not_read_its_list_shows_why_and_how_far_it_is(rig: LiveRig, tmp_path: Path) -> None:
    """The second page is broken; `workflow show` alone would say that it sleeps."""

    def read_page(ctx: Context, cursor: Any, limit: int) -> Page:
        return Page(next_cursor=10) if cursor is None else ctx.input.identities["typo"]

    fan_out = make_fan_out("tell", read_page)
    rig.worker(fan_out)
    key = start_fan_out(rig.client, fan_out, FanOutEvent(event_id="e", signal_type="ready", wait_key="k"))
    wait_until(lambda: rig.instance(key).status == "waiting", "the second page has been tried")

    (line,) = [line for line in recorded(tmp_path, key).splitlines() if line.startswith("    checkpoint  ")]
    for part in ('"cursor": 10', '"fault": "KeyError: \'typo\'"', '"page_tries": '):
        assert part in line
    (step,) = json.loads(recorded(tmp_path, key, "--json"))["steps"]
    assert step["checkpoint"]["tally"]["pages"] == 1


def test_a_long_checkpoint_is_cut_and_the_json_has_all_of_it(rig: LiveRig, tmp_path: Path) -> None:
    fan_out = make_fan_out("tell", lambda ctx, cursor, limit: Page(next_cursor="é" * 500) if cursor is None else None)  # type: ignore[arg-type,return-value]
    rig.worker(fan_out)
    key = start_fan_out(rig.client, fan_out, FanOutEvent(event_id="e", signal_type="ready", wait_key="k"))
    wait_until(lambda: rig.instance(key).status == "waiting", "the second page has been tried")

    (line,) = [line for line in recorded(tmp_path, key).splitlines() if line.startswith("    checkpoint  ")]
    assert len(line) < 500 and line.endswith("…")
    assert json.loads(recorded(tmp_path, key, "--json"))["steps"][0]["checkpoint"]["cursor"] == "é" * 500
