"""One run: the real tree is started, loaded, hurt if that was asked for, counted, and ended again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from bench.app import STEPS
from bench.faults import Faults
from bench.ledger import count_records, read_entries
from bench.load import IDLE_WARM_UP, idle_latencies_ms, run_load, warm_up
from bench.outage import Observed, Outage, observed
from bench.outcome import Entered, Stored, count_entries, read_stored
from bench.plan import LOG_NAME, Plan
from bench.progress import Progress
from bench.recovery import Kill, Recovery, recovery
from bench.redis_calls import RedisCalls
from bench.servers import EMBEDDED
from bench.tree_place import TreePlace, open_place, open_tools
from kernel import Client
from kernel.config import Config, load
from kernel.store.protocol import Store
from supervisor.session import Session, running

_BARE_SLICES, _BARE_SLICE_S = 4, 0.1
_ALIVE_EVERY_S = 1.0


@dataclass(frozen=True)
class Measured:
    """All that one run found out; what it means is said by `bench.workflow_row`."""

    plan: Plan
    poll_s: float
    server: str
    idle_ms: list[float]
    bare_per_s: list[float]
    seconds: float
    """From the first call of the publisher to the last end of a workflow, on the store's clock."""
    in_time: bool
    round_trips: int
    worker_cpu_s: float | None
    """CPU time of the workers during the load; None when some were replaced meanwhile."""
    stored: Stored
    entered: Entered
    kills: list[Kill]
    flushes: int
    recovery: Recovery
    observed: Observed | None = None
    """None where it was not looked at."""
    repeat: int = 1
    """Which of the runs of its plan it is."""
    redis: str = EMBEDDED
    store: str = EMBEDDED
    """Where they are, for people."""


class _Opened:
    """The tree of one run and this program's ways into it."""

    def __init__(
        self, session: Session, config: Config, place: TreePlace, store: Store, calls: RedisCalls, client: Client
    ) -> None:
        self.session = session
        self.poll_s = config.poll_s
        self.place = place
        self.folder = place.folder
        self.store = store
        self.calls = calls
        self.client = client
        self._alive_at_s = time.monotonic()

    def check_alive(self) -> None:
        """Raise NoSupervisor when the tree has ended by itself: nothing would ever complete then."""
        if time.monotonic() >= self._alive_at_s:
            self.session.status()
            self._alive_at_s = time.monotonic() + _ALIVE_EVERY_S

    def worker_cpu_s(self) -> dict[int, float]:
        """CPU time of each living worker by process number."""
        pids = [child["pid"] for child in self.session.status()["children"] if child["role"] == "worker"]
        times = {}
        for pid in pids:
            try:
                used = psutil.Process(pid).cpu_times()
            except psutil.NoSuchProcess:
                continue
            times[pid] = float(used.user + used.system)
        return times


def measure(plan: Plan, repeat: int, folder: Path, progress: Progress) -> Measured:
    """Run `plan` once, on a fresh tree whose data folder is `folder`. Whatever it starts has ended when it returns or
    raises, and whatever it made on a server is gone.

    Raises SessionFailed or NoSupervisor when the tree does not start or ends by itself, StoreUnavailable when its store
    does not answer, CoordinationUnavailable when a Redis that was given does not, and InvalidConfig for settings that
    the kernel refuses.
    """
    progress.phase(f"starting the tree (run {repeat} of {plan.repeats})")
    with open_place(plan.servers, plan.durability, folder) as place:
        config = _config(plan, place)
        with running(config) as session, _opened(session, config, place) as tree:
            progress.phase("one workflow at a time")
            idle_ms = idle_latencies_ms(tree.client, plan.count, plan.idle_samples, tree.check_alive)
            progress.phase("warming up")
            first = plan.count + IDLE_WARM_UP + plan.idle_samples
            warm_up(tree.client, tree.store, first, tree.check_alive)
            found = _loaded(plan, tree, progress, idle_ms)
            return replace(found, repeat=repeat, redis=place.redis, store=place.store)


def _bare(plan: Plan, place: TreePlace, progress: Progress) -> list[float]:
    """The yardstick, on both sides of the load; none beside faults, where the steps' holding sets the rate."""
    if plan.faulty:
        return []
    progress.phase("bare commits")
    return place.bare_commits_per_s(_BARE_SLICES, _BARE_SLICE_S)


def _loaded(plan: Plan, tree: _Opened, progress: Progress, idle_ms: list[float]) -> Measured:
    """The load, and everything that is counted around it."""
    bare = _bare(plan, tree.place, progress)
    before = count_records(tree.folder)
    per_workflow = 4 if plan.faulty else 3  # with faults the claim is noted as well
    progress.phase("workflows", total=plan.count)
    faults = Faults(
        tree.session,
        tree.calls,
        workers=plan.workers,
        kill_every_s=plan.kill_every_s,
        flush_every_s=plan.flush_every_s,
        seed=plan.seed,
    )

    def entered() -> int:
        return count_records(tree.folder) - before

    def beside() -> None:
        tree.check_alive()
        faults.step()
        outage.step(entered, plan.count * len(STEPS))
        progress.show(lambda: entered() // per_workflow)

    with closing(Outage(tree.folder, plan.outage_s)) as outage:
        cpu_before, trips_before, started_ms = tree.worker_cpu_s(), tree.calls.round_trips(), tree.store.now_ms()
        in_time = run_load(tree.client, tree.store, plan, beside)
        trips, cpu_after = tree.calls.round_trips() - trips_before, tree.worker_cpu_s()
        outlasted = outage.is_over
        outage.end(entered())
    bare += _bare(plan, tree.place, progress)
    progress.phase("counting")
    seen = None
    if plan.around_outage_s is not None:
        seen = observed(tree.session, tree.store, tree.folder, outage, outlasted=outlasted)
    stored = read_stored(tree.store, plan.count)
    entries = read_entries(tree.folder)
    ended_ms = tree.store.now_ms() if stored.last_end_ms is None else stored.last_end_ms
    same = cpu_before.keys() == cpu_after.keys()
    return Measured(
        plan=plan,
        poll_s=tree.poll_s,
        server=tree.calls.server(),
        idle_ms=idle_ms,
        bare_per_s=bare,
        seconds=max(1, ended_ms - started_ms) / 1000,
        in_time=in_time,
        round_trips=trips,
        worker_cpu_s=sum(cpu_after.values()) - sum(cpu_before.values()) if same else None,
        stored=stored,
        entered=count_entries(entries, plan.count),
        kills=faults.kills,
        flushes=len(faults.flushes_ns),
        recovery=recovery(
            [entry for entry in entries if entry.number < plan.count], faults.kills, faults.flushes_ns, tree.poll_s
        ),
        observed=seen,
    )


@contextmanager
def _opened(session: Session, config: Config, place: TreePlace) -> Iterator[_Opened]:
    with open_tools(config, place.folder, session.redis_url) as tools:
        yield _Opened(session, config, place, *tools)


def _config(plan: Plan, place: TreePlace) -> Config:
    flags: dict[str, object] = {
        "app": "bench.app:app",
        "data_dir": str(place.folder),
        "workers": plan.workers,
        "slots": plan.slots,
        "dispatchers": 1,
        "drain_s": 5.0,
        "log_file": str(place.folder / LOG_NAME),
        **place.flags,
    }
    # A measurement is the same everywhere: settings of the user's own trees do not reach into it.
    return load(flags, environ={}, file=os.devnull).config
