"""The life of each instance as the writes tell it: a second account, kept beside the rows and compared with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernel.records import Document
from kernel.store.conditional import Add, Put, Transition

STATUS_MOVES = {
    "running": {"running", "waiting", "failing", "completed", "canceled"},
    "waiting": {"waiting", "running", "canceled"},
    "failing": {"failing", "failed", "canceled"},
    "failed": {"failed"},
    "completed": {"completed"},
    "canceled": {"canceled"},
}
STEP_MOVES = {
    "pending": {"pending", "running"},
    "running": {"running", "pending", "waiting", "completed", "skipped", "failed"},
    "waiting": {"waiting", "pending"},
    "completed": {"completed"},
    "skipped": {"skipped"},
    "failed": {"failed"},
}
REPLAYS = ("replay_failed", "fresh_run")
BACK = ("suspend_step", "yield_step", "unbegin")
"""Transitions that take the attempt back: waiting and yielding use up nothing (stp-attempt-suspend)."""


class Life:
    """One instance. `attempts` by step as they must be; `activated` the ids of waits and signals that were used."""

    def __init__(self, row: Document) -> None:
        self.run = 1
        self.attempts = [0] * len(row["steps"])
        self.waits_used: set[str] = set()
        self.signals_used: set[str] = set()
        self.moved_ms = row["created_time"]
        """When something was last committed that is no renewal."""

    def changed(self, transition: Transition, before: Document, after: Document) -> Iterator[str]:
        """What the change from `before` to `after` breaks, one line each."""
        name = transition.name
        replayed = name in REPLAYS
        if replayed and (before["status"] != "failed" or after["status"] != "running"):
            yield f"{name} from {before['status']} to {after['status']}"
        if not replayed and after["status"] not in STATUS_MOVES[before["status"]]:
            yield f"{name}: {before['status']} → {after['status']} (S6)"
        if after["workflow_run"] != before["workflow_run"] + replayed:
            yield f"{name}: run {before['workflow_run']} → {after['workflow_run']}"
        kept = transition.name in ("claim", "claim_alone", "take_over", "claim_handed_over", "renew")
        if after["revision"] != before["revision"] + (not kept):
            yield f"{name}: revision {before['revision']} → {after['revision']} (S3)"
        if after["business_priority"] > before["business_priority"]:
            yield f"{name}: priority {before['business_priority']} → {after['business_priority']} (M15)"
        if name == "fresh_run":
            self.attempts = [0] * len(after["steps"])
            return
        for index, (old, new) in enumerate(zip(before["steps"], after["steps"], strict=True)):
            yield from self._step(transition, index, old, new, replayed)
        self.run = after["workflow_run"]

    def _step(
        self, transition: Transition, index: int, old: dict[str, Any], new: dict[str, Any], replayed: bool
    ) -> Iterator[str]:
        name = transition.name
        done = old["status"] in ("completed", "skipped")
        if replayed:
            if not done and (new["status"], new["attempt"]) != ("pending", 0):
                yield f"{name}: step {new['name']} is {new['status']} with {new['attempt']} attempts"
            self.attempts[index] = new["attempt"] if done else 0
        elif new["status"] not in STEP_MOVES[old["status"]]:
            yield f"{name}: step {new['name']} {old['status']} → {new['status']} (S4)"
        if done and new != old:
            yield f"{name}: changes step {new['name']}, which was {old['status']} (S4)"
        self._count(transition, index, old, new)
        if new["attempt"] != self.attempts[index]:
            yield f"{name}: step {new['name']} has attempt {new['attempt']}, {self.attempts[index]} is right"

    def _count(self, transition: Transition, index: int, old: dict[str, Any], new: dict[str, Any]) -> None:
        if transition.name in ("begin_step", "complete_step") and _begins(transition, index):
            self.attempts[index] += 1
        elif transition.name in BACK and old["status"] == "running" and new["status"] != "running":
            self.attempts[index] -= 1

    def activated(self, wait_id: str, signal_id: str | None) -> Iterator[str]:
        """A wait was ended, by a signal or by time."""
        if wait_id in self.waits_used:
            yield f"wait {wait_id} is activated a second time (S9, S10)"
        self.waits_used.add(wait_id)
        if signal_id is None:
            return
        if signal_id in self.signals_used:
            yield f"signal {signal_id} activates a second wait (S9)"
        self.signals_used.add(signal_id)


def _begins(transition: Transition, index: int) -> bool:
    """Whether the transition is the one that enters this step: by the field that it sets, not by what it adds."""
    field = f"steps.{index}.started_time"
    return any(change.field == field for change in transition.changes if not isinstance(change, Add | Put))
