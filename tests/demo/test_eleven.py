"""The walkthrough of the article in eleven points: four workers, one after another, carry one job to its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from asr_demo.app import plan
from asr_demo.flow import JobInput
from asr_demo.holding import held_pid
from asr_demo.live import RECORDING
from asr_demo.notes import Note, Notes
from kernel import Instance
from kernel.config import Config
from kernel.runtime import open_client
from supervisor.session import Session, running
from tests.demo.eleven import SENTENCES, Script
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault


class Job(NamedTuple):
    """One content job in a running tree."""

    folder: Path
    session: Session
    client: Any
    workflow_id: str

    def instance(self) -> Instance:
        found: Instance = self.client.get(self.workflow_id)
        return found

    def completed(self) -> Instance:
        wait_until(lambda: self.instance().ended, "the job has ended")
        return self.instance()

    def note(self) -> Note:
        with closing(Notes(self.folder)) as notes:
            note = notes.read("note-1")
        assert note is not None
        return note


@contextmanager
def job(folder: Path, app: str) -> Iterator[Job]:
    """Two processes of one slot each, and the job of `app` started in them."""
    config = Config(
        app=f"tests.demo.eleven:{app}",
        data_dir=str(folder),
        workers=2,
        slots=1,
        poll_s=1.0,
        log_file=str(folder / "kernel.log"),
    )
    folder.mkdir(mode=0o700)
    with closing(Notes(folder)) as notes:
        notes.create("note-1", "f1")
    with running(config) as session:
        client = open_client(config, folder, session.redis_url)
        try:
            job_input = JobInput("demo", "note-1", "f1", str(RECORDING))
            handle = client.start_or_resume(plan, biz_key="async_content_job:demo:note-1", input=job_input)
            yield Job(folder, session, client, handle.workflow_id)
        finally:
            client.close()


@pytest.mark.req("e2e-eleven", "e2e-one-slot", "fen-worker-change", "fen-idempotent-shortcut", "flt-compose-crash")
def test_four_claims_carry_one_job_to_its_end(tmp_path: Path) -> None:
    with job(tmp_path / "data", "app") as one:
        pid = wait_until(lambda: held_pid(one.folder), "C has composed and not committed")
        os.kill(pid, signal.SIGKILL)
        instance = one.completed()
        note = one.note()

    with closing(Script(one.folder)) as script:
        entries = script.entries()
        calls = {what: script.count(what) for what in ("submit", "poll", "compose")}
    by_claim = [
        (token, [entry.step for entry in group]) for token, group in groupby(entries, lambda entry: entry.token)
    ]
    assert [steps for _, steps in by_claim] == [
        ["preprocess", "transcribe_audio"],  # A, t1: submits a77 and lets go
        ["transcribe_audio"],  # B, t2: still running
        ["transcribe_audio", "compose_content"],  # C, t3: the transcript; composes and dies
        ["compose_content", "finalize"],  # D, t4: takes over, and finds the work done
    ]
    assert len({token for token, _ in by_claim}) == 4, "no claim's token comes back when the next one is at work"
    assert calls == {"submit": 1, "poll": 2, "compose": 1}
    assert entries[-1].pid != pid
    assert instance.status == "completed"
    assert [step.takeovers for step in instance.steps] == [0, 0, 1, 0]
    assert (note.status, note.fencing_token, note.transcript) == ("completed", "f1", " ".join(SENTENCES))
    assert note.summary


@pytest.mark.req("asr-not-attempts", "asr-running")
def test_polls_are_no_attempts(tmp_path: Path) -> None:
    with job(tmp_path / "data", "many") as one:
        instance = one.completed()

    with closing(Script(one.folder)) as script:
        assert (script.count("submit"), script.count("poll")) == (1, 21)
    step = instance.steps[instance.step_index("transcribe_audio")]
    assert (step.status, step.attempt, step.failures, step.takeovers, step.errors) == ("completed", 1, 0, 0, ())
