"""A show that ends, and those who wait for it: the flows of the engine's tests, on business facts in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from fanout import FanOutEvent, fan_out_key, make_fan_out, start_fan_out
from kernel import Context, Definition, Sleep, Step, WaitForSignal, workflow_id_for
from kernel.records import Document
from kernel.store.protocol import Query
from kernel.store.tables import INSTANCES, SIGNALS
from tests.fanout_runs.lists import SubscriberList, event
from tests.support.engine_rig import Rig

POLL = timedelta(seconds=5)


class Show:
    """The business fact, who asked for it, and who is subscribed."""

    def __init__(self, rig: Rig, count: int = 0, page_size: int = 10) -> None:
        self.rig = rig
        self.ready = False
        self.asked: Counter[str] = Counter()
        """Readings of the fact by workflow type."""
        self.subscribers = SubscriberList.of_keys(count)
        self.fails: set[str] = set()
        """biz_keys of followers whose own work fails once they are woken."""
        self.notify = make_fan_out("notify", self.subscribers.read_page, page_size=page_size)
        self.follower = Definition(type="follower", steps=[Step("follow", rig.ledger(self._follow))])
        self.main = Definition(
            type="main", steps=[Step("work", rig.ledger(self._work))], success_finalizer=rig.ledger(self.publish)
        )
        self.observer = Definition(
            type="observer", steps=[Step("observe", self._observe)], success_finalizer=self.publish
        )
        self.other = Definition(type="other", steps=[Step("work", self._note_pages)])
        self.read_before: dict[str, int] = {}
        """How many pages had been read when each of the other workflows ran."""

    @property
    def definitions(self) -> list[Definition]:
        return [self.notify, self.follower, self.main, self.observer, self.other]

    # --- activities -------------------------------------------------------------------------------------

    def is_ready(self, ctx: Context) -> bool:
        self.asked[ctx.type] += 1
        return self.ready

    def _follow(self, ctx: Context) -> Any:
        """Business first, then the wait; the fallback is far away, so that whoever waits in vain shows."""
        if not self.is_ready(ctx):
            return WaitForSignal("show_ended", "show-1")
        if ctx.biz_key in self.fails:
            raise ValueError("this follower fails")
        return "followed"

    def _work(self, ctx: Context) -> str:
        self.ready = True  # the fact first, the event after it
        return "done"

    def _note_pages(self, ctx: Context) -> None:
        self.read_before[ctx.workflow_id] = len(self.subscribers.reads)

    def _observe(self, ctx: Context) -> Any:
        return "seen" if self.is_ready(ctx) else Sleep(POLL)

    def publish(self, ctx: Context) -> None:
        start_fan_out(ctx, self.notify, event())

    # --- the test's side --------------------------------------------------------------------------------

    def follow(self, key: str) -> str:
        return self.rig.start(self.follower, key)

    def follow_all(self, count: int) -> list[str]:
        """Followers 1 to `count`, that nobody has run yet."""
        return [self.follow(f"sub:{number}") for number in range(1, count + 1)]

    def start_fan_out(self, of: FanOutEvent | None = None) -> str:
        return start_fan_out(self.rig.client, self.notify, event() if of is None else of)

    @property
    def fan_out_id(self) -> str:
        return workflow_id_for(fan_out_key("notify", event()))

    def signals(self) -> list[Document]:
        """All rows of the inbox."""
        rows = self.rig.store.scan(Query(SIGNALS, (), "match_time", ("signal_id",), 100_000))
        rows += self.rig.store.scan(Query(SIGNALS, (), "pending_time", ("signal_id",), 100_000))
        found = [self.rig.store.get(SIGNALS, row[0]) for row in rows]
        return [document for document in found if document is not None]

    def rows_of(self, type_: str) -> list[Document]:
        ids = self.rig.store.scan(Query(INSTANCES, (), "created_time", ("workflow_id",), 100_000))
        rows = [self.rig.row(row[0]) for row in ids]
        return [row for row in rows if row["type"] == type_]

    def all_wait(self, ids: list[str]) -> Callable[[], bool]:
        return lambda: all(self.rig.status(workflow_id) == "waiting" for workflow_id in ids)

    def woken_once(self, ids: list[str]) -> bool:
        """Whether each of them was entered twice: at its start, and for its one signal."""
        return all(self.rig.ledger.count("follow", workflow_id) == 2 for workflow_id in ids)
