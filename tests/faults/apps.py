"""The workflows of these tests: small, and each with one way of being hurt. All say what they do in the ledger."""

from __future__ import annotations

import ctypes
import os
import resource
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from kernel import (
    App,
    Context,
    Definition,
    NonRetryable,
    Signal,
    Sleep,
    Step,
    WaitForSignal,
    WorkflowCanceled,
    Yield,
)
from kernel.ids import workflow_id_for
from tests.faults.arms import Arms, hurt
from tests.faults.effects import EffectsFile, burn_cpu, have_effect, noted, ports

Activity = Callable[[Context], Any]

LONG = timedelta(minutes=30)
HOLD_S = 60.0
"""How long a held activity waits for the kill that it is there for."""
CURED = "cured"
"""A file of this name in the data folder makes poison harmless."""
GATE = "gate-{}"
"""A file of this name in the data folder lets an activity go on that waits there; the name ends with a workflow_id."""


class Job(msgspec.Struct, frozen=True):
    """The input of every workflow: the number that its steps count on from, and its times in seconds."""

    number: int = 0
    hold_s: float = 0.0
    nap_s: float = 0.0


def _pause(ctx: Context, seconds: float) -> None:
    """Work that takes time, and stops when it is told to."""
    if seconds:
        ctx.cancel.wait(seconds)
    ctx.check()


def _pass_gate(ctx: Context, name: str, *, deaf: bool = False) -> None:
    """Wait until the test opens that gate, however fast or slow the machine is. `deaf`: and look at no stop sign."""
    effects: EffectsFile = ctx.ports
    gate = effects.path.parent / GATE.format(name)
    while not gate.exists():
        if deaf:
            threading.Event().wait(0.005)
        else:
            _pause(ctx, 0.005)


def _counted(ctx: Context, previous: str | None) -> int:
    return int(ctx.input.number if previous is None else ctx.output(previous) + 1)


def worker_step(previous: str | None) -> Activity:
    """Hold, have an effect, count one further than the step before."""

    @noted
    def work(ctx: Context) -> int:
        _pause(ctx, ctx.input.hold_s)
        have_effect(ctx)
        return _counted(ctx, previous)

    return work


def napping_step(previous: str | None) -> Activity:
    """The same, after a sleep that frees everything."""

    @noted
    def nap(ctx: Context) -> int | Sleep:
        if ctx.resume is None:
            return Sleep(timedelta(seconds=ctx.input.nap_s), checkpoint=ctx.input.number)
        assert (ctx.resume.kind, ctx.checkpoint()) == ("timer", ctx.input.number)
        _pause(ctx, ctx.input.hold_s)
        have_effect(ctx)
        return _counted(ctx, previous)

    return nap


def quick_step(previous: str) -> Activity:
    """Have an effect and count, at once whatever the input says."""

    @noted
    def work(ctx: Context) -> int:
        have_effect(ctx)
        return _counted(ctx, previous)

    return work


def chain(names: str, napping: str = "", **options: Any) -> list[Step]:
    """One step per letter of `names`, each after the one before; those in `napping` sleep first."""
    steps = []
    for previous, name in zip([None, *names], names, strict=False):
        make = napping_step if name in napping else worker_step
        steps.append(Step(name, make(previous), **options))
    return steps


@noted
def held_first(ctx: Context) -> int:
    """The first entry is there to be killed; every other one works at once."""
    if ctx.attempt == 1:
        _pause(ctx, HOLD_S)
    have_effect(ctx)
    return _counted(ctx, "a")


@noted
def held_finalizer(ctx: Context) -> None:
    """As `held_first`, for a hook that has no attempt number."""
    effects: EffectsFile = ctx.ports
    have_effect(ctx)
    if effects.count(ctx) == 1:
        _pause(ctx, HOLD_S)


@noted
def held_and_failing(ctx: Context) -> int:
    """Held in its first and third entry, failing in its second and fourth, done in its fifth."""
    if ctx.attempt in (1, 3):
        _pause(ctx, HOLD_S)
    if ctx.attempt in (2, 4):
        raise ValueError(f"attempt {ctx.attempt} fails")
    return ctx.attempt


@noted
def refuse(ctx: Context) -> None:
    raise NonRetryable("this can not be done")


@noted
def submit_late(ctx: Context) -> str:
    """The first entry looks at no stop sign, and asks for its key only behind the gate (A12)."""
    if ctx.attempt == 1:
        _pass_gate(ctx, ctx.workflow_id, deaf=True)
    have_effect(ctx)
    return "submitted"


@noted
def return_late(ctx: Context) -> str:
    """The first entry asks nobody anything and just returns when the gate is open."""
    if ctx.attempt == 1:
        _pass_gate(ctx, ctx.workflow_id, deaf=True)
    return f"by attempt {ctx.attempt}"


@noted
def hold_second(ctx: Context) -> str:
    """The first entry is quick, the second one waits at the gate."""
    if ctx.attempt == 2:
        _pass_gate(ctx, ctx.workflow_id)
    return f"by attempt {ctx.attempt}"


@noted
def wait_at_gate(ctx: Context) -> str:
    """Every entry waits at the gate, and stops when it is told to."""
    _pass_gate(ctx, ctx.workflow_id)
    have_effect(ctx)
    return f"by attempt {ctx.attempt}"


@noted
def count_at_gate(ctx: Context) -> int:
    """The same, as the first step of a chain that counts."""
    _pass_gate(ctx, ctx.workflow_id)
    have_effect(ctx)
    return _counted(ctx, None)


@noted
def abort(ctx: Context) -> int:
    """Poison: ends its process, whoever enters."""
    end_process(ctx)
    return _counted(ctx, "a")


def end_process(ctx: Context) -> None:
    """The poison itself; it leaves no core file."""
    effects: EffectsFile = ctx.ports
    if not (effects.path.parent / CURED).exists():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.abort()


@noted
def ignore_everything(ctx: Context) -> int:
    """The first entry ignores its timeout, for an hour."""
    if ctx.attempt == 1:
        threading.Event().wait(3600)
    return _counted(ctx, "a")


@noted
def burn(ctx: Context) -> int:
    """Pure Python for as long as the input says."""
    return min(1, burn_cpu(ctx.input.hold_s))


@noted
def keep_interpreter(ctx: Context) -> int:
    """The first entry calls native code that does not let the interpreter go: no other thread of it moves (A06)."""
    if ctx.attempt == 1:
        ctypes.PyDLL(None).usleep(round(ctx.input.hold_s * 1_000_000))
    return ctx.attempt


FIRST, LAST = Step("a", worker_step(None), timeout=LONG), Step("c", worker_step("b"), timeout=LONG)


def between(name: str, activity: Activity, *, on_poison: Any = "park", **options: Any) -> Definition:
    """Three steps, of which the middle one is the interesting one."""
    steps = [FIRST, Step("b", activity, **{"timeout": LONG, **options}), LAST]
    return Definition(type=name, input=Job, steps=steps, on_poison=on_poison)


def single(name: str, activity: Activity, **options: Any) -> Definition:
    """One step."""
    return Definition(type=name, input=Job, steps=[Step("only", activity, **{"timeout": LONG, **options})])


ONE = Definition(type="one", input=Job, steps=chain("a", timeout=LONG))
STEADY = Definition(type="steady", input=Job, steps=chain("abcd", timeout=LONG))
TEN = Definition(type="ten", input=Job, steps=chain("abcdefghij", timeout=LONG))
NAPPING = Definition(type="napping", input=Job, steps=chain("abcd", napping="bd"))
SLEEPING = Definition(type="sleeping", input=Job, steps=chain("a", napping="a"))
HELD = between("held", held_first)
RETRYING = single("retrying", held_and_failing, max_retry=3)
FINISHED = Definition(type="finished", input=Job, steps=chain("ab"), success_finalizer=held_finalizer)
REFUSED = Definition(
    type="refused", input=Job, steps=[FIRST, Step("b", refuse, max_retry=2)], failure_finalizer=held_finalizer
)
SUBMIT_LATE = single("submit_late", submit_late)
RETURN_LATE = single("return_late", return_late)
COMMIT_LATE = single("commit_late", hold_second)
GATED = single("gated", wait_at_gate)
POISON = between("poison", abort)
POISON_FAILS = between("poison_fails", abort, on_poison="fail")
POISON_PREPARE = Definition(type="poison_prepare", input=Job, steps=chain("a"), prepare=end_process)
STUBBORN = between("stubborn", ignore_everything, timeout=timedelta(seconds=0.5), max_retry=1)
BURNING = single("burning", burn)
NATIVE = single("native", keep_interpreter)
OTHER = Definition(type="other", input=Job, steps=chain("ab"))


# --- one flow for each kind of boundary of the crash matrix ---------------------------------------------


def staged_step(name: str) -> Activity:
    """A step that ends when the test opens its gate, for all workflows at once."""

    @noted
    def stage(ctx: Context) -> str:
        _pass_gate(ctx, name)
        return name

    return stage


@noted
def always_raise(ctx: Context) -> None:
    raise ValueError("as always")


@noted
def yield_once(ctx: Context) -> int | Yield:
    if ctx.checkpoint() is None:
        return Yield(checkpoint=1)
    return _counted(ctx, None)


@noted
def hurt_finalizer(ctx: Context) -> None:
    """Its business write is a boundary of its own."""
    effects: EffectsFile = ctx.ports
    arm = Arms(effects.path.parent).met("worker", "finalizer", ctx.workflow_id)
    no_answer = ConnectionError("no answer")
    hurt(arm, lambda: have_effect(ctx), no_answer, no_answer)


@noted
def submit_and_wait(ctx: Context) -> Any:
    """The submit is a boundary of its own: what it returned is kept by the write that follows it."""
    if ctx.checkpoint() is not None:
        return ctx.checkpoint()
    effects: EffectsFile = ctx.ports
    arm = Arms(effects.path.parent).met("worker", "submit", ctx.workflow_id)
    no_answer = ConnectionError("no answer")
    hurt(arm, lambda: have_effect(ctx), no_answer, no_answer)
    return Sleep(timedelta(seconds=ctx.input.nap_s), checkpoint=ctx.effect_key)


@noted
def cancel(ctx: Context) -> None:
    raise WorkflowCanceled("not wanted any more")


STAGES = "abcdefg"
STAGED = Definition(type="staged", input=Job, steps=[Step(name, staged_step(name), timeout=LONG) for name in STAGES])
LINE = Definition(type="line", input=Job, steps=chain("abc"))
GATED_FIRST = Definition(
    type="gated_first",
    input=Job,
    steps=[Step("a", count_at_gate, timeout=LONG), Step("b", quick_step("a")), Step("c", quick_step("b"))],
)
FINAL = Definition(type="final", input=Job, steps=chain("a"), success_finalizer=hurt_finalizer)
FAILS = Definition(
    type="fails", input=Job, steps=[Step("a", always_raise, max_retry=1)], failure_finalizer=hurt_finalizer
)
SKIPS = Definition(
    type="skips", input=Job, steps=[Step("a", always_raise, on_failed="skip"), Step("b", worker_step(None))]
)
SUBMITS = Definition(type="submits", input=Job, steps=[Step("a", submit_and_wait, max_retry=1)])
CANCELS = Definition(
    type="cancels",
    input=Job,
    steps=[Step("a", cancel), Step("b", worker_step("a"))],
    success_finalizer=hurt_finalizer,
    failure_finalizer=hurt_finalizer,
)
YIELDS = Definition(type="yields", input=Job, steps=[Step("a", yield_once)])

BELL, RUNG = "bell", "{}:rung"


@noted
def wait_for_bell(ctx: Context) -> Any:
    """Waits for one signal; its poll is a net that no test waits for."""
    if ctx.resume is None:
        return WaitForSignal(BELL, ctx.biz_key, 1, poll_fallback=LONG, checkpoint=ctx.input.number)
    assert ctx.checkpoint() == ctx.input.number
    have_effect(ctx)
    return [ctx.resume.kind, ctx.resume.signal_id]


@noted
def ring(ctx: Context) -> bool:
    """The producer is a step: it repeats with the same id until the inbox has it."""
    key = RUNG.format(ctx.biz_key)
    told = Signal(
        signal_id=f"ring:{ctx.biz_key}", workflow_id=workflow_id_for(key), signal_type=BELL, wait_key=key, generation=1
    )
    ctx.deliver_signals([told])
    return True


WAITS = Definition(type="waits", input=Job, steps=[Step("a", wait_for_bell)])
RINGS = Definition(type="rings", input=Job, steps=[Step("ring", ring, max_retry=2)])

app = App(
    definitions=[
        ONE, STEADY, TEN, NAPPING, SLEEPING, HELD, RETRYING, FINISHED, REFUSED, SUBMIT_LATE, RETURN_LATE, COMMIT_LATE,
        GATED, POISON, POISON_FAILS, POISON_PREPARE, STUBBORN, BURNING, NATIVE, STAGED, LINE, GATED_FIRST, FINAL, FAILS,
        SKIPS, SUBMITS, CANCELS, YIELDS, WAITS, RINGS,
    ],
    ports=ports,
)  # fmt: skip
other_app = App(definitions=[OTHER], ports=ports)
