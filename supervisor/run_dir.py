"""The data folder of one tree: who may use it, where its sockets lie, how others find it (A61, RELIABILITY §8).

The folder is 0700, everything in it 0600, nothing is opened through a symbolic link. `supervisor.lock` is held by flock
as long as the supervisor lives; `run.json` tells where the control socket is and is removed at the end. Neither file's
process number is ever signalled: what is left of a killed supervisor is harmless, and the next start replaces it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import shutil
import stat
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from kernel.config import user_runtime_dir
from kernel.errors import InvalidConfig

VERSION = 1
LOCK_NAME = "supervisor.lock"
RUN_NAME = "run.json"
CONTROL_NAME = "control.sock"
REDIS_NAME = "valkey.sock"
SOCKET_PATH_BYTES = 100
"""Unix sockets lie in the data folder only if their path is shorter than this; sun_path holds 108 bytes."""
SHORT_DIR_PREFIX = "kernel-"
_LOCK_PATIENCE_S = 0.5  # a child of a killed supervisor, caught between fork and its first line, still holds a copy
_FILE_BYTES_MAX = 65_536


class RunFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `run.json` says."""

    v: int
    pid: int
    started: float
    """When that process started, in seconds since the epoch, as the operating system tells it."""
    control: str
    redis: str
    socket_dir: str


class RunDir:
    """The data folder, taken by this supervisor until `release`."""

    def __init__(self, path: Path, lock_fd: int, socket_dir: Path, made: list[Path]) -> None:
        self.path = path
        self.socket_dir = socket_dir
        self._lock_fd = lock_fd
        self._made = made

    @property
    def control_path(self) -> Path:
        return self.socket_dir / CONTROL_NAME

    @property
    def redis_path(self) -> Path:
        return self.socket_dir / REDIS_NAME

    def release(self, *, untouched: bool = False) -> None:
        """Remove what belongs to this run. `untouched`: nothing was started, so a folder made for it goes as well."""
        if not _is_still(self.path / LOCK_NAME, self._lock_fd):
            os.close(self._lock_fd)  # the folder was removed under this run; what lies there now is another's
            return
        for path in (self.path / RUN_NAME, self.control_path, self.redis_path):
            path.unlink(missing_ok=True)
        if self.socket_dir != self.path:
            shutil.rmtree(self.socket_dir, ignore_errors=True)
        # Removed while it is held: who waits for the lock sees that the name is another file now, and tries again.
        (self.path / LOCK_NAME).unlink(missing_ok=True)
        os.close(self._lock_fd)
        if untouched:
            _unmake(self._made)


def take(data_dir: str) -> RunDir:
    """Make, check and lock the folder, and write `run.json`. Raises InvalidConfig, and then nothing is left behind."""
    path = Path(data_dir).absolute()
    made = _make_private(path)
    try:
        lock_fd = _lock(path)
    except InvalidConfig:
        _unmake(made)
        raise
    run_dir = RunDir(path, lock_fd, path, made)
    try:
        _forget_last_run(path)
        run_dir.socket_dir = _socket_dir(path)
        _write_run_file(run_dir)
    except OSError as error:
        run_dir.release(untouched=True)
        raise _unusable(path, error) from None
    return run_dir


def read_run_file(path: Path) -> RunFile | None:
    """What the supervisor of this folder wrote; None when there is no such file or it is rubbish."""
    try:
        fd = os.open(path / RUN_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with open(fd, "rb") as file:
        try:
            found = msgspec.json.decode(file.read(_FILE_BYTES_MAX), type=RunFile)
        except (msgspec.MsgspecError, OSError, RecursionError):
            return None
    return found if found.v == VERSION else None


def _unusable(path: Path, error: OSError) -> InvalidConfig:
    return InvalidConfig(f"data_dir: {path}: {error.strerror or error}")


def _make_private(path: Path) -> list[Path]:
    """The folders made for it. A folder that holds others' things is refused rather than closed to them."""
    made: list[Path] = []
    try:
        for folder in reversed((path, *path.parents)):
            if not folder.exists():
                folder.mkdir(mode=0o700)
                made.append(folder)
        _check_private(path)
    except FileExistsError as error:
        raise InvalidConfig(f"data_dir: {error.filename}: is not a folder") from None
    except OSError as error:
        _unmake(made)
        raise _unusable(path, error) from None
    return made


def _unmake(made: list[Path]) -> None:
    for folder in reversed(made):
        try:
            folder.rmdir()
        except OSError:
            return  # somebody has put something into it


def _check_private(path: Path) -> None:
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidConfig(f"data_dir: {path}: is not a folder")
    if os.getuid() not in (0, found.st_uid):
        raise InvalidConfig(f"data_dir: {path}: belongs to another user")
    if found.st_mode & 0o077:
        entries = os.listdir(path)
        if entries and LOCK_NAME not in entries and not path.name.startswith("."):
            raise InvalidConfig(f"data_dir: {path}: others may enter it and it is not empty; chmod 700 it first")
        # Only what others may is taken away: a folder that its owner has made read-only stays so.
        path.chmod(stat.S_IMODE(found.st_mode) & ~0o077)
    if not os.access(path, os.W_OK | os.X_OK):
        raise InvalidConfig(f"data_dir: {path}: is read-only")


def _lock(path: Path) -> int:
    """The descriptor that holds the lock."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(path / LOCK_NAME, error) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path / LOCK_NAME, fd):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                return fd
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
                os.close(fd)
                who = f" (pid {holder})" if holder.isdigit() else ""
                raise InvalidConfig(f"data_dir: {path} is in use by a running supervisor{who}") from None
            select.poll().poll(20)  # there is nothing to watch: a lock that is let go sends no word
        except OSError as error:
            os.close(fd)
            raise _unusable(path / LOCK_NAME, error) from None
        os.close(fd)


def _is_still(path: Path, fd: int) -> bool:
    """Whether `path` still names the file behind `fd`: its last holder removed it before letting go."""
    try:
        named, held = os.lstat(path), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)


def _forget_last_run(path: Path) -> None:
    """Remove what a killed supervisor left: its files here, and its short socket folder if that is surely one."""
    last = read_run_file(path)
    if last is not None and last.socket_dir != str(path):
        folder = Path(last.socket_dir)
        if folder.name.startswith(SHORT_DIR_PREFIX) and folder.parent in _short_parents():
            _remove_own_sockets(folder)
    for name in (RUN_NAME, CONTROL_NAME, REDIS_NAME):
        try:
            (path / name).unlink(missing_ok=True)
        except (IsADirectoryError, PermissionError) as error:
            raise OSError(error.errno, f"{name} is in the way and can not be removed") from None


def _remove_own_sockets(folder: Path) -> None:
    try:
        found = folder.lstat()
    except OSError:
        return
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        for name in (CONTROL_NAME, REDIS_NAME):
            (folder / name).unlink(missing_ok=True)
        try:
            folder.rmdir()
        except OSError:
            pass  # holds something that is not ours


def _short_parents() -> list[Path]:
    """Where short socket folders are made: the user's runtime directory if it is private, else the temporary one."""
    runtime = user_runtime_dir()
    parents = [Path(runtime)] if os.path.isabs(runtime) and os.access(runtime, os.W_OK | os.X_OK) else []
    return [*parents, Path(tempfile.gettempdir()), Path("/tmp")]


def _socket_dir(path: Path) -> Path:
    if len(os.fsencode(path / CONTROL_NAME)) < SOCKET_PATH_BYTES:
        return path
    for parent in _short_parents():
        if len(os.fsencode(parent / f"{SHORT_DIR_PREFIX}12345678" / CONTROL_NAME)) < SOCKET_PATH_BYTES:
            return Path(tempfile.mkdtemp(prefix=SHORT_DIR_PREFIX, dir=parent))
    raise OSError(errno.ENAMETOOLONG, "no folder with a path short enough for unix sockets")


def _write_run_file(run_dir: RunDir) -> None:
    """Written beside and renamed, so that nobody reads half of it."""
    content = RunFile(
        v=VERSION,
        pid=os.getpid(),
        started=psutil.Process().create_time(),
        control=str(run_dir.control_path),
        redis=str(run_dir.redis_path),
        socket_dir=str(run_dir.socket_dir),
    )
    draft = run_dir.path / f"{RUN_NAME}.new"
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(msgspec.json.encode(content) + b"\n")
    os.replace(draft, run_dir.path / RUN_NAME)
