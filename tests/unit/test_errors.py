"""The errors: one stable code per class, and a class that says who has to act."""

from __future__ import annotations

import inspect

import kernel
from kernel import errors
from kernel.errors import ClaimLost, Fenced, KernelError, Refused, RetryAfter, Unavailable

CODES = {
    "KernelError": "kernel_error", "Refused": "refused", "InvalidName": "invalid_name", "InvalidId": "invalid_id",
    "TooLarge": "too_large", "InvalidDefinition": "invalid_definition", "InvalidInput": "invalid_input",
    "InvalidPriority": "invalid_priority", "InvalidConfig": "invalid_config", "InvalidTransition": "invalid_transition",
    "UnknownType": "unknown_type", "InputIdentityChanged": "input_identity_changed",
    "DefinitionMismatch": "definition_mismatch", "UnknownVersion": "unknown_version",
    "UnknownWorkflow": "unknown_workflow", "Unavailable": "unavailable", "StoreUnavailable": "store_unavailable",
    "OutcomeUnknown": "outcome_unknown", "CoordinationUnavailable": "coordination_unavailable",
    "CoordinationRejected": "coordination_rejected", "WrongProcess": "wrong_process",
    "SchemaMismatch": "schema_mismatch",
    "CorruptRecord": "corrupt_record", "ClaimLost": "claim_lost", "Fenced": "fenced", "StepTimeout": "step_timeout",
    "ActivityPanic": "activity_panic", "BadReturn": "bad_return", "CheckpointError": "checkpoint_error",
    "WorkflowCanceled": "workflow_canceled", "NonRetryable": "non_retryable", "RetryAfter": "retry_after",
    "MaxStepRetriesExceeded": "max_step_retries_exceeded", "WorkflowFailed": "workflow_failed",
    "WorkflowWasCanceled": "workflow_was_canceled", "Parked": "parked", "ResultTimeout": "result_timeout",
}  # fmt: skip
"""What is stored in rows and compared by applications: a code may be added, never changed."""


def found() -> dict[str, type[KernelError]]:
    members = inspect.getmembers(errors, inspect.isclass)
    return {name: cls for name, cls in members if issubclass(cls, KernelError)}


def test_the_codes_are_stable_and_each_class_has_its_own() -> None:
    codes = {name: cls.code for name, cls in found().items()}

    assert codes.items() >= CODES.items()
    assert len(set(codes.values())) == len(codes)


def test_a_class_says_who_has_to_act() -> None:
    refusals = {name for name, cls in found().items() if issubclass(cls, Refused)}
    passing = {name for name, cls in found().items() if issubclass(cls, Unavailable)}

    assert {"InvalidId", "TooLarge", "InvalidInput", "InvalidConfig", "InputIdentityChanged"} <= refusals
    assert {"StoreUnavailable", "OutcomeUnknown", "CoordinationUnavailable"} <= passing
    assert refusals & passing == set()
    assert issubclass(Fenced, ClaimLost)


def test_retry_after_tells_its_delay() -> None:
    assert (RetryAfter(5).delay_ms, str(RetryAfter(5)), str(RetryAfter(5, "busy"))) == (5, "retry after 5 ms", "busy")


def test_the_authors_door_offers_what_it_lists() -> None:
    assert all(getattr(kernel, name) is not None for name in kernel.__all__)
    assert sorted(kernel.__all__) == kernel.__all__
