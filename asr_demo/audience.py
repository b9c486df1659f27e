"""What can be seen of many subscribers at once: where they stand while it runs, and at the end where their time went.

Pure: it looks at the instances as any client reads them, and at the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from asr_demo.ledger import Entry
from asr_demo.screen import Grid
from asr_demo.timeline import waiting_for
from kernel import Instance

ROWS_MAX = 250
"""Subscribers that each have a row at the end; of more, as many share one as make twenty."""
_STATES = ("waiting", "running", "done")
_COLUMNS = ("subscriber", "ended", "waited for event", "for speech", "for capacity", "queued", "ran", "entries", "by")


@dataclass(frozen=True, slots=True)
class Share:
    """How one subscriber fared, in milliseconds (lat-split): waiting for the event, for the speech service and for
    capacity; queued, which is what no other part explains (for a worker, or until a failure was retried); at work."""

    subscriber: str
    ended: str
    event_ms: int
    speech_ms: int
    capacity_ms: int
    queued_ms: int
    ran_ms: int
    entries: int
    workers: tuple[str, ...]


def standing(instances: Iterable[Instance], steps: Sequence[str]) -> Counter[tuple[str, str]]:
    """How many stand where: (step, waiting | running | done), and ("", status) for those that have ended."""
    counts: Counter[tuple[str, str]] = Counter()
    for instance in instances:
        if instance.ended:
            counts["", "parked" if instance.parked is not None else instance.status] += 1
        for name in steps:
            step = instance.steps[instance.step_index(name)]
            if step.status in ("completed", "skipped"):
                counts[name, "done"] += 1
            elif not instance.ended:
                counts[name, "waiting" if step.status == "waiting" else "running"] += 1
                break  # the steps behind it have not been reached
    return counts


def standing_grid(counts: Counter[tuple[str, str]], steps: Sequence[str], title: str) -> Grid:
    """The counts as a table, a row a step."""
    rows = [(name, *(str(counts[name, state] or "") for state in _STATES)) for name in steps]
    return Grid(title, ("step", *_STATES), rows)


def standing_line(counts: Counter[tuple[str, str]], steps: Sequence[str]) -> str:
    """Who is where in one line; whether they wait or run changes too often for a line."""
    parts = []
    for name in steps:
        here = counts[name, "waiting"] + counts[name, "running"]
        if here:
            parts.append(f"{here} at {name}")
    parts += [f"{count} {status}" for (name, status), count in sorted(counts.items()) if not name]
    return ", ".join(parts) or "nobody yet"


def share(instance: Instance, subscriber: str, mine: Sequence[Entry], names: Mapping[str, str], now_ms: int) -> Share:
    """How this one fares until `now_ms` or its end. `mine` are its entries, `names` tells workers by worker_id."""
    outside = {step.name: step.external_wait_ms for step in instance.steps}
    event_ms = outside.pop(instance.steps[0].name)
    speech_ms = sum(outside.values())
    capacity_ms = sum(step.traffic_wait_ms for step in instance.steps)
    ran_ms = sum(entry.took_ms or 0 for entry in mine)
    until_ms = now_ms if instance.finish_time is None else instance.finish_time
    return Share(
        subscriber=subscriber,
        ended="parked" if instance.parked is not None else instance.status,
        event_ms=event_ms,
        speech_ms=speech_ms,
        capacity_ms=capacity_ms,
        queued_ms=max(0, until_ms - instance.created_time - event_ms - speech_ms - capacity_ms - ran_ms),
        ran_ms=ran_ms,
        entries=len(mine),
        workers=_workers(mine, names),
    )


def shares(
    instances: Mapping[str, Instance], entries: Iterable[Entry], names: Mapping[str, str], now_ms: int
) -> list[Share]:
    """One share a subscriber, in the order of `instances`."""
    of: dict[str, list[Entry]] = {}
    for entry in entries:
        of.setdefault(entry.workflow_id, []).append(entry)
    return [
        share(instance, subscriber, of.get(instance.workflow_id, ()), names, now_ms)
        for subscriber, instance in instances.items()
    ]


def _workers(mine: Sequence[Entry], names: Mapping[str, str]) -> tuple[str, ...]:
    """`worker-0 (pid 12, 31)`: by name, with the process numbers that it has had here."""
    pids: dict[str, dict[int, None]] = {}
    for entry in mine:
        pids.setdefault(names.get(entry.worker_id, "worker"), {})[entry.pid] = None
    return tuple(f"{name} (pid {', '.join(map(str, numbers))})" for name, numbers in sorted(pids.items()))


def operator_line(instance: Instance, found: Share) -> str:
    """What an operator asks of one piece of work: where it stands, what it waits for and until when, who has worked on
    it, and where its time went (ops-find)."""
    place = next((step for step in instance.steps if step.status not in ("completed", "skipped")), None)
    where = "at its end" if place is None else f"{place.name} {place.status}"
    if place is not None and place.wait is not None:
        where += f" ({place.wait.kind}): {waiting_for(place)}"
    parts = zip(_COLUMNS[2:7], _seconds(found), strict=True)
    times = ", ".join(f"{name} {value}" for name, value in parts)
    return f"{found.subscriber}: {where}; by {', '.join(found.workers) or 'nobody'}; {times}"


def closing_grid(all_shares: Sequence[Share]) -> Grid:
    """Where the time of each subscriber went; of many, medians of as many as fit into a row (and the longest)."""
    if len(all_shares) <= ROWS_MAX:
        rows = [_row(share) for share in all_shares]
    else:
        size = -(-len(all_shares) // 20)
        rows = [_group_row(all_shares[place : place + size]) for place in range(0, len(all_shares), size)]
    return Grid("", _COLUMNS, rows)


def _row(share: Share) -> tuple[str, ...]:
    return (share.subscriber, share.ended, *_seconds(share), str(share.entries), ", ".join(share.workers))


def _times(share: Share) -> tuple[int, ...]:
    return (share.event_ms, share.speech_ms, share.capacity_ms, share.queued_ms, share.ran_ms)


def _seconds(share: Share) -> list[str]:
    return [f"{ms / 1000:.2f} s" for ms in _times(share)]


def _group_row(group: Sequence[Share]) -> tuple[str, ...]:
    ended = Counter(share.ended for share in group)
    columns = zip(*map(_times, group), strict=True)
    shown = (f"{median(times) / 1000:.2f} s ({max(times) / 1000:.2f})" for times in columns)
    workers = {worker.partition(" (")[0] for share in group for worker in share.workers}
    return (
        f"{group[0].subscriber} … {group[-1].subscriber}",
        ", ".join(f"{count} {status}" for status, count in sorted(ended.items())),
        *shown,
        str(sum(share.entries for share in group)),
        ", ".join(sorted(workers)),
    )
