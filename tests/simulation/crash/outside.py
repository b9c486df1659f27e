"""What a cell has beside the ports of a campaign: the world outside of a process, observations, and who asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kernel.errors import Unavailable
from kernel.store.memory_projection import MemoryProjection
from tests.simulation.crash.fault import OutsideUnreachable
from tests.simulation.ports import CoordinationPort, Port
from tests.simulation.processes import Process

T = TypeVar("T")


class Asked:
    """A call that is made in a web process: its answer or its error, once there is one."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.done = False
        self.answer: Any = None
        self.error: BaseException | None = None

    def is_over(self) -> bool:
        """Whether nobody will ever answer any more, or somebody has."""
        return self.done or self.process.dead


class Luckless(Port):
    """A port that campaigns do not have: nothing befalls its calls but what is planted."""

    def _fails(self, what: str, do: Callable[[], T], key: str | None, said: Any = None) -> T:
        raise AssertionError("no luck here")


class Outside(Luckless):
    """The world outside as one process reaches it: pages of the business, services that take tasks."""

    lost = OutsideUnreachable

    def call(self, name: str, do: Callable[[], T]) -> T:
        answer: T = self._made(name, do, 0.0, said=())
        return answer


class Fixed:
    """Instead of luck: these choices, in this order."""

    def __init__(self, *choices: Any) -> None:
        self._choices = list(choices)

    def choice(self, options: Any) -> Any:
        return self._choices.pop(0)


class ProjectionPort(CoordinationPort):
    """The store of observations as one process reaches it."""

    lost = staticmethod(Unavailable)

    def __init__(self, process: Process, target: MemoryProjection) -> None:
        super().__init__(process, target, "observe")

    def prepare(self) -> None:
        """The world's store is there."""

    def close(self) -> None:
        """The world's store stays."""
