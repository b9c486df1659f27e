"""The sockets of companions: at a port that was asked for, also when somebody is just leaving it."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from kernel.errors import InvalidConfig
from supervisor.listening import AGAIN_MS, TRIES, open_listener


def test_a_companion_listens_where_it_was_asked_to_and_else_anywhere() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as asked:
        port = asked.getsockname()[1]
    for wanted in (port, 0):
        listener = open_listener("web", wanted, lambda ms: False)
        assert listener is not None
        with closing(listener):
            host, found = listener.getsockname()
            assert host == "127.0.0.1"
            assert found == port if wanted else found > 0


def test_a_port_that_is_being_left_is_waited_for() -> None:
    """By the children of a supervisor that was killed."""
    leaving = socket.create_server(("127.0.0.1", 0))
    waits: list[int] = []

    def pause(ms: int) -> bool:
        waits.append(ms)
        if len(waits) == 3:
            leaving.close()
        return False

    listener = open_listener("web", leaving.getsockname()[1], pause)
    assert listener is not None
    listener.close()
    assert waits == [AGAIN_MS] * 3


def test_a_port_that_stays_taken_is_one_line_with_its_number() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        waits: list[int] = []
        with pytest.raises(InvalidConfig, match=f"companion web: port {port} on 127.0.0.1: Address already in use"):
            open_listener("web", port, lambda ms: waits.append(ms) is not None)
        assert len(waits) == TRIES - 1
        assert open_listener("web", port, lambda ms: True) is None, "an order to end goes first"
