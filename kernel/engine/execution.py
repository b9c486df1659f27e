"""One claim, from its taking to its end: prepare, waves of ready steps, finalizers, release (clm-multi-steps).

A claim ends only when a step asked to wait or to be tried again, nothing is ready, the workflow has ended, the
worker is stopping, or the right to act is gone (clm-stop-reasons). After every commit what is ready is computed anew
from the record that the store returned (clm-ready-recompute).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from kernel import transitions
from kernel.definition import Definition
from kernel.engine import pausing, readiness
from kernel.engine.claim_permits import ClaimPermits
from kernel.engine.claims import ActiveClaim
from kernel.engine.ending import Ending
from kernel.engine.entering import Entering
from kernel.engine.invoke import Outcome
from kernel.engine.outcomes import Complete, Continue, Decision, GiveUp, Retry, Suspend, decide
from kernel.engine.permits import Denied
from kernel.engine.services import Services
from kernel.engine.streaming import ClaimStream
from kernel.engine.telling import told_lost, woken
from kernel.errors import CheckpointError, InvalidDefinition, KernelError, StepTimeout, TooLarge, UnknownVersion
from kernel.records import Instance
from kernel.states import FAILING, RUNNING, STEP_RUNNING, WAITING
from kernel.store.conditional import Transition
from kernel.transitions import Rest

log = logging.getLogger("kernel.execution")


class Execution:
    """Runs one claim on the calling thread, and the steps of a wave on threads of their own."""

    def __init__(
        self,
        services: Services,
        definition: Definition,
        depends_on: readiness.Dependencies,
        claim: ActiveClaim,
        stopping: Callable[[], bool],
    ) -> None:
        self._s = services
        self._definition = definition
        self._claim = claim
        self._stopping = stopping
        self._depends_on = depends_on
        self._stream = ClaimStream(services.streams, definition, claim)
        self._ending = Ending(services, definition, claim, self._stream.sink)
        self._permits = ClaimPermits(services.permits, definition, claim)
        self._entering = Entering(services, definition, depends_on, claim)
        self._give_back = self._went_on = False

    def run(self) -> None:
        """Advance until the claim ends. Never raises: what goes wrong is recorded, or left to the lease."""
        try:
            if self._ending.prepare():
                while self._advance():
                    pass
        except KernelError as error:
            # Gone to another, fenced, or the store does not say (clm-uncertain). Whatever runs under this claim has
            # returned: if the row still bears our token, we are the ones to give it back.
            told_lost(self._s.note, self._claim.instance, error)
            self._s.given_up.add(self._claim.held)
        except Exception:
            # A fault of this engine: the lease counts it as a death, so that it does not come back for ever.
            log.exception("the claim of %s ended with an error", self._claim.held.workflow_id)
        finally:
            self._s.renewals.drop(self._claim)
            self._permits.end()
            self._stream.end(self._claim.instance)

    def _advance(self) -> bool:
        """One decision on the newest record; whether the claim goes on."""
        instance = self._claim.instance
        if instance.status == FAILING:
            return self._ending.failure()
        if instance.status != RUNNING:
            return False
        failed = readiness.first_failed(instance.steps)
        if failed is not None and failed.error is not None:
            committed = self._commit(partial(transitions.enter_failing, self._claim.held, error=failed.error))
            self._s.note("workflow.failing", instance=committed)
            return True
        if readiness.all_satisfied(instance.steps):
            return self._ending.success()
        if self._stopping() or self._give_back:
            return self._release(instance)
        now_ms = self._s.store.now_ms()
        if self._activate_own(instance, now_ms):
            return True
        # Not at once: who gave the claim back has just looked, and a signal that nobody can read would be a hot loop.
        if self._went_on and self._s.inbox.is_called(instance):
            return self._release(instance)
        self._went_on = True
        open_steps = readiness.enterable(self._depends_on, instance.steps)
        self._permits.look_for_place(open_steps, now_ms)
        ready = readiness.ready(open_steps, instance.steps, now_ms, self._permits.handed_step)
        if not ready:
            return self._release(instance)
        # Whose attempt has failed already enters nothing, and needs no place for that.
        decided = [index for index in ready if self._is_decided(index)]
        if not decided and not self._admitted(ready[0]):
            return False
        ready = decided or ready
        if len(ready) == 1:
            return self._solo(ready[0])
        return self._wave(ready)

    # --- one ready step: commits merged where one value can say both ----------------------------------

    def _solo(self, index: int) -> bool:
        begun = False
        while True:
            decision, elapsed_ms = self._decided_before(index), 0
            if decision is None:
                with self._permits.of_step(index) as permitted:
                    if isinstance(permitted, Denied):
                        return self._rested(self._entering.wait_alone(index, permitted))
                    if not begun:
                        self._begin(index)
                    if self._stopping():
                        return self._unbegin(index)
                    permitted()
                    decision, elapsed_ms = self._invoke(index)
            if isinstance(decision, GiveUp):
                self._give_up(index, decision, elapsed_ms, failing=True)
                return self._claim.instance.status in (RUNNING, FAILING)
            if not isinstance(decision, Complete):
                return self._pause_solo(index, decision, elapsed_ms)
            following = self._complete(index, decision, elapsed_ms)
            if following is None:
                return self._claim.instance.status == RUNNING
            index, begun = following, True

    def _complete(self, index: int, decision: Complete, elapsed_ms: int) -> int | None:
        """Commit a completion; the step that the same write entered, if any."""
        steps = self._claim.instance.steps
        after = readiness.projected(steps, index, "completed")
        finish = self._definition.success_finalizer is None and readiness.all_satisfied(after)
        following = None
        if not finish and not self._stopping():
            # A permit is asked for before a step is begun: a step that needs one is never begun by this write.
            following = readiness.only_successor(self._depends_on, steps, index)
            if following is not None and self._definition.steps[following].resource is not None:
                following = None
        committed = self._commit_complete(index, decision, elapsed_ms, following=following, finish=finish)
        if finish:
            self._s.note("workflow.completed", instance=committed)
        elif following is not None:
            self._s.note("step.started", instance=committed, step=following)
        return following

    def _commit_complete(
        self, index: int, decision: Complete, elapsed_ms: int, *, following: int | None, finish: bool
    ) -> Instance:
        committed = self._commit(
            partial(
                transitions.complete_step,
                self._claim.held,
                self._claim.instance,
                index,
                output=decision.output,
                elapsed_ms=elapsed_ms,
                worker_id=self._s.worker.worker_id,
                begin_next=following,
                finish=finish,
            )
        )
        self._s.note("step.completed", instance=committed, step=index)
        return committed

    def _pause_solo(self, index: int, decision: Suspend | Continue | Retry, elapsed_ms: int) -> bool:
        """The pause of a step that ran alone ends the claim in the same write (slp-atomic)."""
        pause = self._pause_of(index, decision)
        rest = readiness.rest(self._depends_on, pausing.after(self._claim.instance.steps, index, pause))
        self._mark_first(index)
        return self._rested(self._commit_pause(index, pause, elapsed_ms, rest))

    def _pause_of(self, index: int, decision: Suspend | Continue | Retry) -> pausing.Pause:
        name = self._definition.steps[index].name
        return pausing.pause_of(decision, name, index, now_ms=self._s.store.now_ms(), wait_id=self._s.ids.token())

    def _commit_pause(self, index: int, pause: pausing.Pause, elapsed_ms: int, rest: Rest | None) -> Instance:
        committed = self._commit(
            partial(pausing.transition, self._claim.held, index, pause, elapsed_ms=elapsed_ms, rest=rest)
        )
        self._s.note(pause.event, instance=committed, step=index)
        return committed

    # --- several ready steps: each commits by itself --------------------------------------------------

    def _wave(self, ready: list[int]) -> bool:
        """Run the steps of a wave side by side, wait for all, decide anew (dag-wave-parallel, dag-wave-siblings)."""
        batch = ready[: self._s.settings.wave_threads]
        left = len(batch) - 1
        done = self._s.runner.event()
        lost: list[Exception] = []
        finished: list[int] = []

        def one(index: int) -> None:
            try:
                self._one_of_wave(index)
            except Exception as error:
                lost.append(error)
            finally:
                finished.append(index)
                if len(finished) > left:
                    done.set()

        for index in batch[1:]:
            self._s.runner.spawn(f"wave-{self._claim.held.workflow_id}", partial(one, index))
        one(batch[0])
        done.wait()
        if lost:
            raise lost[0]
        return True

    def _one_of_wave(self, index: int) -> None:
        decision, elapsed_ms = self._decided_before(index), 0
        if decision is None:
            with self._permits.of_step(index) as permitted:
                if isinstance(permitted, Denied):
                    self._entering.wait_beside_others(index, permitted)
                    return
                self._begin(index)
                permitted()
                decision, elapsed_ms = self._invoke(index)
        if isinstance(decision, Complete):
            self._commit_complete(index, decision, elapsed_ms, following=None, finish=False)
        elif isinstance(decision, GiveUp):
            self._give_up(index, decision, elapsed_ms, failing=False)
        else:
            # A retry or yield is run by whoever claims next, never by a loop in this thread (stp-retry-durable).
            self._give_back = self._give_back or isinstance(decision, Retry | Continue)
            self._mark_first(index)
            self._commit_pause(index, self._pause_of(index, decision), elapsed_ms, None)

    # --- parts of both ---------------------------------------------------------------------------------

    def _begin(self, index: int) -> None:
        committed = self._entering.begin(index)
        self._s.note("step.started", instance=committed, step=index, takeovers=committed.steps[index].takeovers)

    def _decided_before(self, index: int) -> Decision | None:
        """An attempt that ignored its timeout until its worker was replaced has failed by that timeout (B-40)."""
        record = self._claim.instance.steps[index]
        if not self._is_decided(index):
            return None
        step = self._definition.steps[index]
        error = StepTimeout(
            f"step {step.name} ran longer than {step.timeout_ms} ms and ignored its end until its worker was replaced"
        )
        return decide(step, record, Outcome(error=error), self._s.settings, self._s.ids.fraction())

    def _is_decided(self, index: int) -> bool:
        record = self._claim.instance.steps[index]
        return record.status == STEP_RUNNING and record.stuck_attempt == record.attempt

    def _mark_stuck(self, instance: Instance, index: int) -> None:
        """On a thread of its own, while the activity goes on; the claim is still ours and renewed."""
        build = partial(transitions.mark_stuck, self._claim.held, instance, index)
        try:
            committed = self._s.committer.attempt(self._claim, lambda commit_id: build(commit_id=commit_id))
        except KernelError as error:
            log.warning("a stuck step of %s could not be marked: %s", instance.workflow_id, error)
            return
        if committed is not None:
            self._s.note("step.stuck", instance=committed, step=index)

    def _unbegin(self, index: int) -> bool:
        committed = self._entering.unbegin(index)
        self._s.note("step.unbegun", instance=committed, step=index)
        self._s.enqueue([committed])
        return False

    def _invoke(self, index: int) -> tuple[Decision, int]:
        step = self._definition.steps[index]
        instance = self._claim.instance
        record = instance.steps[index]

        outcome = self._s.invoker.invoke_activity(
            f"step {step.name}",
            step.activity,
            self._claim,
            step.timeout_ms,
            partial(self._ending.context, instance, index),
            partial(self._mark_stuck, instance, index),
        )
        self._stream.left(index)
        if outcome.error is not None and not isinstance(outcome.error, KernelError):
            # The record keeps one line; its author wants to see where it came from.
            log.warning("step %s of %s raised", step.name, instance.workflow_id, exc_info=outcome.error)
        # The worker may have lost the claim while the activity ran: nothing it says counts then.
        self._claim.check()
        decision = decide(step, record, outcome, self._s.settings, self._s.ids.fraction())
        if isinstance(decision, Complete) and self._too_large(instance, decision.output):
            refused = TooLarge(f"output of step {step.name}: the instance would pass its limit of 1 MiB encoded")
            outcome = type(outcome)(error=refused, elapsed_ms=outcome.elapsed_ms)
            decision = decide(step, record, outcome, self._s.settings, 0.0)
        return decision, outcome.elapsed_ms

    def _too_large(self, instance: Instance, output: bytes) -> bool:
        held = sum(map(len, instance.outputs.values())) + len(instance.input)
        checkpoints = sum(len(step.checkpoint or b"") for step in instance.steps)
        return held + checkpoints + len(output) > self._s.settings.instance_bytes_max

    def _give_up(self, index: int, decision: GiveUp, elapsed_ms: int, *, failing: bool) -> None:
        held, error = self._claim.held, decision.error
        self._mark_first(index)
        if decision.verdict == "cancel":
            build = partial(transitions.finish_canceled, held, index, error=error, elapsed_ms=elapsed_ms)
        elif decision.verdict == "skip":
            build = partial(transitions.skip_step, held, index, error=error, elapsed_ms=elapsed_ms)
        else:
            build = partial(transitions.fail_step, held, index, error=error, elapsed_ms=elapsed_ms, failing=failing)
        step_event, workflow_event = _VERDICTS[decision.verdict]
        committed = self._commit(build)
        self._s.note(step_event, instance=committed, step=index, error=error.message)
        if workflow_event is not None and committed.status != RUNNING:
            self._s.note(workflow_event, instance=committed)

    def _activate_own(self, instance: Instance, now_ms: int) -> bool:
        """Another waiting step of this claim has become due: go on with it (DECISIONS detail 1)."""
        due = readiness.due_waits(instance.steps, now_ms)
        if not due:
            return False
        build = partial(transitions.activate_own, self._claim.held, instance, due[0], now_ms=now_ms)
        committed = self._s.committer.attempt(self._claim, lambda commit_id: build(commit_id=commit_id))
        if committed is None:
            return False  # the store's clock is a little behind our estimate of it: the step is due in a moment
        woken(self._s.note, committed, due[0], was_waiting=False)
        return True

    def _admitted(self, index: int) -> bool:
        """Whether the workflow as a whole may run steps; if not, the claim is over (prm-tenant)."""
        try:
            denied = self._permits.admit(index)
        except (InvalidDefinition, CheckpointError, UnknownVersion) as error:
            return self._ending.defer("resource", error)
        return denied is None or self._rested(self._entering.wait_as_a_whole(index, denied))

    def _release(self, instance: Instance) -> bool:
        rest = readiness.rest(self._depends_on, instance.steps)
        committed = self._commit(partial(transitions.release, self._claim.held, status=RUNNING, rest=rest))
        self._s.note("claim.released", instance=committed)
        return self._rested(committed)

    def _rested(self, committed: Instance) -> bool:
        """The claim has ended: say when it goes on, and look whether a signal that it waits for is there already."""
        if committed.status == WAITING:
            self._s.note("workflow.waiting", instance=committed)
        # Nobody is woken for the end of a wait for a permit: a place that becomes free wakes somebody itself.
        self._s.enqueue([committed], wake=committed.permit_wait is None)
        self._permits.told(committed, self._s.store.now_ms())
        self._s.inbox.recheck(committed)
        return False

    def _mark_first(self, index: int) -> None:
        """Before step `index` forgets what woke it: a signal that is consumed and not marked would match the next wait
        of equal identity (sig-mark-before-unset)."""
        step = self._claim.instance.steps[index]
        if step.resume is not None and step.resume.signal_id is not None:
            self._s.inbox.mark_before_clear([step.resume.signal_id], self._claim.check)

    def _commit(self, build: Callable[..., Transition]) -> Instance:
        return self._s.committer.commit(self._claim, lambda commit_id: build(commit_id=commit_id))


_VERDICTS = {
    "cancel": ("step.canceled", "workflow.canceled"),
    "skip": ("step.skipped", None),
    "fail": ("step.failed", "workflow.failing"),
}
"""What is told of the step, and of the workflow where the same write has ended its running."""
