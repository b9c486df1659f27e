"""The beginning and the end of a claim's business: prepare, and the finalizers that make an end reliable (group 16).

A finalizer may run more than once and must be idempotent. When it fails, the instance stays claimable in the same
status, with a growing delay and the error in the record; it is never given up (DECISIONS 5, detail 14).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kernel import transitions
from kernel.cancel import CancelToken
from kernel.context import Context
from kernel.definition import Definition
from kernel.engine.claims import ActiveClaim
from kernel.engine.outcomes import error_record
from kernel.engine.services import Services
from kernel.records import Instance
from kernel.store.conditional import Transition
from kernel.stream_sink import Sink


class Ending:
    """Prepare and finalizers of one claim; makes the contexts of its invocations."""

    def __init__(
        self,
        services: Services,
        definition: Definition,
        claim: ActiveClaim,
        sink: Callable[[Instance, int | None], Sink],
    ) -> None:
        self._s = services
        self._definition = definition
        self._claim = claim
        self._sink = sink
        self._prepared: Any = None

    def context(
        self,
        instance: Instance,
        index: int | None,
        token: CancelToken,
        remaining_ms: Callable[[], int],
        *,
        may_start: bool = False,
    ) -> Context:
        """The context of one invocation: of step `index`, or of a finalizer or prepare hook (None)."""
        return Context(
            instance=instance,
            step_index=index,
            input_type=self._definition.input,
            checkpoint_type=None if index is None else self._definition.steps[index].checkpoint,
            ports=self._s.ports,
            prepared=self._prepared,
            worker_id=self._s.worker.worker_id,
            cancel=token,
            guard=self._claim.check,
            remaining_ms=remaining_ms,
            flows=self._s.flows,
            may_start=may_start,
            stream=self._sink(instance, index),
        )

    def prepare(self) -> bool:
        """Rebuild the execution context at the start of the claim (sor-prepare-context); whether the claim goes on."""
        hook = self._definition.prepare
        if hook is None:
            return True
        outcome = self._call("prepare", hook, self._s.settings.prepare_timeout_ms, may_start=False)
        if outcome.error is not None:
            return self.defer("prepare", outcome.error)
        self._prepared = outcome.value
        return True

    def success(self) -> bool:
        """All steps are done: SuccessFinalizer, then running → completed (fin-success-before)."""
        hook, elapsed_ms = self._definition.success_finalizer, 0
        if hook is not None:
            outcome = self._call("success finalizer", hook, self._s.settings.finalizer_timeout_ms)
            elapsed_ms = outcome.elapsed_ms
            if outcome.error is not None:
                return self.defer("success finalizer", outcome.error, elapsed_ms)
        instance = self._claim.instance
        committed = self._commit(
            partial(transitions.finish_completed, self._claim.held, instance, elapsed_ms=elapsed_ms)
        )
        self._s.note("workflow.completed", instance=committed)
        return False

    def failure(self) -> bool:
        """FailureFinalizer, then failing → failed; the failed step is never run again (fin-failing-resume)."""
        hook, elapsed_ms = self._definition.failure_finalizer, 0
        if hook is not None:
            outcome = self._call("failure finalizer", hook, self._s.settings.finalizer_timeout_ms)
            elapsed_ms = outcome.elapsed_ms
            if outcome.error is not None:
                return self.defer("failure finalizer", outcome.error, elapsed_ms)
        committed = self._commit(partial(transitions.finish_failed, self._claim.held, elapsed_ms=elapsed_ms))
        self._s.note("workflow.failed", instance=committed)
        return False

    def _call(self, what: str, hook: Callable[..., Any], timeout_ms: int, *, may_start: bool = True) -> Any:
        instance = self._claim.instance
        context = partial(self.context, instance, None, may_start=may_start)
        outcome = self._s.invoker.invoke_activity(f"{what} of {instance.type}", hook, self._claim, timeout_ms, context)
        self._claim.check()
        return outcome

    def defer(self, what: str, error: BaseException, elapsed_ms: int = 0) -> bool:
        """Give the claim back with a growing delay, the error in the record; the claim is over (fin-error-visible)."""
        instance = self._claim.instance
        attempt = 1 if instance.finalizer is None else instance.finalizer.attempt + 1
        settings = self._s.settings
        delay_ms = min(settings.finalizer_delay_first_ms * 2 ** min(attempt - 1, 20), settings.finalizer_delay_max_ms)
        record = error_record(error)
        committed = self._commit(
            partial(
                transitions.defer_finalizer,
                self._claim.held,
                status=instance.status,
                attempt=attempt,
                error=record,
                delay_ms=delay_ms,
                next_time=self._s.store.now_ms() + delay_ms,
                elapsed_ms=elapsed_ms,
                what=what,
            )
        )
        self._s.note("finalizer.deferred", instance=committed, what=what, tries=attempt, error=record.message)
        self._s.enqueue([committed])
        return False

    def _commit(self, build: Callable[..., Transition]) -> Instance:
        return self._s.committer.commit(self._claim, lambda commit_id: build(commit_id=commit_id))
