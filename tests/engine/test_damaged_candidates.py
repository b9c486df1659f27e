"""Rows whose columns a hand has spoilt, on the real lanes: the scan queues their neighbours all the same (A45, A22)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from kernel.errors import InvalidId
from kernel.records import to_instance
from kernel.store.conditional import Applied, Insert, Inserted, Put, Transition
from kernel.store.tables import INSTANCES
from tests.engine.test_real_lanes import Bench, bench
from tests.support.redis_servers import RedisTarget
from tests.support.wait import wait_until

__all__ = ["bench"]


def spoil(bench: Bench, workflow_id: str, field: str, value: Any) -> None:
    answer = bench.store.apply(Transition("by hand", INSTANCES, workflow_id, (), (Put(field, value),)))
    assert isinstance(answer, Applied)


@pytest.mark.case("A45")
@pytest.mark.req("layer-redis-rebuild")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("business_priority", value) for value in (4, -1, "0", b"\x00", 1.5, True, None)],
        *[("claimable_time", value) for value in (-1, 0)],
    ],
)
def test_one_spoilt_row_does_not_keep_a_page_out_of_the_lanes(
    bench: Bench, valkey: RedisTarget, field: str, value: Any
) -> None:
    sound = [bench.start(f"sound-{number}", "async") for number in range(3)]
    spoilt = bench.start("spoilt", "realtime")
    spoil(bench, spoilt, field, value)
    valkey.client.flushall()  # nothing but the scan can bring them back

    bench.work(slots=2, scan_ms=200, poll_ms=50)

    wait_until(lambda: {status(bench, key) for key in sound} == {"completed"}, "the sound ones complete", timeout=60)


@pytest.mark.case("A22")
@pytest.mark.parametrize("key", ["", " ", "a\nb", "a\0b", "x" * 300])
def test_a_row_that_was_put_there_under_no_id_is_left_alone(bench: Bench, valkey: RedisTarget, key: str) -> None:
    sound = bench.start("sound", "async")
    row = bench.store.get(INSTANCES, sound)
    assert row is not None
    with suppress(InvalidId):  # the store may refuse it
        answer = bench.store.insert(Insert("by hand", INSTANCES, key, {**row, "workflow_id": key, "biz_key": "odd"}))
        assert isinstance(answer, Inserted)
    valkey.client.flushall()

    bench.work(slots=2, scan_ms=200, poll_ms=50)

    wait_until(lambda: status(bench, sound) == "completed", "the sound one completes", timeout=60)
    assert bench.order == ["sound"]


def status(bench: Bench, workflow_id: str) -> str:
    row = bench.store.get(INSTANCES, workflow_id)
    assert row is not None
    return to_instance(row).status
