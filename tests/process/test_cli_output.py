"""What a command prints and can not write: one line, a status, no traceback; for all commands in one place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.process.test_cli import COMMAND, command

PRINTS = """
import click
from supervisor.cli import cli, main

@cli.command()
def shout():
    print("written by the interpreter at its end, if nobody does it before")

main(["shout"])
"""


@contextmanager
def full_disk() -> Iterator[int]:
    fd = os.open("/dev/full", os.O_WRONLY)
    yield fd
    os.close(fd)


@contextmanager
def gone_reader() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("arguments", [("lua", "list"), ("--help",), ("config", "show"), ("status", "--json"), None])
@pytest.mark.parametrize(
    ("output", "told"),
    [(full_disk, "error: the output can not be written: No space left on device\n"), (gone_reader, "")],
    ids=["full", "gone"],
)
def test_output_that_can_not_be_written_is_one_line(tmp_path: Path, output, told: str, arguments) -> None:
    words = [sys.executable, "-c", PRINTS] if arguments is None else [COMMAND, *arguments]
    with output() as fd:
        found = subprocess.run(words, stdout=fd, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60)

    assert (found.returncode, found.stderr) == (1, told), "a reader who has gone wants to hear no more"


def test_an_error_that_can_not_be_told_keeps_its_exit_status(tmp_path: Path) -> None:
    with full_disk() as fd:
        found = subprocess.run([COMMAND, "strat"], stdout=fd, stderr=fd, cwd=tmp_path, timeout=60)

    assert found.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("stop", "--timeout", "soon"), "'soon' is no number of seconds"),
        (("stop", "--timeout", "nan"), "'nan' is no number of seconds"),
        (("status", "--wait", "ready", "--timeout", "inf"), "'inf' is no number of seconds"),
        (("bench", "workflows", "--count", "many"), "'many' is no whole number"),
        (("lanes", "--seconds", "nan"), "'nan' is no number of seconds"),
        (("workflow", "start", "t", "--biz-key", "k", "--timeout", "nan"), "'nan' is no number of seconds"),
        (("workflow", "signal", "wf-1", "paid", "--key", "k", "--generation", "1.5"), "'1.5' is no whole number"),
    ],
)
def test_what_is_no_number_is_told_in_words(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    found = command(*arguments, cwd=tmp_path)

    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == f"error: Invalid value for '{arguments[-2]}': {words}\n"
