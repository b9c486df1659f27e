"""`python -m tests.faults.unwritable FOLDER COUNT`: a tree in that folder whose observations are read-only.

It is a program because the test itself may be root, for whom nothing is read-only (tests.support.rightless). It runs
COUNT workflows and says in one JSON object what became of them, of the observations, and of the tree.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.faults import apps
from tests.faults.rig import tree
from tests.support.wait import wait_until


def main(folder: Path, count: int) -> None:
    with tree(folder, observe_queue=20, lease_s=30.0, drain_s=20.0) as running:
        ids = running.start_many(apps.STEADY, "unseen", count)
        running.finish(*ids)

        def counters() -> dict[str, int]:
            totals: dict[str, int] = {}
            for child in (*running.children("worker"), *running.children("dispatcher")):
                for name, number in child["counters"].items():
                    totals[name] = totals.get(name, 0) + number
            return totals

        def is_told() -> bool:
            found = counters()
            return found.get("observation_errors", 0) > 0 and found.get("observation_dropped", 0) > 0

        wait_until(is_told, "the loss is told")
        answer = {
            "entries": [running.effects.counts(workflow_id) for workflow_id in ids],
            "outputs": [running.output(workflow_id) for workflow_id in ids],
            "counters": counters(),
            "exit_status": running.session.stop(),
        }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
