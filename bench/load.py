"""The load of one run: workflows are published in batches while the workers run, until all have ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from bench.app import HELD, TRIVIAL, Work
from bench.plan import Plan
from kernel import Client
from kernel.store.protocol import Query, Store
from kernel.store.tables import INSTANCES

BATCH = 100
_LOOK_S = 0.01
_RESULT_LIMIT = timedelta(seconds=30)
_IDLE_LIMIT_S = 30.0
_WARM_UP_LIMIT_S = 10.0
IDLE_WARM_UP = 20


def biz_key(number: int) -> str:
    """The business key of workflow `number`; the data folder, and so the key, belongs to one run."""
    return f"bench:{number}"


def run_load(client: Client, store: Store, plan: Plan, beside: Callable[[], None]) -> bool:
    """Publish workflows 0 to count − 1 and wait for their end; `beside` is called in between, about every 10 ms.

    False when some are still open after the plan's limit.
    """
    deadline = time.monotonic() + plan.limit_s
    published = 0
    while time.monotonic() < deadline:
        beside()
        if published == plan.count:
            if not _open(store, 1):
                return True
        else:
            room = plan.count - published
            if plan.open_max is not None:
                room = min(room, plan.open_max - _open(store, plan.open_max))
            batch = min(BATCH, room)
            _publish(client, plan, range(published, published + batch))
            published += batch
            if plan.open_max is None:
                continue
        time.sleep(_LOOK_S)
    return False


def warm_up(client: Client, store: Store, first: int, beside: Callable[[], None]) -> None:
    """A batch of workflows at once, numbered from `first`, so that every slot has run some before those that count. A
    system so slow that it needs more than ten seconds for it is not waited for."""
    client.start_many(TRIVIAL.plan, [(biz_key(number), Work(number)) for number in range(first, first + BATCH)])
    deadline = time.monotonic() + _WARM_UP_LIMIT_S
    while _open(store, 1) and time.monotonic() < deadline:
        beside()
        time.sleep(_LOOK_S)


def _publish(client: Client, plan: Plan, numbers: range) -> None:
    definition = HELD if plan.faulty else TRIVIAL
    hold_ms = plan.hold_ms
    client.start_many(definition.plan, [(biz_key(number), Work(number, hold_ms)) for number in numbers])


def _open(store: Store, most: int) -> int:
    """How many workflows have not ended, counted up to `most`: an index of the store holds just those."""
    return len(store.scan(Query(INSTANCES, (), "claimable_time", ("workflow_id",), most)))


def idle_latencies_ms(client: Client, first: int, samples: int, beside: Callable[[], None]) -> list[float]:
    """Start workflows one by one on the idle system, through the queue, and wait for each result as any caller would:
    milliseconds from the call to the result, sorted. They are numbered from `first`; the first few do not count. On a
    system so slow that it takes half a minute there are fewer of them, at least one."""
    taken: list[float] = []
    deadline = time.monotonic() + _IDLE_LIMIT_S
    for number in range(first, first + IDLE_WARM_UP + samples):
        if len(taken) > IDLE_WARM_UP and time.monotonic() >= deadline:
            break
        beside()
        started = time.perf_counter()
        client.start_or_resume(TRIVIAL.plan, biz_key=biz_key(number), input=Work(number)).result(_RESULT_LIMIT)
        taken.append((time.perf_counter() - started) * 1000)
    return sorted(taken[IDLE_WARM_UP:])
