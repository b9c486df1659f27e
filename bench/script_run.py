"""One run of `bench lanes`, `permits` or `streams`: what they share, and which of them it is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.progress import Progress
from bench.script_plan import ScriptPlan
from bench.script_row import row_of
from bench.script_server import ScriptServer, open_server
from bench.script_slices import Case, counted, timed


@dataclass
class ScriptRun:
    """A run while it is made, and what it found when it has ended."""

    plan: ScriptPlan
    server: ScriptServer
    progress: Progress
    deadline_s: float
    """On the monotonic clock."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """What is told below the table."""
    version: str = ""
    pinned: int | None = None
    """The processor that client and server shared."""

    cut: bool = False
    """Whether something was left out because the time was up."""

    @property
    def late(self) -> bool:
        """Whether the time is up. Whoever asks has more to do, and leaves it out then."""
        self.cut = self.cut or time.monotonic() >= self.deadline_s
        return self.cut

    def time(self, cases: Iterable[Case]) -> None:
        """Add a row for each; a case whose turn comes too late is left out, and that is a finding."""
        for case in cases:
            if self.late:
                return
            self.progress.phase(f"{case.op}({case.n}) at {case.depth:,}")
            seen = timed(case, self.server.noop, self.plan)
            self.rows.append(row_of(case, seen, counted(case, self.server.inside)))

    def time_call_paths(self) -> None:
        """The no-op by the kernel's path against the barest one and the usual one: what a call itself costs."""
        with self.server.held_noop() as held, self.server.registered_noop() as registered:
            most = 1_000_000
            self.time(
                [
                    Case(op="noop_held_connection", n=0, depth=0, call=held, calls_max=most),
                    Case(op="noop_register_script", n=0, depth=0, call=registered, calls_max=most),
                ]
            )


def measure(plan: ScriptPlan, folder: Path, progress: Progress) -> ScriptRun:
    """Do what `plan` says. Whatever it starts has ended when it returns or raises, and its keys are gone.

    Raises InvalidConfig, CoordinationUnavailable or SessionFailed as `open_server` does, and CoordinationUnavailable
    when the server goes away meanwhile.
    """
    from bench.lanes_run import measure_lanes  # these three know ScriptRun
    from bench.permits_run import measure_permits  # these three know ScriptRun
    from bench.streams_run import measure_streams  # these three know ScriptRun

    deadline_s = time.monotonic() + plan.limit_s
    progress.phase("starting the server")
    with open_server(plan.redis_url, folder) as server:
        run = ScriptRun(plan, server, progress, deadline_s, version=server.server(), pinned=server.pinned)
        run.time_call_paths()
        {"lanes": measure_lanes, "permits": measure_permits, "streams": measure_streams}[plan.bench](run)
    if run.cut:
        run.findings.append(f"not everything was measured within {plan.limit_s:g} s")
    return run
