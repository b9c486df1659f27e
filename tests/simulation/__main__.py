"""`python -m tests.simulation --seeds N --start S`: run N seeds from S on; exit 1 when a promise was broken."""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulation.campaign import Result, run_many, summary


def main(arguments: list[str] | None = None) -> int:
    """See the README of this folder."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=200, help="how many runs")
    parser.add_argument("--start", type=int, default=1, help="the seed of the first")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many at once")
    parser.add_argument("--counters", action="store_true", help="list the counts of what happened")
    given = parser.parse_args(arguments)
    results: list[Result] = []
    for result in run_many(range(given.start, given.start + given.seeds), given.processes):
        results.append(result)
        if result.violation is not None:
            print("\n".join(result.trace))
            print(f"seed {result.seed}: {result.violation}")
            print(f"replay: python -m tests.simulation --seeds 1 --start {result.seed}", flush=True)
    line, total, violations = summary(results)
    if given.counters:
        for name, count in total.counts.items():
            print(f"{count:8} {name}")
    for name in total.zeros():
        print(f"never happened: {name}")
    print(line)
    return 1 if violations or total.zeros() else 0


if __name__ == "__main__":
    sys.exit(main())
