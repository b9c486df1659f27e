"""Whether the disk under a folder is full: asked without leaving anything on it."""

from __future__ import annotations

import errno
import os

ROOM_BYTES = 256 * 1024
"""More than one commit of small rows needs: its pages in the log, and the blocks by which the log's index grows."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNKNOWN_FLAG = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
"""What a file system answers that makes no file without a name; an old one takes it for the opening of a folder."""


def full_disk(folder: str) -> str | None:
    """Why nothing more can be written in `folder`, in words; None where there is room, and where nobody can tell.

    Blocks are asked for and given back, because free space as it is counted knows no quota, and not how much of it is
    kept for root. A file without a name takes them: who is killed in between leaves nothing behind.
    """
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, ROOM_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _FULL:
            return f"the disk is full ({error.strerror})"
        return _counted(folder) if error.errno in _UNKNOWN_FLAG else None
    return None


def _counted(folder: str) -> str | None:
    """By the file system's own count, which is 0 of 0 where it has none."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    is_full = found.f_blocks and found.f_bavail * found.f_frsize < ROOM_BYTES
    return f"the disk is full ({found.f_bavail * found.f_frsize} bytes are left)" if is_full else None
