"""The single job of `kernel-supervisor demo`: one recording becomes a summary, watched while it runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asr_demo.app import plan
from asr_demo.asr_tasks import TaskTable
from asr_demo.flow import JobInput
from asr_demo.holding import held_pid
from asr_demo.ledger import Ledger
from asr_demo.live_page import announce, stay
from asr_demo.notes import Note, Notes
from asr_demo.page_orders import NO_PAGE, PageOrders
from asr_demo.screen import Grid, PlainScreen, aligned, open_screen, show_result, visible
from asr_demo.timeline import About, Row, Timeline
from kernel import Client, Instance
from kernel.config import Config
from kernel.runtime import open_client
from supervisor.session import Session, SessionFailed, running

LIMIT_S = 600.0
_LOOK_S = 0.05
_NAMES_EVERY_S = 1.0


@dataclass
class Run:
    """What one run of the demo found out."""

    started_s: float
    instance: Instance | None = None
    note: Note | None = None
    step_runs: int = 0
    asr_submits: int = 0
    asr_submit_calls: int = 0
    killed: list[int] = field(default_factory=list)
    ended_s: float = 0.0

    def report(self) -> dict[str, Any]:
        """The one JSON object of `--json` (INTERFACES)."""
        instance, note = self.instance, self.note
        return {
            "v": 1,
            "workflows": 1,
            "completed": int(instance is not None and instance.status == "completed"),
            "lost": int(instance is None or not instance.ended),
            "step_runs": self.step_runs,
            "asr_submits": self.asr_submits,
            "asr_submit_calls": self.asr_submit_calls,
            "takeovers": 0 if instance is None else sum(step.takeovers for step in instance.steps),
            "killed": self.killed,
            "seconds": round(self.ended_s - self.started_s, 2),
            "status": None if instance is None else instance.status,
            "error": None if instance is None or instance.error is None else instance.error.message,
            "transcript": None if note is None else note.transcript,
            "summary": None if note is None else note.summary,
        }


def drive(
    config: Config, folder: Path, recording: Path, kill_at: str | None, *, page: PageOrders = NO_PAGE, quiet: bool
) -> Run:
    """Run the job in `folder`; `kill_at` names the step in which its worker is killed."""
    run = Run(started_s=time.monotonic())
    notes = Notes(folder)
    try:
        with open_screen(quiet_terminal=quiet) as screen:
            screen.say(f"recording {recording.name}; store, queue and log in {folder}")
            with running(config) as session, open_client(config, folder, session.redis_url) as client:
                announce(session, page, "/live/note-1", screen)
                _follow(session, client, notes, run, recording, kill_at, screen)
                stay(session, page, screen)
            # The tree has ended: what the speech service and the ledger counted is final.
            run.note = notes.read("note-1")
            with closing(Ledger(folder)) as ledger:
                run.step_runs = len(ledger.entries())
            with closing(TaskTable(folder)) as table:
                stats = table.stats()
            run.asr_submits, run.asr_submit_calls = stats.asr_submits, stats.asr_submit_calls
    finally:
        notes.close()
    return run


def _follow(
    session: Session, client: Client, notes: Notes, run: Run, recording: Path, kill_at: str | None, screen: PlainScreen
) -> None:
    """Start the job and watch it to its end; kill the held worker when it is where it should die."""
    job = JobInput(tenant_id="demo", object_id="note-1", fencing_token="f1", audio_path=str(recording))
    notes.create(job.object_id, job.fencing_token)
    timeline = Timeline(About(job.object_id, job.fencing_token, f"recording {recording.name}"))
    handle = client.start_or_resume(
        plan, biz_key=f"async_content_job:{job.tenant_id}:{job.object_id}", input=job, priority="realtime"
    )
    names_at = 0.0
    pause = threading.Event()
    while True:
        now = time.monotonic()
        if now >= names_at:
            timeline.learn(worker_names(session))
            names_at = now + _NAMES_EVERY_S
        run.instance = client.get(handle.workflow_id)
        if run.instance is None:
            raise SessionFailed(f"workflow {handle.workflow_id} has vanished from the store")
        screen.happened(timeline.see(run.instance))
        screen.stands(_grid(timeline.rows(run.instance), now - run.started_s))
        if kill_at is not None and not run.killed:
            _kill_when_held(session, run, kill_at, timeline, screen)
        if run.instance.ended:
            break
        if now - run.started_s > LIMIT_S:
            screen.say(f"the job did not end within {LIMIT_S:g} s")
            break
        pause.wait(_LOOK_S)
    run.ended_s = time.monotonic()
    for text in aligned(_closing_grid(timeline.rows(run.instance))):
        screen.say(text)


def _grid(rows: Iterable[Row], elapsed_s: float) -> Grid:
    return Grid(
        f"async_content_job · {elapsed_s:.1f} s",
        ("step", "state", "worker", "attempt", "executed", "external wait", "waiting for"),
        [
            (
                row.step,
                row.status,
                row.worker,
                str(row.attempts or ""),
                f"{row.executed_ms / 1000:.2f} s" if row.executed_ms else "",
                f"{row.external_ms / 1000:.1f} s" if row.external_ms else "",
                row.waiting_for,
            )
            for row in rows
        ],
    )


def _closing_grid(rows: Iterable[Row]) -> Grid:
    return Grid(
        "",
        ("step", "status", "attempts", "takeovers", "worker", "executed", "external wait"),
        [
            (
                row.step,
                row.status,
                str(row.attempts),
                str(row.takeovers),
                row.worker,
                f"{row.executed_ms / 1000:.2f} s",
                f"{row.external_ms / 1000:.2f} s",
            )
            for row in rows
        ],
    )


def worker_names(session: Session) -> dict[str, str]:
    """worker_id → a name for people, of the children that run now."""
    children = session.status()["children"]
    return {c["worker_id"]: f"{c['name']} (pid {c['pid']})" for c in children if c.get("worker_id") and c["pid"]}


def _kill_when_held(session: Session, run: Run, kill_at: str, timeline: Timeline, screen: PlainScreen) -> None:
    pid = held_pid(Path(session.status()["data_dir"]))
    if pid is None or run.instance is None:
        return
    if run.instance.steps[run.instance.step_index(kill_at)].status != "running":
        return  # read just before: the next look shows who holds it, and under which claim
    timeline.learn(worker_names(session))
    os.kill(pid, signal.SIGKILL)
    run.killed.append(pid)
    screen.say(f"SIGKILL: worker pid {pid} in {kill_at}, after its effect and before its commit")


def show(run: Run, *, as_json: bool) -> bool:
    """Print what came of it; whether all is well."""
    report = run.report()
    ok = show_result(report, as_json=as_json)
    if as_json:
        return ok
    killed = f", {len(run.killed)} worker killed, {report['takeovers']} takeover" if run.killed else ""
    print(
        f"\n{report['status']} in {report['seconds']:.1f} s: {report['completed']} of 1 workflows, "
        f"{report['step_runs']} step entries, {report['asr_submits']} task at the speech service{killed}"
    )
    if report["error"]:
        print(f"error: {visible(report['error'])}")
    return ok
