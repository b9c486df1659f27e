"""The one user whose first round fails, told to its end: the late write of f1 meets f2, and is refused (fen-timeline).

f1  the model's call hangs; the step's time is up; the model refuses a second call; the round fails
f2  the user retries; only the failed step runs again; the summary is written
f1  now the hung call comes back, in the worker's thread that nobody waits for any more, and writes: 0 rows
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from asr_demo import model
from asr_demo.ledger import Ledger
from asr_demo.live_users import Users
from asr_demo.subscriptions import SUBSCRIPTIONS
from kernel import Instance

LATE_MAX_S = 15.0
"""How long the late write is waited for when its call has come back."""

Chapter = Literal["first round", "retried", "answered", "told"]


class FailedRound:
    """Plays this story as it goes on; asked again and again."""

    def __init__(self, users: Users, folder: Path, ledger: Ledger, say: Callable[[str], None]) -> None:
        self._users = users
        self._folder = folder
        self._ledger = ledger
        self._say = say
        self._chapter: Chapter = "first round"
        self._came_back_s: float | None = None
        self._writer: int | None = None

    @property
    def is_told(self) -> bool:
        return self._chapter == "told"

    def late_writer(self) -> int | None:
        """The process in which the call hangs, and from there on until this story is told: a writer that is dead can
        not come late, neither in its call nor between the call and its write."""
        self._writer = model.hung_pid(self._folder) or self._writer
        return None if self.is_told else self._writer

    def prepare(self) -> None:
        """Before anybody subscribes."""
        model.hang_on(self._folder, f"{self._users.retrying}:f1-")

    def go_on(self, instance: Instance | None) -> None:
        """Do what is due, given the user's workflow as it was last read."""
        name = self._users.retrying
        there = self._users.subscription(name)
        if there is None or instance is None:
            return
        if self._chapter == "first round" and there.status == SUBSCRIPTIONS.failed:
            self._say(f"{name}: {there.fencing_token} has failed: {there.fields.get('error')}")
            answer = self._users.retry(name)
            self._chapter = "retried"
            self._say(f"{name}: the user retries; {answer}")
        elif self._chapter == "retried" and there.status == SUBSCRIPTIONS.failed:
            self._say(f"{name}: {there.fencing_token} has failed, too: {there.fields.get('error')}")
            self._chapter = "told"
        elif self._chapter == "retried" and there.fields.get("summary") is not None:
            self._chapter = "answered"
            self._say(f"{name}: {there.fencing_token} has its summary; now the answer to f1 comes")
            model.answer(self._folder)
        elif self._chapter == "answered":
            self._look_for_refusal()
        elif instance.ended and instance.status != "failed":
            self._chapter = "told"  # nothing failed, or never again: there is nothing to be late for

    def _look_for_refusal(self) -> None:
        for refusal in self._ledger.refusals():
            late = f"{refusal.object_id}: {refusal.fencing_token} writes its {refusal.field}, late: refused"
            self._say(f"{late}, the subscription is in {refusal.installed}")
            self._chapter = "told"
            return
        now_s = time.monotonic()
        if model.hung_pid(self._folder) is not None:
            self._came_back_s = None
        elif self._came_back_s is None:
            self._came_back_s = now_s
        elif now_s - self._came_back_s > LATE_MAX_S:
            self._say("no late write has come: its process is gone")
            self._chapter = "told"
