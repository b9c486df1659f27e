"""The identities that are derived from an event: the same for whoever repeats it, and never the same for two."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fanout import FanOutEvent, fan_out_key, signal_id_for
from kernel import Refused
from kernel.codec import decode, encode
from kernel.errors import CheckpointError, InvalidId, InvalidName
from tests.fanout_runs.lists import event


@pytest.mark.req("fan-page-signals", "fan-start-idempotent")
def test_ids_are_functions_of_the_events_identity_alone() -> None:
    one, same = event(), event(identities={"tenant": "t1"})

    assert fan_out_key("notify", one) == fan_out_key("notify", same) == "fan:notify:0:show_ended:show-1:show-1:ended"
    assert signal_id_for(one, "wf-1", "show-1", 0) == signal_id_for(same, "wf-1", "show-1", 0)
    assert signal_id_for(one, "wf-1", "show-1", 0) == "fan:0:show_ended:show-1:wf-1:show-1:ended"


def test_two_identities_never_give_one_id() -> None:
    texts = ["a", "b", "a:b", "b:a", "0", "0:a", "x" * 200, "x" * 199 + "y"]
    keys, types = ["show-1", "k", "a:b"], ["show_ended", "a"]
    events = [
        event(event_id, generation=generation, wait_key=key, signal_type=type_)
        for event_id, generation, key, type_ in itertools.product(texts, [0, 1], keys, types)
    ]
    signals = {signal_id_for(one, target, one.wait_key, one.generation) for one in events for target in texts}
    own = {signal_id_for(one, target, "own", 1) for one in events for target in texts}
    fans = {fan_out_key(type_, one) for one in events for type_ in ["a", "b"]}

    assert (len(events), len(signals), len(own), len(fans)) == (96, 96 * 8, 96 * 8, 96 * 2)
    assert not signals & own
    assert all(len(made) <= 200 for made in signals | own | fans)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"event_id": ""}, InvalidId),
        ({"event_id": "a\x00"}, InvalidId),
        ({"event_id": "x" * 201}, InvalidId),
        ({"signal_type": "Show Ended"}, InvalidName),
        ({"wait_key": ""}, InvalidId),
        ({"generation": -1}, Refused),
        ({"generation": True}, Refused),
        ({"identities": {"tenant": ""}}, InvalidId),
        ({"identities": {"": "t"}}, InvalidId),
    ],
    ids=str,
)
def test_a_wrong_event_is_refused_when_it_is_made(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        event(**fields)

    assert len(str(raised.value).splitlines()) == 1


def test_an_event_of_a_later_layout_is_refused_and_one_of_this_comes_back_whole() -> None:
    made = event(generation=4, identities={"tenant": "t1"})
    data = encode(made, "input", 10_000)

    assert decode(data, FanOutEvent, "input") == made
    with pytest.raises(CheckpointError, match=r"\$\.v"):
        decode(encode({**decode(data, dict, "input"), "v": 2}, "input", 10_000), FanOutEvent, "input")
