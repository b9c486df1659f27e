"""What is asked of a run of the live-summary story, what it found out, and the JSON that says so (INTERFACES)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asr_demo.ledger import Refusal
from asr_demo.page_orders import NO_PAGE, PageOrders
from asr_demo.receiver import Received
from kernel import Instance


@dataclass(frozen=True, slots=True)
class Orders:
    """How many users, over which recording; the step whose worker is killed and the seed of the chaos, if any; what is
    wanted of a web page."""

    subscribers: int
    recording: Path
    kill_at: str | None = None
    seed: int | None = None
    page: PageOrders = NO_PAGE


@dataclass
class AudienceRun:
    """The run. `summaries` are the users' workflows by subscription, `others` the observer and the fan-out."""

    orders: Orders
    started_s: float
    ended_s: float = 0.0
    summaries: dict[str, Instance] = field(default_factory=dict)
    others: list[Instance] = field(default_factory=list)
    transcript: str | None = None
    summary: str | None = None
    step_runs: int = 0
    signals: int = 0
    asr_submits: int = 0
    asr_submit_calls: int = 0
    recognitions: int = 0
    received: Received = field(default_factory=Received)
    refusals: list[Refusal] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    wipes: int = 0

    @property
    def instances(self) -> list[Instance]:
        return [*self.summaries.values(), *self.others]

    @property
    def promised(self) -> int:
        """The workflows of a run: one for every accepted request, registered or not yet, and the two of the show."""
        return self.orders.subscribers + 2

    def report(self) -> dict[str, Any]:
        """The one JSON object of `--json`. A summary that failed and was retried counts by how it ended."""
        orders, instances = self.orders, self.instances
        completed = sum(instance.status == "completed" for instance in instances)
        errors = [instance.error.message for instance in instances if instance.ended and instance.error is not None]
        chaos = {} if orders.seed is None else {"seed": orders.seed, "redis_wipes": self.wipes}
        return {
            "v": 1,
            "workflows": self.promised,
            "completed": completed,
            "lost": self.promised - sum(instance.ended for instance in instances),
            "step_runs": self.step_runs,
            "asr_submits": self.asr_submits,
            "asr_submit_calls": self.asr_submit_calls,
            "recognitions": self.recognitions,
            "takeovers": sum(step.takeovers for instance in instances for step in instance.steps),
            "killed": self.killed,
            "seconds": round(self.ended_s - self.started_s, 2),
            "status": "completed" if completed == self.promised else "incomplete",
            "error": errors[0] if errors else None,
            "transcript": self.transcript,
            "summary": self.summary,
            "subscribers": orders.subscribers,
            "deliveries": self.received.deliveries,
            "duplicate_deliveries": self.received.duplicates,
            "repeated_calls": self.received.repeats,
            "signals": self.signals,
            "stale_writes_refused": len(self.refusals),
            **chaos,
        }
