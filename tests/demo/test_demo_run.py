"""`kernel-supervisor demo` as a stranger runs it: a real recording through forked workers, whatever dies meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asr_demo.asr_faults import FILE_NAME as FAULTS_FILE
from asr_demo.flow import STEPS
from kernel import workflow_id_for
from supervisor.run_dir import LOCK_NAME
from tests.demo.command import TIME_S, demo, living_below, report
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def clip_run(clip: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed run makes of the clip."""
    done = demo(tmp_path_factory.mktemp("undisturbed"), "--json", "--audio", str(clip))
    assert done.returncode == 0, done.stderr
    return report(done)


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("plain")
    return demo(folder, "--json"), folder


@pytest.mark.req("spl-example-definition", "dc-clean-exit", "e2e-compose")
def test_one_command_runs_the_recording_to_its_end(plain_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, folder = plain_run
    found = report(done)

    assert done.returncode == 0, done.stderr
    assert (found["workflows"], found["completed"], found["lost"]) == (1, 1, 0)
    assert (found["asr_submits"], found["asr_submit_calls"], found["takeovers"], found["killed"]) == (1, 1, 0, [])
    assert found["seconds"] < TIME_S
    assert "architecture" in found["transcript"]
    assert 0 < len(found["summary"]) < len(found["transcript"])
    assert list(folder.iterdir()) == [], "the demo leaves no file behind"


def test_the_timeline_tells_who_did_what_and_what_was_waited_for(
    plain_run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    timeline = plain_run[0].stderr
    for step in STEPS:
        assert f"{step}" in timeline
    assert "entered by worker-" in timeline
    assert "waits outside, looks again at" in timeline
    assert "workflow completed" in timeline
    assert "external wait" in timeline


@pytest.mark.req("id-sample-names")
def test_the_timeline_names_object_workflow_round_task_and_resource(
    plain_run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    timeline = plain_run[0].stderr
    workflow_id = workflow_id_for("async_content_job:demo:note-1")
    assert f"object note-1, workflow {workflow_id}, round f1, recording architecture_night.wav" in timeline
    assert len(re.findall(r"transcribe_audio +is task asr-[0-9a-f]{32} of provider pocketsphinx", timeline)) == 1


@pytest.mark.fault
@pytest.mark.req(
    "dc-demo-kill",
    "flt-process-exit",
    "cmp-skip-on-recover",
    "stp-attempt-crash",
    "asr-no-resubmit",
    "clm-guarantee",
    "id-sample-names",
)
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_worker_changes_nothing_in_the_result(
    step: str, tmp_path: Path, clip: Path, clip_run: dict[str, Any]
) -> None:
    done = demo(tmp_path, "--json", "--kill-worker-at", step, "--audio", str(clip))
    found = report(done)

    assert done.returncode == 0, done.stderr
    assert len(found["killed"]) == 1
    assert found["takeovers"] == 1
    assert found["asr_submits"] == 1, "the provider recognised the key of the repeated submit"
    assert found["asr_submit_calls"] == (2 if step == "transcribe_audio" else 1)
    assert (found["transcript"], found["summary"]) == (clip_run["transcript"], clip_run["summary"])
    assert "SIGKILL: worker pid" in done.stderr
    # The driver learns names once a second; a worker younger than that is told by the beginning of its id.
    assert re.search(r"taken over by (worker-\d \(pid \d+\)|[0-9a-f]{8})[ ,]", done.stderr)
    claims = re.findall(
        rf"{step} +entered by worker-\d \(pid \d+\) under claim (t\d+) \(([0-9a-f]{{8}})\)", done.stderr
    )
    assert claims, "a claim that is held for longer than a look has its number and its token"
    assert len({number for number, _ in claims}) == len({token for _, token in claims}), "one number, one token"


def _with_faults(tmp_path: Path, **faults: object) -> Path:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    (folder / FAULTS_FILE).write_text(json.dumps(faults), encoding="utf-8")
    return folder


@pytest.mark.fault
@pytest.mark.req("asr-poll-error", "asr-poll-reset", "asr-submit-window", "dc-demo-fake-asr")
def test_a_service_that_answers_500_and_loses_a_reply_costs_time_and_no_second_task(tmp_path: Path, clip: Path) -> None:
    folder = _with_faults(tmp_path, submit_errors=2, lost_replies=1, poll_errors=3)

    done = demo(tmp_path, "--json", "--data-dir", str(folder), "--audio", str(clip))

    found = report(done)
    assert done.returncode == 0, done.stderr
    assert found["completed"] == 1
    assert found["asr_submits"] == 1
    assert found["asr_submit_calls"] == 4


@pytest.mark.fault
@pytest.mark.req("asr-provider-failed", "fin-failing-first", "fen-fail-keeps-round")
@pytest.mark.parametrize(
    ("faults", "says"),
    [({"forgets": 1}, "there is no task"), ({"fail_reason": "the model is on holiday"}, "the model is on holiday")],
)
def test_a_task_that_is_forgotten_or_fails_ends_the_job_as_failed(
    tmp_path: Path, clip: Path, faults: dict[str, object], says: str
) -> None:
    folder = _with_faults(tmp_path, **faults)

    done = demo(tmp_path, "--json", "--data-dir", str(folder), "--audio", str(clip))

    found = report(done)
    assert done.returncode == 1
    assert (found["status"], found["completed"], found["lost"]) == ("failed", 0, 0)
    assert found["asr_submits"] == 1, "a task is never submitted twice"
    assert says in found["error"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.wav", b"", "empty"),
        ("text.wav", b"this is no sound at all, only words" * 10, "WAVE"),
        ("missing.wav", None, "missing.wav"),
    ],
)
def test_what_is_no_recording_is_one_line_and_exit_2(
    tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    done = demo(tmp_path, "--audio", str(path))

    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert says in done.stderr
    assert done.stdout == ""
    assert [entry.name for entry in tmp_path.iterdir()] == ([] if content is None else [name])


def test_a_data_folder_that_is_in_use_is_one_line_and_exit_2(tmp_path: Path) -> None:
    with open(tmp_path / LOCK_NAME, "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = demo(tmp_path, "--data-dir", ".")

    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "is in use by a running supervisor" in line


@contextmanager
def _at_work(folder: Path, *arguments: str, begun: str = "notes.sqlite") -> Iterator[subprocess.Popen[str]]:
    """A demo that has begun to work, in `folder`; killed after the block if it still runs."""
    command = [sys.executable, "-m", "supervisor", "demo", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_until(lambda: list(folder.glob(".kernel/demo-*/run.json")), "the tree is up")
            wait_until(lambda: list(folder.glob(f".kernel/demo-*/{begun}")), "the work has begun")
            yield process
        finally:
            process.kill()


@pytest.mark.fault
@pytest.mark.req("dc-clean-exit")
@pytest.mark.parametrize(
    ("number", "arguments", "begun"),
    [
        (signal.SIGINT, (), "notes.sqlite"),
        (signal.SIGINT, ("--subscribers", "3"), "shows.sqlite"),
        (signal.SIGTERM, (), "notes.sqlite"),
        (signal.SIGHUP, ("--subscribers", "3"), "shows.sqlite"),
    ],
)
def test_a_signal_ends_everything_that_ran(
    tmp_path: Path, number: signal.Signals, arguments: tuple[str, ...], begun: str
) -> None:
    with _at_work(tmp_path, *arguments, begun=begun) as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors.splitlines()[-1] == "interrupted: everything that ran has been ended"
    wait_until(lambda: not living_below(tmp_path), "every process of the demo has ended")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault
@pytest.mark.req("dc-clean-exit")
def test_what_a_killed_demo_left_is_removed_by_the_next(tmp_path: Path) -> None:
    with _at_work(tmp_path) as killed:
        killed.kill()
        killed.wait()
        wait_until(lambda: not living_below(tmp_path), "the tree of the killed demo has ended")
    (left,) = tmp_path.glob(".kernel/demo-*")

    done = demo(tmp_path, "--audio", "missing.wav")  # over at once, but not before it has made its folder

    assert done.returncode == 2
    assert not left.exists()
    assert list(tmp_path.iterdir()) == []
