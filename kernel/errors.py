"""Every refusal and fault of the kernel: one class per cause, one stable `code` per class.

The class says who has to act: `Refused` errors are answers to a caller's mistake and are raised before any
write; `Unavailable` errors come from the infrastructure and may be tried again; the rest are outcomes of a
workflow or an activity. Nothing outside this module invents a code, and only these classes leave a store or
the coordination layer: no caller ever catches a driver's exception.
"""

from __future__ import annotations


class KernelError(Exception):
    """Base of all kernel errors. `code` is stable: it may be stored, compared and shown."""

    code = "kernel_error"


# --- refusals: the caller gave something that can not be right; nothing was written -------------------


class Refused(KernelError):
    """The request breaks a rule. The message names the field and the rule."""

    code = "refused"


class InvalidName(Refused):
    """A step, resource, signal or type name outside `^[a-z][a-z0-9_]{0,63}$` (DECISIONS 25)."""

    code = "invalid_name"


class InvalidId(Refused):
    """An id or key that is not 1–200 printable characters (DECISIONS 25)."""

    code = "invalid_id"


class TooLarge(Refused):
    """An encoded value above its limit (DECISIONS 26)."""

    code = "too_large"


class InvalidDefinition(Refused):
    """A Definition or Plan that can not be run: unknown dependency, cycle, double name, bad option."""

    code = "invalid_definition"


class InvalidInput(Refused):
    """A workflow input that does not have the type that the Plan declares."""

    code = "invalid_input"


class InvalidIntent(Refused):
    """A dispatch intent that may not be submitted: its input names another object, round or type (req-input-verify)."""

    code = "invalid_intent"


class InvalidObject(Refused):
    """A business object, or a field of one, that can not be stored as asked."""

    code = "invalid_object"


class InvalidPriority(Refused):
    """A priority that is neither 0–3 nor one of realtime, async, background, compensation."""

    code = "invalid_priority"


class InvalidConfig(Refused):
    """A setting that is unknown, of the wrong type or out of range."""

    code = "invalid_config"


class InvalidTransition(Refused):
    """A transition outside the closed write vocabulary (kernel.store.conditional)."""

    code = "invalid_transition"


class UnknownType(Refused):
    """No Definition of that type is registered in this process."""

    code = "unknown_type"


class InputIdentityChanged(Refused):
    """A replay whose identity fields differ from those of the failed run (DECISIONS 16)."""

    code = "input_identity_changed"


class DefinitionMismatch(Refused):
    """The stored instance was made by another version of this Definition (fpr-replay)."""

    code = "definition_mismatch"


class UnknownVersion(Refused):
    """Stored data of a newer or unknown version: it is refused, never guessed."""

    code = "unknown_version"


class UnsupportedCompactVersion(UnknownVersion):
    """A stream record of a version that this kernel does not know (sse-unknown-version)."""

    code = "unsupported_compact_version"


class UnknownRecordType(Refused):
    """A stream record of a known version and an unknown type (sse-other-types)."""

    code = "unknown_record_type"


class UnknownStream(Refused):
    """A client asked for a stream by an object or round that the workflow does not have now (sse-identity)."""

    code = "unknown_stream"


class UnknownWorkflow(Refused):
    """No instance has that workflow_id."""

    code = "unknown_workflow"


# --- infrastructure -----------------------------------------------------------------------------------


class Unavailable(KernelError):
    """Something outside this process does not answer; the same call may work later."""

    code = "unavailable"


class StoreUnavailable(Unavailable):
    """The durable store can not be reached, and the write was certainly not applied."""

    code = "store_unavailable"


class OutcomeUnknown(Unavailable):
    """The write was sent and its answer was lost: it may or may not have been applied (clm-uncertain)."""

    code = "outcome_unknown"


class CoordinationUnavailable(Unavailable):
    """Redis does not answer, or refuses for a passing reason (loading, busy, out of memory)."""

    code = "coordination_unavailable"


class CoordinationDenied(CoordinationUnavailable):
    """Redis answers and refuses the user, the password or the rights of `redis_url`: no waiting mends that. A start
    ends with it; a process that runs goes on as without Redis, because rights may come back (A69)."""

    code = "coordination_denied"


class CoordinationRejected(KernelError):
    """A Lua script answered with an error word: a key holds the wrong type or an argument is bad."""

    code = "coordination_rejected"


class WrongProcess(KernelError):
    """A client is used in another process than the one that made it (dc-fork-safety)."""

    code = "wrong_process"


class SchemaMismatch(KernelError):
    """The store was made by a newer kernel, or lacks an index that correctness rests on."""

    code = "schema_mismatch"


class CorruptRecord(KernelError):
    """A stored row that does not decode. It is left alone and reported, never repaired by guessing."""

    code = "corrupt_record"


# --- execution ----------------------------------------------------------------------------------------


class ClaimLost(KernelError):
    """This worker does not hold the claim any more: it must stop advancing the workflow (core-miss-stops)."""

    code = "claim_lost"


class Fenced(ClaimLost):
    """The lease could not be renewed in time; no new effect may start (DECISIONS 7)."""

    code = "fenced"


class StepTimeout(KernelError):
    """One invocation of the activity ran longer than the step's timeout (act-timeout-error)."""

    code = "step_timeout"


class ActivityPanic(KernelError):
    """An activity left by something that is no ordinary exception (act-panic)."""

    code = "activity_panic"


class BadReturn(KernelError):
    """An activity returned something that can not be stored as its output or directive."""

    code = "bad_return"


class CheckpointError(KernelError):
    """A stored checkpoint or output does not decode as the declared type; names the field path."""

    code = "checkpoint_error"


class WorkflowCanceled(KernelError):
    """Raised by an activity: this work should not be done any more (can-activity)."""

    code = "workflow_canceled"


class InsideStep(KernelError):
    """An activity tried to register a workflow: only a finalizer may, because it runs once per end (B-08)."""

    code = "inside_step"


class NonRetryable(KernelError):
    """Raised by an activity: do not retry, whatever the budget says (DECISIONS 3)."""

    code = "non_retryable"


class RetryAfter(KernelError):
    """Raised by an activity: a retry makes sense, and not before `delay_ms` milliseconds (DECISIONS 3)."""

    code = "retry_after"

    def __init__(self, delay_ms: int, message: str = "") -> None:
        super().__init__(message or f"retry after {delay_ms} ms")
        self.delay_ms = delay_ms


class MaxStepRetriesExceeded(KernelError):
    """All attempts that the retry policy allowed have failed (DECISIONS 4)."""

    code = "max_step_retries_exceeded"


# --- outcomes that a handle reports -------------------------------------------------------------------


class WorkflowFailed(KernelError):
    """The workflow ended `failed`."""

    code = "workflow_failed"


class WorkflowWasCanceled(KernelError):
    """The workflow ended `canceled`."""

    code = "workflow_was_canceled"


class Parked(KernelError):
    """The workflow was put aside after repeated deaths; `unpark` brings it back (DECISIONS 2)."""

    code = "parked"


class ResultTimeout(KernelError):
    """The workflow did not end within the time that the caller was willing to wait."""

    code = "result_timeout"
