"""Another user of this machine at the door of a data folder. Run as a program: it lists what it was able to do.

`python -m tests.process.neighbour PATH… -- PID…`: as root it first becomes `nobody` and then tries each path and each
process; it prints one JSON object, {"uid": …, "done": ["read /…", …]}. Without root there is nobody else to become: it
tries nothing, and the caller rests on `open_to_others`.
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.program import CHECKOUT

USER = "nobody"


def intrusions(paths: Iterable[Path], pids: Iterable[int]) -> list[str]:
    """What another user can do with them, by trying it where this process is root, and by the modes in any case."""
    paths = list(paths)
    words = [*map(str, paths), "--", *map(str, pids)]
    command = [sys.executable, "-m", "tests.process.neighbour", *words]
    ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["uid"] == (pwd.getpwnam(USER).pw_uid if os.getuid() == 0 else os.getuid())
    return [*found["done"], *(f"mode {path}" for path in paths if open_to_others(path))]


def open_to_others(path: Path) -> bool:
    """Whether the modes let a user who is neither owner nor of the group reach `path` and do anything with it."""
    if any(not folder.stat().st_mode & stat.S_IXOTH for folder in path.absolute().parents):
        return False
    try:
        return bool(path.lstat().st_mode & 0o007)
    except FileNotFoundError:
        return False  # a store's journal, which comes and goes


def main(words: list[str]) -> int:
    between = words.index("--")
    done: list[str] = []
    if os.getuid() == 0:
        other = pwd.getpwnam(USER)
        os.setgroups([])
        os.setgid(other.pw_gid)
        os.setuid(other.pw_uid)
        for name, attempt in (*_at_paths(words[:between]), *_at_processes(words[between + 1 :])):
            if _succeeds(attempt):
                done.append(name)
    print(json.dumps({"uid": os.getuid(), "done": done}))
    return 0


def _at_paths(paths: Iterable[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    for path in paths:
        yield f"connect {path}", lambda path=path: _connect(path)
        for name, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY), ("append", os.O_WRONLY | os.O_APPEND)):
            yield f"{name} {path}", lambda path=path, flags=flags: os.close(os.open(path, flags | os.O_NONBLOCK))
        yield f"list {path}", lambda path=path: os.listdir(path)
        yield f"plant in {path}", lambda path=path: os.symlink("/etc/passwd", f"{path}/planted")
        yield f"replace {path}", lambda path=path: os.rename(path, f"{path}.away")
        yield f"open up {path}", lambda path=path: os.chmod(path, 0o777)


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(path)


def _at_processes(pids: Iterable[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    for pid in pids:
        yield f"signal {pid}", lambda pid=pid: os.kill(int(pid), 0)
        for name in ("environ", "mem", "maps"):
            yield f"{name} of {pid}", lambda pid=pid, name=name: _content(f"/proc/{pid}/{name}")
        yield f"descriptors of {pid}", lambda pid=pid: os.listdir(f"/proc/{pid}/fd")


def _content(path: str) -> None:
    with open(path, "rb") as file:
        file.read(1)


def _succeeds(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except OSError as error:
        # A refusal for another reason than our modes (nobody listens) would prove nothing: it is told. To write to a
        # folder and to list a file is refused to everybody; a store's journal comes and goes.
        return error.errno not in (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ENOENT)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
