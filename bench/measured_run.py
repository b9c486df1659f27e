"""One run: the real tree is started, loaded, hurt if that was asked for, counted, and ended again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.app import STEPS
from bench.bare_commits import bare_commits_per_s
from bench.faults import Faults
from bench.ledger import count_records, read_entries
from bench.load import idle_latencies_ms, run_load
from bench.outage import Observed, Outage, observed
from bench.outcome import Entered, Stored, count_entries, read_stored
from bench.plan import LOG_NAME, Plan
from bench.progress import Progress
from bench.recovery import Kill, Recovery, recovery
from bench.redis_calls import RedisCalls
from kernel import Client
from kernel.clock import SystemClock
from kernel.config import Config, load
from kernel.runtime import open_client, open_store
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


class _Opened:
    """The tree of one run and this program's ways into it."""

    def __init__(self, session: Session, config: Config, folder: Path, store: Store, calls: RedisCalls) -> None:
        self.session = session
        self.poll_s = config.poll_s
        self.folder = folder
        self.store = store
        self.calls = calls
        self.client: Client = open_client(config, folder, session.redis_url)
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


def measure(plan: Plan, folder: Path, progress: Progress) -> Measured:
    """Run `plan` on a fresh tree whose data folder is `folder`. Whatever it starts has ended when it returns or raises.

    Raises SessionFailed or NoSupervisor when the tree does not start or ends by itself, StoreUnavailable when its store
    does not answer, and InvalidConfig for settings that the kernel refuses.
    """
    config = _config(plan, folder)
    progress.phase("starting the tree")
    with running(config) as session, _opened(session, config, folder) as tree:
        progress.phase("one workflow at a time")
        idle_ms = idle_latencies_ms(tree.client, plan.count, plan.idle_samples, tree.check_alive)
        return _loaded(plan, tree, progress, idle_ms)


def _bare(plan: Plan, folder: Path, progress: Progress) -> list[float]:
    """The yardstick, on both sides of the load; none beside faults, where the steps' holding sets the rate."""
    if plan.faulty:
        return []
    progress.phase("bare commits")
    return bare_commits_per_s(folder, plan.durability, _BARE_SLICES, _BARE_SLICE_S)


def _loaded(plan: Plan, tree: _Opened, progress: Progress, idle_ms: list[float]) -> Measured:
    """The load, and everything that is counted around it."""
    bare = _bare(plan, tree.folder, progress)
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
    bare += _bare(plan, tree.folder, progress)
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
def _opened(session: Session, config: Config, folder: Path) -> Iterator[_Opened]:
    with closing(open_store(config, folder, SystemClock())) as store, closing(RedisCalls(session.redis_url)) as calls:
        yield _Opened(session, config, folder, store, calls)


def _config(plan: Plan, folder: Path) -> Config:
    flags: dict[str, object] = {
        "app": "bench.app:app",
        "data_dir": str(folder),
        "workers": plan.workers,
        "slots": plan.slots,
        "dispatchers": 1,
        "durability": plan.durability,
        "drain_s": 5.0,
        "log_file": str(folder / LOG_NAME),
    }
    # A measurement is the same everywhere: settings of the user's own trees do not reach into it.
    return load(flags, environ={}, file=os.devnull).config
