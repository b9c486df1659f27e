"""The demo's compose step shows its text: the frames together are the summary of the business row (e2e-compose)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asr_demo import activities
from asr_demo.app import app
from asr_demo.composer import summarize
from asr_demo.flow import AsrPolicy, JobInput, NotePorts, Ports
from asr_demo.ledger import Ledger
from asr_demo.notes import Notes
from asr_demo.summary import live_summary
from kernel.clock import ManualClock, SystemClock
from kernel.context import Context
from kernel.coordination import Streams
from kernel.definition import Definition, Step
from kernel.frames import Terminal, decode
from kernel.store.memory import MemoryStore
from kernel.stream_words import StreamId
from tests.support.engine_rig import SteppedRig
from tests.support.redis_servers import RedisTarget

SEGMENTS = (
    "a queue may be lost",
    "the facts are kept in one place",
    "a worker may be replaced",
    "thank you",
)


class Desk:
    """A note whose transcript is there, and the compose step of the demo on one real Redis."""

    def __init__(self, target: RedisTarget, folder: Path) -> None:
        clock = ManualClock()
        self.target = target
        self.rig = SteppedRig(MemoryStore(clock), clock)
        self.rig.streams = Streams(target.runner(), target.keys)
        self.rig.client = self.rig.make_client(self.rig.client_store)
        self.notes = Notes(folder)
        self.notes.create("object-42", "f1")
        assert self.notes.save_transcript("object-42", "f1", " ".join(SEGMENTS), SEGMENTS)
        general = Ports(str(folder), {}, AsrPolicy(), SystemClock(), Ledger(folder))
        self.ports = NotePorts(general, self.notes)

    def run(self, activity: Any = activities.compose_content) -> str:
        """Compose to the end; the workflow_id."""
        step = Step("compose_content", activity, streams=True, max_retry=1)
        definition = Definition(type="job", input=JobInput, steps=[step])
        self.rig.worker(definition, ports=self.ports)
        job = JobInput("demo", "object-42", "f1", "talk.wav")
        workflow_id = self.rig.start(definition, input=job)
        self.rig.finish(workflow_id)
        self.rig.base_runner.run_all()
        return workflow_id

    def frames(self, workflow_id: str) -> list[Any]:
        key = self.target.keys.stream(StreamId("object-42", workflow_id, "f1"))["stream_frames"]
        return [decode(record) for record in self.target.client.lrange(key, 0, -1)]


@pytest.mark.req("e2e-compose")
def test_the_text_frames_together_are_the_summary_of_the_row_in_its_round(valkey: RedisTarget, tmp_path: Path) -> None:
    desk = Desk(valkey, tmp_path)

    workflow_id = desk.run()

    note = desk.notes.read("object-42")
    assert note is not None and note.summary == summarize(SEGMENTS)
    assert note.fencing_token == "f1"
    *texts, end = desk.frames(workflow_id)
    assert "".join(frame.data for frame in texts) == note.summary
    assert isinstance(end, Terminal) and end.status == "completed"
    desk.notes.close()


@pytest.mark.req("e2e-compose", "fen-idempotent-shortcut")
def test_an_attempt_that_finds_the_summary_done_shows_it_once(valkey: RedisTarget, tmp_path: Path) -> None:
    desk = Desk(valkey, tmp_path)
    calls: list[int] = []

    def twice(ctx: Context) -> Any:
        composed = activities.compose_content(ctx)
        calls.append(ctx.attempt)
        if len(calls) == 1:
            raise OSError("after the summary was saved")
        return composed

    workflow_id = desk.run(twice)

    *texts, end = desk.frames(workflow_id)
    assert calls == [1, 2]
    assert "".join(frame.data for frame in texts) == summarize(SEGMENTS)
    assert isinstance(end, Terminal)
    desk.notes.close()


@pytest.mark.req("e2e-compose")
def test_the_compose_steps_of_the_demo_stream() -> None:
    streaming = {
        definition.type: [step.name for step in definition.steps if step.streams]
        for definition in (app.definition("async_content_job"), live_summary())
    }

    assert streaming == {"async_content_job": ["compose_content"], "live_summary": ["compose_content"]}
