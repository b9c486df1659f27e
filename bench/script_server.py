"""The Redis that scripts are measured on, the ways into it, and its own accounting.

Without a URL it is the embedded server as `kernel-supervisor start` runs it, under a tree without workers whose one
dispatcher sleeps, and client and server are held on one processor: a trip between two costs more than a script does,
and by how much changes from run to run (design/REDIS.md §0). With a URL nothing is pinned, and every key of the run
lies in a namespace of its own that is removed at the end.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import redis

from bench.plan import LOG_NAME
from bench.redis_calls import remove_keys
from kernel.clock import SystemClock
from kernel.config import load
from kernel.coordination.endpoint import RedisEndpoint, parse_redis_url
from kernel.coordination.keys import LAYOUT, Keys
from kernel.coordination.scripts import BoundScript, ScriptRunner
from kernel.errors import CoordinationUnavailable
from lua import Script
from supervisor.session import Session, running

_TIMEOUT_S = 10.0
_CALLS = re.compile(r"^cmdstat_([^:\s]+):calls=(\d+),usec=(\d+)", re.MULTILINE)
_VERSION = re.compile(r"^(valkey|redis)_version:(\S+)", re.MULTILINE)
_PID = re.compile(r"^process_id:(\d+)", re.MULTILINE)
_NOOP_TEXT = "return 1"
_OWN = frozenset({"evalsha", "eval", "info"})
"""Commands that count a call or are the counting: what is left was done inside scripts."""


class Inside(NamedTuple):
    """One script call as the server sees it."""

    commands: float
    """Commands that the script calls."""
    usec: float
    """Time of the script, in µs: the rest of a call is the way there and back, and the client."""


class ScriptServer:
    """One server for the time of a run; `runner` is the kernel's own way of calling scripts."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._endpoint: RedisEndpoint = parse_redis_url(url)
        self.runner = ScriptRunner(self._endpoint.connection, SystemClock(), call_timeout_s=_TIMEOUT_S)
        self._name = f"bench_{secrets.token_hex(6)}"
        noop = BoundScript(_noop(), ())
        self._noop = noop
        self.pinned: int | None = None
        """The processor that client and server share; None when they were left alone."""

    def keys(self, part: str) -> Keys:
        """A namespace of this run: parts do not share lanes, resources or streams."""
        return Keys(f"{self._name}_{part}")

    def noop(self) -> None:
        """The yardstick: a script that does nothing, called as the kernel calls every script."""
        self.runner.call(self._noop)

    @contextmanager
    def held_noop(self) -> Iterator[Callable[[], object]]:
        """The same over one held connection with a request packed before: what the way of the kernel adds to."""
        link = self._endpoint.connection(_TIMEOUT_S)
        request = (self._noop.by_sha(()),)
        try:
            link.connect()

            def call() -> object:
                link.send_packed_command(request, check_health=False)
                return link.read_response()

            yield call
        finally:
            link.disconnect()

    @contextmanager
    def registered_noop(self) -> Iterator[Callable[[], object]]:
        """The same through `register_script` of redis-py, the way that its documentation shows."""
        with redis.Redis.from_url(self._url, protocol=2, socket_timeout=_TIMEOUT_S) as client:
            yield client.register_script(_noop().text)

    def inside(self, call: Callable[[], object], count: int) -> Inside | None:
        """What one script call costs inside, from the server's own accounting over `count` calls of `call`.

        None when the server ran other scripts meanwhile, so that its counts say nothing about this one.
        """
        before = self._counts()
        for _ in range(count):
            call()
        after = self._counts()
        grown = {name: Counter(of) - Counter(before.get(name, {})) for name, of in after.items()}
        scripts = Counter(grown.get("evalsha", {})) + Counter(grown.get("eval", {}))
        if scripts["calls"] != count:
            return None
        commands = sum(of["calls"] for name, of in grown.items() if name not in _OWN)
        return Inside(round(commands / count, 2), round(scripts["usec"] / count, 1))

    def server(self) -> str:
        """Name and version."""
        versions = dict(_VERSION.findall(self._info("server")))
        name = "valkey" if "valkey" in versions else "redis"
        return f"{name} {versions.get(name, 'unknown')}"

    def memory_of(self, key: bytes) -> int | None:
        """What a key takes in memory, in bytes; None when there is none."""
        answer = self.runner.command("MEMORY", "USAGE", key, "SAMPLES", 0)
        return None if answer is None else int(answer)

    def pin(self) -> None:
        """Hold this program and the server, which must run here, on the last processor that may be used."""
        if not hasattr(os, "sched_setaffinity"):
            return
        found = _PID.search(self._info("server"))
        if found is None:
            return
        cpu = max(os.sched_getaffinity(0))
        try:
            psutil.Process(int(found[1])).cpu_affinity([cpu])
            os.sched_setaffinity(0, {cpu})
        except (psutil.Error, OSError):
            return  # a container may forbid it: the report then says that nothing was pinned
        self.pinned = cpu

    def remove_keys(self) -> None:
        """Take every key of this run away again; nothing can be done when the server is gone meanwhile."""
        with suppress(CoordinationUnavailable):
            remove_keys(self.runner, f"{LAYOUT}:{{{self._name}_*")

    def _counts(self) -> dict[str, dict[str, int]]:
        found = _CALLS.findall(self._info("commandstats"))
        return {name: {"calls": int(calls), "usec": int(usec)} for name, calls, usec in found}

    def _info(self, section: str) -> str:
        reply: bytes = self.runner.command("INFO", section)
        return reply.decode("utf-8", "replace").replace("\r\n", "\n")


@dataclass(frozen=True)
class _Place:
    """Where the server is, and who holds it."""

    url: str
    session: Session | None


@contextmanager
def open_server(redis_url: str | None, folder: Path) -> Iterator[ScriptServer]:
    """The server at `redis_url`, or an embedded one whose data folder is `folder`, ready to be measured.

    Raises InvalidConfig for a URL that can not be read, CoordinationUnavailable when nobody answers there, and
    SessionFailed when the embedded server does not start. After the block nothing that it started or wrote is left.
    """
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    with ExitStack() as stack:
        place = _Place(redis_url, None) if redis_url is not None else _embedded(folder, stack)
        server = ScriptServer(place.url)
        stack.enter_context(closing(server.runner))
        server.runner.command("PING")
        if place.session is None:
            stack.callback(server.remove_keys)  # an embedded server takes its keys with it
        if affinity is not None:
            stack.callback(os.sched_setaffinity, 0, affinity)
        if place.session is not None:
            server.pin()
        yield server


def _embedded(folder: Path, stack: ExitStack) -> _Place:
    flags: dict[str, object] = {
        "data_dir": str(folder),
        "app": "bench.app:app",
        "workers": 0,
        "dispatchers": 1,  # a tree without any is refused; this one has nothing to do
        "scan_s": 3600.0,
        "drain_s": 5.0,
        "log_file": str(folder / LOG_NAME),
    }
    # A measurement is the same everywhere: settings of the user's own trees do not reach into it.
    config = load(flags, environ={}, file=os.devnull).config
    session = stack.enter_context(running(config))
    return _Place(session.redis_url, session)


def _noop() -> Script:
    facts: dict[str, Any] = {
        "name": "noop",
        "version": 1,
        "promise": "Does nothing.",
        "keys": (),
        "args": (),
        "optional": (),
        "repeated": (),
        "reply": "1",
        "caller": "bench",
        "text": _NOOP_TEXT,
    }
    return Script(**facts, sha1=hashlib.sha1(_NOOP_TEXT.encode(), usedforsecurity=False).hexdigest())
