"""Ids that none may have, through every command that takes one (A22, A40): refused in one line, and nothing written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kernel.store.conditional import Insert, Inserted
from kernel.store.sqlite import SqliteStore
from kernel.store.tables import INSTANCES
from tests.conformance.instances import instance_document

COMMANDS = (
    "workflow show {}", "workflow attempts {}", "workflow record {}", "workflow replay {}", "workflow watch {}",
    "workflow supersede {} --yes", "workflow unpark {}", "workflow repair {}",
    "workflow signal {} ready --key k --id s1", "workflow signal wf-1 ready --key k --id {}",
    "workflow signal wf-1 ready --key {} --id s1", 'workflow start metered --biz-key {} --input {"number":1}',
)  # fmt: skip
IDS = ("", " ", "\t", "a\nb", "x" * 201, "\x7f")


@pytest.mark.case("A22", "A40")
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_takes_an_id_that_is_none(durable: SqliteStore, data_dir: Path, operate: Any, command: str) -> None:
    row = instance_document("wf-1", durable.now_ms())
    assert isinstance(durable.insert(Insert("by hand", INSTANCES, "wf-1", row)), Inserted)
    for bad in IDS:
        words = [word.replace("{}", bad) for word in command.split()]
        said = operate(*words, environ={"KERNEL_APP": "tests.process.metered_flows:app"})
        assert said.returncode in (1, 2), (command, bad)
        (line,) = said.stderr.splitlines()
        assert re.search("must have 1–200 characters|holds control or unprintable characters", line), (bad, line)
    assert durable.get(INSTANCES, "wf-1") == row
