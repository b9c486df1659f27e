"""What the test under way has seen of faults that fired; no plugin, so that hurt processes import no pytest."""

from __future__ import annotations

proved: set[str] = set()
"""The points of the arms that have fired, as `tests.faults.arms.Arms.fired` told (`crash_marks` looks at it)."""
