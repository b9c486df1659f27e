"""`kernel-supervisor config check`: what a start asks of its settings, before it asks anybody else."""

from __future__ import annotations

from kernel.config import load
from kernel.runtime.examining import check_addresses


def check_settings(file: str | None) -> None:
    """Read all settings. Raises InvalidConfig for what no start would take."""
    check_addresses(load({}, file=file))
