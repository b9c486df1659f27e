"""What the timing of scripts amounts to: a row for each operation and depth, the targets beside it, the table."""

from __future__ import annotations

from typing import Any

from bench.script_plan import ScriptPlan
from bench.script_server import Inside
from bench.script_slices import Case, Timed, median, quantile

_TARGETS: dict[tuple[str, int], tuple[float, float]] = {
    ("lane_pop", 1): (0.65, 0.60),
    ("lane_pop", 8): (0.56, 0.50),
    ("lane_push", 1): (0.75, 0.72),
    ("lane_push_many", 100): (15.0, 9.0),
    ("permit_acquire_rate", 1): (0.60, 0.60),
    ("permit_renew", 1): (0.74, 0.74),
    ("permit_release", 1): (0.85, 0.85),
    ("stream_append", 1): (0.78, 0.78),
}
"""The ratios to reach (issue 4), at the smallest and at the largest depth of the targets."""
_SHALLOW, _DEEP = 1_000, {"lane": 1_000_000, "permit": 100_000, "stream": 1_000_000}
_CALLS_MAX = {
    "lane_pop": 5,
    "lane_pop_idle": 6,
    "lane_push": 4,
    "permit_acquire": 6,
    "permit_acquire_rate": 9,
    "permit_renew": 4,
    "stream_append": 4,
}
"""Commands inside one call at most (issue 4); what serves waiters and requests comes on top."""
FLAT = 0.9
"""How much of its ratio a permit's or a stream's operation shall keep at the largest depth."""
REGISTERED = 1.3
"""How many times as fast as `register_script` the way of the kernel shall be."""


def row_of(case: Case, seen: Timed, inside: Inside | None) -> dict[str, Any]:
    """One row: rates a second, times of one call in µs, the ratio as median and as tenth and ninetieth percentile."""
    return {
        "op": case.op,
        "n": case.n,
        "depth": case.depth,
        "unit": "calls" if case.counts == 1 else "ids",
        "per_s": round(median(seen.per_s)),
        "noop_per_s": round(median(seen.noop_per_s)),
        "ratio": round(median(seen.ratios), 3),
        "ratio_p10": round(quantile(seen.ratios, 0.1), 3),
        "ratio_p90": round(quantile(seen.ratios, 0.9), 3),
        "target": target_of(case.op, case.n, case.depth),
        "p50_us": round(quantile(seen.calls_ns, 0.5) / 1000, 1),
        "p99_us": round(quantile(seen.calls_ns, 0.99) / 1000, 1),
        "client_us": round(median(seen.client_us), 1),
        "noop_client_us": round(median(seen.noop_client_us), 1),
        "server_us": None if inside is None else inside.usec,
        "calls": None if inside is None else inside.commands,
        "calls_target": _CALLS_MAX.get(case.op) if case.n == 1 else None,
        "timed": len(seen.calls_ns),
        "slices": len(seen.ratios),
    }


def target_of(op: str, n: int, depth: int) -> float | None:
    """The ratio to reach at this depth; None between the depths that the targets name."""
    found = _TARGETS.get((op, n))
    if found is None:
        return None
    if depth <= _SHALLOW:
        return found[0]
    return found[1] if depth >= _DEEP[op.partition("_")[0]] else None


def flatness(rows: list[dict[str, Any]]) -> dict[str, float]:
    """For each operation the ratio at the largest depth over that at the smallest."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if "ratio" in row:
            found.setdefault(_name(row), []).append(row)
    return {
        name: round(of[-1]["ratio"] / of[0]["ratio"], 3)
        for name, of in found.items()
        if of[0]["depth"] != of[-1]["depth"] and of[0]["ratio"]
    }


def text_of(plan: ScriptPlan, rows: list[dict[str, Any]], pinned: int | None) -> list[str]:
    """The timed rows for people; rows without a ratio are told by those who made them."""
    timed = [row for row in rows if "ratio" in row]
    held = "not pinned" if pinned is None else f"client and server pinned to processor {pinned}"
    server = "the server given" if plan.redis_url is not None else "embedded server"
    lines = [
        f"scripts through the kernel's own call path (ScriptRunner), {server}, {held}",
        f"  ratio: to a no-op EVALSHA by the same path in the slice beside ({plan.slice_s * 1000:g} ms, "
        f"{plan.repeats} or more of each); medians, 10 % to 90 % in brackets",
        f"  {'operation':<26}{'depth':>10}{'per s':>12}{'no-op/s':>9}  {'ratio':<22}{'target':<9}{'p50/p99 us':<16}"
        f"{'client, no-op us':<18}{'in script':<11}redis calls",
    ]
    for row in timed:
        ratio = f"{row['ratio']:.2f} [{row['ratio_p10']:.2f} - {row['ratio_p90']:.2f}]"
        target = "" if row["target"] is None else f"{row['target']:g}"
        calls = "unknown" if row["calls"] is None else f"{row['calls']:g}"
        script = "" if row["server_us"] is None else f"{row['server_us']:g} us"
        most = "" if row["calls_target"] is None else f" (target {row['calls_target']})"
        rate = f"{row['per_s']:,}" + ("" if row["unit"] == "calls" else " ids")
        spread = f"{row['p50_us']:g}/{row['p99_us']:g}"
        client = f"{row['client_us']:g}, {row['noop_client_us']:g}"
        lines.append(
            f"  {_name(row):<26}{row['depth']:>10,}{rate:>12}{row['noop_per_s']:>9,}  {ratio:<22}"
            f"{target:<9}{spread:<16}{client:<18}{script:<11}{calls}{most}"
        )
    flat = flatness(rows)
    if flat:
        kept = ", ".join(f"{name} {value:.2f}" for name, value in flat.items())
        target = "" if plan.bench == "lanes" else f" (target {FLAT:g})"
        lines.append(f"  {'largest over smallest':<26}{kept}{target}")
    registered = [row["ratio"] for row in timed if row["op"] == "noop_register_script"]
    if registered and registered[0]:
        lines.append(f"  {'no-op, kernel':<26}{1 / registered[0]:.2f} x register_script (target {REGISTERED:g})")
    return lines


def _name(row: dict[str, Any]) -> str:
    return f"{row['op']}({row['n']})" if row["n"] else str(row["op"])
