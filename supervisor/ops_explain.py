"""Why a workflow waits for a permit: limit and line as they are now, it and its holders as their snapshots say.

No row of workflow_instances is read: what a snapshot has missed is told as it was last seen (obs-never-instances).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from kernel.config import Limit
from kernel.errors import KernelError, StoreUnavailable
from kernel.observe.views import Snapshot
from kernel.permit_words import WORKFLOW, Holder, PermitStats
from supervisor.ops_limit_text import limit_text
from supervisor.ops_shell import clock_text

_REASONS = {
    "paused": "the resource is paused",
    "concurrency": "as many run as may",
    "rate": "as many started within the last second as may",
    "line": "others were there before",
    "none": "the resource has no limit now: it goes on when it is asked again",
    "handed": "a place is reserved for it: a worker takes it up now",
}

Ask = Callable[[str, tuple[str, str]], PermitStats | None]
"""A resource in Redis as a pair of workflow and step sees it; None where Redis does not answer."""
Find = Callable[[str], Snapshot | None]
"""The snapshot of a workflow_id."""


def explained(seen: Snapshot, now_ms: int, limit_of: Callable[[str], Limit], ask: Ask, find: Find) -> dict[str, Any]:
    """The answer at `now_ms` (ms since the epoch) as JSON has it. Raises StoreUnavailable."""
    answer: dict[str, Any] = {"workflow_id": seen.workflow_id, "status": seen.status, "waits": False, "now_ms": now_ms}
    resource = seen.waiting_on
    if seen.waiting != "permit" or resource is None:
        return answer
    limit = limit_of(resource)
    step, stats = line_of(seen, resource, ask)
    return {
        **answer,
        "waits": True,
        "resource": resource,
        "step": step,
        "since_ms": seen.waiting_since,
        "asks_again_ms": seen.waiting_until,
        **msgspec.to_builtins(limit),
        "reason": None if stats is None else _reason(limit, stats),
        "place": None if stats is None else stats.place,
        # A priority that was raised meanwhile reaches the line when it is asked for again.
        "lane": seen.business_priority if stats is None or stats.place_lane is None else stats.place_lane,
        "waiting": None if stats is None else stats.waiting,
        "in_flight": None if stats is None else stats.held,
        "reserved": None if stats is None else stats.reserved,
        "holders": None if stats is None else [_with_since(holder, find) for holder in holders_of(stats.holders)],
    }


def line_of(seen: Snapshot, resource: str, ask: Ask) -> tuple[str, PermitStats | None]:
    """The step that stands in line, and the line. A snapshot does not tell whether a step waits or the workflow as a
    whole: who is not there as the one is looked for as the other."""
    current = seen.current_step or WORKFLOW
    first = None
    for step in dict.fromkeys((current, WORKFLOW)):
        stats = ask(resource, (seen.workflow_id, step))
        if stats is None:
            break
        if stats.place is not None or stats.handed:
            return step, stats
        first = first or stats
    return current, first


def holders_of(holders: Sequence[Holder]) -> list[dict[str, Any]]:
    """Who has a place, as JSON has it."""
    return [
        {
            "workflow_id": holder.owner.workflow_id,
            "step": holder.owner.step,
            "claim_token": holder.owner.claim_token,
            "expiry_ms": holder.expiry_ms,
        }
        for holder in holders
    ]


def _with_since(holder: dict[str, Any], find: Find) -> dict[str, Any]:
    """The holder, and since when its call runs as far as was seen; None when another claim was seen, or none."""
    since = None
    try:
        seen = find(holder["workflow_id"])
    except StoreUnavailable:
        raise
    except KernelError:
        seen = None
    if seen is not None and seen.claim_token == holder["claim_token"]:
        since = seen.claim_time
        if holder["step"] != WORKFLOW:
            since = next((step.started_time for step in seen.steps if step.name == holder["step"]), None)
    return {**holder, "since_ms": since}


def _reason(limit: Limit, stats: PermitStats) -> str:
    """Which limit holds it, in the order in which they are asked."""
    if limit.paused:
        return "paused"
    if stats.handed:
        return "handed"
    if limit == Limit():
        return "none"
    if limit.max_concurrency and stats.held + stats.reserved >= limit.max_concurrency:
        return "concurrency"
    if limit.max_starts_per_second and stats.starts_last_second >= limit.max_starts_per_second:
        return "rate"
    return "line"


def lines_of(seen: Snapshot, answer: dict[str, Any]) -> Iterator[str]:
    """The answer for people; control characters are still in it."""
    if not answer["waits"]:
        yield f"{seen.workflow_id} is {seen.status} and waits for no permit"
        return
    limit = Limit(answer["max_concurrency"], answer["max_starts_per_second"], answer["paused"])
    since = "an unknown time" if answer["since_ms"] is None else clock_text(answer["since_ms"])
    yield f"{seen.workflow_id}  {answer['step']} waits for {answer['resource']} since {since}"
    yield f"limit     {limit_text(limit)}"
    if answer["reason"] is None:
        yield "reason    Redis is out of reach, and places are given out there: none can be given"
    else:
        place = "not in line: it asks again by itself" if answer["place"] is None else f"place {answer['place']}"
        yield f"reason    {_REASONS[answer['reason']]}"
        yield f"line      {place} in lane P{answer['lane']}, {answer['waiting']} wait in all lanes"
        if answer["reserved"] and answer["reason"] != "handed":
            yield f"in use    {answer['in_flight']} run, {answer['reserved']} are handed to others who are called now"
    again_ms = answer["asks_again_ms"]
    if again_ms is not None and again_ms > answer["now_ms"]:
        yield f"latest    asks again at {clock_text(again_ms)}"
    elif again_ms is not None:
        yield f"latest    asks again now: its time came at {clock_text(again_ms)}, and a worker asks for it"
    for holder in answer["holders"] or ():
        began = "unknown" if holder["since_ms"] is None else clock_text(holder["since_ms"])
        yield f"held by   {holder['workflow_id']} {holder['step']} since {began}"
