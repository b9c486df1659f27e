"""The scripts on a server in cluster mode: all keys in one slot, none undeclared (one loopback node owns all slots)."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kernel.candidates import DueObjects
from kernel.clock import SystemClock
from kernel.coordination import DispatchIndex, Keys, LaneEntry, Lanes, RedisEndpoint, ScriptRunner
from kernel.dispatch import DueIntent
from kernel.errors import CoordinationRejected
from kernel.ids import RandomIds
from tests.support.redis_servers import REDIS, VALKEY, RedisServer
from tests.support.wait import wait_until

SLOTS = 16_384


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(kind: str, tries: int = 5) -> RedisServer:
    """A server in cluster mode. It takes no port 0, and another program may take a port that was free a moment ago."""
    options = ("--bind", "127.0.0.1", "--cluster-enabled", "yes")
    try:
        return RedisServer(kind, "--port", str(free_port()), "--cluster-port", str(free_port()), *options)
    except AssertionError:
        if not tries:
            raise
        return started(kind, tries - 1)


@pytest.fixture(scope="module", params=[VALKEY, REDIS])
def cluster_node(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    server = started(request.param)
    try:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
            wait_until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "the cluster is up")
        yield server
    finally:
        server.close()


@pytest.mark.req("dc-lua-keys")
def test_every_operation_works_in_a_cluster_for_every_namespace(cluster_node: RedisServer) -> None:
    runner = ScriptRunner(cluster_node.endpoint.connection, SystemClock(), call_timeout_s=10)
    for namespace in ("a", "orders", "x_9", "default"):
        lanes = Lanes(runner, Keys(namespace))
        assert lanes.push([LaneEntry("one", 3, 5)]).raised == 1
        assert lanes.push([LaneEntry("one", 0, 5), LaneEntry("two", 1, 5), LaneEntry("three", 2, 5)]).raised == 3
        assert lanes.remove(["two"]) == 1
        assert [entry.workflow_id for entry in lanes.pop(8).entries] == ["one", "three"]
        assert lanes.report().burst_left == 8
        lanes.wake()
        index = DispatchIndex(runner, Keys(namespace), RandomIds())
        assert index.add("orders", [DueIntent("one", 5), DueIntent("two", 6)]) == 2
        assert index.take("orders", 1, 9) == DueObjects(("one",), 6)
        token = index.hold_scan("orders", 60_000).token
        assert token is not None and index.free_scan("orders", token)
    runner.close()


@pytest.mark.req("dc-lua-keys")
def test_the_server_would_have_refused_keys_of_several_slots(cluster_node: RedisServer) -> None:
    """The counterpart: this server does check, so the test above proves something."""
    runner = ScriptRunner(cluster_node.endpoint.connection, SystemClock(), call_timeout_s=10)

    with pytest.raises(CoordinationRejected):
        runner.command("EVAL", "return 1", 2, "wk1:{a}:x", "wk1:{b}:x")
    runner.close()


def test_an_endpoint_over_tcp_works_like_one_over_a_socket(cluster_node: RedisServer) -> None:
    with cluster_node.client() as client:
        port = int(client.config_get("port")["port"])
    runner = ScriptRunner(RedisEndpoint(port=port).connection, SystemClock(), call_timeout_s=10)

    assert runner.command("PING") == b"PONG"
    runner.close()
