"""The README's how-tos are true: limits hold as it says, and open work outlasts a changed Definition."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.readme_tree import LIMIT_S, readme_tree
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# The tests replace a tree twice and look at what is left to the scan.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "KERNEL_SCAN_S": "1", "KERNEL_POLL_S": "0.5"}

pytestmark = pytest.mark.timeout(240)


def block(language: str, mark: str) -> str:
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.S) if mark in text]
    return found


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "supervisor", *words],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def answer(folder: Path, *words: str) -> Any:
    done = run(folder, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def start(folder: Path, app: str, type_: str, number: int, *more: str) -> Any:
    order = json.dumps({"order_id": str(number)})
    return answer(
        folder, "workflow", "start", type_, "--app", app, "--biz-key", f"order:{number}", "--input", order, *more
    )


def is_up(folder: Path) -> bool:
    return run(folder, "status").returncode == 0


@contextmanager
def tree(folder: Path, app: str) -> Iterator[None]:
    up = partial(is_up, folder)
    with readme_tree(folder, app, "--workers", "1", "--log-file", "log", environ=ENVIRONMENT, is_up=up):
        yield


@pytest.mark.req("prm-two-limits", "prm-pause")
def test_a_resource_is_limited_by_app_settings_and_operator(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(block("python", "# shop.py"), encoding="utf-8")
    (tmp_path / "kernel.toml").write_text(block("toml", "[limits.courier]"), encoding="utf-8")
    commands = re.findall(r"^kernel-supervisor (limits [^#\n]*)", README, re.M)
    *changes, take_back = commands
    assert len(changes) == 3

    def courier() -> tuple[int, int, bool]:
        (row,) = answer(tmp_path, "limits", "list", "courier", "--app", "shop:app")["resources"]
        return row["max_concurrency"], row["max_starts_per_second"], row["paused"]

    with tree(tmp_path, "shop:app"):
        assert courier() == (3, 0, False), "the settings' table, whole"
        for words in changes:
            assert run(tmp_path, *shlex.split(words)).returncode == 0
        assert courier() == (1, 0, True), "field by field what was set"

        start(tmp_path, "shop:app", "shop_flow", 1)
        waits = ("workflow", "list", "--waiting", "permit", "--on", "courier")
        wait_until(lambda: "order:1" in run(tmp_path, *waits).stdout, "the order waits for a place")
        assert run(tmp_path, "limits", "resume", "courier").returncode == 0
        assert start(tmp_path, "shop:app", "shop_flow", 1, "--wait")["result"] == "order 1 is on its way"

    (tmp_path / "kernel.toml").unlink()
    assert run(tmp_path, "limits", "list", "--app", "shop:app").returncode == 0
    assert courier() == (1, 10, False), "without the table what the App declares is beneath"
    assert run(tmp_path, *shlex.split(take_back)).returncode == 0
    assert courier() == (2, 10, False), "and nothing is set any more"


@pytest.mark.req("fpr-mismatch-not-failure", "fpr-no-index-resume")
def test_open_work_waits_for_its_version_and_goes_on_beside_the_changed_one(tmp_path: Path) -> None:
    old = block("python", "# flows.py")
    (last_line,) = re.findall(r"^app = .*\n\Z", old, re.M)
    changed = block("python", "# in flows.py")
    flows = tmp_path / "flows.py"
    flows.write_text(old, encoding="utf-8")
    with tree(tmp_path, "flows:app"):
        pass  # it makes the folder
    opened = start(tmp_path, "flows:app", "order_flow", 1)["workflow_id"]

    flows.write_text(old.replace('Step("thank", thank', 'Step("thanks", thank'), encoding="utf-8")
    with tree(tmp_path, "flows:app"):
        assert start(tmp_path, "flows:app", "order_flow", 2, "--wait")["result"] == "order 2: thank you"
        shown = start(tmp_path, "flows:app", "order_flow", 1)
        assert (shown["workflow_id"], shown["execution_activated"]) == (opened, False)
        assert shown["status"] == "running", "not failed, and not run by the other version"

    flows.write_text(old.replace(last_line, changed), encoding="utf-8")
    with tree(tmp_path, "flows:app"):
        assert start(tmp_path, "flows:app", "order_flow", 1, "--wait")["result"] == "order 1: thank you"
        assert start(tmp_path, "flows:app", "order_flow_2", 3, "--wait")["result"] == "order 3: how was it?"

        again = '{"order_id": "another"}'
        key = ("--biz-key", "order:3", "--app", "flows:app")
        there = answer(tmp_path, "workflow", "start", "order_flow_2", *key, "--input", again)
        assert (there["status"], there["execution_activated"]) == ("completed", False), "nobody looks at its input"
        other_type = run(tmp_path, "workflow", "start", "order_flow", *key, "--input", again)
        assert other_type.returncode == 2
        assert "belongs to a workflow of type order_flow_2" in other_type.stderr
