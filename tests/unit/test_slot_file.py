"""A file of metrics on a disk that is full, and after that: what is in memory is the truth."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.mmap_dict import MmapedDict

from kernel.observe import slot_file
from kernel.observe.slot_file import AGAIN_S, SlotFile

pytestmark = pytest.mark.req("obs-no-affect")


class Disk:
    """What a write does: with `room`, so many bytes of each; without, an error. `tried`: how many there were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self.full = False
        self.tried = 0
        self._pwrite = os.pwrite
        monkeypatch.setattr(slot_file.os, "pwrite", self._write)

    def _write(self, fd: int, data: bytes, at: int) -> int:
        self.tried += 1
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._pwrite(fd, data[: self.room], at)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


class Ticks:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counter_worker-0.db"


@pytest.fixture
def file(path: Path, ticks: Ticks) -> Iterator[SlotFile]:
    with closing(SlotFile(str(path), ticks)) as opened:
        yield opened


def seen(path: Path) -> dict[str, float]:
    """What a scrape reads."""
    return {key: value for key, value, _, _ in MmapedDict.read_all_values_from_file(str(path))}


def test_the_library_reads_what_is_written(file: SlotFile, path: Path) -> None:
    keys = [f'["{"k" * length}ü"]' for length in range(9)]
    for number, key in enumerate(keys):
        assert file.read_value(key) == (0.0, 0.0)
        file.write_value(key, number, 5.0)

    assert seen(path) == {key: number for number, key in enumerate(keys)}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_successor_counts_on(file: SlotFile, path: Path) -> None:
    file.write_value("a", 1.0, 0.0)
    with closing(SlotFile(str(path))) as successor:
        successor.write_value("b", 2.0, 0.0)
        assert successor.read_value("a") == (1.0, 0.0)
        successor.write_value("a", 3.0, 0.0)

    assert seen(path) == {"a": 3.0, "b": 2.0}


@pytest.mark.parametrize("room", [None, 3])
def test_a_full_disk_is_told_once_and_written_to_when_there_is_room(
    file: SlotFile, path: Path, disk: Disk, ticks: Ticks, caplog: pytest.LogCaptureFixture, room: int | None
) -> None:
    """`room`: the first bytes still go in."""
    file.write_value("a", 1.0, 0.0)
    disk.room, disk.full = room, room is None
    for number in range(100):
        file.write_value("a", float(number), 0.0)
        file.write_value(f"new {number}", 7.0, 0.0)
    assert file.read_value("a") == (99.0, 0.0)
    assert seen(path).keys() == {"a"}, "a reader never comes to what is not there"
    assert len(caplog.records) == 1
    assert str(path) in caplog.text and "No space left on device" in caplog.text

    disk.room, disk.full = None, False
    ticks.now_s = AGAIN_S
    file.write_value("a", 100.0, 0.0)

    assert seen(path) == {"a": 100.0, **{f"new {number}": 7.0 for number in range(100)}}


def test_a_full_disk_is_not_tried_with_each_count(file: SlotFile, disk: Disk, ticks: Ticks) -> None:
    disk.full = True
    for moment in range(3):
        ticks.now_s = moment * AGAIN_S
        for _ in range(50):
            file.write_value("a", 1.0, 0.0)

    assert disk.tried == 3


def test_a_file_that_can_not_be_made_is_made_later(tmp_path: Path, ticks: Ticks) -> None:
    path = tmp_path / "metrics" / "counter_worker-0.db"
    with closing(SlotFile(str(path), ticks)) as file:
        file.write_value("a", 1.0, 0.0)
        path.parent.mkdir()
        ticks.now_s = AGAIN_S
        file.write_value("a", 2.0, 0.0)

    assert seen(path) == {"a": 2.0}


@pytest.mark.parametrize(
    "content",
    [
        b"\x40\0\0\0\0\0\0\0" + b"\xff\xff\xff\x0f" + bytes(100),
        b"\x40\0\0\0\0\0\0\0" + bytes(100),
        b"\x40\0\0\0\0\0\0\0" + b"\x04\0\0\0key",
        b"\x40\0",
    ],
)
def test_what_is_no_such_file_is_begun_anew(path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(content)
    with closing(SlotFile(str(path))) as file:
        file.write_value("a", 1.0, 0.0)

    assert seen(path) == {"a": 1.0}
    assert "counting begins anew" in caplog.text


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    path.symlink_to(other)
    with closing(SlotFile(str(path))) as file:
        file.write_value("a", 1.0, 0.0)

    assert other.read_bytes() == b""
