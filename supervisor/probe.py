"""What the probe, a child that looks at the application before anything else starts, tells the supervisor about it.

The application's code never runs in the parent: a wrong path, a failing import or a store that can not be reached is
one line of an answer, and nothing has been started yet.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

from kernel.errors import Unavailable
from supervisor.roles import EXIT_CONFIG, EXIT_UNAVAILABLE, Companion

_FAULTS: tuple[type[Unavailable], ...] = (Unavailable, *Unavailable.__subclasses__())
_UNAVAILABLE = frozenset(fault.code for fault in _FAULTS)


class ProbeAnswer(msgspec.Struct, frozen=True):
    """The one report of the probe: what the application needs and offers, or why it can not be used."""

    companions: list[Companion] = []
    types: list[str] = []
    error: str | None = None
    code: str | None = None
    """The stable code of that error."""

    @classmethod
    def of(cls, app: str | None, status: dict[str, Any]) -> Self:
        try:
            return msgspec.convert(status, cls)
        except msgspec.ValidationError as error:
            return cls.amiss(app, f"the probe answered amiss: {error}")

    @classmethod
    def amiss(cls, app: str | None, why: str) -> Self:
        return cls(error=f"app {app}: {why}")

    @property
    def exit_status(self) -> int:
        """69 for a store that can not be reached, else 2 (ARCHITECTURE §10)."""
        return EXIT_UNAVAILABLE if self.code in _UNAVAILABLE else EXIT_CONFIG
