"""The README is true: its example is a working application, and its commands do what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.readme_tree import readme_tree
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
START = ("workflow", "start", "order_flow", "--app", "flows:app", "--biz-key")
ORDER = '{"order_id": "1"}'
README = (ROOT / "README.md").read_text(encoding="utf-8")


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "supervisor", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def run_python(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the README's `flows.py`, and a tree that runs it."""
    folder = tmp_path_factory.mktemp("newcomer")
    (source,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "# flows.py" in block]
    (folder / "flows.py").write_text(source, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def is_up() -> bool:
        return command(folder, "status").returncode == 0

    with readme_tree(
        folder, "flows:app", "--log-file", "kernel.log", environ=environment, is_up=is_up, end_s=40
    ) as process:
        yield folder
    assert process.returncode == 0


def test_the_example_runs_from_the_shell(tree: Path) -> None:
    (start,) = re.findall(r"^kernel-supervisor (workflow start .*)$", README, re.M)
    words = re.findall(r"'[^']*'|\S+", start)

    done = command(tree, *(word.strip("'") for word in words), "--json")

    answer = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert answer["execution_activated"] is True
    assert answer["result"] == "order 7: thank you"

    # What the operator sees is written beside the path, a moment later.
    wait_until(lambda: "completed at " in command(tree, "workflow", "show", "order:7").stdout, "the end is shown")
    shown = command(tree, "workflow", "show", answer["workflow_id"])
    assert shown.stdout.startswith("completed at ")
    assert "biz_key   order:7\n" in shown.stdout


@pytest.mark.req("sor-returns")
def test_the_publisher_example_runs_as_it_is_printed(tree: Path) -> None:
    (snippet,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "open_client" in block]
    program = snippet.replace('"order:7"', '"order:8"').replace('Order("7")', 'Order("8")')

    done = run_python(tree, program)

    assert done.stdout.split(maxsplit=2)[1:] == ["True", "order 8: thank you\n"], done.stderr


@pytest.mark.req("spl-publisher-light", "sor-plan-only")
def test_a_publisher_with_a_plan_by_hand_imports_no_activity(tree: Path) -> None:
    program = """
import sys
from datetime import timedelta
import msgspec
from kernel import plan
from kernel.config import load
from kernel.runtime import embedded_redis_url, open_client

class Order(msgspec.Struct):
    order_id: str

config = load().config
client = open_client(config, config.data_dir, embedded_redis_url(config.data_dir))
by_hand = plan("order_flow", ["ship", "thank"], input=Order, identity=["order_id"])
handle = client.start_or_resume(by_hand, biz_key="order:9", input=Order("9"))
print(handle.result(timedelta(seconds=30)), "flows" in sys.modules)
"""
    done = run_python(tree, program)

    assert done.stdout == "order 9: thank you False\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ((*START[:2], "order_flaw", *START[3:], "k"), 2, "order_flaw"),
        ((*START, "", "--input", "{}"), 2, "order_id"),
        ((*START, " ", "--input", ORDER), 2, "biz_key"),
        ((*START, "k", "--input", ORDER, "--app", "flaws:app"), 2, "flaws"),
        ((*START, "k", "--input", ORDER, "--priority", "now"), 2, "'now'"),
        (("workflow", "supersede", "wf-nobody", "--yes"), 1, "workflow wf-nobody does not exist"),
        (("workflow", "show", "wf-nobody"), 1, "nothing is known of wf-nobody"),
        (("workflow", "show", "wf-nobody", "--data-dir", "elsewhere"), 69, "elsewhere"),
    ],
)
def test_a_mistake_is_one_line(tree: Path, arguments: tuple[str, ...], status: int, says: str) -> None:
    done = command(tree, *arguments)

    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.req("clm-guarantee", "core-inv-alo")
def test_it_promises_at_least_once_and_says_what_that_asks_of_an_author() -> None:
    (promise,) = [part for part in README.split("\n\n") if "at least once" in part]

    text = " ".join(promise.split())
    assert "**at least once**, never exactly once" in text
    assert "must recognise a repeat" in text and "`ctx.effect_key`" in text
