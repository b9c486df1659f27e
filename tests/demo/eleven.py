"""The application of the eleven-point walkthrough: the content job, a provider that follows a script, and a claim log.

tests.demo.eleven:app     the second poll brings the transcript; the worker of the first compose waits to be killed
tests.demo.eleven:many    the provider says `running` twenty times
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from asr_demo.app import content_job
from asr_demo.asr_client import Running, Submitted, Succeeded
from asr_demo.asr_protocol import AsrOptions, Segment
from asr_demo.composer import summarize
from asr_demo.flow import Activity, AsrPolicy, NotePorts, Ports, Wrap
from asr_demo.holding import held_at
from asr_demo.ledger import Ledger
from asr_demo.notes import Notes
from asr_demo.table_file import TableFile
from kernel import App, Context, PortsRequest, SystemClock

FILE_NAME = "script.sqlite"
SENTENCES = ("every job is a list of steps", "the result goes to the database", "another worker takes the last result")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (what TEXT NOT NULL, key TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS claims (token TEXT NOT NULL, step TEXT NOT NULL, worker TEXT NOT NULL, pid INTEGER NOT NULL);
"""


class ClaimedEntry(NamedTuple):
    """One entry into an activity, and the claim under which it was made."""

    token: str
    step: str
    worker: str
    pid: int


class Script:
    """What the provider and the model were asked, and who entered what under which claim; shared by all processes."""

    def __init__(self, folder: Path) -> None:
        self._file = TableFile(folder / FILE_NAME, _SCHEMA)

    def called(self, what: str, key: str = "") -> int:
        """Write the call down; how many of its kind there are now."""
        self._file.change("INSERT INTO calls VALUES (?, ?)", (what, key))
        return self.count(what)

    def count(self, what: str) -> int:
        return int(self._file.rows("SELECT count(*) FROM calls WHERE what = ?", (what,))[0][0])

    def entered(self, entry: ClaimedEntry) -> None:
        self._file.change("INSERT INTO claims VALUES (?, ?, ?, ?)", entry)

    def entries(self) -> list[ClaimedEntry]:
        return [ClaimedEntry(*row) for row in self._file.rows("SELECT * FROM claims ORDER BY rowid")]

    def close(self) -> None:
        self._file.close()


class Provider:
    """A speech service that says `running` so many times, and then what was said."""

    def __init__(self, script: Script, running: int) -> None:
        self._script = script
        self._running = running

    def submit(self, audio: Path, *, idempotency_key: str, options: AsrOptions, timeout_s: float) -> Submitted:
        self._script.called("submit", idempotency_key)
        return Submitted("a77", "scripted", created=True)

    def poll(self, task_id: str, *, options: AsrOptions, timeout_s: float) -> Running | Succeeded:
        if self._script.called("poll", task_id) <= self._running:
            return Running(queued=False)
        segments = tuple(Segment(text, float(at), at + 0.5) for at, text in enumerate(SENTENCES))
        return Succeeded(" ".join(SENTENCES), segments, 3.0)


def _claim_log(name: str, activity: Activity) -> Activity:
    """Write the claim's token down before the activity begins. Only a test looks at what an activity is not shown."""

    def logged(ctx: Context) -> Any:
        token = ctx._instance.claim_token or ""
        Script(Path(ctx.ports.data_dir)).entered(ClaimedEntry(token, name, ctx.worker_id, os.getpid()))
        return activity(ctx)

    logged.__name__ = activity.__name__
    return logged


def _make_app(running: int, poll_ms: int, wrap: Wrap) -> App:
    def make_ports(request: PortsRequest) -> NotePorts:
        folder = Path(request.data_dir)
        script = Script(folder)

        def compose(segments: tuple[str, ...]) -> str:
            script.called("compose")
            return summarize(segments)

        providers: Any = {"scripted": Provider(script, running)}
        policy = AsrPolicy(poll_interval_ms=poll_ms)
        general = Ports(request.data_dir, providers, policy, SystemClock(), Ledger(folder))
        return NotePorts(general, Notes(folder), compose)

    return App(
        definitions=[content_job(lambda name, activity: _claim_log(name, wrap(name, activity)))], ports=make_ports
    )


app = _make_app(1, 200, held_at("compose_content"))
many = _make_app(20, 20, lambda _name, activity: activity)
