"""What an activity sees: its input, its past, its stop sign, and the capabilities it may use (act-runtime-inputs).

Every member that leads to an effect checks the fence first: after lease − margin without a renewal nothing new
starts, even if the store is silent (DECISIONS detail 16).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from kernel.cancel import CancelToken
from kernel.codec import decode
from kernel.definition import Plan
from kernel.errors import InsideStep, KernelError
from kernel.flows import Flows
from kernel.records import ErrorRecord, Instance, Resume
from kernel.signals import Signal, SignalReceipt
from kernel.stream_sink import NoSink, Sink

T = TypeVar("T")


class StepCanceled(KernelError):
    """Raised by `ctx.check()` in an activity whose invocation should end: timeout or lost claim."""

    code = "step_canceled"


class Context:
    """One invocation of an activity or finalizer. Made by the engine, valid until the invocation ends."""

    def __init__(
        self,
        *,
        instance: Instance,
        step_index: int | None,
        input_type: Any,
        checkpoint_type: Any,
        ports: Any,
        prepared: Any,
        worker_id: str,
        cancel: CancelToken,
        guard: Callable[[], None],
        remaining_ms: Callable[[], int],
        flows: Flows,
        may_start: bool = False,
        stream: Sink | None = None,
    ) -> None:
        self._instance = instance
        self._index = step_index
        self._input_type = input_type
        self._checkpoint_type = checkpoint_type
        self._ports = ports
        self._guard = guard
        self._remaining_ms = remaining_ms
        self._flows = flows
        self._may_start = may_start
        self._stream = stream or NoSink()
        self._input: Any = None
        self._input_decoded = False
        self.prepared = prepared
        """What the Definition's `prepare` returned for this claim."""
        self.worker_id = worker_id
        self.cancel = cancel

    # --- identity -------------------------------------------------------------------------------------

    @property
    def workflow_id(self) -> str:
        return self._instance.workflow_id

    @property
    def biz_key(self) -> str:
        return self._instance.biz_key

    @property
    def type(self) -> str:
        return self._instance.type

    @property
    def workflow_run(self) -> int:
        """The round of this instance; it rises with every replay."""
        return self._instance.workflow_run

    @property
    def step(self) -> str | None:
        """The step's name; None in a finalizer and in `prepare`."""
        return None if self._index is None else self._instance.steps[self._index].name

    @property
    def attempt(self) -> int:
        """1 for the first entry of this step into business code in this run (id-attempt)."""
        return 0 if self._index is None else self._instance.steps[self._index].attempt

    @property
    def effect_key(self) -> str:
        """Idempotency key for an external effect of this step: equal in every attempt of one run, on every worker.

        Checks the fence: whoever asks for the key is about to have an effect.
        """
        self.check()
        return f"{self.workflow_id}:{self.workflow_run}:{self.step or 'finalizer'}"

    # --- data -----------------------------------------------------------------------------------------

    @property
    def input(self) -> Any:
        """The workflow's input, decoded as the Definition's input type. CheckpointError if it does not decode."""
        if not self._input_decoded:
            wanted = Any if self._input_type is None else self._input_type
            self._input = decode(self._instance.input, wanted, f"input of {self.type}")
            self._input_decoded = True
        return self._input

    @overload
    def output(self, step: str) -> Any: ...

    @overload
    def output(self, step: str, type_: builtins.type[T]) -> T | None: ...

    def output(self, step: str, type_: Any = Any) -> Any:
        """The committed output of an earlier step, decoded; None when it was skipped or has not completed."""
        data = self._instance.outputs.get(step)
        return None if data is None else decode(data, type_, f"output of step {step}")

    @overload
    def checkpoint(self) -> Any: ...

    @overload
    def checkpoint(self, type_: builtins.type[T]) -> T | None: ...

    def checkpoint(self, type_: Any = None) -> Any:
        """What the last directive of this step left, unchanged; None in a first invocation."""
        if self._index is None:
            return None
        data = self._instance.steps[self._index].checkpoint
        wanted = type_ or self._checkpoint_type or Any
        return None if data is None else decode(data, wanted, f"checkpoint of step {self.step}")

    @property
    def resume(self) -> Resume | None:
        """What woke this step: timer, poll or signal; re-read the business data whatever it was (slp-reread)."""
        return None if self._index is None else self._instance.steps[self._index].resume

    @property
    def error(self) -> ErrorRecord | None:
        """Why the workflow fails: for a FailureFinalizer."""
        return self._instance.error

    # --- capabilities and the stop sign ---------------------------------------------------------------

    @property
    def ports(self) -> Any:
        """The application's ports. Checks the fence."""
        self.check()
        return self._ports

    @property
    def stream(self) -> Sink:
        """What the client sees while a step with `streams=True` works; in any other step it shows nothing. Checks the
        fence. Writing never waits and never fails for Redis; what is lost changes no result (sse-sink)."""
        self.check()
        return self._stream

    def deliver_signals(self, signals: Sequence[Signal]) -> list[SignalReceipt]:
        """Tell other workflows that a fact has changed; write the fact first (sig-business-first). Checks the fence.

        Every signal needs an id that a repeat of this step gives again: derive it from the event, not from chance.
        """
        self.check()
        return self._flows.deliver_signals(signals)

    def start_or_resume(self, plan: Plan, *, biz_key: str, input: Any = None, priority: int | str = "async") -> str:
        """Register another workflow from a finalizer; its workflow_id (fan-start-idempotent). Checks the fence.

        Raises InsideStep in an activity: a step may run many times, and what it starts would outlive its failure.
        """
        if not self._may_start:
            raise InsideStep(f"step {self.step}: a workflow is registered by a finalizer or a publisher, not by a step")
        self.check()
        handle = self._flows.start_or_resume(plan, biz_key=biz_key, input=input, priority=priority)
        workflow_id: str = handle.workflow_id
        return workflow_id

    @property
    def cancelled(self) -> bool:
        """Whether this invocation should come to an end: its timeout has passed or its claim is lost."""
        return self.cancel.fired

    def remaining_s(self) -> float:
        """Seconds until this invocation's timeout: hand it to every HTTP, database and Redis call."""
        return max(0.0, self._remaining_ms() / 1000)

    def check(self) -> None:
        """Raise when this invocation may not go on: StepCanceled, ClaimLost or Fenced."""
        self._guard()
        if self.cancel.fired:
            raise StepCanceled(f"step {self.step}: {self.cancel.reason}")
