"""What runs around an outage of the store of observations amount to: figures for the rows, broken promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from bench.measured_run import Measured
from bench.outage import SETTLE_S
from bench.plan import Plan

SLOWER_MAX = 0.05
"""How much slower work may be with that store stopped (RELIABILITY S13)."""


def plans_of(plan: Plan, pairs: int) -> list[Plan]:
    """`pairs` times two runs, one with the outage and one without; which comes first changes from pair to pair, so that
    a machine that gets busier favours neither."""
    orders = [(False, True) if pair % 2 == 0 else (True, False) for pair in range(pairs)]
    return [replace(plan, outage=outage) for order in orders for outage in order]


def columns_of(run: Measured) -> dict[str, Any]:
    """What its row has beside the others."""
    seen = run.observed
    if seen is None:
        return {}
    return {
        "outage_s": round(seen.outage_s, 3),
        "steps_meanwhile": seen.meanwhile,
        **{f"observation_{name}": count for name, count in seen.counters.items()},
        "gaps": seen.gaps,
        "repair_s": round(seen.repair_s, 3),
        "gaps_left": seen.gaps_left,
        "listed_wrong": seen.wrong,
    }


def violations_of(run: Measured) -> list[str]:
    """What went wrong with the observations of one run."""
    seen, plan = run.observed, run.plan
    if seen is None:
        return []
    found = []
    if not seen.settled:
        found.append(f"observations that were accepted are not written {SETTLE_S:g} s after the load")
    if not seen.outlasted:
        found.append(f"the outage of {plan.outage_s:g} s did not end within the load: more workflows are needed")
    if plan.outage and not seen.meanwhile:
        found.append("no step was entered while the store of observations was stopped")
    if plan.outage and not seen.counters["errors"]:
        found.append("the store of observations was stopped, and no counter of errors tells it")
    lost = seen.counters["dropped"] + seen.counters["poisoned"]
    if seen.gaps and not lost:
        found.append(f"{seen.gaps} workflows lacked observations, and no counter tells that any were dropped")
    if not plan.outage and lost:
        found.append(f"{lost} observations were dropped, but their store was never stopped")
    if seen.gaps_left or seen.wrong:
        found.append(
            f"after the repair {seen.gaps_left} workflows still lack observations, {seen.wrong} are listed wrongly"
        )
    return found


def rates_of(runs: Sequence[Measured]) -> tuple[float, float]:
    """Workflows per second without and with an outage, the median of the runs of each."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for run in runs:
        rates[run.plan.outage].append(run.stored.completed / run.seconds)
    return median(rates[False]), median(rates[True])


def slower_of(runs: Sequence[Measured]) -> list[str]:
    """Whether the outages have cost more than they may."""
    without, with_it = rates_of(runs)
    if with_it >= (1 - SLOWER_MAX) * without:
        return []
    return [
        f"{with_it:.1f} workflows/s with the outage, {without:.1f} without: {1 - with_it / without:.1%} slower, "
        f"at most {SLOWER_MAX:.0%} may be"
    ]


def text_of(runs: Sequence[Measured]) -> list[str]:
    """The comparison for people."""
    without, with_it = rates_of(runs)
    return [
        f"  {'with the outage':<20}{with_it:,.1f} workflows/s, without {without:,.1f} "
        f"({with_it / without - 1:+.1%}; medians of {len(runs) // 2})"
    ]


def lines_of(run: Measured) -> list[str]:
    """What its text has beside the rest."""
    seen = run.observed
    if seen is None:
        return []
    counted = ", ".join(f"{count:,} {name}" for name, count in seen.counters.items())
    stopped = f"stopped for {seen.outage_s:.1f} s" if run.plan.outage else "not stopped"
    return [
        f"  {'observations':<20}their store {stopped}; {counted}",
        f"  {'repair':<20}{seen.gaps:,} workflows in {seen.repair_s:.1f} s; after it {seen.gaps_left} with gaps, "
        f"{seen.wrong} listed wrongly",
    ]
