"""Random lives of instances: each step of a walk becomes a transition of the kernel's own, fresh or out of date.

The steps are plain numbers, so that Hypothesis can shrink a walk; what they mean depends on the row as the first
store has it. All stores get the same transition, and must give the same answer and hold the same row.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from hypothesis import strategies as st

from kernel import transitions as make
from kernel.records import Document, ErrorRecord, Instance, PermitWaitRecord, Wait, to_instance
from kernel.states import STEP_SATISFIES
from kernel.store.conditional import AtMost, Insert, Transition
from kernel.store.protocol import Query, Store
from kernel.store.tables import INSTANCES
from kernel.transitions import Held, Rest
from tests.conformance.transition_table import CASES
from tests.support.stores import HOUR_MS

KEYS = 3
STEPS = ("first", "second", "third")
FINGERPRINT = "f" * 16


class Step(NamedTuple):
    """One step of a walk. `wish` chooses among the verbs that fit the row, or with `wild` among all of them; with
    `stale` the writer goes by what it read some time ago."""

    wish: int
    key: int
    variant: int
    wild: bool
    stale: bool


class Moment(NamedTuple):
    """What a writer knows when it builds a transition."""

    key: str
    instance: Instance
    held: Held
    index: int
    variant: int
    now_ms: int
    mark: str

    @property
    def near_ms(self) -> int:
        """A time that has come, or one that has not."""
        return self.now_ms + (HOUR_MS if self.variant % 2 else -HOUR_MS)

    @property
    def lease_ms(self) -> int:
        """A lease of an hour, or one that has run out at once."""
        return HOUR_MS if self.variant % 3 else -HOUR_MS

    @property
    def rest(self) -> Rest | None:
        wait = Wait(wait_id="shown", kind="timer", step=STEPS[0], step_index=0, poll_time=self.near_ms)
        return (
            Rest(status="running", now=True),
            Rest(status="waiting", claimable_time=self.near_ms, wait=wait),
            Rest(status="waiting"),
            None,
        )[self.variant % 4]

    @property
    def end(self) -> Rest:
        return self.rest or Rest(status="running", claimable_time=self.near_ms)

    @property
    def error(self) -> ErrorRecord:
        return ErrorRecord(code="kernel_error", type="ValueError", message=f"$no {self.variant}", attempt=self.variant)

    @property
    def wait(self) -> Wait:
        kind: Any = "signal" if self.variant % 2 else "timer"
        poll = None if self.variant % 5 == 4 else self.near_ms
        return Wait(
            wait_id=f"wait-{self.mark}",
            kind=kind,
            step=self.instance.steps[self.index].name,
            step_index=self.index,
            poll_time=poll,
            since_time=self.now_ms - HOUR_MS,
            **({"signal_type": "answer", "wait_key": "$page.1", "generation": 2} if kind == "signal" else {}),
        )

    @property
    def taken(self) -> dict[str, Any]:
        return {
            "worker_id": f"worker-{self.variant % 2}",
            "worker": "host:1",
            "lease_ms": self.lease_ms,
            "definition_keys": (f"sample@{FINGERPRINT}",),
            "commit_id": self.mark,
        }

    @property
    def waits(self) -> bool:
        return self.instance.steps[self.index].wait is not None


Verb = Callable[[Moment], "Transition | None"]


def _new(m: Moment) -> Held:
    return Held(m.key, f"token-{m.mark}")


VERBS: MappingProxyType[str, Verb] = MappingProxyType(
    {
        "claim": lambda m: make.claim(_new(m), **m.taken),
        "claim_alone": lambda m: make.claim_alone(_new(m), **m.taken),
        "take_over": lambda m: make.take_over(
            _new(m), dead_token=m.held.claim_token, alone=m.variant % 2 == 0, **m.taken
        ),
        "claim_handed_over": lambda m: make.claim_handed_over(_new(m), resource="printer", **m.taken),
        "renew": lambda m: make.renew(m.held, m.lease_ms),
        "release": lambda m: make.release(
            m.held, status="failing" if m.variant % 2 else "running", rest=m.end, commit_id=m.mark
        ),
        "release_dead": lambda m: make.release_dead(
            m.held,
            worker_id=m.instance.worker_id or "nobody",
            counted=m.variant % 3 > 0,
            deaths_max=m.variant % 4,
            commit_id=m.mark,
        ),
        "park_dead": lambda m: make.park_dead(
            m.held,
            worker_id=m.instance.worker_id or "nobody",
            deaths_max=3,
            reason="x",
            now_ms=m.now_ms,
            commit_id=m.mark,
        ),
        "park": lambda m: make.park(
            m.key, dead_token=m.held.claim_token, deaths_max=3, reason="x", now_ms=m.now_ms, commit_id=m.mark
        ),
        "unpark": lambda m: make.unpark(m.key, commit_id=m.mark),
        "begin_step": lambda m: make.begin_step(
            *(m.held, m.instance, m.index),
            worker_id="w",
            ready_time=m.now_ms - HOUR_MS // 2 * (m.variant % 3),
            waited_ms=m.variant,
            commit_id=m.mark,
        ),
        "unbegin": lambda m: make.unbegin(m.held, m.index, rest=m.end, commit_id=m.mark),
        "complete_step": lambda m: make.complete_step(
            m.held,
            m.instance,
            m.index,
            output=b"$o" * (m.variant % 3),
            elapsed_ms=m.variant,
            worker_id="w",
            begin_next=(m.index + 1) % len(m.instance.steps) if m.variant % 2 and len(m.instance.steps) > 1 else None,
            finish=m.variant % 4 == 2,
            commit_id=m.mark,
        ),
        "yield_step": lambda m: make.yield_step(
            m.held, m.index, checkpoint=b"c" if m.variant % 2 else None, elapsed_ms=1, rest=m.rest, commit_id=m.mark
        ),
        "retry_step": lambda m: make.retry_step(
            m.held,
            m.index,
            error=m.error,
            elapsed_ms=1,
            due_time=m.near_ms if m.variant % 2 else None,
            rest=m.rest,
            commit_id=m.mark,
        ),
        "skip_step": lambda m: make.skip_step(m.held, m.index, error=m.error, elapsed_ms=1, commit_id=m.mark),
        "fail_step": lambda m: make.fail_step(
            m.held, m.index, error=m.error, elapsed_ms=1, failing=m.variant % 3 > 0, commit_id=m.mark
        ),
        "defer_for_permit": lambda m: make.defer_for_permit(
            m.held,
            m.index,
            wait=PermitWaitRecord(resource="printer", step="first", since_time=m.now_ms),
            due_time=m.near_ms,
            ready_time=m.now_ms if m.variant % 3 else None,
            rest=m.rest,
            commit_id=m.mark,
        ),
        "suspend_step": lambda m: make.suspend_step(
            m.held, m.index, wait=m.wait, checkpoint=b"c", elapsed_ms=1, rest=m.rest, commit_id=m.mark
        ),
        "activate_timer": lambda m: (
            make.activate_timer(m.instance, m.index, now_ms=m.now_ms, commit_id=m.mark) if m.waits else None
        ),
        "activate_signal": lambda m: (
            make.activate_signal(
                m.instance, m.index, signal_id=f"signal-{m.variant % 2}", now_ms=m.now_ms, commit_id=m.mark
            )
            if m.waits and m.instance.steps[m.index].wait.kind == "signal"
            else None
        ),
        "activate_own": lambda m: (
            make.activate_own(m.held, m.instance, m.index, now_ms=m.now_ms, commit_id=m.mark) if m.waits else None
        ),
        "enter_failing": lambda m: make.enter_failing(m.held, error=m.error, commit_id=m.mark),
        "finish_completed": lambda m: make.finish_completed(m.held, m.instance, elapsed_ms=m.variant, commit_id=m.mark),
        "finish_failed": lambda m: make.finish_failed(m.held, elapsed_ms=m.variant, commit_id=m.mark),
        "finish_canceled": lambda m: make.finish_canceled(
            m.held, m.index, error=m.error, elapsed_ms=1, commit_id=m.mark
        ),
        "defer_finalizer": lambda m: make.defer_finalizer(
            m.held,
            status="failing" if m.variant % 2 else "running",
            attempt=m.variant,
            error=m.error,
            delay_ms=m.lease_ms,
            next_time=m.near_ms,
            elapsed_ms=m.variant,
            commit_id=m.mark,
        ),
        "supersede": lambda m: make.supersede(m.key, commit_id=m.mark),
        "replay_failed": lambda m: make.replay_failed(
            m.instance, input_=b"again", priority=m.variant % 4, commit_id=m.mark
        ),
        "fresh_run": lambda m: make.fresh_run(
            m.instance,
            type_="sample",
            fingerprint=FINGERPRINT,
            step_names=STEPS[: 1 + m.variant % 3],
            input_=b"fresh",
            priority=m.variant % 4,
            commit_id=m.mark,
        ),
        "raise_priority": lambda m: make.raise_priority(m.key, m.variant % 4),
        "defer_for_fingerprint": lambda m: make.defer_for_fingerprint(
            m.instance, offered=("a", "b"), delay_ms=m.lease_ms, now_ms=m.now_ms, commit_id=m.mark
        ),
        "release_deferred": lambda m: make.release_deferred(
            m.key, definition_key=m.instance.definition_key, commit_id=m.mark
        ),
    }
)
_RARE = {
    "enter_failing": 4,
    "release_dead": 2,
    "defer_for_permit": 2,
    "release": 2,
    "supersede": 8,
    "raise_priority": 4,
    "defer_for_fingerprint": 3,
    "unbegin": 2,
    "fresh_run": 2,
}
"""Verbs that would end or stop most walks, and how seldom they are granted."""
_OFTEN = {
    "begin_step": 6,
    "complete_step": 9,
    "suspend_step": 3,
    "activate_timer": 4,
    "activate_signal": 4,
    "take_over": 3,
    "finish_completed": 9,
}
"""A holder's day, so that walks get somewhere."""
_SOMETIMES = (False, False, False, False, True)

STEPS_OF_A_WALK = st.lists(
    st.builds(
        Step,
        st.integers(0, 239),
        st.integers(0, KEYS - 1),
        st.integers(0, 11),
        st.sampled_from(_SOMETIMES),
        st.sampled_from(_SOMETIMES),
    ),
    min_size=30,
    max_size=90,
)


def random_steps(seed: int, count: int) -> list[Step]:
    """An even mixture: what Hypothesis draws is good at corners and poor at reaching every verb."""
    generator = random.Random(seed)
    return [
        Step(
            generator.randrange(240),
            generator.randrange(KEYS),
            generator.randrange(12),
            generator.choice(_SOMETIMES),
            generator.choice(_SOMETIMES),
        )
        for _ in range(count)
    ]


def fitting(instance: Instance, wish: int) -> list[str]:
    """The verbs that may hit on `instance`, by the table of transitions."""
    fits = {
        case.name
        for case in CASES
        if instance.status in case.statuses
        and (case.step is None or any(step.status in case.step for step in instance.steps))
        and (instance.claim_token is not None or not case.held)
        and (instance.parked is None or case.name in ("unpark", "supersede", "raise_priority"))
        and not (instance.claim_token is not None and case.name.startswith("claim"))
        and (instance.parked is not None or case.name != "unpark")
        and wish % _RARE.get(case.name, 1) == 0
    }
    if any(step.status not in STEP_SATISFIES for step in instance.steps):
        fits.discard("finish_completed")
    if instance.deaths >= 2 and instance.claim_token is not None:
        fits &= {"park", "park_dead", "renew"}
    if instance.permit_wait is not None and instance.claim_token is None and instance.status == "running":
        fits &= {"claim_handed_over", "claim"}
    return [verb for verb in VERBS if verb in fits for _ in range(_OFTEN.get(verb, 1))] or list(VERBS)


def step_for(verb: str, instance: Instance, variant: int) -> int:
    """A step in a state that `verb` works on, if there is one."""
    wanted = {status for case in CASES if case.name == verb for status in case.step or ()}
    indexes = [index for index, step in enumerate(instance.steps) if step.status in wanted]
    return indexes[variant % len(indexes)] if indexes else variant % len(instance.steps)


class Walk:
    """The same life on several stores. `same` maps what a store tells to what must be equal."""

    def __init__(self, stores: Sequence[Store], name: str, same: Callable[[Any], Any] = lambda value: value) -> None:
        self.stores = stores
        self.name = name
        self.same = same
        self.count = 0
        self.hits: dict[str, int] = {}
        self._seen: dict[str, Instance] = {}
        for number in range(KEYS):
            self._create(f"{name}-{number}")

    def _create(self, key: str) -> None:
        created = make.create(
            workflow_id=key,
            type_="sample",
            biz_key=f"biz {key}",
            fingerprint=FINGERPRINT,
            step_names=STEPS,
            input_=b"$input",
            priority=2,
            now_ms=self.stores[0].now_ms() - HOUR_MS,
            commit_id="created",
        )
        self._equal([store.insert(created) for store in self.stores], created)
        again = Insert("create", INSTANCES, f"{key}-other", {**created.document, "workflow_id": f"{key}-other"})
        self._equal([store.insert(again) for store in self.stores], again)
        self._seen[key] = to_instance(created.document)

    def take(self, step: Step) -> None:
        """Try one step on all stores and compare."""
        key = f"{self.name}-{step.key}"
        document = self.stores[0].get(INSTANCES, key)
        assert document is not None
        instance = to_instance(document)
        if step.stale:
            # A writer that read some time ago: its token, its wait, its run may be those of another time.
            instance, self._seen[key] = self._seen[key], instance
        self.count += 1
        verbs = list(VERBS) if step.wild else fitting(instance, step.wish)
        verb = verbs[step.wish % len(verbs)]
        moment = Moment(
            key=key,
            instance=instance,
            held=Held(key, instance.claim_token or "nobody"),
            index=step_for(verb, instance, step.variant),
            variant=step.variant,
            now_ms=self.stores[0].now_ms(),
            mark=f"{self.count}",
        )
        transition = VERBS[verb](moment)
        if transition is None:
            return
        answers = [store.apply(transition) for store in self.stores]
        self._equal(answers, transition)
        self._equal([store.get(INSTANCES, key) for store in self.stores], transition)
        if hasattr(answers[0], "document"):
            self.hits[verb] = self.hits.get(verb, 0) + 1

    def check_pages(self) -> None:
        """All stores list the same rows."""
        columns = ("workflow_id", "status", "claim_token", "deaths", "parked", "deferred", "worker_id")
        now_ms = self.stores[0].now_ms()
        for bound_ms in (0, now_ms - HOUR_MS // 2, now_ms + HOUR_MS // 2, now_ms + 2 * HOUR_MS):
            query = Query(INSTANCES, (AtMost("claimable_time", bound_ms),), "claimable_time", columns, 1_000)
            pages = [
                sorted((row for row in store.scan(query) if row[0].startswith(f"{self.name}-")), key=lambda row: row[0])
                for store in self.stores
            ]
            self._equal(pages, query)

    def _equal(self, told: Sequence[Any], what: object) -> None:
        first, *others = (self.same(_plain(value)) for value in told)
        for store, other in zip(self.stores[1:], others, strict=True):
            assert other == first, f"{type(store).__name__} differs after step {self.count} of {self.name}: {what}"


def _plain(value: Any) -> Any:
    document: Document | None = getattr(value, "document", None)
    return (type(value).__name__, document) if document is not None else value
