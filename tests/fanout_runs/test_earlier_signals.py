"""A fan-out whose event was told before, in part: it ends, its counts add up, and nobody is told twice (A49)."""

from __future__ import annotations

import pytest

from fanout import Outcome, Tally, signal_id_for
from kernel import Signal, workflow_id_for
from tests.engine.flows import seconds
from tests.fanout_runs.lists import event
from tests.fanout_runs.shows import Show
from tests.support.engine_rig import SteppedRig


@pytest.mark.case("A49")
@pytest.mark.req("fan-page-signals", "fan-start-idempotent")
def test_a_third_has_its_signal_some_have_ended_and_some_are_gone(durable_rig: SteppedRig) -> None:
    """Of 30 the first ten were told by an earlier attempt that died, and five of them have gone on since; five have
    ended without it; five have no row any more, two of which were told before; ten wait and were told nothing."""
    rig, show = durable_rig, Show(durable_rig, 30)
    rig.worker(*show.definitions)
    ids = [show.follow(f"sub:{number}") for number in range(1, 26)]
    rig.run(show.all_wait(ids), "all wait")
    told, ended, waiting = ids[:10], ids[10:15], ids[15:]
    gone = [workflow_id_for(f"sub:{number}") for number in range(26, 31)]

    show.ready = True
    rig.client.deliver_signals([signal_of(key) for key in told[:5]])
    rig.finish(*told[:5])
    for key in ended:
        rig.client.supersede(key)
    # Committed, and the worker died behind it.
    rig.client.deliver_signals([signal_of(key) for key in (*told[5:], *gone[:2])])
    fan_out = show.start_fan_out()
    rig.finish(fan_out, *told, *waiting)

    assert rig.status(fan_out) == "completed"
    assert rig.client.result(fan_out, seconds(0), Outcome).tally == Tally(
        pages=3, told=10, woken=10, duplicates=12, ended=5, unknown=3
    )
    assert show.woken_once([*told, *waiting]), "told twice, woken once"
    assert {row["signal_id"] for row in show.signals()} >= {signal_id_for(event(), key, "show-1", 0) for key in told}
    assert {rig.status(key) for key in (*told, *waiting)} == {"completed"}


def signal_of(key: str) -> Signal:
    """What the fan-out of the event tells this follower."""
    return Signal(
        signal_id=signal_id_for(event(), key, "show-1", 0),
        workflow_id=key,
        signal_type="show_ended",
        wait_key="show-1",
        generation=0,
    )
