"""Rows that do not decode: each is told once by a process, and left alone (A45).

Every scan meets them again. Without a memory the log would say the same line at every turn of every loop, for ever.
"""

from __future__ import annotations

import logging
import threading

from kernel.definition import Plan
from kernel.errors import CorruptRecord, KernelError
from kernel.records import Instance

log = logging.getLogger("kernel.rows")

TOLD_MAX = 1_024
"""Faults that are remembered; beyond that the oldest is forgotten, and told again when it is met again."""


def check_steps(instance: Instance, plan: Plan) -> None:
    """The key of a row names its version, and a version its steps. Raises CorruptRecord for a row that says it is of
    `plan` and has other ones: it would be run without an error, and without an end."""
    found, wanted = [step.name for step in instance.steps], [step.name for step in plan.steps]
    if found != wanted:
        raise CorruptRecord(f"instance {instance.workflow_id!r}: steps: {found} are not those of {plan.key}: {wanted}")


class DamagedRows:
    """Which faults of which rows this process has told. Used by all of its threads."""

    def __init__(self, told_max: int = TOLD_MAX) -> None:
        self._told_max = told_max
        self._told: dict[str, None] = {}  # in the order of their telling
        self._lock = threading.Lock()

    def tell(self, key: str, error: KernelError) -> None:
        """Log that the row `key` does not decode, unless that very fault of it was told before. The error names the
        field; a row that was mended and breaks in another way is told again."""
        fault = f"{key}\0{error}"
        with self._lock:
            if fault in self._told:
                return
            if len(self._told) >= self._told_max:
                del self._told[next(iter(self._told))]
            self._told[fault] = None
        log.error("a row does not decode and is left alone: %s", error, extra={"workflow_id": key})
