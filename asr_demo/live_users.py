"""The users of the live-summary story, and the web process that takes their requests.

Each request is the kernel's `Requests`: object and intent in one write, start, confirm. Some stop after the first of
the three, as a process does that dies there; what they have accepted is left to the recovery dispatcher.
"""

from __future__ import annotations

from pathlib import Path

from asr_demo.live_tree import Tree
from asr_demo.observer import BroadcastInput, begin_observing, fan_out_id, observer_key, signals_of
from asr_demo.shows import Show, Shows
from asr_demo.subscriptions import SUBSCRIPTIONS, SummaryInput, biz_key
from asr_demo.summary import live_summary
from kernel import BusinessObject, Instance, Requests, SystemClock, workflow_id_for
from kernel.runtime import open_objects

TENANT = "demo"
SHOW = Show("architecture-night", "Architecture Night", 1, None)
DYING_EVERY = 8
"""One of so many requests stops between its first write and the start."""


class Users:
    """All users of one run. The first of them is the one whose first round will fail."""

    def __init__(self, tree: Tree, folder: Path, count: int) -> None:
        digits = max(3, len(str(count)))
        self.names = [f"sub-{number:0{digits}}" for number in range(1, count + 1)]
        self.show = SHOW
        self.registered = self.left_to_dispatcher = 0
        self._tree = tree
        self._plan = live_summary().plan
        self._shows = Shows(folder)
        self._objects = open_objects(tree.config, folder, [SUBSCRIPTIONS], SystemClock())[SUBSCRIPTIONS.name]
        self.reconnect()

    @property
    def retrying(self) -> str:
        return self.names[0]

    def reconnect(self) -> None:
        """After another supervisor has started: its Redis may be elsewhere."""
        self._client = self._tree.client()
        self._requests = Requests(self._client, self._objects, self._plan)

    def announce(self) -> None:
        """The show is live, and its one observer is registered."""
        self._shows.announce(self.show)
        begin_observing(self._client, self._broadcast)

    @property
    def _broadcast(self) -> BroadcastInput:
        return BroadcastInput(TENANT, self.show.show_id, self.show.generation)

    def subscribe(self, name: str) -> None:
        """One user wants the summary of the show."""
        fields = {"show_id": self.show.show_id, "user": f"user of {name}"}
        key = biz_key(TENANT, name)
        if int(name.rpartition("-")[2]) % DYING_EVERY == 2:
            self._objects.accept(
                name, type_=self._plan.type, biz_key=key, input=self._input(name), priority=0, fields=fields
            )
            self.left_to_dispatcher += 1
            return
        answer = self._requests.request(self._input(name), object_id=name, fields=fields, biz_key=key)
        self.registered += answer.outcome == "registered"
        self.left_to_dispatcher += answer.outcome == "accepted"

    def retry(self, name: str) -> str:
        """The user of a failed summary asks again; what came of it."""
        key = biz_key(TENANT, name)
        answer = self._requests.request(self._input(name), object_id=name, biz_key=key)
        there = answer.stream
        return f"{answer.outcome} as {there.fencing_token}" if there is not None else answer.outcome

    @staticmethod
    def _input(name: str) -> SummaryInput:
        return SummaryInput(TENANT, name, SHOW.show_id)

    def end_show(self, recording: Path) -> None:
        """The broadcast is over, and its recording is there."""
        self._shows.end(self.show.show_id, self.show.generation, str(recording))

    def subscription(self, name: str) -> BusinessObject | None:
        return self._objects.get(name)

    def all_dispatched(self) -> bool:
        """Whether no accepted request waits for its registration, or for the confirmation of it, any more."""
        return not self._objects.due(after=None, limit=1)

    def summary(self, name: str) -> Instance | None:
        """The workflow of one subscription."""
        return self._client.get(workflow_id_for(biz_key(TENANT, name)))

    def observer(self) -> Instance | None:
        return self._client.get(workflow_id_for(observer_key(self._broadcast)))

    def fan_out(self) -> Instance | None:
        """None until the observer has seen the recording."""
        return self._client.get(fan_out_id(self._broadcast))

    def signals(self) -> int:
        """How many signals were stored; the fan-out must have completed."""
        return signals_of(self._client, self._broadcast)
