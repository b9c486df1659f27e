"""The authors' door: what a workflow is declared with, and what may go wrong. Everything else is the kernel's own."""

from kernel.app import App, Companion, PortsRequest
from kernel.client import Client, Handle, Superseded
from kernel.clock import Clock, SystemClock
from kernel.config import Limit
from kernel.context import Context, StepCanceled
from kernel.definition import Definition, Plan, RetryPolicy, Step, plan
from kernel.directives import Directive, Sleep, WaitForSignal, Yield
from kernel.errors import (
    ClaimLost,
    DefinitionMismatch,
    InputIdentityChanged,
    InvalidConfig,
    KernelError,
    MaxStepRetriesExceeded,
    NonRetryable,
    Parked,
    Refused,
    ResultTimeout,
    RetryAfter,
    StepTimeout,
    WorkflowCanceled,
    WorkflowFailed,
    WorkflowWasCanceled,
)
from kernel.ids import IdSource, RandomIds
from kernel.records import ErrorRecord, Instance, Resume, StepRecord

__version__ = "0.1.0"

__all__ = [
    "App",
    "ClaimLost",
    "Client",
    "Clock",
    "Companion",
    "Context",
    "Definition",
    "DefinitionMismatch",
    "Directive",
    "ErrorRecord",
    "Handle",
    "IdSource",
    "InputIdentityChanged",
    "Instance",
    "InvalidConfig",
    "KernelError",
    "Limit",
    "MaxStepRetriesExceeded",
    "NonRetryable",
    "Parked",
    "Plan",
    "PortsRequest",
    "RandomIds",
    "Refused",
    "ResultTimeout",
    "Resume",
    "RetryAfter",
    "RetryPolicy",
    "Sleep",
    "Step",
    "StepCanceled",
    "StepRecord",
    "StepTimeout",
    "Superseded",
    "SystemClock",
    "WaitForSignal",
    "WorkflowCanceled",
    "WorkflowFailed",
    "WorkflowWasCanceled",
    "Yield",
    "plan",
]
