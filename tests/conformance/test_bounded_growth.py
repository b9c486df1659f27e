"""A workflow that sleeps, yields, retries and is replayed for years keeps a row of the same size (A74, A73)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from kernel import transitions as make
from kernel.records import ErrorRecord, Wait
from kernel.store.conditional import Applied, Transition
from kernel.store.protocol import Store
from kernel.transitions import Held, Rest
from tests.conformance.instances import KEY, instance_document, put, read, row, step_document

ROUNDS = {"memory": 10_000, "sqlite": 3_000, "mongo": 60}
WARM = 20
"""Rounds after which every bounded list is full."""
MESSAGE = "e" * 500


def must(store: Store, transition: Transition) -> None:
    assert isinstance(store.apply(transition), Applied), transition


class Sleeper:
    """One instance with one step, led through whole rounds."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.count = 0
        put(store, instance_document("wf", store.now_ms(), steps=[step_document(0)]))

    def mark(self) -> str:
        self.count += 1
        return f"{self.count:032x}"

    def begin(self) -> Held:
        held = Held("wf", self.mark())
        claim = make.claim(
            held, worker_id="w", worker="host:1", lease_ms=0, definition_keys=(KEY,), commit_id=self.mark()
        )
        must(self.store, claim)
        instance = read(self.store, "wf")
        must(self.store, make.begin_step(held, instance, 0, worker_id="w", commit_id=self.mark()))
        return held

    def sleep(self) -> None:
        """Begin, sleep, and be woken by the timer."""
        held = self.begin()
        wait = Wait(wait_id=self.mark(), kind="timer", step="step_0", step_index=0, poll_time=1, since_time=1)
        rest = Rest(status="waiting", claimable_time=1, wait=wait)
        suspended = make.suspend_step(
            held, 0, wait=wait, checkpoint=b"c" * 40, elapsed_ms=1, rest=rest, commit_id=self.mark()
        )
        must(self.store, suspended)
        waiting = read(self.store, "wf")
        must(self.store, make.activate_timer(waiting, 0, now_ms=5, commit_id=self.mark()))

    def fail_and_retry(self) -> None:
        error = ErrorRecord(code="kernel_error", type="ValueError", message=MESSAGE, attempt=self.count)
        rest = Rest(status="running", now=True)
        retried = make.retry_step(
            self.begin(), 0, error=error, elapsed_ms=1, due_time=None, rest=rest, commit_id=self.mark()
        )
        must(self.store, retried)

    def turn_page(self) -> None:
        rest = Rest(status="running", now=True)
        paged = make.yield_step(self.begin(), 0, checkpoint=b"p" * 40, elapsed_ms=1, rest=rest, commit_id=self.mark())
        must(self.store, paged)

    def fail_and_replay(self) -> None:
        held = self.begin()
        error = ErrorRecord(code="kernel_error", type="ValueError", message=MESSAGE, attempt=self.count)
        must(self.store, make.fail_step(held, 0, error=error, elapsed_ms=1, failing=True, commit_id=self.mark()))
        must(self.store, make.finish_failed(held, commit_id=self.mark()))
        failed = read(self.store, "wf")
        must(self.store, make.replay_failed(failed, input_=b"i", priority=1, commit_id=self.mark()))

    def size(self) -> int:
        return len(msgspec.msgpack.encode(row(self.store, "wf")))


@pytest.mark.case("A74")
@pytest.mark.parametrize("kind", ROUNDS)
def test_thousands_of_sleeps_leave_a_row_of_the_same_size(kind: str, make_store: Callable[..., Store]) -> None:
    sleeper = Sleeper(make_store(kind))
    for _ in range(WARM):
        sleeper.sleep()
    early = sleeper.size()

    for _ in range(ROUNDS[kind] - WARM):
        sleeper.sleep()

    # What remains are counters, which may take some bytes more as they grow.
    assert sleeper.size() <= early + 32
    assert sleeper.size() < 4_000
    assert (read(sleeper.store, "wf").steps[0].attempt, read(sleeper.store, "wf").revision) == (0, 7 + 3 * ROUNDS[kind])


@pytest.mark.case("A73", "A74")
@pytest.mark.parametrize("verb", ["fail_and_retry", "turn_page", "fail_and_replay"])
def test_errors_pages_and_runs_are_kept_to_a_bounded_number(verb: str, store: Store) -> None:
    sleeper = Sleeper(store)
    for _ in range(WARM):
        getattr(sleeper, verb)()
    early = sleeper.size()

    for _ in range(WARM):
        getattr(sleeper, verb)()

    assert sleeper.size() <= early + 32
    assert sleeper.size() < 24_000
