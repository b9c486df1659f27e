"""The durable record of one workflow, and its encoding (requirement group 5).

In every store an instance is one document: plain maps, lists, text, numbers and bytes. Fields whose name ends
in `_time` are points in time: milliseconds since the epoch here, dates in MongoDB. A field that has no value
is absent, never null. Input, outputs and checkpoints are bytes made by `kernel.codec`; nothing of a user's
value is ever a field name or a path. `v` is the layout: an unknown one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from kernel.errors import CorruptRecord, UnknownVersion
from kernel.ids import trace_id_for
from kernel.states import STEP_PENDING, TERMINAL, InstanceStatus, StepStatus

INSTANCE_VERSION = 1
COMMIT_IDS_KEPT = 32
ERRORS_KEPT = 16
RUNS_KEPT = 8
ERROR_CHARACTERS_MAX = 2000

Document = dict[str, Any]

WaitKind = Literal["timer", "signal"]
ResumeKind = Literal["timer", "signal", "poll"]
ErrorKind = Literal["error", "timeout", "panic", "canceled"]


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong in one attempt: the kernel's code, the class by name, and the message cut to 2,000 characters."""

    code: str
    type: str
    message: str
    kind: ErrorKind = "error"
    attempt: int = 0
    worker_id: str | None = None


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """What a suspended step waits for. `wait_id` is fresh for every suspension (DECISIONS detail 2)."""

    wait_id: str
    kind: WaitKind
    step: str
    step_index: int
    signal_type: str | None = None
    wait_key: str | None = None
    generation: int | None = None
    poll_time: int | None = None
    since_time: int | None = None


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """What woke a step: the kind and, for a signal, its id; never a business result (slp-kinds)."""

    kind: ResumeKind
    signal_id: str | None = None


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `attempt` counts entries into business code, `failures` returned errors (the retry budget),
    `takeovers` re-entries of an attempt that its worker never committed."""

    name: str
    status: StepStatus = STEP_PENDING
    attempt: int = 0
    failures: int = 0
    takeovers: int = 0
    elapsed_ms: int = 0
    """How long the activity ran in the last attempt, all its invocations together (stp-error-recorded)."""
    executed_ms: int = 0
    """The same of all attempts in this run that were committed (lat-split)."""
    external_wait_ms: int = 0
    """Waits of this run that are over: until the poll time or the signal, not until somebody goes on (lat-external)."""
    traffic_wait_ms: int = 0
    traffic_wait_count: int = 0
    traffic_since_time: int | None = None
    """Since when it waits for a permit; `traffic_wait_ms` grows by that wait when it is entered (prm-traffic-ms)."""
    due_time: int | None = None
    """A pending step may not start earlier: retry back-off or permit wait."""
    ready_time: int | None = None
    """Since when it could have run: its last dependency was complete, or the run began. Known from its first entry, or
    its first refusal of a permit."""
    failed_time: int | None = None
    """When its last attempt failed, until another is entered."""
    started_time: int | None = None
    """When it was entered last."""
    finish_time: int | None = None
    worker_id: str | None = None
    stuck_attempt: int | None = None
    """The attempt that ignored its timeout until its worker was replaced: it has failed, whoever finds it."""
    checkpoint: bytes | None = None
    wait: Wait | None = None
    resume: Resume | None = None
    last_signal_id: str | None = None
    error: ErrorRecord | None = None
    errors: tuple[ErrorRecord, ...] = ()


class FinalizerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Tries of the finalizer that this instance is at; visible while it is being retried (fin-error-visible)."""

    attempt: int
    error: ErrorRecord
    next_time: int
    since_time: int | None = None
    """When it failed; None in a row that is older than this field."""
    what: str | None = None
    """`prepare`, `success finalizer` or `failure finalizer`; None in a row that is older than this field."""


class ParkedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Why and since when the instance is put aside (DECISIONS 2)."""

    reason: str
    since_time: int


class DeferredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """No live worker runs this version: the fingerprint in the row and those that were offered (fpr-mismatch-defer)."""

    stored: str
    offered: tuple[str, ...]
    since_time: int


class PermitWaitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who was refused a permit last: which resource, and since when (prm-refused).

    `step` is a step's name, or `$workflow` where the workflow as a whole waits for its own resource (prm-tenant).
    """

    resource: str
    step: str
    since_time: int


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a replaced run leaves behind (DECISIONS 17)."""

    workflow_run: int
    status: InstanceStatus
    finish_time: int | None = None
    error: ErrorRecord | None = None
    round: str | None = None
    """The business round that its input served: a late publisher of it must not start it over. None: none was named,
    or the row is older than this field."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """The execution fact of one biz_key, for ever."""

    v: int
    workflow_id: str
    type: str
    biz_key: str
    definition_fingerprint: str
    definition_key: str
    """`type@fingerprint`: what every claim's guard compares (DECISIONS 13)."""
    status: InstanceStatus
    business_priority: int
    input: bytes
    steps: tuple[StepRecord, ...]
    outputs: dict[str, bytes]
    workflow_run: int
    retry_count: int
    revision: int
    deaths: int
    created_time: int
    run_time: int | None = None
    """From when on the present run could be worked at, where that is not `created_time`: the end of a start delay, or
    the replay. All figures of the run count from there."""
    finalizing_ms: int = 0
    """How long finalizers of this run ran."""
    claimable_time: int | None = None
    """Earliest time somebody may act: due time, lease end while claimed, earliest poll time while waiting."""
    claim_token: str | None = None
    claim_time: int | None = None
    worker_id: str | None = None
    worker: str | None = None
    wait: Wait | None = None
    resume: Resume | None = None
    finish_time: int | None = None
    error: ErrorRecord | None = None
    finalizer: FinalizerRecord | None = None
    parked: ParkedRecord | None = None
    deferred: DeferredRecord | None = None
    permit_wait: PermitWaitRecord | None = None
    runs: tuple[RunRecord, ...] = ()
    commit_ids: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether nothing will happen any more without somebody's help: terminal, or parked."""
        return self.status in TERMINAL or self.parked is not None

    @property
    def trace_id(self) -> str:
        """The trace that all attempts of this run, on whatever worker, belong to (stp-trace)."""
        return trace_id_for(self.workflow_id, self.workflow_run)

    def step_index(self, name: str) -> int:
        """The position of step `name`; KeyError when there is none."""
        for index, step in enumerate(self.steps):
            if step.name == name:
                return index
        raise KeyError(name)


def definition_key(type_: str, fingerprint: str) -> str:
    """The pair that a claim's guard compares."""
    return f"{type_}@{fingerprint}"


def to_document(record: msgspec.Struct) -> Document:
    """A record as a plain document: absent instead of null, everything else explicit."""
    document: Document = _without_nulls(msgspec.to_builtins(record, builtin_types=(bytes,)))
    return document


_PLAIN = frozenset({str, int, float, bool, bytes})


def _without_nulls(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {
            key: item if type(item) in _PLAIN else _without_nulls(item)
            for key, item in value.items()
            if item is not None
        }
    if kind is list or kind is tuple:
        return [item if type(item) in _PLAIN else _without_nulls(item) for item in value]
    return value


def bears_mark(document: Mapping[str, Any], commit_id: str | None) -> bool:
    """Whether the row bears the mark of that very write. In a damaged row, whose marks are no list, none is."""
    marks = document.get("commit_ids")
    return isinstance(marks, list | tuple) and commit_id in marks


def to_instance(document: Mapping[str, Any]) -> Instance:
    """Decode a stored document. Raises UnknownVersion or CorruptRecord naming the workflow and the field path."""
    key = document.get("workflow_id")
    if document.get("v") != INSTANCE_VERSION:
        raise UnknownVersion(f"instance {key!r}: layout version {document.get('v')!r}, this kernel knows 1")
    try:
        return msgspec.convert(document, Instance)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CorruptRecord(f"instance {key!r}: {error}") from None
