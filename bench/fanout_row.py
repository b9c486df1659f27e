"""What a run of `bench fanout` amounts to: a row for each of its parts, and what in it breaks a promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.fanout_run import FanOutPlan, Told
from bench.repeats import median_of
from bench.servers import EMBEDDED, store_words

WRITES_MAX = 4.0
"""Store writes per signal, without what the subscribers write for themselves."""
FEW_WRITES = 8
"""Of the fan-out's own row, which a list of a few subscribers can not share among many."""
GROWTH_KIB_MAX = 24 * 1024
"""How much more memory ten times the subscribers may take: the store's connections fill their page caches (2 MiB each),
and an allocator leaves something lying about. A coarse net; that one page is held at a time is shown by tests."""


_MEDIANS = ("signals_per_s", "telling_per_s", "last_completed_s")


def row_of(plan: FanOutPlan, *repeats: Told) -> dict[str, Any]:
    """One row, of all repeats of one part: rates per second, times in seconds, counts per subscriber. Rates and times
    are medians over the repeats, counts and memory those of the repeat that did worst. `per_s_min` and `per_s_max` are
    of `signals_per_s`."""
    rows = [_row_of(plan, told) for told in repeats]
    rates = [row["signals_per_s"] for row in rows if row["signals_per_s"] is not None]
    return {
        **{name: _over(name, [row[name] for row in rows]) for name in rows[0]},
        "repeats": len(rows),
        "per_s_min": min(rates, default=None),
        "per_s_max": max(rates, default=None),
    }


def _over(name: str, values: list[Any]) -> Any:
    """One column over several repeats; what a repeat does not know is left out."""
    known = [value for value in values if value is not None]
    if not known or isinstance(known[0], str):
        return known[0] if known else None
    if name in _MEDIANS:
        return median_of(known)
    return min(known) if name == "completed" else max(known)


def _row_of(plan: FanOutPlan, told: Told) -> dict[str, Any]:
    """The row of one of them."""
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


def findings_of(plan: FanOutPlan, runs: Sequence[list[Told]]) -> list[str]:
    """The violations of all repeats; of several each line tells which it is of."""
    if len(runs) == 1:
        return violations_of(plan, runs[0])
    return [f"run {number}: {line}" for number, run in enumerate(runs, start=1) for line in violations_of(plan, run)]


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


def text_of(plan: FanOutPlan, rows: list[dict[str, Any]], store: str = EMBEDDED) -> list[str]:
    """The rows for people; `store` as `bench.tree_place` names it."""
    lines = [
        f"one event to waiting subscribers, {store_words(store, plan.durability)}",
        _line("subscribers", *(f"{row['subscribers']:,}" for row in rows)),
        _line("workers × slots", *(f"{row['workers']} × {row['slots']}" for row in rows)),
    ]
    several = max(row["repeats"] for row in rows) > 1
    if several:
        lines.append(_line("medians of", *(f"{row['repeats']} runs" for row in rows)))
    for what, name, text in (
        ("told", "signals_per_s", "{:,} signals/s"),
        *((("slowest run", "per_s_min", "{:,}"), ("fastest run", "per_s_max", "{:,}")) if several else ()),
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
