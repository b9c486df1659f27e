"""What a run of `bench workflows` amounts to: the row of its report, and what in it breaks a promise."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from bench import outage_row
from bench.app import STEPS
from bench.measured_run import Measured
from bench.recovery import KILL_BOUND_S
from bench.repeats import median_of
from bench.servers import EMBEDDED, store_words

_WORST = {"completed": min, "step_runs": max, "extra_entries": max, "recovered_s": max}
_WORST |= dict.fromkeys(("store_writes_per_workflow", "redis_trips_per_workflow"), max)
"""Columns that a row has from the run that did worst: what is counted must hold in each."""
_SUMS = ("kills", "flushes", "resumed")


def row_of(*runs: Measured) -> dict[str, Any]:
    """The row (INTERFACES, Bench) of all runs of one plan: rates per second, times in the unit of their name, counts
    per workflow. Rates and times are medians over the runs, a ratio is the median of the ratios; counts are those of
    the run that did worst, but for faults, which are counted over all."""
    rows = [_row_of(run) for run in runs]
    return {
        **{name: _over(name, [row[name] for row in rows]) for name in rows[0]},
        "repeats": len(runs),
        "per_s_min": min(row["per_s"] for row in rows),
        "per_s_max": max(row["per_s"] for row in rows),
        **outage_row.columns_of(runs[0]),  # a run around an outage is compared with its pair, not repeated
    }


def _over(name: str, values: list[Any]) -> Any:
    """One column over several runs; what a run does not know is left out."""
    known = [value for value in values if value is not None]
    if not known or isinstance(known[0], str):
        return known[0] if known else None
    if name in _SUMS:
        return sum(known)
    return _WORST[name](known) if name in _WORST else median_of(known)


def _row_of(run: Measured) -> dict[str, Any]:
    """The row of one run."""
    plan, stored = run.plan, run.stored
    per_s = stored.completed / run.seconds
    bare = median(run.bare_per_s) if run.bare_per_s else None
    writes_per_s = stored.writes / run.seconds
    return {
        "workers": plan.workers,
        "slots": plan.slots,
        "durability": plan.durability,
        "count": plan.count,
        "completed": stored.completed,
        "seconds": round(run.seconds, 3),
        "per_s": round(per_s, 1),
        "bare_commits_per_s": None if bare is None else round(bare),
        "store_writes_per_s": round(writes_per_s),
        "ratio": None if bare is None else round(writes_per_s / bare, 3),
        "store_writes_per_workflow": round(stored.writes / plan.count, 3),
        "redis_trips_per_workflow": round(run.round_trips / plan.count, 3),
        "worker_cpu_us_per_workflow": _cpu_us(run),
        "p50_ms": round(percentile(run.idle_ms, 50), 2),
        "p99_ms": round(percentile(run.idle_ms, 99), 2),
        "step_runs": run.entered.step_runs,
        "extra_entries": run.entered.extra,
        "kills": len(run.kills),
        "flushes": run.flushes,
        "resumed": len(run.recovery.resumed),
        "recovered_s": _rounded(run.recovery.max_s),
        "recovered_median_s": _rounded(run.recovery.median_s),
    }


def violations_of(run: Measured) -> list[str]:
    """What went wrong, one line each; an empty list is a run that kept every promise."""
    plan, stored, entered = run.plan, run.stored, run.entered
    found = []
    if stored.completed != plan.count:
        others = ", ".join(f"{number} {state}" for state, number in sorted(stored.others.items()))
        late = "" if run.in_time else f" within {plan.limit_s:g} s"
        found.append(f"{stored.completed} of {plan.count} workflows completed{late} ({others})")
    if entered.missing:
        found.append(f"{entered.missing} of {plan.count * len(STEPS)} steps were never entered")
    allowed = len(run.kills) * plan.slots
    if entered.extra > allowed:
        why = f"{len(run.kills)} kills × {plan.slots} slots allow {allowed}" if run.kills else "nothing was killed"
        found.append(f"{entered.extra} steps were entered again, but {why}")
    late_ones = run.recovery.late
    if late_ones:
        worst = max(one.seconds for one in late_ones)
        found.append(
            f"{len(late_ones)} workflows of killed workers went on late: after up to {worst:.2f} s, not within "
            f"{KILL_BOUND_S:g} s of the kill ({run.poll_s:g} s where Redis was emptied between)"
        )
    return found + outage_row.violations_of(run)


def shares_of(runs: Sequence[Measured]) -> dict[str, float]:
    """Each worker process's part of the step entries; of several runs with which it is before it."""
    if len(runs) == 1:
        return runs[0].entered.shares
    return {f"{_label(run, runs)}: {name}": part for run in runs for name, part in run.entered.shares.items()}


def findings_of(runs: Sequence[Measured]) -> list[str]:
    """The violations of all runs; of several each line tells which run it is of."""
    if len(runs) == 1:
        return violations_of(runs[0])
    found = [f"{_label(run, runs, 'workers ')}: {line}" for run in runs for line in violations_of(run)]
    return found if runs[0].observed is None else found + outage_row.slower_of(runs)


def text_of(runs: Sequence[Measured], row: dict[str, Any]) -> list[str]:
    """The row of these runs for people."""
    plan = runs[0].plan
    whole = "" if all(run.stored.writes_whole for run in runs) else "at least "
    rate, bare = row["store_writes_per_s"], row["bare_commits_per_s"]
    lines = [
        f"{plan.count} workflows of {len(STEPS)} trivial steps, {plan.workers} worker processes × {plan.slots} slots, "
        f"{store_words(runs[0].store, plan.durability)}",
        _line("throughput", f"{row['per_s']:,.0f} workflows/s ({row['completed']} in {row['seconds']:.2f} s)"),
        _line("completed", f"{row['completed']} of {plan.count}"),
        _line("step entries", f"{row['step_runs']} for {plan.count * len(STEPS)} steps, {row['extra_entries']} again"),
        _line("store writes", f"{whole}{row['store_writes_per_workflow']:.2f} per workflow"),
        _line("Redis round trips", f"{row['redis_trips_per_workflow']:.2f} per workflow"),
        _line("one at a time", f"p50 {row['p50_ms']:.1f} ms, p99 {row['p99_ms']:.1f} ms from start to result"),
    ]
    if bare is not None:
        lines.insert(5, _line(*_against(runs[0].store, f"{rate:,} writes/s = {row['ratio']:.2f} × {bare:,} bare")))
    if len(runs) > 1:
        spread = f"{row['per_s_min']:,.0f} to {row['per_s_max']:,.0f} workflows/s"
        lines.insert(2, _line(f"medians of {len(runs)} runs", spread))
    if row["worker_cpu_us_per_workflow"] is not None:
        lines.append(_line("CPU of the workers", f"{row['worker_cpu_us_per_workflow']} µs per workflow"))
    if plan.faulty:
        lines.append(_line("faults", f"{row['kills']} kills, {row['flushes']} flushes, seed {plan.seed}"))
        lines.append(_line("each step held", f"{plan.hold_ms} ms, at most {plan.open_max} workflows open"))
    if row["kills"]:
        lines.append(_line("work of the killed", _resumed_text(row)))
    return lines + outage_row.lines_of(runs[0])


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of the sorted values do not pass (nearest rank)."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def _against(store: str, figures: str) -> tuple[str, str]:
    if store == EMBEDDED:
        return "against the disk", f"{figures} single-row commits/s"
    return "against the server", f"{figures} inserts/s"


def _resumed_text(row: dict[str, Any]) -> str:
    if not row["resumed"]:
        return "none: every kill met a worker with empty hands"
    return (
        f"{row['resumed']} workflows went on after {row['recovered_median_s']:.2f} s (median), "
        f"{row['recovered_s']:.2f} s at most"
    )


def _label(run: Measured, runs: Sequence[Measured], of_workers: str = "") -> str:
    """Which of several runs it is."""
    if run.observed is not None:
        return "with the outage" if run.plan.outage else "without"
    workers = [f"{of_workers}{run.plan.workers}"] if len({one.plan.workers for one in runs}) > 1 else []
    repeat = [f"run {run.repeat}"] if len({one.repeat for one in runs}) > 1 else []
    return ", ".join([*workers, *repeat])


def _line(what: str, text: str) -> str:
    return f"  {what:<20}{text}"


def _cpu_us(run: Measured) -> int | None:
    return None if run.worker_cpu_s is None else round(run.worker_cpu_s * 1e6 / run.plan.count)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
