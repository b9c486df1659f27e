"""What a workflow shows while its processes die: its stream in Redis and its readers, its observations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from kernel.clock import SystemClock
from kernel.coordination import Streams
from kernel.frames import Terminal, decode, encode_text
from kernel.observe.reading import Observations
from kernel.observe.tables import SNAPSHOTS
from kernel.runtime import open_streams
from kernel.runtime.observer import open_observation_store
from kernel.runtime.observing import open_observations, open_repair
from kernel.store.projection import Keep
from kernel.stream_words import Batch, StreamId
from tests.faults.crash_app import NUMBERS
from tests.faults.rig import ARMED, Tree, tree
from tests.faults.stalls import patient
from tests.faults.test_streaming import Reader

APP = "tests.faults.crash_app:shown_app"


class Watched(Reader):
    """A reader that also says what its resets were followed by."""

    @property
    def resets(self) -> int:
        return [event.event for event in list(self.events)].count("reset")

    def check(self) -> None:
        """And after each reset it begins again at the first frame, and misses none from there on."""
        super().check()
        last = None
        for event in self.events:
            if event.event == "frame" and event.position is not None:
                assert event.position.offset == (0 if last is None else last + 1)
                last = event.position.offset
            elif event.event == "reset":
                last = None


class Stage:
    """A running tree, and the side paths of it as another process sees them."""

    def __init__(self, running: Tree, streams: Streams) -> None:
        self.tree = running
        self.streams = streams

    def stream(self, workflow_id: str) -> StreamId:
        return StreamId.of(self.tree.instance(workflow_id))

    def batch(self, stream: StreamId) -> Batch:
        """All that Redis has of a stream."""
        return self.streams.read(stream, 0, 0, bytes_max=65_536, count_max=128)

    def frames(self, stream: StreamId) -> list[Any]:
        """The data of the frames that Redis has; the terminal one as such."""
        found = [decode(record) for record in self.batch(stream).records]
        return [frame if isinstance(frame, Terminal) else frame.data for frame in found]

    # --- observations -----------------------------------------------------------------------------------

    @contextmanager
    def observations(self) -> Iterator[Observations]:
        with closing(open_observations(self.tree.config, self.tree.folder, SystemClock())) as opened:
            yield opened

    def snapshot(self, workflow_id: str) -> tuple[str, int] | None:
        """Status and revision as observed."""
        with self.observations() as read:
            found = read.of_workflow(workflow_id)
        return None if found is None else (found.status, found.revision)

    def attempts(self, biz_key: str) -> list[tuple[str, int, str]]:
        """Step, attempt and outcome of each row."""
        with self.observations() as read:
            return sorted((one.step, one.attempt, one.outcome) for one in read.attempts(biz_key).rows)

    def stored(self, biz_key: str) -> dict[str, Any] | None:
        """The row of a snapshot, as it is."""
        with closing(open_observation_store(self.tree.config, self.tree.folder, SystemClock())) as store:
            return store.get(SNAPSHOTS, biz_key)

    def keep(self, document: dict[str, Any]) -> int:
        """Write a snapshot as a process does that comes late; how many rows it changed."""
        with closing(open_observation_store(self.tree.config, self.tree.folder, SystemClock())) as store:
            return store.keep_all([Keep(SNAPSHOTS, document)])

    def repair(self) -> None:
        with closing(open_repair(self.tree.config, self.tree.folder, SystemClock())) as opened:
            opened.repair_all()


def begun(attempt: int) -> str:
    return f"attempt {attempt} begins; "


def whole(attempt: int) -> list[Any]:
    """What that attempt shows from its beginning to its end."""
    return [begun(attempt), *({"attempt": attempt, "number": number} for number in range(NUMBERS))]


LATE = encode_text("attempt 99 comes too late")
"""What somebody wants to append who has no right to any more."""


@contextmanager
def stage_in(folder: Path) -> Iterator[Stage]:
    """A running tree; a worker has one workflow at a time, so that a death meets one."""
    fields = {"app": APP, "workers": 3, "slots": 1, "lease_s": 30.0, "renew_s": 0.5, "restart_give_up": 1_000}
    with tree(folder, ARMED, observe_flush_s=0.05, stream_check_s=1.0, **fields) as running:
        opened = open_streams(patient(running.config), running.session.redis_url, SystemClock())
        assert opened is not None
        with closing(opened[1]):
            yield Stage(running, opened[0])
