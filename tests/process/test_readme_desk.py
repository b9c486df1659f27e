"""The README's second example is true: a request is accepted, waits for its event, and ends; a typo is told."""

from __future__ import annotations

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
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def block(mark: str) -> str:
    (found,) = [text for text in BLOCKS if mark in text]
    return found


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the README's `desk.py`, and a tree that runs it."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "desk.py").write_text(block("# desk.py"), encoding="utf-8")

    def is_up() -> bool:
        return run(folder, "-m", "supervisor", "status").returncode == 0

    with readme_tree(folder, "desk:app", "--workers", "1", "--log-file", "log", environ=ENVIRONMENT, is_up=is_up):
        yield folder


@pytest.mark.req("sig-user-choice", "req-status-branches", "sig-business-first")
def test_the_request_waits_for_the_choice_and_is_completed(desk: Path) -> None:
    """As printed: accepted, registered, chosen, rung; then the row says completed, with the user's own field in it."""
    done = run(desk, "-c", block("open_publisher"))
    assert (done.returncode, done.stdout) == (0, "registered\n"), done.stderr

    look = """
from desk import Choice, choice_flow, offers
from kernel.config import load
from kernel.runtime import open_publisher
config = load().config
with open_publisher(config, config.data_dir, None, objects=[offers]) as publisher:
    offer = publisher.objects["offers"].get("offer-1")
    print(offer.status, offer.fields["chosen"], offer.fields["price"], offer.fields.get("confirmed"))
    print(publisher.requests(offers, choice_flow.plan).request(Choice("offer-1"), object_id="offer-1").outcome)
"""
    wait_until(lambda: run(desk, "-c", look).stdout == "completed A 40 True\ncompleted\n", "the offer is completed")
    pending = run(desk, "-m", "supervisor", "dispatch", "pending", "--app", "desk:app")
    assert pending.returncode == 0, pending.stderr
    assert "offer-1" not in pending.stdout

    (said,) = re.findall(r"accepted object has the biz_key `type:object_id`, here `(\S+)`", README)
    shown = run(desk, "-m", "supervisor", "workflow", "show", said)
    assert (shown.returncode, shown.stdout.startswith("completed at ")) == (0, True), shown.stdout + shown.stderr
