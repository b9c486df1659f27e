"""The data folder of one driven run (demo, bench): made for it and gone with it, even if its driver was killed.

The driver holds `driver.lock` in it by flock. The next run removes what killed drivers left: folders with that file,
which neither their driver nor a supervisor holds any more. A folder that is to be kept, or that the user named, has no
such file. Children of a killed supervisor hold no lock; they end within seconds, and nobody waits for their work.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from supervisor.run_dir import LOCK_NAME as SUPERVISOR_LOCK

DRIVER_LOCK = "driver.lock"
PREFIXES = ("bench-", "demo-")


@contextmanager
def fresh_folder(parent: Path, prefix: str, *, keep: bool = False) -> Iterator[Path]:
    """A fresh folder below `parent`, gone afterwards unless it is kept; `prefix` is one of PREFIXES. `parent` goes too
    when it was made for this run, or for one that was killed, and nothing else is in it. Raises OSError where no
    folder can be made."""
    assert prefix in PREFIXES
    is_ours = not parent.exists()
    parent.mkdir(mode=0o700, exist_ok=True)
    try:
        is_ours |= _swept(parent)
        if keep:
            yield Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            return
        folder, lock_fd = _made(parent, prefix)
        try:
            yield folder
        finally:
            _remove(folder)
            os.close(lock_fd)
    finally:
        if is_ours:
            with suppress(OSError):
                parent.rmdir()


def _made(parent: Path, prefix: str) -> tuple[Path, int]:
    """A folder and the descriptor of its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock_fd = _held(folder / DRIVER_LOCK, os.O_CREAT)
        if lock_fd is not None:
            return folder, lock_fd
        # Another run looked between the file and the lock: that folder is its to remove.


def _held(path: Path, flags: int = 0) -> int | None:
    """The descriptor that holds the lock; None when another process does, or has removed the file. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.lstat(path)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _swept(parent: Path) -> bool:
    """Remove what killed drivers left; whether there was something. What can not be removed stays for the next."""
    found = False
    for name in os.listdir(parent):
        if name.startswith(PREFIXES):
            with suppress(OSError):
                found |= _removed_if_left(parent / name)
    return found


def _removed_if_left(folder: Path) -> bool:
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or not (folder / DRIVER_LOCK).exists():
        return False
    with ExitStack() as locks:
        # Held while it is removed, so that nobody starts a tree in what is about to go.
        for name in (DRIVER_LOCK, SUPERVISOR_LOCK):
            if (folder / name).exists():
                fd = _held(folder / name)
                if fd is None:
                    return False
                locks.callback(os.close, fd)
        _remove(folder)
    return True


def _remove(folder: Path) -> None:
    """Its lock goes last: if anything stays, the next run finds by it what is to be removed."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != DRIVER_LOCK:
                os.unlink(entry.path)
        if os.listdir(folder) == [DRIVER_LOCK]:
            shutil.rmtree(folder, ignore_errors=True)
