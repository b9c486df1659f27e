"""The data folder: one supervisor at a time, private, and harmless whatever was left in it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.run_dir import read_run_file
from tests.process.supervised import program
from tests.support.requirements_index import CHECKOUT
from tests.support.rightless import rightless
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault


def test_a_second_start_in_the_same_folder_is_one_line_and_exit_2(supervise, data_dir) -> None:
    first = supervise()
    first.wait_running()
    before = sorted(path.name for path in data_dir.iterdir())

    second = supervise()

    assert second.wait_end() == 2
    (line,) = second.log_text().splitlines()
    assert line == f"error: data_dir: {data_dir} is in use by a running supervisor (pid {first.pid})"
    assert sorted(path.name for path in data_dir.iterdir()) == before
    assert first.wait_running()["pid"] == first.pid


@pytest.mark.case("A61")
@pytest.mark.parametrize("content", ["unrelated", "rubbish", "a folder's link", "older version"])
def test_what_a_killed_supervisor_left_does_not_matter_and_nobody_is_signalled(supervise, data_dir, content) -> None:
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"], stdout=-1
    )
    try:
        assert bystander.stdout is not None
        assert bystander.stdout.readline() == b"up\n"
        data_dir.mkdir(mode=0o700)
        leave_behind(data_dir, bystander.pid, content)

        assert stop(data_dir).returncode == 0  # nobody is there: nothing to stop, nobody signalled
        tree = supervise(redis_url=None)
        tree.wait_running()
        assert stop(data_dir).returncode == 0

        assert tree.wait_end() == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.communicate()


def leave_behind(folder: Path, pid: int, content: str) -> None:
    run_file = {
        "v": 1,
        "pid": pid,
        "started": 1.0,
        "control": "/nowhere/c",
        "redis": "/nowhere/r",
        "socket_dir": "/nowhere",
    }
    (folder / "supervisor.lock").write_text(f"{pid}\n")
    (folder / "control.sock").write_text("not a socket")
    match content:
        case "unrelated":
            (folder / "run.json").write_text(json.dumps(run_file))
        case "rubbish":
            (folder / "run.json").write_bytes(b"\x00\xff{{{" * 1000)
        case "a folder's link":
            (folder / "run.json").symlink_to("/etc/passwd")
        case "older version":
            (folder / "run.json").write_text(json.dumps(run_file | {"v": 0}))


def stop(folder: Path) -> subprocess.CompletedProcess[str]:
    return command("stop", "--data-dir", str(folder))


def command(*arguments: str, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "supervisor", *arguments], capture_output=True, text=True, timeout=60, **more
    )


@pytest.mark.parametrize("name", ["supervisor.lock", "run.json"])
def test_nothing_is_written_through_a_planted_link(supervise, data_dir, tmp_path, name) -> None:
    target = tmp_path / "precious"
    target.write_text("content")
    data_dir.mkdir(mode=0o700)
    (data_dir / name).symlink_to(target)

    tree = supervise()
    wait_until(lambda: tree.process.poll() is not None or tree.status(), "started or refused")
    tree.process.send_signal(signal.SIGTERM)
    tree.wait_end()

    assert target.read_text() == "content"


def test_a_folder_that_can_not_be_made_is_one_line_and_exit_2(supervise, tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")

    tree = supervise(folder=tmp_path / "file" / "data")

    assert tree.wait_end() == 2
    (line,) = tree.log_text().splitlines()
    assert line.startswith(f"error: data_dir: {tmp_path / 'file'}")
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_read_only_folder_is_one_line_and_exit_2(supervise, read_only_folder) -> None:
    tree = supervise(folder=read_only_folder / "data")

    assert tree.wait_end() == 2
    (line,) = tree.log_text().splitlines()
    assert line.startswith(f"error: data_dir: {read_only_folder / 'data'}: ")
    assert not (read_only_folder / "data").exists()


@pytest.fixture
def read_only_folder(tmp_path) -> Iterator[Path]:
    """A folder in which nobody can make another: by its mode, and for root by a mount or, where not allowed, /proc."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    mounted = os.getuid() == 0 and not subprocess.call(["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)])
    yield folder if mounted or os.getuid() else Path("/proc")
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_folder_that_others_may_enter_is_closed_only_if_it_is_ours(supervise, data_dir) -> None:
    data_dir.mkdir(mode=0o755)
    data_dir.chmod(0o755)
    (data_dir / "thesis.txt").write_text("not ours")

    refused = supervise()
    assert refused.wait_end() == 2
    assert "others may enter it and it is not empty" in refused.log_text()
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o755
    (data_dir / "thesis.txt").unlink()

    supervise().wait_running()
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700


def test_a_folder_that_its_owner_has_made_read_only_stays_so(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.chmod(0o555)
    start = rightless("supervisor", "start", "--app", "tests.process.shop:app", "--data-dir", str(folder))

    done = subprocess.run(start, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 2
    assert done.stderr == f"error: data_dir: {folder}: is read-only\n"
    assert list(folder.iterdir()) == [] and stat.S_IMODE(folder.stat().st_mode) & 0o222 == 0


def test_a_long_path_puts_the_sockets_elsewhere_and_removes_them(supervise, tmp_path) -> None:
    folder = tmp_path / ("x" * 60) / ("y" * 60)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    tree = supervise(folder=folder, redis_url=None, environ={"XDG_RUNTIME_DIR": str(runtime)})
    tree.wait_running()

    run_file = read_run_file(folder)
    assert run_file is not None
    elsewhere = Path(run_file.socket_dir)
    assert elsewhere.parent == runtime if len(str(runtime)) < 75 else Path(tempfile.gettempdir())
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
    assert sorted(path.name for path in elsewhere.iterdir()) == ["control.sock", "valkey.sock"]
    tree.process.send_signal(signal.SIGTERM)

    assert tree.wait_end() == 0
    assert not elsewhere.exists()


def test_the_short_socket_folder_of_a_killed_supervisor_is_removed_by_the_next_start(supervise, tmp_path) -> None:
    folder = tmp_path / ("x" * 60) / ("y" * 60)
    first = supervise(folder=folder)
    first.wait_running()
    run_file = read_run_file(folder)
    assert run_file is not None
    first.process.kill()
    first.process.wait()
    assert Path(run_file.socket_dir).exists()

    second = supervise(folder=folder)
    second.wait_running()

    assert not Path(run_file.socket_dir).exists()


def test_a_crafted_run_file_removes_nothing_outside(supervise, data_dir, tmp_path) -> None:
    victim = tmp_path / "kernel-victim"
    victim.mkdir(mode=0o700)
    (victim / "control.sock").write_text("precious")
    data_dir.mkdir(mode=0o700)
    crafted = {"v": 1, "pid": 1, "started": 1.0, "control": "x", "redis": "x", "socket_dir": str(victim)}
    (data_dir / "run.json").write_text(json.dumps(crafted))

    supervise().wait_running()

    assert (victim / "control.sock").read_text() == "precious"


def test_a_start_that_fails_later_leaves_no_folder(supervise, data_dir) -> None:
    tree = supervise(program(probe="probe"), app="tests.process.roles_for_tests:nothing", folder=data_dir / "a" / "b")

    assert tree.wait_end() == 2
    assert not data_dir.exists()


def test_a_log_file_that_can_not_be_opened_is_one_line_and_exit_2(supervise, data_dir, tmp_path) -> None:
    tree = supervise(log_file=str(tmp_path / "missing" / "kernel.log"))

    assert tree.wait_end() == 2
    (line,) = tree.log_text().splitlines()
    assert line.startswith("error: log_file: ")
    assert not data_dir.exists()
