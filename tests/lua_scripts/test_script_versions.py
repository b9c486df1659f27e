"""Versions: no text changes under a version in use, and two releases work side by side on one Redis."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lua
from kernel.coordination import BoundScript, Keys, Lanes
from kernel.coordination.lanes import LaneEntry
from lua import __main__ as command
from lua import lock
from tests.support.redis_servers import RedisTarget

FOLDER = Path(lua.__file__).parent / lua.LAYOUT_FOLDER


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the script folder that a test may change."""
    return Path(shutil.copytree(FOLDER, tmp_path / "v1"))


def change(folder: Path, *, code: bool, version: str = "") -> None:
    path = folder / "lane_remove.lua"
    text = path.read_text()
    if code:
        text = text.replace("local removed = 0", "local removed = 0 + 0")
    path.write_text(text.replace("version: 1", f"version: {version}") if version else text)


@pytest.mark.req("dc-lua-versioned")
def test_every_script_is_as_its_version_was_locked() -> None:
    locked = lock.read(FOLDER)

    assert lock.unversioned(lua.scripts(), locked) == []
    assert lock.stale(lua.scripts(), locked) == []


@pytest.mark.req("dc-lua-versioned")
def test_a_changed_text_without_a_raised_version_is_refused(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(copied, code=True)
    before = (copied / lock.LOCK_FILE).read_text()

    assert command.main(["--folder", str(copied)]) == 1
    assert command.main(["--lock", "--folder", str(copied)]) == 1

    assert "lane_remove: the text changed but the version is 1, locked at 1" in capsys.readouterr().err
    assert (copied / lock.LOCK_FILE).read_text() == before


@pytest.mark.req("dc-lua-versioned")
def test_a_changed_include_counts_as_a_change_of_each_script_that_uses_it(copied: Path) -> None:
    include = copied / "include" / "now_ms.lua"
    include.write_text(include.read_text().replace("return tonumber(given)", "return tonumber(given) + 0"))

    problems = lock.unversioned(lua.load(copied), lock.read(copied))

    users = {path.stem for path in copied.glob("*.lua") if '"include/now_ms.lua"' in path.read_text()}
    assert {problem.partition(":")[0] for problem in problems} == users
    assert {"lane_pop", "lane_stats"} <= users < {script.name for script in lua.scripts()}


@pytest.mark.req("dc-lua-versioned")
def test_a_raised_version_is_locked_on_request(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(copied, code=True, version="2")

    assert command.main(["--folder", str(copied)]) == 1, "raised, but not yet locked"
    assert command.main(["--lock", "--folder", str(copied)]) == 0
    assert command.main(["--folder", str(copied)]) == 0

    listed = capsys.readouterr().out.splitlines()
    assert any(line.startswith("lane_remove 2 ") for line in listed)
    change(copied, code=False, version="")
    (copied / "lane_remove.lua").write_text(
        (copied / "lane_remove.lua").read_text().replace("version: 2", "version: 1")
    )
    assert command.main(["--lock", "--folder", str(copied)]) == 1, "a version never falls"


@pytest.mark.req("dc-lua-versioned")
def test_the_list_gives_name_version_and_sha1(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0

    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert words == [[script.name, str(script.version), script.sha1] for script in lua.scripts()]
    assert command.main(["--show", "lane_stats"]) == 0
    assert capsys.readouterr().out == lua.get("lane_stats").text
    assert command.main(["--show", "nothing"]) == 1


def test_a_broken_lock_file_or_script_is_one_line(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / lock.LOCK_FILE).write_text("lane_pop one\n")
    assert command.main(["--folder", str(copied)]) == 1
    assert capsys.readouterr().err == "versions.lock:1: expected name, version and sha1\n"

    (copied / "lane_pop.lua").write_text("return 1\n")
    assert command.main(["--folder", str(copied)]) == 1
    assert capsys.readouterr().err.startswith("lane_pop.lua:1: ")


@pytest.mark.req("fpr-lua-versions")
def test_two_versions_of_a_script_run_side_by_side(redis_target: RedisTarget, copied: Path) -> None:
    path = copied / "lane_remove.lua"
    path.write_text(
        path.read_text().replace("version: 1", "version: 2").replace("return removed", "return {2, removed}")
    )
    (newer,) = (script for script in lua.load(copied) if script.name == "lane_remove")
    keys, runner = redis_target.keys, redis_target.runner()
    old_worker = BoundScript(lua.get("lane_remove"), keys.of(lua.get("lane_remove")))
    new_worker = BoundScript(newer, keys.of(newer))
    lanes = redis_target.lanes()

    for _ in range(3):
        lanes.push([LaneEntry("a", 0, 5), LaneEntry("b", 3, 5)])
        assert runner.call(old_worker, "a") == 1
        assert runner.call(new_worker, "b") == [2, 1]
        redis_target.client.script_flush()


@pytest.mark.req("fpr-lua-versions")
def test_releases_with_different_layouts_never_read_each_others_keys(redis_target: RedisTarget) -> None:
    runner = redis_target.runner()
    now, later = Lanes(runner, Keys("tests")), Lanes(runner, Keys("tests", layout="wk2"))

    now.push([LaneEntry("of-wk1", 1, 5)])
    later.push([LaneEntry("of-wk2", 1, 5)])

    assert [entry.workflow_id for entry in later.pop(8).entries] == ["of-wk2"]
    assert [entry.workflow_id for entry in now.pop(8).entries] == ["of-wk1"]
    prefixes = {key.partition(b":")[0] for key in redis_target.client.scan_iter()}
    assert prefixes == {b"wk1", b"wk2"}
