"""Each fault that the speech service can be told to have, as its caller meets it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from asr_demo.asr_client import AsrTaskUnknown, AsrUnavailable, Failed, Running
from asr_demo.asr_faults import FILE_NAME, Faults, write_faults
from tests.demo.asr_process import AsrProcess
from tests.demo.sound import FIRST_SENTENCE
from tests.support.wait import stays


def have(service: AsrProcess, faults: Faults) -> None:
    write_faults(service.data_dir, faults)


@pytest.mark.req("dc-demo-fake-asr")
def test_submits_can_fail_a_given_number_of_times(asr: AsrProcess, sentence: Path) -> None:
    asr.start()
    have(asr, Faults(submit_errors=2))
    client = asr.client()

    for _ in range(2):
        with pytest.raises(AsrUnavailable, match="injected"):
            client.submit(sentence, idempotency_key="effect-1")
    assert client.stats().asr_submits == 0
    assert client.submit(sentence, idempotency_key="effect-1").created
    assert client.stats().asr_submit_calls == 3


@pytest.mark.req("dc-demo-fake-asr")
def test_a_reply_can_be_lost_after_the_task_was_made(asr: AsrProcess, sentence: Path) -> None:
    """The caller can not know; the same key finds the task that was made."""
    asr.start()
    have(asr, Faults(lost_replies=1))
    client = asr.client()

    with pytest.raises(AsrUnavailable):
        client.submit(sentence, idempotency_key="effect-1")
    assert client.stats().asr_submits == 1
    assert not client.submit(sentence, idempotency_key="effect-1").created
    assert client.stats().asr_submits == 1


@pytest.mark.req("dc-demo-fake-asr")
def test_polls_can_fail_and_the_task_is_not_hurt(asr: AsrProcess, sentence: Path) -> None:
    asr.start()
    client = asr.client()
    task = client.submit(sentence, idempotency_key="effect-1")
    have(asr, Faults(poll_errors=3))

    for _ in range(3):
        with pytest.raises(AsrUnavailable, match="status 500"):
            client.poll(task.task_id)
    assert asr.result(task.task_id).transcript == FIRST_SENTENCE


@pytest.mark.req("dc-demo-fake-asr")
def test_requests_can_hang_and_the_client_gives_up_in_time(asr: AsrProcess, sentence: Path) -> None:
    asr.start()
    client = asr.client()
    impatient = asr.client(read_timeout_s=0.5)
    task = client.submit(sentence, idempotency_key="effect-1")
    have(asr, Faults(hangs=2))

    with pytest.raises(AsrUnavailable, match="time limit"):
        impatient.submit(sentence, idempotency_key="effect-2")
    with pytest.raises(AsrUnavailable, match="time limit"):
        impatient.poll(task.task_id)
    assert asr.result(task.task_id).transcript == FIRST_SENTENCE
    assert client.stats().asr_submits == 1
    assert asr.stop() == 0  # although two requests still wait for an answer


@pytest.mark.req("dc-demo-fake-asr")
def test_a_task_can_be_forgotten_and_its_key_with_it(asr: AsrProcess, sentence: Path) -> None:
    asr.start()
    client = asr.client()
    task = client.submit(sentence, idempotency_key="effect-1")
    have(asr, Faults(forgets=1))

    for _ in range(2):
        with pytest.raises(AsrTaskUnknown):
            client.poll(task.task_id)
    again = client.submit(sentence, idempotency_key="effect-1")
    assert again.created
    assert again.task_id != task.task_id
    assert asr.result(again.task_id).transcript == FIRST_SENTENCE
    assert client.stats().asr_submits == 2


@pytest.mark.req("dc-demo-fake-asr")
def test_a_finished_task_can_say_running_for_ever(asr: AsrProcess, sentence: Path) -> None:
    asr.start()
    client = asr.client()
    task = client.submit(sentence, idempotency_key="effect-1")
    asr.result(task.task_id)

    have(asr, Faults(always_running=True))
    stays(lambda: isinstance(client.poll(task.task_id), Running), "the task running", seconds=0.3)
    (asr.data_dir / FILE_NAME).unlink()
    assert asr.result(task.task_id).transcript == FIRST_SENTENCE


@pytest.mark.req("dc-demo-fake-asr")
def test_the_provider_can_fail_a_task_for_good(asr: AsrProcess, sentence: Path) -> None:
    asr.start()
    client = asr.client()
    have(asr, Faults(fail_reason="the model is on fire"))
    task = client.submit(sentence, idempotency_key="effect-1")

    (asr.data_dir / FILE_NAME).unlink()
    assert client.poll(task.task_id) == Failed("provider_failed", "the model is on fire")
    assert client.stats().failed == 1
    assert client.stats().recogniser_starts == 0


@pytest.mark.req("dc-demo-fake-asr")
def test_a_task_can_be_slow(asr: AsrProcess, sentence: Path) -> None:
    """Also when the recording has to be recognised first, and when its words are known."""
    asr.start()
    client = asr.client()
    have(asr, Faults(min_delay_ms=2_500))

    for key in ("effect-1", "effect-2"):
        began = time.monotonic()
        task = client.submit(sentence, idempotency_key=key)
        assert asr.result(task.task_id).transcript == FIRST_SENTENCE
        assert time.monotonic() - began > 2.4


@pytest.mark.fault
@pytest.mark.req("dc-demo-fake-asr")
def test_used_up_faults_stay_used_up_through_a_kill(asr: AsrProcess, sentence: Path) -> None:
    asr.start()
    client = asr.client()
    have(asr, Faults(submit_errors=2))
    with pytest.raises(AsrUnavailable, match="injected"):
        client.submit(sentence, idempotency_key="effect-1")

    asr.kill()
    asr.start()

    with pytest.raises(AsrUnavailable, match="injected"):
        client.submit(sentence, idempotency_key="effect-1")
    assert client.submit(sentence, idempotency_key="effect-1").created
    have(asr, Faults(label="again", submit_errors=2))
    with pytest.raises(AsrUnavailable, match="injected"):
        client.submit(sentence, idempotency_key="effect-1")


def test_a_wrong_faults_file_is_told_not_passed_over(asr: AsrProcess, sentence: Path) -> None:
    asr.start()

    for text, words in (
        ('{"submit_errors": -1}', r"submit_errors"),
        ('{"poll_error": 1}', r"poll_error"),
        ("{", r"asr_faults\.json"),
        ('{"label": "' + "x" * 20_000 + '"}', r"more than"),
    ):
        (asr.data_dir / FILE_NAME).write_text(text)
        with pytest.raises(AsrUnavailable, match=words):
            asr.client().submit(sentence, idempotency_key="effect-1")
