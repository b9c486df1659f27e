"""The folder of a driven run: gone with it, removed by the next run when its driver was killed, and only then."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor import run_dir
from supervisor.fresh_folder import DRIVER_LOCK, fresh_folder

pytestmark = pytest.mark.req("dc-clean-exit")


def left_by_a_killed_driver(parent: Path, name: str) -> Path:
    folder = parent / name
    (folder / "entries").mkdir(parents=True)
    (folder / "entries" / "one").touch()
    (folder / "store.sqlite").touch()
    (folder / DRIVER_LOCK).touch()
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """As another process holds it: a lock belongs to the descriptor that took it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield
    os.close(fd)


def swept(parent: Path) -> None:
    with fresh_folder(parent, "demo-"):
        pass


def test_it_goes_with_the_run_and_its_parent_when_that_was_made_for_it(tmp_path: Path) -> None:
    with fresh_folder(tmp_path / ".kernel", "demo-") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").touch()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "mine").mkdir()
    with fresh_folder(tmp_path / "mine", "bench-"):
        pass
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


@pytest.mark.parametrize("name", ["demo-1", "bench-1"])
def test_what_a_killed_driver_left_goes(tmp_path: Path, name: str) -> None:
    left = left_by_a_killed_driver(tmp_path / ".kernel", name)
    (left / run_dir.LOCK_NAME).touch()  # its supervisor was killed as well

    swept(tmp_path / ".kernel")

    assert list(tmp_path.iterdir()) == []


def test_what_a_driver_or_a_supervisor_holds_stays(tmp_path: Path) -> None:
    left = left_by_a_killed_driver(tmp_path, "demo-1")
    for name in (DRIVER_LOCK, run_dir.LOCK_NAME):
        with locked(left / name):
            swept(tmp_path)
            assert (left / "entries" / "one").exists()

    with fresh_folder(tmp_path, "demo-") as running:
        swept(tmp_path)
        assert running.exists()


def test_what_is_kept_or_named_by_the_user_stays(tmp_path: Path) -> None:
    with fresh_folder(tmp_path, "demo-", keep=True) as kept:
        pass
    named = tmp_path / "demo-mine"
    named.mkdir()
    other = left_by_a_killed_driver(tmp_path, "other")

    swept(tmp_path)

    assert sorted(tmp_path.iterdir()) == sorted([kept, named, other])


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = left_by_a_killed_driver(tmp_path / "elsewhere", "demo-1")
    parent = tmp_path / ".kernel"
    parent.mkdir()
    (parent / "demo-2").symlink_to(elsewhere)
    left = left_by_a_killed_driver(parent, "demo-3")
    (left / "link").symlink_to(elsewhere)

    swept(parent)

    assert (elsewhere / "entries" / "one").exists()
    assert not left.exists()
