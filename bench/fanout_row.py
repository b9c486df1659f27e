"""What a run of `bench fanout` amounts to: a row for each of its parts, and what in it breaks a promise."""

from __future__ import annotations

from typing import Any

from bench.fanout_run import FanOutPlan, Told

WRITES_MAX = 4.0
"""Store writes per signal, without what the subscribers write for themselves."""
FEW_WRITES = 8
"""Of the fan-out's own row, which a list of a few subscribers can not share among many."""
GROWTH_KIB_MAX = 24 * 1024
"""How much more memory ten times the subscribers may take: the store's connections fill their page caches (2 MiB each),
and an allocator leaves something lying about. A coarse net; that one page is held at a time is shown by tests."""


def row_of(plan: FanOutPlan, told: Told) -> dict[str, Any]:
    """One row: rates per second, times in seconds, counts per subscriber."""
    count = told.part.count
    return {
        "subscribers": count,
        "workers": told.part.workers,
        "slots": told.part.slots,
        "durability": plan.durability,
        "completed": told.completed,
        "signals_per_s": _rate(count, told.delivery_s),
        "telling_per_s": _rate(count, told.telling_s),
        "last_completed_s": round(told.last_s, 3),
        "store_writes_per_signal": round(told.signal_writes / count, 3),
        "subscriber_writes_each": round(told.subscriber_writes / count, 3),
        "redis_trips_per_signal": round(told.round_trips / count, 3),
        "peak_rss_before_mib": _mib(told.peak_before_kib),
        "peak_rss_mib": _mib(told.peak_kib),
        "duplicates": _duplicates(told),
        "lost": count - told.completed,
    }


def violations_of(plan: FanOutPlan, parts: list[Told]) -> list[str]:
    """What went wrong, one line each; an empty list is a run that kept every promise."""
    found: list[str] = []
    for told in parts:
        count = told.part.count
        of = f"of {count} subscribers"
        if told.completed != count:
            late = "" if told.in_time else f" within {plan.limit_s:g} s"
            found.append(f"{told.completed} {of} completed{late}")
        if told.signals != count:
            found.append(f"{told.signals} {of} have a signal in the inbox")
        if _duplicates(told):
            found.append(
                f"{_duplicates(told)} duplicates: a subscriber was told or woken twice, but nothing was killed"
            )
        if told.tally is None:
            found.append(f"the fan-out to {count} did not complete")
        elif told.tally.told != count:
            found.append(f"the fan-out says that it told {told.tally.told} {of}")
        if told.signal_writes > WRITES_MAX * count + FEW_WRITES:
            found.append(f"{told.signal_writes / count:.2f} store writes per signal, more than {WRITES_MAX:g}")
    same_shape = [told for told in parts if told.part[1:] == parts[-1].part[1:]]
    few, many = same_shape[0], same_shape[-1]
    if few.peak_kib is not None and many.peak_kib is not None and many.peak_kib - few.peak_kib > GROWTH_KIB_MAX:
        found.append(
            f"memory is not flat: {few.peak_kib / 1024:.0f} MiB for {few.part.count} subscribers, "
            f"{many.peak_kib / 1024:.0f} MiB for {many.part.count}"
        )
    return found


def text_of(plan: FanOutPlan, rows: list[dict[str, Any]]) -> list[str]:
    """The rows for people."""
    lines = [
        f"one event to waiting subscribers, embedded store, durability {plan.durability}",
        _line("subscribers", *(f"{row['subscribers']:,}" for row in rows)),
        _line("workers × slots", *(f"{row['workers']} × {row['slots']}" for row in rows)),
    ]
    for what, name, text in (
        ("told", "signals_per_s", "{:,} signals/s"),
        ("pages alone", "telling_per_s", "{:,} signals/s"),
        ("last has completed", "last_completed_s", "after {:.2f} s"),
        ("store writes", "store_writes_per_signal", "{:.2f} per signal"),
        ("Redis round trips", "redis_trips_per_signal", "{:.2f} per signal"),
        ("memory before it", "peak_rss_before_mib", "{} MiB at most"),
        ("memory with it", "peak_rss_mib", "{} MiB at most"),
        ("duplicates", "duplicates", "{}"),
        ("lost", "lost", "{}"),
    ):
        lines.append(_line(what, *("unknown" if row[name] is None else text.format(row[name]) for row in rows)))
    return lines


def _line(what: str, *texts: str) -> str:
    return (f"  {what:<20}" + "".join(f"{text:<22}" for text in texts)).rstrip()


def _mib(kib: int | None) -> float | None:
    return None if kib is None else round(kib / 1024, 1)


def _rate(count: int, seconds: float) -> int | None:
    return round(count / seconds) if seconds else None


def _duplicates(told: Told) -> int:
    return told.woken_again + (0 if told.tally is None else told.tally.duplicates)
