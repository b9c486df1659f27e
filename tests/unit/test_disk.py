"""Is the disk full, asked by `doctor`: with a file system that knows files without a name, and one that does not."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from kernel.store.disk import ROOM_BYTES, full_disk


def refusing(code: int) -> Any:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


def test_a_disk_with_room_is_not_full_and_nothing_is_left_in_it(tmp_path) -> None:
    before = tmp_path.stat()

    assert full_disk(str(tmp_path)) is None

    assert list(tmp_path.iterdir()) == []
    assert tmp_path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "the disk is full (No space left on device)"),
        (errno.EDQUOT, "the disk is full (Disk quota exceeded)"),
        (errno.EFBIG, None),
    ],
)
def test_blocks_that_are_not_given_are_a_full_disk(tmp_path, monkeypatch, code, words) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refusing(code))

    assert full_disk(str(tmp_path)) == words


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_of_a_folder_that_may_not_be_written_nothing_is_said(tmp_path, monkeypatch, code) -> None:
    monkeypatch.setattr(os, "open", refusing(code))

    assert full_disk(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("blocks", "available", "words"),
    [
        (1_000, ROOM_BYTES // 512 - 1, f"the disk is full ({ROOM_BYTES - 512} bytes are left)"),
        (1_000, ROOM_BYTES // 512, None),
        (0, 0, None),
    ],
)
def test_without_files_without_a_name_the_count_decides(tmp_path, monkeypatch, blocks, available, words) -> None:
    monkeypatch.setattr(os, "open", refusing(errno.EOPNOTSUPP))
    counted = SimpleNamespace(f_blocks=blocks, f_bavail=available, f_frsize=512)
    monkeypatch.setattr(os, "statvfs", lambda _folder: counted)

    assert full_disk(str(tmp_path)) == words
