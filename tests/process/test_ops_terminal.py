"""What follows a workflow until it ends, and what a terminal is sent: colours, only what it can show, and no more after
Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kernel.clock import SystemClock
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_projection import SqliteProjection
from tests.support.program import CHECKOUT
from tests.support.snapshots import keep, snapshot, split, step_view
from tests.support.wait import wait_until


def now_ms() -> int:
    return SystemClock().wall_ms()


@pytest.mark.req("ops-find")
def test_watch_follows_every_change_until_the_end(observed: SqliteProjection, data_dir: Path, tmp_path: Path) -> None:
    at_ms = now_ms()
    seen = snapshot("k", created_time=at_ms, revision=1)
    keep(observed, seen)
    with _watching(data_dir, tmp_path / "said", "--json") as process:
        wait_until(lambda: _lines(tmp_path / "said") == 1, "the first state is told")
        working = msgspec.structs.replace(seen, revision=2, waiting="step", waiting_on="pack")
        keep(observed, working)
        wait_until(lambda: _lines(tmp_path / "said") == 2, "the change is told")
        ended = msgspec.structs.replace(
            working, revision=3, status="completed", waiting=None, waiting_on=None, finish_time=at_ms + 500,
            split=split(execution=500),
        )  # fmt: skip
        keep(observed, ended)
        assert process.wait(60) == 0
    told = [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]
    assert [(one["revision"], one["status"], one["now"]["waiting"]) for one in told] == [
        (1, "running", "worker"),
        (2, "running", "step"),
        (3, "completed", None),
    ]


@pytest.mark.parametrize("arguments", [("watch", "k"), ("show", "k", "--watch")])
def test_ctrl_c_ends_a_watch_with_130_and_no_traceback(
    observed: SqliteProjection, durable: SqliteStore, data_dir: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    keep(observed, snapshot("k", created_time=now_ms()))
    command, *more = arguments
    with _watching(data_dir, tmp_path / "said", *more[1:], command=command) as process:
        wait_until(lambda: _lines(tmp_path / "said") >= 1, "something is told")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None and b"Traceback" not in process.stderr.read()


def _watching(data_dir: Path, said: Path, *options: str, command: str = "watch") -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "supervisor", "workflow", command, "k", *options, "--data-dir", str(data_dir)]
    with said.open("wb") as out:
        return subprocess.Popen(words, cwd=CHECKOUT, stdout=out, stderr=subprocess.PIPE)


def _lines(path: Path) -> int:
    return path.read_text().count("\n")


def test_a_terminal_that_shows_little_gets_the_rest_written_out(observed: SqliteProjection, data_dir: Path) -> None:
    took = split(scheduling=1)
    steps = (step_view("pack", ready_time=now_ms(), split=took),)
    keep(observed, snapshot("m\u03c9l", created_time=now_ms(), split=took, steps=steps))
    environ = {**os.environ, "PYTHONIOENCODING": "latin-1"}

    for arguments in (("show", "m\u03c9l"), ("list",)):
        words = [sys.executable, "-m", "supervisor", "workflow", *arguments, "--data-dir", str(data_dir)]
        done = subprocess.run(words, cwd=CHECKOUT, env=environ, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii() and rb"m\u03c9l" in done.stdout
        assert arguments[0] == "list" or b".. scheduling   %% permit   -- external   ## execution" in done.stdout


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_gets_four_colours_unless_it_wants_none(
    observed: SqliteProjection, data_dir: Path, no_color: str
) -> None:
    end_ms = now_ms()
    took = split(scheduling=1_000, traffic=1_000, execution=1_000, external=1_000)
    steps = (step_view("pack", "completed", ready_time=end_ms - 4_000, finish_time=end_ms, split=took),)
    ended = {"status": "completed", "waiting": None, "finish_time": end_ms, "updated_time": end_ms}
    keep(observed, snapshot("k", created_time=end_ms - 4_000, split=took, steps=steps, **ended))
    words = [sys.executable, "-m", "supervisor", "workflow", "show", "k", "--data-dir", str(data_dir)]
    environ = {**os.environ, "TERM": "xterm", "NO_COLOR": no_color, "PYTHONUTF8": "1"}
    ours, theirs = os.openpty()
    try:
        process = subprocess.Popen(words, cwd=CHECKOUT, env=environ, stdout=theirs, stdin=subprocess.DEVNULL)
        os.close(theirs)
        said = b"".join(iter(lambda: _read(ours), b"")).decode()
        assert process.wait(60) == 0
    finally:
        os.close(ours)

    line = next(line for line in said.splitlines() if line.startswith("  pack"))
    for glyph, colour in (("░", 34), ("▒", 33), ("─", 35), ("█", 32)):
        assert glyph in line and (f"\x1b[{colour}m{glyph}" in line) == (not no_color)


def _read(terminal: int) -> bytes:
    """What a terminal was sent; nothing more once its other side is closed."""
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""
