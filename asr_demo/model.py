"""Who writes the summaries: the composer, behind a call that can be told to hang, as a real model's does.

`hang_on(folder, prefix)` makes the first call for a request that begins so hang until `answer(folder)`; others for it
are refused while it hangs. A caller that gives up leaves the hung call behind: its answer comes late, after
whatever has happened meanwhile. The file's lock is held by the hung call's process and ends with it, so a killed
caller does not block the request for ever.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from asr_demo.composer import summarize

HANG_FILE, HUNG_FILE, ANSWER_FILE = "model_hang", "model_hung.pid", "model_answer"
PATIENCE_S = 120.0
_LOOK_S = 0.05
_ASKED = 5
"""So often the lock is asked for before it counts as a call's: who looks whether one hangs has it for a moment."""


class ModelBusy(Exception):
    """The model is at this very request already and does not take it twice."""


class Model:
    """The model as one process sees it. Calls may come from many threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def summarize(self, request: str, segments: Sequence[str]) -> str:
        """A summary of `segments`; `request` names the call. Raises ModelBusy; may take very long."""
        hanging = _read(self._folder / HANG_FILE)
        if hanging is not None and request.startswith(hanging):
            self._hang()
        return summarize(segments)

    def _hang(self) -> None:
        descriptor = os.open(self._folder / HUNG_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            pause = threading.Event()
            for _ in range(_ASKED):
                if _locked(descriptor):
                    break
                pause.wait(_LOOK_S)
            else:
                raise ModelBusy("the model is still at an earlier call for this summary")
            os.pwrite(descriptor, str(os.getpid()).encode().ljust(20), 0)
            for _ in range(round(PATIENCE_S / _LOOK_S)):
                # Also when the whole folder has gone: nobody will ever answer.
                if (self._folder / ANSWER_FILE).exists() or not self._folder.exists():
                    return
                pause.wait(_LOOK_S)
        finally:
            os.close(descriptor)  # and the lock with it


def hang_on(folder: Path, prefix: str) -> None:
    """From now on the first call for such a request hangs; done before anybody calls."""
    (folder / HANG_FILE).write_text(prefix, encoding="utf-8")


def answer(folder: Path) -> None:
    """Let the hung call come back, now or when it comes."""
    (folder / ANSWER_FILE).touch()


def hung_pid(folder: Path) -> int | None:
    """The process in which a call hangs right now, if one does."""
    try:
        descriptor = os.open(folder / HUNG_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _locked(descriptor) else int(os.pread(descriptor, 20, 0) or 0) or None
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
