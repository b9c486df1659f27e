"""A Redis that answers and can not serve: each trouble once, under a whole tree (A35, A36).

Work that is accepted meanwhile ends by the store alone, text for readers is dropped and counted, and when the trouble
is over every loop of every process turns again, with Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from kernel import App, Context, Definition, Step
from tests.faults.apps import LONG, ONE, SLEEPING, Job
from tests.faults.effects import noted, ports
from tests.faults.rig import LIMIT_S, Tree, tree
from tests.lua_scripts.test_server_faults import cause
from tests.support.redis_servers import RedisServer, RedisTarget
from tests.support.wait import wait_until

TROUBLES = ("OOM", "READONLY", "BUSY", "MISCONF", "WRONGTYPE")
"""One that lets nobody in is in test_redis_rights; one that hangs or is gone in test_redis_loss."""


@noted
def sing(ctx: Context) -> int:
    """More than may wait for a slow Redis; how many frames found no room."""
    for _ in range(100):
        ctx.stream.write("la " * 2_000)
        ctx.stream.flush()
    return int(ctx.stream.dropped)


SINGING = Definition(type="singing", input=Job, steps=[Step("a", sing, timeout=LONG, streams=True)])
app = App(definitions=[ONE, SLEEPING, SINGING], ports=ports)


@pytest.fixture
def server() -> Iterator[RedisTarget]:
    """One that this test alone brings into trouble."""
    started = RedisServer("valkey", "--enable-protected-configs", "yes")
    target = RedisTarget("valkey", started.endpoint.connection, started.client(), started)
    yield target
    target.close()
    started.close()


@pytest.mark.fault
@pytest.mark.case("A35", "A36")
@pytest.mark.req("sch-fallback-down", "core-redis-loss-latency")
def test_each_trouble_costs_time_and_afterwards_every_loop_turns_again(tmp_path: Path, server: RedisTarget) -> None:
    assert server.server is not None
    url = f"unix://{quote(str(server.server.socket))}"
    with tree(tmp_path / "data", app="tests.faults.test_redis_troubles:app", redis_url=url, lease_s=30.0) as running:
        pids = running.pids()
        for number, trouble in enumerate(TROUBLES):
            cure = made(server, trouble)
            ids = running.start_many(ONE, f"{trouble} one", 6, hold_s=0.05)
            ids += running.start_many(SLEEPING, f"{trouble} asleep", 3, nap_s=0.3)
            ids += running.start_many(SINGING, f"{trouble} singing", 2)
            running.finish(*ids)
            assert {sum(running.effects.counts(key).values()) for key in ids[:6]} == {1}, trouble
            if trouble == "OOM":
                assert min(running.output(key) for key in ids[-2:]) > 0, "what found no room is counted"
            cure()
            wait_until(lambda: turning(running), f"after {trouble} every loop turns and uses Redis", LIMIT_S)
            running.finish(*running.start_many(ONE, f"after {number}", 6))
        assert running.pids() == pids, "nobody died of it"


def made(server: RedisTarget, trouble: str) -> Callable[[], object]:
    """Bring it about; what ends it."""
    client = server.client
    match trouble:
        case "MISCONF":
            client.set("dirty", "x", ex=600)
            client.config_set("dir", "/proc")  # where nothing can be saved
            client.config_set("save", "1 1")
            client.config_set("stop-writes-on-bgsave-error", "yes")
            wait_until(lambda: _tried_to_save(server), "a save has failed")

            def cure() -> None:
                client.config_set("stop-writes-on-bgsave-error", "no")
                client.config_set("save", "")
                client.delete("dirty")

            return cure
        case "WRONGTYPE":
            client.flushall()
            for key in (*server.keys.lanes, server.keys.lane_state):
                client.set(key.replace(b"{tests}", b"{default}"), "no list, no set, no hash")
            return client.flushall
    return cause(server, trouble)


def _tried_to_save(server: RedisTarget) -> bool:
    return bool(server.client.info("persistence")["rdb_last_bgsave_status"] != "ok")


def turning(running: Tree) -> bool:
    """Every loop has moved a moment ago, and no worker does without Redis."""
    children = running.children() + running.children("dispatcher")
    ages = [age for child in children for age in child["loops"].values()]
    uses = {child.get("x_redis") for child in running.children()}
    return len(ages) == 2 * 3 + 2 and max(ages) < running.config.scan_s + 2 and uses == {"up"}
