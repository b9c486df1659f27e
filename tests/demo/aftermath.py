"""What a run of `demo --subscribers --data-dir` left behind, read from its files when nothing runs any more."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

from asr_demo.asr_tasks import TaskTable
from asr_demo.ledger import Entry, Ledger, Refusal
from asr_demo.live_users import SHOW, TENANT
from asr_demo.observer import BroadcastInput, fan_out_id, observer_key
from asr_demo.receiver import Received, Receiver
from asr_demo.subscriptions import SUBSCRIPTIONS, biz_key
from fanout import Outcome
from kernel import BusinessObject, Instance, SystemClock, workflow_id_for
from kernel.config import Config
from kernel.runtime import open_client, open_objects


class Aftermath:
    """The rows of one data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = Config(data_dir=str(folder))
        self.client = open_client(config, folder, None)
        self._store = self.client._store
        self._objects = open_objects(config, folder, [SUBSCRIPTIONS], SystemClock())[SUBSCRIPTIONS.name]
        self._broadcast = BroadcastInput(TENANT, SHOW.show_id, SHOW.generation)

    def close(self) -> None:
        self._objects.close()
        self._store.close()

    def subscriptions(self) -> list[str]:
        return [row[SUBSCRIPTIONS.key] for row in self._objects.page({"show_id": SHOW.show_id}, limit=1000)]

    def subscription(self, name: str) -> BusinessObject:
        found = self._objects.get(name)
        assert found is not None
        return found

    def summary(self, name: str) -> Instance:
        """The workflow of a subscription."""
        return self._instance(workflow_id_for(biz_key(TENANT, name)))

    def observer(self) -> Instance:
        return self._instance(workflow_id_for(observer_key(self._broadcast)))

    def fan_out(self) -> Instance:
        return self._instance(fan_out_id(self._broadcast))

    def told(self) -> Outcome:
        """The output of the fan-out."""
        outcome: Outcome = self.client.result(fan_out_id(self._broadcast), timedelta(0), Outcome)
        return outcome

    def _instance(self, workflow_id: str) -> Instance:
        found = self.client.get(workflow_id)
        assert found is not None
        return found

    def entries(self, workflow: Instance, step: str | None = None) -> list[Entry]:
        """Entries into the activities of a workflow, in order."""
        with closing(Ledger(self.folder)) as ledger:
            return [
                entry
                for entry in ledger.entries()
                if entry.workflow_id == workflow.workflow_id and step in (None, entry.step)
            ]

    def refusals(self) -> list[Refusal]:
        with closing(Ledger(self.folder)) as ledger:
            return ledger.refusals()

    def received(self) -> Received:
        with closing(Receiver(self.folder)) as receiver:
            return receiver.received()

    def delivered(self, name: str) -> str | None:
        with closing(Receiver(self.folder)) as receiver:
            return receiver.text(name)

    def speech_tasks(self) -> int:
        with closing(TaskTable(self.folder)) as table:
            return table.stats().asr_submits
