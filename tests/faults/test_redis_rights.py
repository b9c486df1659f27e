"""A Redis that answers and refuses: a start ends with one line naming the setting, a running tree goes on without it.

The password is a canary: it is in no line, and neither is the new one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.faults import apps
from tests.faults.rig import Tree, tree
from tests.support.program import CHECKOUT
from tests.support.redis_servers import RedisServer
from tests.support.wait import stays, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.case("A69")]

CANARY, OTHER = "c4nary-p4ss", "0ther-c4nary"


@pytest.fixture
def guarded() -> Iterator[RedisServer]:
    """A server with four users: one that may do everything, and three that each lack a right."""
    server = RedisServer("valkey")
    with server.client() as client:
        for user, rights in (
            ("whole", ["~*", "&*", "+@all"]),
            ("no_scripts", ["~*", "&*", "+@all", "-evalsha", "-eval"]),
            ("no_keys", ["~elsewhere:*", "&*", "+@all"]),
            ("no_wakeups", ["~*", "resetchannels", "+@all"]),
            ("no_lanes", ["~*", "&*", "+@all", "-zrem", "-zadd"]),
        ):
            client.execute_command("ACL", "SETUSER", user, "on", f">{CANARY}", *rights)
        client.execute_command("ACL", "SETUSER", "default", "resetpass", f">{CANARY}")
    yield server
    server.close()


def start(folder: Path, redis_url: str) -> subprocess.CompletedProcess[str]:
    """`kernel-supervisor start`, which must end by itself."""
    command = [sys.executable, "-m", "supervisor", "start", "--app", "tests.faults.apps:app", "--data-dir", str(folder)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KERNEL_")}
    environ["KERNEL_REDIS_URL"] = redis_url
    return subprocess.run(command, cwd=CHECKOUT, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "credentials",
    [
        "", f":{OTHER}@", f"nobody:{CANARY}@", f"no_scripts:{CANARY}@", f"no_keys:{CANARY}@", f"no_wakeups:{CANARY}@",
        f"no_lanes:{CANARY}@",
    ],
    ids=["no password", "wrong password", "unknown user", "no scripts", "no keys", "no wakeups", "no lanes"],
)  # fmt: skip
def test_a_start_ends_with_one_line_that_names_the_setting(
    tmp_path: Path, guarded: RedisServer, credentials: str
) -> None:
    ended = start(tmp_path / "data", f"unix://{credentials}{guarded.socket}")

    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: redis_url: Redis refuses ")
    assert CANARY not in line and OTHER not in line
    assert not (tmp_path / "data").exists(), "nothing was started, nothing is left"


def test_a_running_tree_says_it_once_goes_on_without_and_comes_back(tmp_path: Path, guarded: RedisServer) -> None:
    with tree(tmp_path / "data", redis_url=f"unix://whole:{CANARY}@{guarded.socket}") as running:
        running.finish(running.start(apps.STEADY, "before", 1))
        # Connections that are open stay let in: they are ended as well.
        with redis.Redis(unix_socket_path=str(guarded.socket), password=CANARY) as client:
            client.execute_command("ACL", "SETUSER", "whole", "resetpass", f">{OTHER}")
            client.execute_command("CLIENT", "KILL", "USER", "whole")
            ids = running.start_many(apps.NAPPING, "refused", 10, nap_s=0.3)
            running.finish(*ids)
            workers = set(running.pids())
            wait_until(lambda: said(running).keys() >= workers, "each worker says it")
            stays(lambda: {said(running)[pid] for pid in workers} == {1}, "each says it once", seconds=3)

            client.execute_command("ACL", "SETUSER", "whole", "resetpass", f">{CANARY}")
        wait_until(lambda: {child.get("x_redis") for child in running.children()} == {"up"}, "it is used again")
        assert set(running.pids()) == workers
    text = (tmp_path / "data" / "log.jsonl").read_text() + (tmp_path / "data" / "stderr").read_text()
    assert CANARY not in text and OTHER not in text


def said(running: Tree) -> Counter[int]:
    """How often each process has said that Redis refuses it."""
    return Counter(line["pid"] for line in running.log("redis.denied") if "redis_url" in line["msg"])
