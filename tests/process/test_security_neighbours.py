"""The second user of a machine (RELIABILITY §8, embedded servers and run directory; A85): he is refused everything.

As root, which CI is, a child becomes `nobody` and tries; otherwise the modes of every part of the way say the same. The
data folder lies where he can reach its door, so that it is our modes that refuse him, and a control shows that he
succeeds where they do not.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import apps
from tests.faults.rig import Tree, tree
from tests.process.neighbour import intrusions, open_to_others

pytestmark = [pytest.mark.fault, pytest.mark.case("A85")]

EXPECTED = {
    *("control.sock", "valkey.sock", "valkey.log", "run.json", "supervisor.lock", "log.jsonl", "metrics"),
    *("store.sqlite", "store.sqlite-lock", "store.sqlite-wal", "store.sqlite-shm", "counter_worker-0.db"),
}


@pytest.fixture
def street() -> Iterator[Path]:
    """A folder that everybody may enter, below others that everybody may enter: pytest's own are closed."""
    folder = Path(tempfile.mkdtemp(prefix="street-", dir="/tmp"))
    folder.chmod(0o755)
    assert open_to_others(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_door_that_is_open_is_found_open(street: Path) -> None:
    """The control: without it every test here could pass because the neighbour can not even walk to the door."""
    (street / "file").write_text("for all")
    (street / "file").chmod(0o666)
    folder = street / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(street / "socket"))
        listener.listen(8)
        (street / "socket").chmod(0o666)
        found = intrusions([street / "file", street / "socket", folder], [])

    assert {f"mode {street / name}" for name in ("file", "socket", "folder")} <= set(found)
    if os.getuid() == 0:
        done = {f"read {street / 'file'}", f"write {street / 'file'}", f"connect {street / 'socket'}"}
        assert done | {f"list {folder}", f"plant in {folder}"} <= set(found)
        (folder / "planted").unlink()


def test_a_tree_at_work_is_closed_to_him_at_two_doors(street: Path) -> None:
    """Socket, store, log, lock and run file; the memory, the environment and the descriptors of each process. Then each
    thing by itself, when the folder's mode was given away: by a careless `chmod -R`, or by a copy that lost it."""
    folder = street / "data"
    with tree(folder, metrics=0) as running:
        at_work(running)
        family = [process.pid for process in running.family()]
        names = [path for path in sorted(folder.rglob("*")) if path.name != "stderr"]  # the rig's own
        assert {path.name for path in names} >= EXPECTED

        assert intrusions([folder, *names], family) == []

        folder.chmod(0o755)
        (folder / "metrics").chmod(0o755)
        entered = {f"{what} {folder / 'metrics'}" for what in ("list", "read", "mode")}
        assert set(intrusions(names, [])) - entered == set()
        assert {path.name for path in folder.rglob("*")} >= EXPECTED, "all that was tried is still there"


def test_sockets_that_lie_elsewhere_are_closed_to_him(street: Path) -> None:
    """A long path: the sockets are in a short folder beside everybody's."""
    folder = street / ("x" * 60) / ("y" * 60)
    folder.mkdir(mode=0o700, parents=True)
    with tree(folder) as running:
        at_work(running)
        sockets = Path(running.session.redis_url.removeprefix("unix://")).parent
        assert street not in sockets.parents
        names = [sockets, *sockets.iterdir()]
        assert {path.name for path in names[1:]} == {"control.sock", "valkey.sock"}

        assert intrusions(names, []) == []


def at_work(running: Tree) -> None:
    running.wait_running()
    running.finish(*running.start_many(apps.STEADY, "seen", 3))
