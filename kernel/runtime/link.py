"""A child's connection to its supervisor, as a role sees it. The supervisor's own code is not imported for it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from kernel.config import Config


class Order(Protocol):
    """What the supervisor asks of a child."""

    @property
    def kind(self) -> str: ...

    @property
    def worker_id(self) -> str: ...

    @property
    def orphaned(self) -> bool: ...

    @property
    def cause(self) -> str: ...

    @property
    def notice_id(self) -> int: ...


class Link(Protocol):
    """A child's connection to its supervisor (supervisor.child.ChildLink)."""

    role: str
    slot: int
    worker_id: str
    config: Config
    redis_url: str | None
    data_dir: Path
    addresses: Mapping[str, str]
    listener: socket.socket | None

    def ready(self) -> None: ...

    def next_order(self, timeout_s: float | None) -> Any: ...

    def acknowledge(self, notice_id: int) -> None: ...

    def report(self, status: dict[str, Any]) -> None: ...

    def ask_recycle(self, reason: str) -> None: ...

    def failed(self, text: str) -> None: ...
