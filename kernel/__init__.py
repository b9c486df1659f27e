"""The authors' door: what a workflow is declared with, and what may go wrong. Everything else is the kernel's own."""

from kernel.app import App, Companion, PortsRequest
from kernel.business_objects import BusinessObject, BusinessObjects
from kernel.client import Client, Handle, Superseded
from kernel.clock import Clock, SystemClock
from kernel.codec import decode
from kernel.config import Limit
from kernel.context import Context, StepCanceled
from kernel.definition import Definition, Plan, RetryPolicy, Step, plan
from kernel.directives import Directive, Sleep, WaitForSignal, Yield
from kernel.dispatch import DispatchSource, DueIntent, Intent
from kernel.errors import (
    ClaimLost,
    DefinitionMismatch,
    InputIdentityChanged,
    InsideStep,
    InvalidConfig,
    InvalidDefinition,
    InvalidIntent,
    InvalidObject,
    KernelError,
    MaxStepRetriesExceeded,
    NonRetryable,
    Parked,
    Refused,
    ResultTimeout,
    RetryAfter,
    StepTimeout,
    Unavailable,
    WorkflowCanceled,
    WorkflowFailed,
    WorkflowWasCanceled,
)
from kernel.ids import IdSource, RandomIds, check_id, workflow_id_for
from kernel.objects import Objects
from kernel.records import ErrorRecord, Instance, StepRecord
from kernel.requests import RequestAnswer, Requests, StreamIdentity
from kernel.signals import Signal, SignalReceipt
from kernel.states import TERMINAL

__version__ = "0.1.0"

# fmt: off
__all__ = [  # noqa: RUF022
    "App", "BusinessObject", "BusinessObjects", "ClaimLost", "Client", "Clock", "Companion", "Context",
    "Definition", "DefinitionMismatch", "Directive", "DispatchSource", "DueIntent", "ErrorRecord", "Handle",
    "IdSource", "InputIdentityChanged", "InsideStep", "Instance", "Intent", "InvalidConfig",
    "InvalidDefinition", "InvalidIntent", "InvalidObject", "KernelError", "Limit", "MaxStepRetriesExceeded",
    "NonRetryable", "Objects", "Parked", "Plan", "PortsRequest", "RandomIds", "Refused", "RequestAnswer",
    "Requests", "ResultTimeout", "RetryAfter", "RetryPolicy", "Signal", "SignalReceipt", "Sleep",
    "Step", "StepCanceled", "StepRecord", "StepTimeout", "StreamIdentity", "Superseded", "SystemClock",
    "TERMINAL", "Unavailable", "WaitForSignal", "WorkflowCanceled", "WorkflowFailed", "WorkflowWasCanceled",
    "Yield", "check_id", "decode", "plan", "workflow_id_for",
]
# fmt: on
