"""A limit in words."""

from __future__ import annotations

from kernel.config import Limit


def limit_text(limit: Limit) -> str:
    """What the limit allows, on one line."""
    at_once = f"at most {limit.max_concurrency} at once" if limit.max_concurrency else "any number at once"
    starts = f"{limit.max_starts_per_second} starts/s" if limit.max_starts_per_second else "any starts/s"
    return f"{'PAUSED  ' if limit.paused else ''}{at_once}, {starts}"
