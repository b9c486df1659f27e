"""The application of test_streaming: one workflow whose steps show what they do, and wait at gates."""

from __future__ import annotations

from kernel import App, Context, Definition, Step
from tests.faults.apps import LONG, Job, _pass_gate
from tests.faults.effects import noted, ports


@noted
def compose(ctx: Context) -> str:
    """Shows its attempt, waits for the gate, shows 200 numbers more, waits for the gate of its end and says that it
    ends; deaf, so that a worker that was cut off from its lease still tries to write when it comes back."""
    shown = ctx.stream
    shown.write(f"attempt {ctx.attempt} begins; ")
    shown.flush()
    _pass_gate(ctx, f"{ctx.workflow_id}-{ctx.attempt}", deaf=True)
    for number in range(200):
        shown.send("number", {"attempt": ctx.attempt, "number": number})
    _pass_gate(ctx, f"{ctx.workflow_id}-{ctx.attempt}-end", deaf=True)
    shown.write(f"attempt {ctx.attempt} ends")
    return f"result of attempt {ctx.attempt}"


STREAMING = Definition(type="streaming", input=Job, steps=[Step("compose", compose, timeout=LONG, streams=True)])
app = App(definitions=[STREAMING], ports=ports)
