"""The plugins of tests/conftest.py, each in a run of pytest of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.support.leftovers import TAG_VARIABLE, Leftovers
from tests.support.requirements_index import CHECKOUT, read_requirements, report
from tests.support.wait import wait_until

INI = """[pytest]
addopts = --strict-markers -p no:cacheprovider
markers =
    needs(*programs): programs
    req(*keys): keys
"""


def run(folder: Path, plugin: str, test: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one test file with one plugin of ours."""
    (folder / "pytest.ini").write_text(INI)
    (folder / "test_it.py").write_text(test)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "WITHOUT")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.workers", "-p", f"tests.support.{plugin}", *options],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(CHECKOUT), "PY_COLORS": "0"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


alone_and_divided = pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "divided"])
"""In one process, and on two workers as `make test` runs everything."""

NEEDY = """
import pytest

@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.needs("redis-server"))])
def server(request):
    return request.param

def test_server(server):
    assert server

@pytest.mark.needs("redis-server", "chromium")
def test_page():
    assert True
"""


def programs_in(folder: Path, *names: str) -> str:
    """A PATH that holds just the named programs."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


@alone_and_divided
def test_a_missing_program_stops_the_run_with_one_line_that_names_the_command(
    tmp_path: Path, workers: Sequence[str]
) -> None:
    ended = run(tmp_path, "programs", NEEDY, *workers, PATH=programs_in(tmp_path / "bin", "redis-server"))

    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "passed" not in ended.stdout
    assert ended.stderr.strip() == (
        "ERROR: missing chromium: apt-get install -y chromium (or leave out the tests that need it: WITHOUT=chromium)"
    )


@alone_and_divided
def test_without_leaves_out_what_needs_the_program_and_says_how_many(tmp_path: Path, workers: Sequence[str]) -> None:
    path = programs_in(tmp_path / "bin", "redis-server")

    ended = run(tmp_path, "programs", NEEDY, *workers, PATH=path, WITHOUT="chromium")

    assert ended.returncode == 0
    assert "WITHOUT=chromium: 1 tests that need it were left out" in ended.stdout
    assert "2 passed, 1 deselected" in ended.stdout


def test_without_may_name_several_programs_and_works_where_they_are_present(tmp_path: Path) -> None:
    path = programs_in(tmp_path / "bin", "redis-server", "chromium")

    ended = run(tmp_path, "programs", NEEDY, PATH=path, WITHOUT="redis-server, chromium")

    assert "WITHOUT=redis-server: 2 tests that need it were left out" in ended.stdout
    assert "1 passed, 2 deselected" in ended.stdout


def test_a_program_that_only_deselected_tests_need_may_be_missing(tmp_path: Path) -> None:
    ended = run(tmp_path, "programs", NEEDY, "-k", "embedded", PATH=programs_in(tmp_path / "bin"))

    assert "1 passed, 2 deselected" in ended.stdout


@pytest.mark.parametrize(
    ("test", "without", "words"),
    [
        (NEEDY, "redis", "WITHOUT names 'redis'; it may name: redis-server, chromium"),
        (NEEDY.replace('"chromium"', '"firefox"'), "", "needs 'firefox'; needs(…) may name: redis-server, chromium"),
    ],
)
def test_an_unknown_program_is_a_usage_error(tmp_path: Path, test: str, without: str, words: str) -> None:
    ended = run(tmp_path, "programs", test, WITHOUT=without)

    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert words in ended.stderr


LEAVES_A_CHILD = """
import subprocess

def test_it():
    assert subprocess.Popen(["sleep", "61"])
"""

LEAVES_A_STRAY = """
import subprocess

def test_it():
    assert subprocess.run(["sh", "-c", "sleep 61 >/dev/null 2>&1 &"]).returncode == 0
"""

# The parent in between ends at once, as a killed supervisor does, and no program is started.
LEAVES_A_STRAY_FORK = """
import os, signal

def test_it():
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            signal.alarm(61)
            signal.pause()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize(
    ("test", "workers"),
    [(LEAVES_A_CHILD, ()), (LEAVES_A_STRAY, ()), (LEAVES_A_STRAY_FORK, ()), (LEAVES_A_STRAY, ("-n", "2"))],
    ids=["child", "stray", "stray fork", "stray of a worker"],
)
def test_a_process_that_outlives_the_run_fails_it_is_named_and_ended(
    tmp_path: Path, test: str, workers: Sequence[str]
) -> None:
    ended = run(tmp_path, "leftovers", test, *workers, "-W", "ignore::ResourceWarning")

    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 passed, 1 error" in ended.stdout
    named = re.findall(r"pid (\d+) \(parent \d+\): (.+)", ended.stdout)
    assert [command for _, command in named if "sleep 61" in command or "-m pytest" in command]
    pids = [int(pid) for pid, _ in named]
    wait_until(lambda: all(map(is_gone, pids)), f"processes {pids} gone", timeout=10)


class InExec:
    """A stray in the midst of an exec: at the first looks it has no environment, and no descriptor any more."""

    pid = 2**22 + 1

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self.looks = 0

    def ppid(self) -> int:
        return 1

    def environ(self) -> dict[str, str]:
        self.looks += 1
        return {} if self.looks < 3 else {TAG_VARIABLE: self._tag}

    def status(self) -> str:
        return psutil.STATUS_RUNNING

    def cmdline(self) -> list[str]:
        return ["sleep", "61"]


def test_a_process_in_the_midst_of_an_exec_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run_of_its_own = Leftovers()
    stray = InExec(run_of_its_own.tag)
    monkeypatch.setattr(psutil, "process_iter", lambda: [stray])

    assert stray in run_of_its_own.alive()
    run_of_its_own.close()


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_a_run_that_cleans_up_after_itself_passes(tmp_path: Path) -> None:
    ended = run(tmp_path, "leftovers", "def test_it():\n    assert True\n")

    assert (ended.returncode, "1 passed in" in ended.stdout) == (0, True)


STARTS_A_CHILD = """
import subprocess
from pathlib import Path
from tests.support.wait import wait_until

def test_it():
    with subprocess.Popen(["sleep", "61"]) as child:
        Path("begun").touch()
        wait_until(Path("ended").exists, "the end of the other worker's run")
        assert child.poll() is None
        child.kill()
"""

TELLS_ITS_END = """
from pathlib import Path
import pytest
from tests.support.wait import wait_until

class Tell:
    def pytest_unconfigure(self):
        Path("ended").touch()

def test_it(pytestconfig):
    pytestconfig.pluginmanager.register(Tell())
    wait_until(Path("begun").exists, "the child of the other worker")
"""


def test_a_worker_that_ends_leaves_the_processes_of_the_other_alone(tmp_path: Path) -> None:
    (tmp_path / "tests" / "faults").mkdir(parents=True)
    (tmp_path / "tests" / "faults" / "test_starts.py").write_text(STARTS_A_CHILD)

    ended = run(tmp_path, "leftovers", TELLS_ITS_END, "-n", "2")

    assert (ended.returncode, "2 passed in" in ended.stdout) == (0, True), ended.stdout


PRINTS_HALF_A_PAIR = """
def test_it():
    print("half of a pair: \\ud83d")
    raise ValueError("and the other: \\udca9")
"""


def test_a_worker_can_tell_of_text_that_is_no_utf_8(tmp_path: Path) -> None:
    ended = run(tmp_path, "leftovers", PRINTS_HALF_A_PAIR, "-n", "2")

    assert "1 failed in" in ended.stdout
    assert "half of a pair: \\ud83d" in ended.stdout
    assert "and the other: \\udca9" in ended.stdout


NOTES_ITS_WORKER = """
import os
import pytest

@pytest.mark.parametrize("number", range(5))
def test_it(number):
    with open("workers", "a") as file:
        print(__file__, os.getpid(), file=file)
"""


def test_one_worker_runs_each_unit_that_starts_real_processes_and_each_other_file_has_one_worker(
    tmp_path: Path,
) -> None:
    units = {
        "test_a.py": "faults",
        "test_b.py": "process",
        "test_c.py": "demo and chaos",
        "test_g.py": "demo and chaos",
    }
    real_files = ("faults/test_a", "process/test_b", "demo/test_c", "chaos/test_g")
    for file in (*real_files, "unit/test_d", "unit/test_e", "engine/test_f"):
        path = tmp_path / "tests" / f"{file}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(NOTES_ITS_WORKER)

    ended = run(tmp_path, "requirements_index", "", "-n", "2")

    assert "35 passed in" in ended.stdout
    noted = [line.split() for line in (tmp_path / "workers").read_text().splitlines()]
    workers: dict[str, set[str]] = {}
    for file, pid in noted:
        workers.setdefault(units.get(Path(file).name, Path(file).name), set()).add(pid)
    assert sorted(workers) == ["demo and chaos", "faults", "process", "test_d.py", "test_e.py", "test_f.py"]
    assert [len(pids) for pids in workers.values()] == [1] * 6
    assert [Path(file).name in units for file, _ in noted[:2]] == [True, True], "what takes longest comes first"


MARKED = """
import pytest

proves = pytest.mark.req

@proves("one-rule", "other-rule")
@pytest.mark.parametrize("n", [1, 2])
def test_both(n):
    raise AssertionError("must not run")

@proves("one-rule")
def test_one():
    raise AssertionError("must not run")
"""

LIST = """
# 1. First group
- **R-001** `one-rule` — Something holds.
- **R-002** `bare-rule` *(inferred)* — Something else holds.
# 2. Second group
- **R-003** `other-rule` — A third thing holds.
"""


def test_the_report_names_the_tests_of_each_key_and_runs_none(tmp_path: Path) -> None:
    ended = run(tmp_path, "requirements_index", MARKED, "--req-report")

    assert ended.returncode == 0
    assert "one-rule: test_it.py::test_both, test_it.py::test_one" in ended.stdout
    assert "other-rule: test_it.py::test_both\n" in ended.stdout
    assert "must not run" not in ended.stdout


def test_with_the_list_at_hand_the_report_names_what_has_no_test(tmp_path: Path) -> None:
    (tmp_path / "list.md").write_text(LIST)

    lines = report({"one-rule": ["a", "b"], "odd": ["c"]}, read_requirements(tmp_path / "list.md"))

    assert lines == [
        "1. First group",
        "  R-001 one-rule: a, b",
        "  R-002 bare-rule: NO TEST",
        "2. Second group",
        "  R-003 other-rule: NO TEST",
        "not in the list",
        "  - odd: c",
        "1 of 3 requirements have a test",
    ]


def test_without_the_list_the_report_counts_the_keys_that_tests_name(tmp_path: Path) -> None:
    lines = report({"odd": ["c"]}, read_requirements(tmp_path / "absent.md"))

    assert lines[-1].startswith("1 requirement keys have a test")


SIGNALLED = """
import signal, subprocess, sys
import pytest

@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_program_is_ended(number):
    signal.raise_signal(number)  # ignored here, as whoever started pytest wanted it
    wait = "print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"\\n"
        program.send_signal(number)
        assert program.wait(60) == -number
"""


def test_a_run_with_ignored_signals_starts_programs_that_they_end(tmp_path: Path) -> None:
    """As under `nohup` and as with `&` in a script."""
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    }
    try:
        found = run(tmp_path, "dispositions", SIGNALLED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

    assert found.returncode == 0, found.stdout
