"""The business side of a run: jobs with an embedded dispatch intent (S1, S7)."""

from __future__ import annotations

from kernel.objects import Objects
from kernel.records import Document

JOBS = Objects(name="jobs")


def object_faults(row: Document) -> list[str]:
    """What must be true of each row of a job: results are of the round that the object is in (S7)."""
    round_ = row["workflow_dispatch"]["fencing_token"]
    return [
        f"{field} of round {row[field]['round']} in round {round_}"
        for field in ("result", "error")
        if isinstance(row.get(field), dict) and row[field].get("round") != round_
    ]
