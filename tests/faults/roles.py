"""Worker and dispatcher of the kernel on ports that may be hurt; everything else is the product's own role."""

from __future__ import annotations

from typing import Any

from kernel import runtime
from tests.faults.arms import Arms, hurt
from tests.faults.crash_ports import armed_ports


class ArmedLink:
    """A child's link whose sign of being ready may be hurt."""

    def __init__(self, link: runtime.Link, arms: Arms) -> None:
        self._link = link
        self._arms = arms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def ready(self) -> None:
        fault = RuntimeError("not to be ready")
        hurt(self._arms.met(self._link.role, "ready"), self._link.ready, fault, fault)


def worker(link: runtime.Link) -> int:
    with armed_ports(link.data_dir, "worker") as arms:
        return runtime.worker(ArmedLink(link, arms))


def dispatcher(link: runtime.Link) -> int:
    with armed_ports(link.data_dir, "dispatcher") as arms:
        return runtime.dispatcher(ArmedLink(link, arms))
