"""Kills of the speech service and of its recogniser: an accepted task ends, and no process is left over."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from asr_demo.asr_client import AsrClient, Failed
from asr_demo.asr_faults import Faults, write_faults
from tests.demo.asr_process import AsrProcess
from tests.demo.sound import FIRST_SENTENCE, cut
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault


@pytest.fixture
def three_sentences(asr: AsrProcess) -> Path:
    """Long enough that a test can get hold of the recogniser before it is done."""
    folder = asr.data_dir / "audio"
    folder.mkdir(parents=True)
    return cut(folder / "three_sentences.wav", 13.4)


def recogniser_of(service: AsrProcess) -> psutil.Process:
    return wait_until(service.recognisers, "a recogniser child", every=0.005)[0]


def test_a_killed_service_takes_its_recogniser_with_it_and_finishes_its_task_later(
    asr: AsrProcess, three_sentences: Path
) -> None:
    asr.start()
    client = asr.client()
    task = client.submit(three_sentences, idempotency_key="effect-1")
    recogniser = recogniser_of(asr)
    wait_until(lambda: ignores_sigterm(recogniser), "the recogniser set up")
    recogniser.suspend()  # so that it can not end by itself before it is looked for

    asr.kill()

    wait_until(lambda: not recogniser.is_running(), "the end of the orphaned recogniser")
    asr.start()
    assert client.submit(three_sentences, idempotency_key="effect-1").task_id == task.task_id
    assert asr.result(task.task_id).transcript.startswith(FIRST_SENTENCE)
    stats = client.stats()
    assert (stats.asr_submits, stats.asr_submit_calls) == (1, 2)
    assert (stats.recogniser_starts, stats.recognitions) == (2, 1)


def test_requests_that_come_during_a_restart_wait_for_it(asr: AsrProcess, sentence: Path) -> None:
    """The socket is held outside the service: nobody is refused while it is away."""
    asr.start()
    asr.kill()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(asr.client().submit, sentence, idempotency_key=f"effect-{n}") for n in range(4)]
        wait_until(lambda: connections_waiting(asr) == 4, "four requests in the socket's queue")
        asr.start()
        tasks = [future.result(timeout=60) for future in waiting]

    assert len({task.task_id for task in tasks}) == 4
    assert asr.client().stats().asr_submits == 4


def connections_waiting(service: AsrProcess) -> int:
    """How many connections lie in the listener's queue: the receive queue of a socket in state LISTEN (0A)."""
    port = f":{service.listener.getsockname()[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(port) and fields[3] == "0A":
            return int(fields[4].split(":")[1], 16)
    return 0


def test_a_recogniser_that_dies_by_itself_is_started_again(asr: AsrProcess, three_sentences: Path) -> None:
    asr.start()
    task = asr.client().submit(three_sentences, idempotency_key="effect-1")

    recogniser_of(asr).kill()

    assert asr.result(task.task_id).transcript.startswith(FIRST_SENTENCE)
    assert asr.client().stats().recogniser_starts == 2


def test_a_recogniser_that_always_dies_fails_its_task(asr: AsrProcess, three_sentences: Path) -> None:
    """A recording that crashes the decoder must not hold up the others for ever."""
    asr.start()
    client = asr.client()
    task = client.submit(three_sentences, idempotency_key="effect-1")
    killed: set[int] = set()

    def ended() -> Failed | None:
        for recogniser in asr.recognisers():
            if recogniser.pid not in killed:
                killed.add(recogniser.pid)
                recogniser.kill()
        state = client.poll(task.task_id)
        return state if isinstance(state, Failed) else None

    failed = wait_until(ended, "the task failed", every=0.005)

    assert failed.code == "recogniser_died"
    assert "-9" in failed.reason
    assert len(killed) == 3


def test_a_stop_ends_at_once_in_mid_recognition_and_leaves_the_task_for_later(
    asr: AsrProcess, three_sentences: Path
) -> None:
    """Also when the signal went to the whole process group and a request hangs: no child is left, no file is torn."""
    asr.start()
    task = asr.client().submit(three_sentences, idempotency_key="effect-1")
    recogniser = recogniser_of(asr)
    wait_until(lambda: ignores_sigterm(recogniser), "the recogniser set up")
    recogniser.send_signal(signal.SIGTERM)
    recogniser.suspend()  # so that it is in mid-recognition for sure
    write_faults(asr.data_dir, Faults(hangs=1))
    impatient = AsrClient(asr.url, read_timeout_s=0.1)
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(impatient.poll, task.task_id)
        assert hanging.exception(timeout=60) is not None
    wait_until(lambda: asr.client().stats().asr_poll_calls == 1, "the service to meet the request that hangs")

    with socket.create_connection(asr.listener.getsockname()):  # and somebody who says nothing
        assert asr.stop(timeout=60) == 0
    assert not recogniser.is_running()
    asr.start()
    assert asr.result(task.task_id).transcript.startswith(FIRST_SENTENCE)
    assert os.listdir(asr.data_dir / "asr_results") == []


def ignores_sigterm(process: psutil.Process) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored, 16) >> (signal.SIGTERM - 1) & 1)
