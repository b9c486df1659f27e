"""The one thread of the speech service that has recordings recognised, one child process at a time.

The child belongs to this thread: Linux sends the parent-death signal when the *thread* that started a child
ends, so the thread lives as long as the service does.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from asr_demo.asr_protocol import Problem
from asr_demo.asr_tasks import TaskTable, Work
from asr_demo.recognizer import Recognition

FOLDER_NAME = "asr_results"
CRASHES_MAX = 3
# Recognition takes about a seventh of the recording's length on an idle core; this is for a machine in distress.
LIMIT_BASE_S = 60.0
LIMIT_PER_AUDIO_S = 4.0
RESULT_BYTES_MAX = 4 * 1024 * 1024
_LOOK_S = 0.2
_IDLE_S = 5.0

logger = logging.getLogger(__name__)


class RecognitionWorker:
    """Takes the oldest recording that nobody knows, and keeps what its child process found."""

    def __init__(
        self, table: TaskTable, folder: Path, stop: threading.Event, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._monotonic = monotonic
        self._stop = stop
        self._work_came = threading.Event()
        self._results = folder / FOLDER_NAME
        self._results.mkdir(mode=0o700, exist_ok=True)
        for left_over in self._results.iterdir():  # of a service that was killed: its task is recognised again
            left_over.unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._run, name="asr-recognition")

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Say that a task was submitted, or that the service stops."""
        self._work_came.set()

    def join(self) -> None:
        self.wake()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._work_came.clear()
            try:
                work = self._table.begin_recognition()
                if work is not None:
                    self._recognise(work)
                    continue
            except Exception:
                # The thread must outlive a full disk or the like: without it no task would ever end.
                logger.exception("the recognition worker goes on after an error")
            self._work_came.wait(_IDLE_S)

    def _recognise(self, work: Work) -> None:
        began = self._monotonic()
        out = self._results / f"{work.audio_sha256}.json"
        exit_code = self._run_child(work, out)
        if exit_code is None:
            return  # the service stops; the task stays `running` and the next service takes it up
        recognition = _read(out)
        out.unlink(missing_ok=True)
        if recognition is None or recognition.sha256 != work.audio_sha256:
            self._count_crash(work, exit_code)
        elif recognition.problem is not None:
            self._table.fail_recording(work.audio_sha256, recognition.problem)
        else:
            self._table.keep_result(work.audio_sha256, recognition.segments, round(1000 * (self._monotonic() - began)))

    def _run_child(self, work: Work, out: Path) -> int | None:
        """Return the child's exit code, negative for a signal; None if the service stops meanwhile."""
        command = [sys.executable, "-m", "asr_demo.recognizer", work.audio_path, str(out)]
        command += ["--sha256", work.audio_sha256, "--parent", str(os.getpid())]
        # `-m` looks in the working directory first: the child runs the very code that this process runs.
        package_root = Path(__file__).resolve().parent.parent
        deadline = self._monotonic() + LIMIT_BASE_S + LIMIT_PER_AUDIO_S * work.audio_s
        with subprocess.Popen(command, cwd=package_root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as child:
            while True:
                try:
                    return child.wait(timeout=_LOOK_S)
                except subprocess.TimeoutExpired:
                    if self._stop.is_set():
                        child.kill()
                        return None
                    if self._monotonic() > deadline:
                        child.kill()

    def _count_crash(self, work: Work, exit_code: int) -> None:
        crashes = self._table.count_crash(work.task_id)
        logger.warning("the recogniser of %s ended with %d and no result (%d)", work.task_id, exit_code, crashes)
        if crashes >= CRASHES_MAX:
            message = f"the recogniser died {crashes} times, last with exit code {exit_code}"
            self._table.fail_recording(work.audio_sha256, Problem("recogniser_died", message))


def _read(path: Path) -> Recognition | None:
    try:
        with open(path, "rb") as file:
            text = file.read(RESULT_BYTES_MAX)
        return msgspec.json.decode(text, type=Recognition)
    except (OSError, msgspec.MsgspecError):
        return None
