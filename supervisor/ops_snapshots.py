"""What the looking commands work with: the reader of snapshots, and a clock to tell ages by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kernel.clock import Clock, SystemClock
from kernel.config import Config
from kernel.errors import Refused
from kernel.ids import check_id
from kernel.observe.reading import BY, Column, Count, Line, Observations, Page, Wanted
from kernel.observe.views import Attempt, Snapshot
from kernel.runtime.observing import is_observed, open_observations
from supervisor.ops_client import settings
from supervisor.ops_shell import data_folder


class NothingObserved:
    """The reader of a tree that has observed nothing yet: looking must make no store."""

    def get(self, biz_key: str) -> Snapshot | None:
        check_id(biz_key, "biz_key")
        return None

    def of_workflow(self, workflow_id: str) -> Snapshot | None:
        check_id(workflow_id, "workflow_id")
        return None

    def page(self, _wanted: Wanted, *, after: str | None = None, limit: int = 50) -> Page[Line]:
        if after is not None:
            raise Refused("after: no page token of this list; begin again without it")
        return Page((), None)

    def attempts(
        self, _biz_key: str, *, step: str | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Attempt]:
        return Page((), None)

    def counts(self, _wanted: Wanted, *, by: Sequence[Column] = BY) -> list[Count]:
        return []

    def close(self) -> None:
        pass


class Snapshots:
    """The reader of one tree's observations."""

    def __init__(self, config: Config, read: Observations | NothingObserved, clock: Clock) -> None:
        self.config = config
        self.read = read
        self._clock = clock

    def now_ms(self) -> int:
        """This machine's time: ages are for people, and decide nothing."""
        return self._clock.wall_ms()

    def why_nothing(self) -> str:
        """What an operator should know who finds nothing; empty when there is no special reason."""
        return "; the setting `observe` is off" if self.config.observe == "off" else ""

    def find(self, name: str) -> Snapshot | None:
        """The snapshot of a workflow_id, or else of a biz_key. Raises InvalidId for what can be neither."""
        return self.read.of_workflow(name) or self.read.get(name)


@contextmanager
def snapshots(data_dir: str | None, config_file: str | None, app: str | None = None) -> Iterator[Snapshots]:
    """Open the observations as they are, for reading; closed at the end."""
    config = settings(data_dir, config_file, app)
    clock = SystemClock()
    folder = data_folder(config)
    read = open_observations(config, folder, clock, prepare=False) if is_observed(config, folder) else NothingObserved()
    try:
        yield Snapshots(config, read, clock)
    finally:
        read.close()
