"""What an author declares: Definition, Step and RetryPolicy; and the Plan, all that a publisher needs (group 25).

A Definition says what to do; it holds no data of any one instance and is never stored. Everything that can be
wrong with it is refused here, when it is made, with the step and the rule named (dag-validate).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal

import msgspec

from kernel.codec import decode
from kernel.errors import CheckpointError, InvalidDefinition, InvalidId, InvalidInput, InvalidName
from kernel.fingerprint import fingerprint
from kernel.ids import check_name, check_resource
from kernel.records import definition_key

Activity = Callable[..., Any]
STEPS_MAX = 200
DEFAULT_TIMEOUT = timedelta(minutes=5)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Durable back-off between attempts: min(initial_interval · backoff^(n−1), max_interval), ± jitter (DECISIONS 3).

    `max_attempts` counts all attempts; `jitter` is a share of the delay (0.1 = ±10 %); `should_retry` sees the
    exception and says whether another attempt makes sense.
    """

    max_attempts: int = 3
    initial_interval: timedelta = timedelta(seconds=1)
    backoff: float = 2.0
    max_interval: timedelta = timedelta(hours=1)
    jitter: float = 0.0
    should_retry: Callable[[BaseException], bool] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.initial_interval, timedelta) or not isinstance(self.max_interval, timedelta):
            raise InvalidDefinition("RetryPolicy: initial_interval and max_interval must be timedelta values")
        if not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            raise InvalidDefinition(f"RetryPolicy.max_attempts: must be at least 1, is {self.max_attempts!r}")
        if self.initial_interval < timedelta(0) or self.max_interval < self.initial_interval:
            raise InvalidDefinition("RetryPolicy: 0 ≤ initial_interval ≤ max_interval must hold")
        if not 1 <= self.backoff < math.inf or not 0 <= self.jitter <= 1:
            raise InvalidDefinition("RetryPolicy: backoff must be ≥ 1 and jitter between 0 and 1")

    def delay_ms(self, failures: int, fraction: float) -> int:
        """Milliseconds to wait after the `failures`-th failure; `fraction` in [0, 1) places the jitter."""
        first_s, longest_s = self.initial_interval.total_seconds(), self.max_interval.total_seconds()
        try:
            plain = min(first_s * self.backoff ** (failures - 1), longest_s)
        except OverflowError:
            plain = longest_s if first_s else 0.0
        return max(0, round(plain * 1000 * (1 + self.jitter * (2 * fraction - 1))))


class Step(msgspec.Struct, frozen=True):
    """One step. Without `depends_on` it follows the step before it; an empty list makes it a root (dag-root).

    `timeout` limits one invocation, not the step's life (act-timeout-per-call). `max_retry` is the number of extra
    attempts, at once; `retry` is a policy with back-off; giving both is refused. `checkpoint` and `output` are the
    types that stored values are decoded as.
    """

    name: str
    activity: Activity
    timeout: timedelta = DEFAULT_TIMEOUT
    max_retry: int = 0
    retry: RetryPolicy | None = None
    resource: str | None = None
    on_failed: Literal["stop", "skip"] = "stop"
    depends_on: Sequence[str] | None = None
    checkpoint: Any = None
    output: Any = None
    streams: bool = False

    def __post_init__(self) -> None:
        check_name(self.name, "Step.name")
        where = f"step {self.name!r}"
        if not callable(self.activity):
            raise InvalidDefinition(f"{where}: activity is not callable")
        if not isinstance(self.timeout, timedelta) or not timedelta(0) < self.timeout <= timedelta(days=30):
            raise InvalidDefinition(f"{where}: timeout must be a timedelta above 0 and at most 30 days")
        if not isinstance(self.max_retry, int) or isinstance(self.max_retry, bool) or self.max_retry < 0:
            raise InvalidDefinition(f"{where}: max_retry must be a whole number ≥ 0")
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            raise InvalidDefinition(f"{where}: retry must be a RetryPolicy, not {type(self.retry).__name__}")
        if isinstance(self.depends_on, str):
            raise InvalidDefinition(f"{where}: depends_on must be a list of names, not one text")
        if self.retry is not None and self.max_retry:
            raise InvalidDefinition(f"{where}: give max_retry or retry, not both")
        if self.on_failed not in ("stop", "skip"):
            raise InvalidDefinition(f"{where}: on_failed must be 'stop' or 'skip'")
        if self.resource is not None:
            check_name(self.resource, f"{where}.resource")

    @property
    def timeout_ms(self) -> int:
        return max(1, round(self.timeout.total_seconds() * 1000))

    @property
    def attempts_max(self) -> int:
        """How many attempts may return an error before the step has failed."""
        return self.retry.max_attempts if self.retry is not None else 1 + self.max_retry


class PlanStep(msgspec.Struct, frozen=True):
    """A step as a publisher and the fingerprint see it: its name and its explicit dependencies."""

    name: str
    depends_on: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """All that a publisher needs to start a workflow: no activity is imported for it (sor-plan-only)."""

    type: str
    steps: tuple[PlanStep, ...]
    input: Any = None
    identity: tuple[str, ...] = ()
    on_changed_plan: Literal["refuse", "fresh_run"] = "refuse"
    streams: bool = False
    """Whether a step shows a client its way: a new run then begins with an empty stream (sor-stream-reset)."""

    def __post_init__(self) -> None:
        check_name(self.type, "Plan.type")
        _check_graph(self.type, self.steps)

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self.type, self.steps)

    @property
    def key(self) -> str:
        """`type@fingerprint`, what claims compare."""
        return definition_key(self.type, self.fingerprint)

    def check_input(self, data: bytes) -> None:
        """Refuse an encoded input that is not of the declared type, before anything is written. Raises InvalidInput."""
        if self.input is None:
            return
        try:
            decode(data, self.input, f"input of {self.type}")
        except CheckpointError as error:
            raise InvalidInput(str(error)) from None


@lru_cache(maxsize=1024)
def _fingerprint(type_: str, steps: tuple[PlanStep, ...]) -> str:
    return fingerprint(type_, [(step.name, step.depends_on) for step in steps])


def plan(
    type: str,
    steps: Iterable[str | tuple[str, Sequence[str]]],
    *,
    input: Any = None,
    identity: Sequence[str] = (),
    on_changed_plan: Literal["refuse", "fresh_run"] = "refuse",
    streams: bool = False,
) -> Plan:
    """A Plan written by hand: step names in order, or (name, dependencies) where one does not follow the one before."""
    entries = [(entry, None) if isinstance(entry, str) else (entry[0], tuple(entry[1])) for entry in steps]
    return Plan(type, _explicit(entries), input, tuple(identity), on_changed_plan, streams)


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One workflow type: its steps, its finalizers, and how its context is rebuilt (spl-definition-contents).

    `resource` limits how many workflows may run steps at once, beside what each step declares (prm-tenant): a name, or
    a function of the input that returns one, as `lambda job: f"tenant_work:{job.tenant}"`. The function is called for
    every claim and must be pure and quick. A workflow that waits holds no place.
    """

    type: str
    steps: Sequence[Step]
    input: Any = None
    identity: Sequence[str] = ()
    success_finalizer: Activity | None = None
    failure_finalizer: Activity | None = None
    prepare: Callable[[Any], Any] | None = None
    on_changed_plan: Literal["refuse", "fresh_run"] = "refuse"
    on_poison: Literal["park", "fail"] = "park"
    resource: str | Callable[[Any], str] | None = None

    def __post_init__(self) -> None:
        check_name(self.type, "Definition.type")
        for step in self.steps:
            if not isinstance(step, Step):
                raise InvalidDefinition(f"{self.type}: steps must be Step values, got {type(step).__name__}")
        for name in ("success_finalizer", "failure_finalizer", "prepare"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InvalidDefinition(f"{self.type}: {name} is not callable")
        if self.on_poison not in ("park", "fail") or self.on_changed_plan not in ("refuse", "fresh_run"):
            raise InvalidDefinition(f"{self.type}: on_poison is park or fail, on_changed_plan refuse or fresh_run")
        if self.resource is not None and not callable(self.resource):
            check_resource(self.resource, f"{self.type}: resource")
        self._check_identity()
        _ = self.plan  # the graph is refused when the Definition is made, not when it first runs

    def _check_identity(self) -> None:
        if isinstance(self.identity, str):
            raise InvalidDefinition(f"{self.type}: identity must be a list of field names, not one text")
        fields = getattr(self.input, "__struct_fields__", None)
        for field in self.identity:
            if fields is not None and field not in fields:
                raise InvalidDefinition(f"{self.type}: identity field {field!r} is not a field of the input")

    def resource_of(self, data: bytes) -> str | None:
        """The resource of a workflow with this encoded input; None without one. Raises InvalidDefinition when the
        function fails or returns no resource, CheckpointError for an input that does not decode."""
        if self.resource is None or isinstance(self.resource, str):
            return self.resource
        value = decode(data, Any if self.input is None else self.input, f"input of {self.type}")
        try:
            return check_resource(self.resource(value), f"{self.type}: resource")
        except (InvalidName, InvalidId) as error:
            raise InvalidDefinition(str(error)) from None
        except Exception as error:
            raise InvalidDefinition(f"{self.type}: resource: the function raised {type(error).__name__}") from error

    @property
    def plan(self) -> Plan:
        steps = _explicit((step.name, step.depends_on) for step in self.steps)
        streams = any(step.streams for step in self.steps)
        return Plan(self.type, steps, self.input, tuple(self.identity), self.on_changed_plan, streams)


def plan_of(given: Plan | Definition) -> Plan:
    """The Plan of whatever a publisher has at hand. Raises InvalidDefinition."""
    if isinstance(given, Definition):
        return given.plan
    if not isinstance(given, Plan):
        raise InvalidDefinition(f"plan: give a Plan or a Definition, not {type(given).__name__}")
    return given


def _explicit(steps: Iterable[tuple[str, Sequence[str] | None]]) -> tuple[PlanStep, ...]:
    explicit: list[PlanStep] = []
    for name, depends_on in steps:
        if depends_on is None:
            depends_on = [explicit[-1].name] if explicit else []
        explicit.append(PlanStep(name, tuple(depends_on)))
    return tuple(explicit)


def _check_graph(type_: str, steps: Sequence[PlanStep]) -> None:
    if not 1 <= len(steps) <= STEPS_MAX:
        raise InvalidDefinition(f"{type_}: must have 1–{STEPS_MAX} steps, has {len(steps)}")
    names: set[str] = set()
    for step in steps:
        check_name(step.name, f"{type_}: step name")
        if step.name in names:
            raise InvalidDefinition(f"{type_}: two steps are named {step.name!r}")
        names.add(step.name)
    for step in steps:
        for dependency in step.depends_on:
            if dependency == step.name:
                raise InvalidDefinition(f"{type_}: step {step.name!r} depends on itself")
            if dependency not in names:
                raise InvalidDefinition(f"{type_}: step {step.name!r} depends on unknown step {dependency!r}")
    _check_acyclic(type_, steps)


def _check_acyclic(type_: str, steps: Sequence[PlanStep]) -> None:
    left = {step.name: set(step.depends_on) for step in steps}
    while left:
        free = [name for name, depends_on in left.items() if not depends_on]
        if not free:
            raise InvalidDefinition(f"{type_}: steps {', '.join(sorted(left))} depend on each other in a cycle")
        for name in free:
            del left[name]
        for depends_on in left.values():
            depends_on.difference_update(free)
