"""The effects ledger: every entry of an activity into business code, written by the activity itself."""

from __future__ import annotations

import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from kernel.clock import Clock
from kernel.context import Context
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES


class Entry:
    """One invocation: who entered what, when, under which claim, and when it ended."""

    def __init__(self, ctx: Context, claim_token: str | None, begin_ms: int) -> None:
        self.workflow_id = ctx.workflow_id
        self.run = ctx.workflow_run
        self.step = ctx.step
        self.attempt = ctx.attempt
        self.worker_id = ctx.worker_id
        self.claim_token = claim_token
        self.begin_ms = begin_ms
        self.end_ms: int | None = None
        self.note: Any = None

    def __repr__(self) -> str:
        return f"<{self.step} {self.attempt} by {self.worker_id} {self.begin_ms}–{self.end_ms}>"


class Ledger:
    """What was really executed; checkers read it, never logs."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self.entries: list[Entry] = []

    def __call__(self, activity: Callable[[Context], Any]) -> Callable[[Context], Any]:
        """Wrap an activity or finalizer, `async` or not, so that its entries are written down."""
        if inspect.iscoroutinefunction(activity):

            @functools.wraps(activity)
            async def noted_async(ctx: Context) -> Any:
                entry = self._enter(ctx)
                try:
                    return await activity(ctx)
                finally:
                    entry.end_ms = self._clock.boot_ms()

            return noted_async

        @functools.wraps(activity)
        def noted(ctx: Context) -> Any:
            entry = self._enter(ctx)
            try:
                return activity(ctx)
            finally:
                entry.end_ms = self._clock.boot_ms()

        return noted

    def _enter(self, ctx: Context) -> Entry:
        row = self._store.get(INSTANCES, ctx.workflow_id) or {}
        entry = Entry(ctx, row.get("claim_token"), self._clock.boot_ms())
        with self._lock:
            self.entries.append(entry)
        return entry

    def of(self, step: str | None, workflow_id: str | None = None) -> list[Entry]:
        """The entries of one step, in order; None is a finalizer or prepare hook."""
        with self._lock:
            return [
                entry
                for entry in self.entries
                if entry.step == step and (workflow_id is None or entry.workflow_id == workflow_id)
            ]

    def count(self, step: str | None, workflow_id: str | None = None) -> int:
        return len(self.of(step, workflow_id))

    def counts(self) -> Counter[tuple[str, str | None]]:
        """Entries per (workflow, step)."""
        with self._lock:
            return Counter((entry.workflow_id, entry.step) for entry in self.entries)

    def steps(self, workflow_id: str | None = None) -> list[str | None]:
        """The steps in the order of their entries."""
        with self._lock:
            return [e.step for e in self.entries if workflow_id is None or e.workflow_id == workflow_id]

    def overlaps(self) -> list[tuple[Entry, Entry]]:
        """Pairs of invocations of the same step that ran side by side: must always be empty."""
        with self._lock:
            entries = list(self.entries)
        found = []
        for k, first in enumerate(entries):
            for second in entries[k + 1 :]:
                same = (first.workflow_id, first.step) == (second.workflow_id, second.step)
                if same and (first.end_ms is None or second.begin_ms < first.end_ms):
                    found.append((first, second))
        return found
