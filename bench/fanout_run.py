"""One run of `bench fanout`: subscribers are started and wait, one event is told to all of them, everything is counted.

It is done three times, each time on a fresh tree. First for a tenth of the subscribers with one worker of one slot,
where nothing runs beside a page: what telling costs by itself. Then with all workers for the same tenth and for all: a
fan-out whose memory grows with its list shows in the difference of these two.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.fanout_app import FAN_OUT, PAGE, PAGE_DONE, PAGE_SIZE, SUBSCRIBER, WOKEN, Waiting, biz_key, event
from bench.ledger import Entry, count_records, read_entries
from bench.plan import LOG_NAME
from bench.progress import Progress
from bench.redis_calls import RedisCalls
from bench.servers import ALL_EMBEDDED, EMBEDDED, Durability, Servers
from bench.tree_place import TreePlace, open_place, open_tools
from fanout import Outcome, Tally, signal_id_for, start_fan_out
from kernel import Client, Instance, workflow_id_for
from kernel.codec import decode
from kernel.config import Config, load
from kernel.records import to_instance
from kernel.states import COMPLETED
from kernel.store.protocol import Query, Store
from kernel.store.tables import INSTANCES, SIGNALS
from supervisor.session import Session, running

_BATCH = 100
_LOOK_S = 0.02
_ALIVE_EVERY_S = 1.0
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


class Part(NamedTuple):
    """One of the fan-outs of a run."""

    count: int
    workers: int
    slots: int


@dataclass(frozen=True, kw_only=True)
class FanOutPlan:
    """The settings of a run, as its report repeats them. `limit_s` is for all parts of one repeat, in seconds."""

    count: int
    workers: int
    slots: int
    durability: Durability
    limit_s: float
    servers: Servers = ALL_EMBEDDED
    """Instead of the embedded store and Redis."""
    repeats: int = 1

    @property
    def parts(self) -> list[Part]:
        """A tenth with nothing beside, a tenth, all; each shape once."""
        tenth = max(1, self.count // 10)
        alone, all_ = Part(tenth, 1, 1), Part(self.count, self.workers, self.slots)
        return list(dict.fromkeys((alone, all_._replace(count=tenth), all_)))

    def settings(self) -> dict[str, Any]:
        """For the report."""
        settings = asdict(self)
        del settings["servers"]
        return {**settings, "page_size": PAGE_SIZE}


@dataclass(frozen=True, kw_only=True)
class Told:
    """What one fan-out did; what it means is said by `bench.fanout_row`."""

    part: Part
    server: str
    in_time: bool
    completed: int
    """Subscribers that ended well."""
    signals: int
    """Rows of the inbox that name one of them."""
    tally: Tally | None
    """What the fan-out itself says; None when it did not end."""
    woken_again: int
    """Entries of subscribers after a signal, beyond the first of each."""
    delivery_s: float
    """From the begin of the first page to the end of the last; those who are woken run beside it."""
    telling_s: float
    """The pages alone, each from its begin to its end."""
    last_s: float
    """From the call that started the fan-out to the end of the last subscriber, on the store's clock."""
    signal_writes: int
    """Row writes of the inbox, of the waits that were ended, and of the fan-out's own row."""
    subscriber_writes: int
    """Row writes of the subscribers for their own starts, claims and steps."""
    round_trips: int
    peak_before_kib: int | None
    """The most memory that any worker had had before the event, in KiB: what starting and waiting alone cost."""
    peak_kib: int | None
    """The most memory that a process which told pages ever had, in KiB; None when one of them is gone."""
    redis: str = EMBEDDED
    store: str = EMBEDDED
    """Where they are, for people."""


@dataclass(frozen=True)
class _Tree:
    """The tree of one part and this program's ways into it."""

    session: Session
    place: TreePlace
    store: Store
    client: Client
    calls: RedisCalls
    deadline: float

    @property
    def folder(self) -> Path:
        return self.place.folder

    def waits(self) -> Iterator[None]:
        """One turn about every 20 ms, until the time is up. Raises NoSupervisor when the tree has ended by itself."""
        alive_at = 0.0
        while (now := time.monotonic()) < self.deadline:
            if now >= alive_at:
                self.session.status()
                alive_at = now + _ALIVE_EVERY_S
            yield
            time.sleep(_LOOK_S)

    def worker_pids(self) -> set[int]:
        return {child["pid"] for child in self.session.status()["children"] if child["role"] == "worker"}

    def busy(self) -> bool:
        """Whether some workflow could be run now: an index of the store holds just those."""
        return bool(self.store.scan(Query(INSTANCES, (), "claimable_time", ("workflow_id",), 1)))


def measure(plan: FanOutPlan, folder: Path, progress: Progress) -> list[Told]:
    """Run all parts once, on fresh trees below `folder`. Whatever it starts has ended when it returns or raises, and
    whatever it made on a server is gone.

    Raises SessionFailed or NoSupervisor when a tree does not start or ends by itself, StoreUnavailable when its store
    does not answer, CoordinationUnavailable when a Redis that was given does not, and InvalidConfig for an address that
    can not be used.
    """
    deadline = time.monotonic() + plan.limit_s
    told: list[Told] = []
    for number, part in enumerate(plan.parts, start=1):
        own = folder / str(number)
        own.mkdir(mode=0o700)
        progress.phase("starting the tree")
        with open_place(plan.servers, plan.durability, own) as place:
            config = _config(part, place, folder / LOG_NAME)
            with running(config) as session, _opened(config, place, session, deadline) as tree:
                in_time = _all_wait(tree, part.count, progress)
                told.append(_one_event(tree, part, progress, in_time=in_time))
    return told


def _all_wait(tree: _Tree, count: int, progress: Progress) -> bool:
    """Start the subscribers and let the workers run them up to their wait; False when the time is up."""
    progress.phase("subscribers", total=count)
    started = 0
    while started < count and time.monotonic() < tree.deadline:
        batch = range(started, min(count, started + _BATCH))
        tree.client.start_many(SUBSCRIBER.plan, [(biz_key(number), Waiting(number)) for number in batch])
        started = batch.stop
        progress.show(partial(int, started))
    progress.phase("waiting for their wait")
    return started == count and any(not tree.busy() for _ in tree.waits())


def _one_event(tree: _Tree, part: Part, progress: Progress, *, in_time: bool) -> Told:
    """Tell it, wait until all who were woken have ended, and count."""
    count = part.count
    progress.phase("fan-out", total=count)
    peak_before_kib = _peak_kib(tree.worker_pids())
    trips, started_ms = tree.calls.round_trips(), tree.store.now_ms()
    if in_time:
        fan_out = start_fan_out(tree.client, FAN_OUT, event(count))
        in_time = any(_is_over(tree, fan_out, count, progress) for _ in tree.waits())
    trips = tree.calls.round_trips() - trips
    progress.phase("counting")
    entries = read_entries(tree.folder)
    peak_kib = _peak_kib({entry.pid for entry in entries if entry.step == PAGE})
    rows = [_instance(tree.store, workflow_id_for(biz_key(number))) for number in range(count)]
    subscribers = [row for row in rows if row is not None]
    own = _instance(tree.store, fan_out) if in_time else None
    inbox = [document for row in subscribers if (document := _signal(tree.store, row, count)) is not None]
    activations = sum(row.steps[0].last_signal_id is not None for row in subscribers)
    pages = [entry for entry in entries if entry.step == PAGE]
    ends = [row.finish_time for row in subscribers if row.finish_time is not None]
    woken = Counter(entry.number for entry in entries if entry.step == WOKEN)
    return Told(
        part=part,
        server=tree.calls.server(),
        in_time=in_time,
        completed=sum(row.status == COMPLETED for row in subscribers),
        signals=len(inbox),
        tally=_tally(own),
        woken_again=sum(woken.values()) - len(woken),
        delivery_s=_span_s(entries),
        telling_s=_telling_s(entries),
        last_s=max(1, max(ends, default=started_ms) - started_ms) / 1000,
        # A page has one claim, which alone does not raise the revision of the fan-out's row.
        signal_writes=sum(1 + ("match_time" in row) for row in inbox)
        + activations
        + (0 if own is None else own.revision + len(pages)),
        subscriber_writes=sum(len(row.commit_ids) for row in subscribers) - activations,
        round_trips=trips,
        peak_before_kib=peak_before_kib,
        peak_kib=peak_kib,
        redis=tree.place.redis,
        store=tree.place.store,
    )


def _is_over(tree: _Tree, fan_out: str, count: int, progress: Progress) -> bool:
    """Whether the fan-out has ended and everybody was entered and has ended; asked for often, so cheap things first."""
    records = count_records(tree.folder)
    progress.show(partial(int, records))
    if records < count or tree.busy():
        return False
    row = tree.client.get(fan_out)
    return row is not None and row.ended


def _instance(store: Store, workflow_id: str) -> Instance | None:
    document = store.get(INSTANCES, workflow_id)
    return None if document is None else to_instance(document)


def _signal(store: Store, row: Instance, count: int) -> dict[str, Any] | None:
    of = event(count)
    return store.get(SIGNALS, signal_id_for(of, row.workflow_id, of.wait_key, of.generation))


def _tally(row: Instance | None) -> Tally | None:
    if row is None or row.status != COMPLETED:
        return None
    (output,) = row.outputs.values()
    outcome: Outcome = decode(output, Outcome, "output of the fan-out")
    return outcome.tally


def _span_s(entries: Sequence[Entry]) -> float:
    begins = [entry.at_ns for entry in entries if entry.step == PAGE]
    ends = [entry.at_ns for entry in entries if entry.step == PAGE_DONE]
    return (max(ends) - min(begins)) / 1e9 if begins and ends else 0.0


def _telling_s(entries: Sequence[Entry]) -> float:
    """Pages follow one another, so begins and ends alternate; a page that was not told to its end has none."""
    total_ns, begun_ns = 0, None
    for entry in entries:
        if entry.step == PAGE:
            begun_ns = entry.at_ns
        elif entry.step == PAGE_DONE and begun_ns is not None:
            total_ns, begun_ns = total_ns + entry.at_ns - begun_ns, None
    return total_ns / 1e9


def _peak_kib(pids: set[int]) -> int | None:
    peaks = []
    for pid in pids:
        try:
            found = _PEAK.search(Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace"))
        except OSError:
            return None
        if found is None:
            return None
        peaks.append(int(found[1]))
    return max(peaks, default=None)


@contextmanager
def _opened(config: Config, place: TreePlace, session: Session, deadline: float) -> Iterator[_Tree]:
    with open_tools(config, place.folder, session.redis_url) as tools:
        yield _Tree(session, place, tools.store, tools.client, tools.calls, deadline)


def _config(part: Part, place: TreePlace, log_file: Path) -> Config:
    flags: dict[str, object] = {
        "app": "bench.fanout_app:app",
        "data_dir": str(place.folder),
        "workers": part.workers,
        "slots": part.slots,
        "dispatchers": 1,
        "drain_s": 5.0,
        "log_file": str(log_file),
        **place.flags,
    }
    # A measurement is the same everywhere: settings of the user's own trees do not reach into it.
    return load(flags, environ={}, file=os.devnull).config
