"""L10, measured: Redis forgets who holds a place, while others want one all the time.

Counted by the service that is called, on its own clock: who is inside, and who came in although the limit was reached.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from tests.faults import permit_app as apps
from tests.faults.downstream import Call, Downstream, downstream, most_at_once
from tests.faults.effects import boot_ms
from tests.faults.permit_app import AT_ONCE
from tests.faults.rig import LIMIT_S, Tree, tree, wait_for
from tests.faults.stalls import but_worst
from tests.support.figures import Figures
from tests.support.wait import wait_until

PERMIT_LEASE_S = 1.5
FLUSHES = 6
LONG_MS, SHORT_S, SHORT = 1_900, 0.1, 80
"""Long calls outlast the bound three times; were they forgotten as long, short ones would come in beside them."""


@pytest.mark.fault
@pytest.mark.bound("L10")
@pytest.mark.req("l10", "flt-redis-flush", "prm-lost-during-run", "dc-tests-fault")
def test_after_flushall_the_limit_is_exceeded_once_at_most_and_only_for_a_third_of_a_lease(
    tmp_path: Path, figure: Figures
) -> None:
    """Whoever holds a place renews it within a third of a lease, and from then on nobody comes in beside it."""
    folder = tmp_path / "data"
    fast = {"app": "tests.faults.permit_app:app", "slots": 8, "permit_lease_s": PERMIT_LEASE_S, "lease_s": 30.0}
    with downstream(folder) as service, tree(folder, **fast) as running:
        excess_s = [excess_after_flush_ms(running, service, number) / 1000 for number in range(FLUSHES)]

    assert max(excess_s) > 0, "the limit was exceeded"
    figure.check("L10", "callers above the limit", [most_at_once(service.calls()) - AT_ONCE], AT_ONCE, "", slack=1)
    came_s = but_worst(excess_s)
    figure.check("L10", "somebody came in above the limit", came_s, PERMIT_LEASE_S / 3, at_least=FLUSHES - 1)


def excess_after_flush_ms(running: Tree, service: Downstream, number: int) -> int:
    """Empty Redis while long calls hold every place and short ones want one; how long after that the last came in that
    made it too many."""
    gate = running.folder / apps.GATE
    gate.unlink(missing_ok=True)
    long = start(running, f"long:{number}", AT_ONCE, gated=True)
    wait_until(lambda: len(service.running()) == AT_ONCE, "every place is in use", LIMIT_S, every=0.005)
    short = start(running, f"short:{number}", SHORT, hold_s=SHORT_S)
    with redis.Redis.from_url(running.session.redis_url) as client:
        flushed_ms = boot_ms()
        client.flushall()
    wait_for(flushed_ms + LONG_MS)
    gate.touch()
    running.finish(*long, *short)
    calls = service.calls()
    return max((at_ms - flushed_ms for at_ms in excesses(calls) if at_ms >= flushed_ms), default=0)


def start(running: Tree, prefix: str, count: int, **fields: Any) -> list[str]:
    requests = [(f"{prefix}:{number}", apps.Call(**fields)) for number in range(count)]
    return [handle.workflow_id for handle in running.client.start_many(apps.LIMITED.plan, requests)]


def excesses(calls: list[Call]) -> list[int]:
    """When each call began that made it too many."""
    return [call.start_ms for call in calls if inside(calls, call.start_ms) > AT_ONCE]


def inside(calls: list[Call], at_ms: int) -> int:
    return sum(call.start_ms <= at_ms and (call.end_ms is None or at_ms < call.end_ms) for call in calls)
