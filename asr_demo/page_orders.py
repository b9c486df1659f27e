"""What a run of the demo is told about its web page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageOrders:
    """`port` None: no page; 0: any free one. `stay`: serve on when the run is over, until Ctrl-C."""

    port: int | None = None
    stay: bool = False


NO_PAGE = PageOrders()
