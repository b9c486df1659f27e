"""The business object of the live-summary story: one user's subscription to the summary of one show.

It is the authority of its round: every write of an activity or finalizer names the round that it works for, and one
that comes late, when its user has started over, changes nothing. Such a refusal is written into the ledger.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from asr_demo.flow import Ports
from asr_demo.ledger import Refusal
from asr_demo.model import Model
from asr_demo.receiver import Receiver
from asr_demo.shows import Shows
from kernel import BusinessObject, BusinessObjects, NonRetryable, Objects, WorkflowCanceled

SUBSCRIPTIONS = Objects(
    name="subscriptions",
    key="subscription_id",
    columns=("show_id",),
    indexes=(("show_id",),),
    # The transcript is no field of a round: it is the recording's, and a new round goes on from it.
    round_fields=("error", "summary"),
)


class SummaryInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a summary's workflow is started with; the round is filled in when the object is accepted."""

    tenant_id: str
    object_id: str
    show_id: str
    fencing_token: str = ""


class SummaryPorts(Ports):
    """What the steps of a summary, the observer and the fan-out may need from outside."""

    def __init__(
        self, general: Ports, subscriptions: BusinessObjects, shows: Shows, receiver: Receiver, model: Model
    ) -> None:
        super().__init__(
            *(general.data_dir, general.asr, general.policy, general.clock, general.ledger), pace_s=general.pace_s
        )
        self.subscriptions = subscriptions
        self.shows = shows
        self.receiver = receiver
        self.model = model

    def current(self, job: SummaryInput) -> BusinessObject:
        """The subscription, in this job's round and under way (fen-stop-on-old). NonRetryable when it is in another:
        canceled would be for good, and the next round is the same workflow's. WorkflowCanceled when it is gone."""
        there = self.subscriptions.get(job.object_id)
        if there is None:
            raise WorkflowCanceled(f"subscription {job.object_id} does not exist any more")
        if there.fencing_token != job.fencing_token:
            raise NonRetryable(f"subscription {job.object_id} has left round {job.fencing_token}")
        if there.status == SUBSCRIPTIONS.initial:
            self.subscriptions.begin(job.object_id, job.fencing_token)
        return there

    def save(self, job: SummaryInput, field: str, value: Any) -> None:
        """Write one product of this round; a write that comes too late is counted, and ends the work."""
        if self.subscriptions.update(job.object_id, job.fencing_token, {field: value}):
            return
        there = self.subscriptions.get(job.object_id)
        installed = "" if there is None else there.fencing_token or ""
        now_ms = self.clock.wall_ms()
        self.ledger.refused(Refusal(job.object_id, job.fencing_token, installed, field, os.getpid(), now_ms))
        raise NonRetryable(f"subscription {job.object_id} has left round {job.fencing_token} for {installed}")


def biz_key(tenant_id: str, object_id: str) -> str:
    """The permanent key of a subscription's workflow: its signals are addressed by it."""
    return f"live_summary:{tenant_id}:{object_id}"


def with_outside(general: Ports, subscriptions: BusinessObjects) -> SummaryPorts:
    """The ports of one process: the story's outside world lies in the data folder."""
    folder = Path(general.data_dir)
    return SummaryPorts(general, subscriptions, Shows(folder), Receiver(folder), Model(folder))
