"""What the demo's speech step decides, call by call, against a provider whose answers the test gives (group 20)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from asr_demo import activities
from asr_demo.app import app, plan
from asr_demo.asr_client import AsrTaskUnknown, AsrUnavailable, Failed, Running, Submitted, Succeeded
from asr_demo.asr_protocol import AsrOptions, Segment
from asr_demo.flow import AsrPolicy, JobInput, NotePorts, Ports
from asr_demo.ledger import Ledger
from asr_demo.notes import Notes
from asr_demo.speech import AsrError, AsrTask, Transcribed
from kernel import Context, NonRetryable, Sleep
from kernel.cancel import CancelToken
from kernel.clock import ManualClock
from kernel.codec import encode
from kernel.definition import plan as plan_of
from kernel.records import to_instance
from kernel.transitions import create

TALK = Path(activities.__file__).parent / "audio" / "architecture_night.wav"
POLICY = AsrPolicy(poll_interval_ms=2_000, deadline_ms=60_000, task_ttl_ms=90_000, poll_failures_max=3)
DONE = Succeeded("one two", (Segment("one", 0.0, 1.0), Segment("two", 1.5, 2.0)), 2.0)


class Provider:
    """Answers in turn what it is given: a value is returned, an exception raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.submitted: list[str] = []
        self.polled: list[tuple[str, AsrOptions]] = []

    def submit(self, audio: Path, *, idempotency_key: str, options: AsrOptions, timeout_s: float) -> Submitted:
        self.submitted.append(idempotency_key)
        return self._next()  # type: ignore[no-any-return]

    def poll(self, task_id: str, *, options: AsrOptions, timeout_s: float) -> Any:
        self.polled.append((task_id, options))
        return self._next()

    def _next(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Flow:
    """The speech step of one note, invoked again and again with the checkpoint of its last directive."""

    def __init__(self, folder: Path, *answers: Any, policy: AsrPolicy = POLICY) -> None:
        self.clock = ManualClock()
        self.provider = Provider(*answers)
        self.notes = Notes(folder)
        self.notes.create("note-1", "f1")
        providers: Any = {"first": self.provider}
        general = Ports(str(folder), providers, policy, self.clock, Ledger(folder))
        self.ports = NotePorts(general, self.notes)
        self.flows: Any = None  # these steps tell nobody and start nothing
        self.checkpoint: Any = None

    def context(self) -> Context:
        job = JobInput("demo", "note-1", "f1", str(TALK))
        insert = create(
            workflow_id="wf-1",
            type_=plan.type,
            biz_key="k",
            fingerprint=plan.fingerprint,
            step_names=[step.name for step in plan.steps],
            input_=encode(job, "input", 10_000),
            priority=0,
            now_ms=self.clock.wall_ms(),
            commit_id="c",
        )
        if self.checkpoint is not None:
            insert.document["steps"][1]["checkpoint"] = encode(self.checkpoint, "checkpoint", 10_000)
        return Context(
            instance=to_instance(insert.document),
            step_index=1,
            input_type=JobInput,
            checkpoint_type=AsrTask,
            ports=self.ports,
            prepared=None,
            worker_id="w",
            cancel=CancelToken(),
            guard=lambda: None,
            remaining_ms=lambda: 60_000,
            flows=self.flows,
        )

    def invoke(self, after_ms: int = 0) -> Any:
        self.clock.advance(after_ms)
        result = activities.transcribe_audio(self.context())
        if isinstance(result, Sleep):
            self.checkpoint = result.checkpoint
        return result


@pytest.fixture
def flow(tmp_path: Path) -> Any:
    made: list[Flow] = []

    def make(*answers: Any, policy: AsrPolicy = POLICY) -> Flow:
        made.append(Flow(tmp_path, *answers, policy=policy))
        return made[-1]

    yield make
    for each in made:
        each.notes.close()


@pytest.mark.req("asr-checkpoint", "id-asr-task", "slp-directive")
def test_a_submit_leaves_everything_that_another_process_needs_in_the_checkpoint(flow: Any) -> None:
    job = flow(Submitted("a77", "first", True))

    result = job.invoke()

    now_ms = job.clock.wall_ms()
    assert result == Sleep(timedelta(seconds=2), AsrTask("first", "a77", now_ms, now_ms + 60_000, 2_000, AsrOptions()))
    assert job.provider.submitted == ["wf-1:1:transcribe_audio"]


@pytest.mark.req("asr-no-resubmit", "asr-running", "asr-success")
def test_a_task_is_polled_until_it_ends_and_never_submitted_again(flow: Any) -> None:
    job = flow(Submitted("a77", "first", True), Running(queued=True), Running(queued=False), DONE)

    results = [job.invoke(2_000) for _ in range(4)]

    assert [type(result) for result in results] == [Sleep, Sleep, Sleep, Transcribed]
    assert job.checkpoint.poll_failures == 0
    assert len(job.provider.submitted) == 1
    assert [task_id for task_id, _ in job.provider.polled] == ["a77"] * 3
    note = job.notes.read("note-1")
    assert (note.transcript, note.segments) == ("one two", ("one", "two"))


@pytest.mark.req("asr-poll-error", "asr-poll-reset")
def test_only_calls_that_fail_in_a_row_count_and_only_above_the_tolerance(flow: Any) -> None:
    away = AsrUnavailable("away")
    job = flow(Submitted("a77", "first", True), away, away, Running(queued=False), away, away, away, away)
    job.invoke()
    counts = [job.invoke(1_000) and job.checkpoint.poll_failures for _ in range(6)]

    assert counts == [1, 2, 0, 1, 2, 3]
    with pytest.raises(AsrError) as caught:
        job.invoke()
    assert caught.value.code == "asr_poll_failed"


def test_a_submit_that_does_not_get_through_is_sent_again_with_the_same_key(flow: Any) -> None:
    job = flow(AsrUnavailable("away"), AsrUnavailable("lost"), Submitted("a77", "first", False))

    for _ in range(3):
        job.invoke(1_000)

    assert set(job.provider.submitted) == {"wf-1:1:transcribe_audio"}
    assert (job.checkpoint.task_id, job.checkpoint.poll_failures) == ("a77", 0)


@pytest.mark.req("asr-order", "asr-deadline", "asr-ttl", "asr-config")
@pytest.mark.parametrize(
    ("deadline_ms", "ttl_ms", "after_ms", "code"),
    [
        (60_000, 90_000, 60_001, "asr_deadline"),
        (90_000, 60_000, 60_001, "asr_task_expired"),
        (60_000, 60_000, 60_001, "asr_deadline"),
    ],
)
def test_past_a_bound_no_query_is_made_and_the_deadline_comes_first(
    flow: Any, deadline_ms: int, ttl_ms: int, after_ms: int, code: str
) -> None:
    job = flow(Submitted("a77", "first", True), policy=AsrPolicy(2_000, deadline_ms, ttl_ms))
    job.invoke()

    with pytest.raises(AsrError) as caught:
        job.invoke(after_ms)

    assert caught.value.code == code
    assert (job.provider.polled, len(job.provider.submitted)) == ([], 1)
    assert plan_of("async_content_job", [step.name for step in plan.steps]).fingerprint == plan.fingerprint


@pytest.mark.req("asr-provider-failed")
@pytest.mark.parametrize(
    ("answer", "code"),
    [(Failed("noise", "nothing but noise"), "asr_failed"), (AsrTaskUnknown("no such task"), "asr_task_unknown")],
)
def test_what_the_provider_gives_up_or_forgets_ends_the_step(flow: Any, answer: Any, code: str) -> None:
    job = flow(Submitted("a77", "first", True), answer)
    job.invoke()

    with pytest.raises(AsrError) as caught:
        job.invoke(1_000)
    assert caught.value.code == code


@pytest.mark.req("asr-provider-pinned", "asr-option-snapshot")
def test_a_running_task_stays_with_its_provider_and_its_options(flow: Any) -> None:
    job = flow(Submitted("a77", "first", True), Running(queued=False))
    job.invoke()
    other = Provider()
    job.ports.asr = {"second": other, "first": job.provider}
    job.checkpoint = AsrTask("first", "a77", 0, 2**50, 2_000, AsrOptions(detail="text"))
    job.clock.jump_wall(-job.clock.wall_ms() + 1_000)

    job.invoke()

    assert job.provider.polled == [("a77", AsrOptions(detail="text"))]
    assert (other.submitted, other.polled) == ([], [])


@pytest.mark.req("fen-stop-on-old", "fen-zero-rows")
def test_a_late_result_of_an_old_round_is_not_written(flow: Any) -> None:
    job = flow(Submitted("a77", "first", True), DONE)
    job.invoke()
    job.notes._file.change("UPDATE notes SET fencing_token = 'f2'")

    with pytest.raises(NonRetryable, match="f1"):
        job.invoke(1_000)
    assert not job.notes.save_summary("note-1", "f1", "late")
    note = job.notes.read("note-1")
    assert (note.fencing_token, note.transcript, note.summary) == ("f2", None, None)


@pytest.mark.req("act-timeout-retry-pairing", "spl-example-definition", "dag-optional")
def test_the_example_has_the_steps_timeouts_retries_and_resources_of_the_article() -> None:
    steps = app.definition("async_content_job").steps

    assert [(s.name, s.timeout, s.max_retry, s.resource) for s in steps] == [
        ("preprocess", timedelta(seconds=30), 2, None),
        ("transcribe_audio", timedelta(minutes=30), 0, "speech_recognition"),
        ("compose_content", timedelta(minutes=15), 0, "content_generation"),
        ("finalize", timedelta(seconds=30), 2, None),
    ]
    assert [step.depends_on for step in plan.steps] == [
        (),
        ("preprocess",),
        ("transcribe_audio",),
        ("compose_content",),
    ]
