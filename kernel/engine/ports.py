"""What the engine needs from outside, besides the store: candidates, threads, time, orders, an eye.

Every thread, task and timer of the engine starts through `Runner`, and everything that can block goes through a
port, so that a simulator can decide who moves next (DECISIONS detail 22).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kernel.candidates import Candidate, DueObjects, Popped, ScanTurn
from kernel.config import Limit
from kernel.dispatch import DueIntent
from kernel.permit_words import Granted, Owner, Permit, Refused, Released, Renewal
from kernel.records import Instance


class ReadyQueue(Protocol):
    """The disposable index of runnable work. Any call may raise CoordinationUnavailable."""

    def push(self, candidates: Sequence[Candidate], *, wake: bool = True) -> None: ...

    def pop(self, n: int) -> Popped: ...


class Permits(Protocol):
    """Places of downstream resources, counted for all processes together. Any call may raise CoordinationUnavailable or
    CoordinationRejected, and then nobody may assume a place (prm-fail-closed). What has no limit is granted always."""

    def acquire(
        self, resource: str, owner: Owner, limit: Limit, *, lane: int, request: int = 0, wait_ms: int | None = None
    ) -> Granted | Refused: ...

    def start(self, permit: Permit, limit: Limit) -> int: ...

    def renew(self, permits: Sequence[Permit]) -> list[Renewal]: ...

    def release(self, resource: str, owners: Sequence[Owner], limit: Limit) -> Released: ...

    def sweep(self, resource: str, limit: Limit) -> int: ...

    def deferred(self, resource: str, workflow_id: str, step: str, *, lane: int, in_line: bool) -> bool: ...

    def missing(self, resource: str, pairs: Sequence[tuple[str, str]]) -> list[bool]: ...

    def leave(self, resource: str, pairs: Sequence[tuple[str, str]], limit: Limit) -> int: ...


class DispatchCandidates(Protocol):
    """The disposable index of intents that are due, by source. Any call may raise CoordinationUnavailable or
    CoordinationRejected; a dispatcher goes on by its scan then."""

    def add(self, source: str, intents: Sequence[DueIntent], *, wake: bool = True) -> int: ...

    def take(self, source: str, count: int, until_ms: int) -> DueObjects: ...

    def hold_scan(self, source: str, hold_ms: int) -> ScanTurn: ...

    def free_scan(self, source: str, token: str) -> bool: ...


class Event(Protocol):
    """As threading.Event."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Timer(Protocol):
    """A pending call; `cancel` makes sure that it will not start any more."""

    def cancel(self) -> None: ...


class Runner(Protocol):
    """Starts everything that runs beside its caller."""

    def spawn(self, name: str, body: Callable[[], None]) -> None:
        """Run `body` on a thread of its own. It must not raise; what it raises is reported, never lost."""
        ...

    def event(self) -> Event: ...

    def call_at(self, boot_ms: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` when the boot clock reaches `boot_ms`. It must be short and take no lock that is held
        over a port call: step timeouts and the self-fence rest on it."""
        ...


class Observer(Protocol):
    """The eye beside the path. `note` is called after the fact, never blocks, and what it raises is dropped (S13)."""

    def note(self, event: str, *, instance: Instance | None = None, step: int | None = None, **fields: object) -> None:
        """Tell of `event`, a name of the closed list in `kernel.observe.events`.

        `instance` is the record as the commit that is told of left it (obs-after-commit), `step` the position of the
        step in it; `fields` say what neither of them holds.
        """
        ...
