"""The whole, for a few seconds: every part of a long run is in it, and it ends as it should."""

from __future__ import annotations

import fcntl
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from kernel.runtime import STORE_FILE
from tests.chaos import __main__ as command
from tests.chaos import run as running
from tests.chaos.__main__ import main
from tests.chaos.run import Order, Verdict
from tests.chaos.schedule import drawn
from tests.chaos.stuck import Detector
from tests.faults.effects import ENTER, LEAVE, read_effects
from tests.faults.pausing import locked
from tests.support.program import CHECKOUT
from tests.support.wait import wait_until

SEED, SECONDS = 5, 14.0
ENOUGH = 100


@pytest.mark.fault
@pytest.mark.timeout(240)
@pytest.mark.req("flt-random", "dc-tests-fault", "core-unique-outcome", "core-inv-alo")
def test_a_few_seconds_of_chaos_end_without_a_violation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    status = main(["--minutes", f"{SECONDS / 60}", "--seed", f"{SEED}", "--data-dir", str(folder), "--listeners", "20"])

    said = capsys.readouterr().out
    assert status == 0, said
    line = said.splitlines()[-1]
    told = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)}
    assert line.startswith("chaos: seconds=") and line.endswith(" violations=0 stuck=0")
    assert told["workflows"] > 0
    assert told["fan_outs"] > 0
    assert len((folder / "blows").read_text().splitlines()) <= len(drawn(SEED, SECONDS))
    assert f"seed {SEED}, data folder {folder}" in said


@contextmanager
def the_store_held(folder: Path) -> Iterator[None]:
    """From a moment at which much has been done, and somebody is inside a step, nobody commits any more."""
    over = threading.Event()

    def somebody_is_inside() -> bool:
        effects = read_effects(folder)
        return len(effects) > ENOUGH and sum((e.what == ENTER) - (e.what == LEAVE) for e in effects) > 0

    def hold() -> None:
        wait_until(lambda: over.is_set() or somebody_is_inside(), "some work")
        with open(folder / f"{STORE_FILE}-lock", "rb") as lock:
            while not over.is_set():
                wait_until(lambda: over.is_set() or locked(lock.fileno()), "the store's lock", every=0.001)
                if somebody_is_inside():
                    over.wait()
                else:
                    fcntl.flock(lock, fcntl.LOCK_UN)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        yield
    finally:
        over.set()
        holder.join()


@pytest.mark.fault
@pytest.mark.timeout(240)
@pytest.mark.req("dc-tests-fault")
def test_a_tree_in_which_nothing_moves_ends_the_run_with_rows_keys_and_stacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "drawn", lambda *_, **__: [])
    monkeypatch.setattr(running, "Detector", lambda: Detector(20.0))
    folder = tmp_path / "data"
    with the_store_held(folder):
        status = main(["--minutes", "3", "--data-dir", str(folder), "--listeners", "20"])

    said, dump = capsys.readouterr().out, (folder / "dump.txt").read_text()
    assert status == 1
    assert re.fullmatch(r"chaos: .* stuck=[1-9]\d*", said.splitlines()[-1])
    assert dump in said
    counted = {title: int(count) for title, count in re.findall(r"^--- ([a-z ]+): (\d+)$", dump, re.MULTILINE)}
    assert counted["not ended"] > 0
    assert re.search(r"^\S+ wf-\S+ (running|waiting) run \d+ revision \d+: \w+=\w+/\d", dump, re.MULTILINE)
    assert "lane_state string" in dump
    assert counted["stacks"] > 0
    assert "in _wait" in dump, "the stack of a thread that waits for the store's lock"
    assert counted["log"] > 0


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "data"
    words = [sys.executable, "-m", "tests.chaos", "--minutes", "3", "--seed", "1", "--data-dir", str(folder)]
    with ExitStack() as stack:
        run = stack.enter_context(subprocess.Popen(words, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True))
        stack.callback(run.kill)
        wait_until(lambda: read_effects(folder), "workers and producers are at work")

        def everybody() -> list[psutil.Process]:
            found = psutil.Process(run.pid).children(recursive=True)
            return found if len(found) >= 1 + 1 + 3 + 2 + 1 + 5 else []

        started = wait_until(everybody, "supervisor, guardian, workers, dispatchers, Valkey, producers")
        run.send_signal(number)
        said, _ = run.communicate(timeout=60)
        wait_until(lambda: not [process for process in started if process.is_running()], "nobody is left")
    if number is signal.SIGKILL:
        assert run.returncode == -number
    else:
        assert run.returncode == 128 + number
        assert said.splitlines()[-1] == f"chaos: ended by signal {number}; kept: {folder}"


@pytest.mark.parametrize(("found", "dump", "status"), [([], "", 0), (["S1: lost"], "", 1), ([], "--- not ended: 1", 1)])
def test_a_run_with_a_finding_or_a_dump_fails_names_its_seed_and_keeps_its_folder(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    found: list[str],
    dump: str,
    status: int,
) -> None:
    folders: list[Path] = []

    def judged(order: Order) -> Verdict:
        folders.append(order.folder)
        return Verdict("chaos: the line", found, dump, ["a note"])

    monkeypatch.setattr(command, "run", judged)
    monkeypatch.setattr(command.tempfile, "tempdir", str(tmp_path))

    assert main(["--minutes", "1", "--seed", "9"]) == status

    said = capsys.readouterr().out.splitlines()
    (folder,) = folders
    assert said[0] == f"seed 9, data folder {folder}"
    assert said[-1] == "chaos: the line"
    assert [line for line in found if line not in said] == []
    assert folder.exists() == bool(status)
    if status:
        assert f"kept: {folder}; again: python -m tests.chaos --minutes 1 --seed 9" in said
    if dump:
        assert (folder / "dump.txt").read_text() == dump
