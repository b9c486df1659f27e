"""`kernel-supervisor demo`: one content job over a real recording, through forked workers, watched while it runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from asr_demo.app import HELD_PREFIX, plan
from asr_demo.asr_tasks import TaskTable
from asr_demo.flow import STEPS, JobInput
from asr_demo.holding import held_pid
from asr_demo.notes import Note, Notes
from asr_demo.screen import PlainScreen, open_screen, table_text, visible
from asr_demo.timeline import Timeline
from asr_demo.wav import AudioRefused, check_wav, keep_wav
from kernel import Client, Instance, InvalidConfig, KernelError
from kernel.config import Config, load
from kernel.runtime import open_client
from supervisor.session import Session, SessionFailed, running

RECORDING = Path(__file__).parent / "audio" / "architecture_night.wav"
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


@click.command("demo")
@click.option("--audio", metavar="FILE", help="Your own recording: WAV, PCM 16 bit, mono, 16 kHz, at most 10 minutes.")
@click.option(
    "--kill-worker-at", "kill_at", type=click.Choice(STEPS), help="SIGKILL the worker that executes this step."
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on stdout.")
@click.option("--keep", is_flag=True, help="Keep the data folder and say where it is.")
@click.option("--data-dir", metavar="DIR", help="Data folder of this run (default: a fresh one under .kernel).")
@click.option("--durability", type=click.Choice(["full", "normal"]), help="What a commit survives (default full).")
def main(
    audio: str | None, kill_at: str | None, as_json: bool, keep: bool, data_dir: str | None, durability: str | None
) -> None:
    """Run the bundled example: a talk is checked, transcribed, summarised and delivered, whatever dies meanwhile."""
    if find_spec("pocketsphinx") is None:
        _refuse("the demo needs the extra `demo`: pip install 'workflow-kernel[demo]'")
    try:
        with _data_folder(data_dir, keep=keep) as folder:
            recording = _recording(audio, folder)
            config = _config(folder, kill_at, durability)
            ok = _show(_drive(config, folder, recording, kill_at, quiet=as_json), as_json=as_json)
    except AudioRefused as error:
        _refuse(f"--audio {audio or RECORDING}: {error.message}")
    except InvalidConfig as error:
        _refuse(str(error))
    except (SessionFailed, KernelError) as error:
        click.echo(f"error: {visible(str(error))}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("interrupted: everything that ran has been ended", err=True)
        sys.exit(130)
    sys.exit(0 if ok else 1)


def _refuse(line: str) -> None:
    click.echo(f"error: {visible(line)}", err=True)
    sys.exit(2)


@contextmanager
def _data_folder(data_dir: str | None, *, keep: bool) -> Iterator[Path]:
    """The folder of this run: the given one, which stays, or a fresh one, which goes unless it is kept."""
    if data_dir is not None:
        yield Path(data_dir).absolute()
        return
    parent = Path(".kernel").absolute()
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="demo-", dir=parent))
    except OSError as error:
        raise InvalidConfig(f"data_dir: {parent} can not be used: {error.strerror}") from None
    try:
        yield folder
    finally:
        if keep:
            click.echo(f"kept: {folder}", err=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            try:
                parent.rmdir()  # only when nothing else is in it
            except OSError:
                pass


def _recording(audio: str | None, folder: Path) -> Path:
    """The checked recording, in a folder that the speech service reads from."""
    if audio is None:
        check_wav(RECORDING)
        return RECORDING
    return keep_wav(Path(audio), folder / "audio")


def _config(folder: Path, kill_at: str | None, durability: str | None) -> Config:
    attribute = "app" if kill_at is None else f"{HELD_PREFIX}{kill_at}"
    flags: dict[str, object] = {
        "app": f"asr_demo.app:{attribute}",
        "data_dir": str(folder),
        "workers": 2,
        "dispatchers": 1,
        "poll_s": 1.0,
        "durability": durability,
        "log_file": str(folder / "kernel.log"),
    }
    # The demo is the same everywhere: settings of the user's own trees do not reach into it.
    return load(flags, environ={}, file=os.devnull).config


def _drive(config: Config, folder: Path, recording: Path, kill_at: str | None, *, quiet: bool) -> Run:
    run = Run(started_s=time.monotonic())
    notes = Notes(folder)
    try:
        with open_screen(quiet_terminal=quiet) as screen:
            screen.say(f"recording {recording.name}; store, queue and log in {folder}")
            with running(config) as session:
                client = open_client(config, folder, session.redis_url)
                _follow(session, client, notes, run, recording, kill_at, screen)
            # The tree has ended: what the speech service and the ledger counted is final.
            run.note = notes.read("note-1")
            run.step_runs = len(notes.entries())
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
    timeline = Timeline()
    handle = client.start_or_resume(
        plan, biz_key=f"async_content_job:{job.tenant_id}:{job.object_id}", input=job, priority="realtime"
    )
    names_at = 0.0
    pause = threading.Event()
    while True:
        now = time.monotonic()
        if now >= names_at:
            timeline.learn(_names(session))
            names_at = now + _NAMES_EVERY_S
        run.instance = client.get(handle.workflow_id)
        if run.instance is None:
            raise SessionFailed(f"workflow {handle.workflow_id} has vanished from the store")
        screen.show(timeline.see(run.instance), timeline.rows(run.instance), now - run.started_s)
        if kill_at is not None and not run.killed:
            _kill_when_held(session, run, kill_at, timeline, screen)
        if run.instance.ended:
            break
        if now - run.started_s > LIMIT_S:
            screen.say(f"the job did not end within {LIMIT_S:g} s")
            break
        pause.wait(_LOOK_S)
    run.ended_s = time.monotonic()
    for text in table_text(timeline.rows(run.instance)):
        screen.say(text)


def _names(session: Session) -> dict[str, str]:
    children = session.status()["children"]
    return {c["worker_id"]: f"{c['name']} (pid {c['pid']})" for c in children if c.get("worker_id") and c["pid"]}


def _kill_when_held(session: Session, run: Run, kill_at: str, timeline: Timeline, screen: PlainScreen) -> None:
    pid = held_pid(Path(session.status()["data_dir"]))
    if pid is None:
        return
    timeline.learn(_names(session))
    os.kill(pid, signal.SIGKILL)
    run.killed.append(pid)
    screen.say(f"SIGKILL: worker pid {pid} in {kill_at}, after its effect and before its commit")


def _show(run: Run, *, as_json: bool) -> bool:
    report = run.report()
    ok = report["completed"] == report["workflows"] and report["lost"] == 0
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
        return ok
    print(f"\ntranscript\n  {visible(report['transcript'] or 'none')}")
    print(f"\nsummary\n  {visible(report['summary'] or 'none')}")
    killed = f", {len(run.killed)} worker killed, {report['takeovers']} takeover" if run.killed else ""
    print(
        f"\n{report['status']} in {report['seconds']:.1f} s: {report['completed']} of 1 workflows, "
        f"{report['step_runs']} step entries, {report['asr_submits']} task at the speech service{killed}"
    )
    if report["error"]:
        print(f"error: {visible(report['error'])}")
    return ok
