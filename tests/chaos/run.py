"""One run: a real tree, its producers, the blows, the end of everything, and the verdict (RELIABILITY §3.3)."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kernel.clock import SystemClock
from kernel.errors import KernelError
from kernel.records import Document
from kernel.runtime import embedded_redis_url, open_objects, open_store
from kernel.store.protocol import Query, Store
from kernel.store.tables import INSTANCES, SIGNALS
from tests.chaos.app import ORDERS
from tests.chaos.checker import Evidence, ObjectFact, open_rows, violations
from tests.chaos.history import History, Sampler, slim
from tests.chaos.hits import CLOCK_MS, Hits, Span
from tests.chaos.producers import HOLD
from tests.chaos.roles import PROGRAM
from tests.chaos.schedule import AFTER_S, drawn
from tests.chaos.sizes import sizes, table, too_small
from tests.chaos.soak import EVERY_S, Growth
from tests.chaos.staff import Staff
from tests.chaos.strikes import READY_S, Striker, Tree, settings
from tests.chaos.stuck import Detector, dump
from tests.chaos.window import View, Window
from tests.chaos.words import FRAMES, WORDS, Seen, Word
from tests.faults.downstream import Downstream
from tests.faults.effects import Effects, boot_ms
from tests.support.json_lines import JsonLines
from tests.support.wait import wait_until

END_S = 60.0
"""After the last blow everything must be in place within this: the bounds of RELIABILITY §3.2, three times."""
STAFF_S = 60.0
LIVE_MAX = 150
"""So many workflows are under way at most: a run is about what befalls them, and not about a queue."""
STALL_MS = 500
"""Who waits for so much longer than he asked to has not moved: nor has, on this machine, a renewal thread."""
_TICK_S = 0.02
_PROCESSORS_MAX = 8
"""So many are watched: a machine with more of them takes none away for long."""
_ROLES = ("starter", "signaller", "accepter", "operator", "reader")


class Order(NamedTuple):
    """What is to be run."""

    folder: Path
    seed: int
    seconds: float
    rate: float = 12.0
    """Workflows a second that a starter starts, beside the listeners of stories."""
    listeners: int = 60
    soak: bool = False


class Verdict(NamedTuple):
    line: str
    found: list[str]
    dump: str
    notes: list[str]

    @property
    def is_good(self) -> bool:
        return not self.found and not self.dump


class Pulse:
    """A thread on each processor that asks for very little, again and again, and notes when it did not get it: where
    one processor alone is taken away, whoever runs there stands still, and nobody else. The first of them notes the
    store's clock as well."""

    def __init__(self, hits: Hits, window: Window) -> None:
        self._hits = hits
        self._window = window
        self._stop = threading.Event()
        places = sorted(os.sched_getaffinity(0))[:_PROCESSORS_MAX]
        self._threads = [
            threading.Thread(target=self._beat, args=(place, place == places[0]), name=f"pulse-{place}", daemon=True)
            for place in places
        ]
        for thread in self._threads:
            thread.start()

    def _beat(self, place: int, notes_clock: bool) -> None:
        with suppress(OSError):  # where that is not allowed it is on any of them
            os.sched_setaffinity(0, {place})  # of this thread alone
        last_ms = boot_ms()
        while not self._stop.wait(_TICK_S):
            now_ms = boot_ms()
            if now_ms - last_ms >= STALL_MS:
                self._hits.stalls.append(Span(last_ms, now_ms))
            last_ms = now_ms
            if not notes_clock:
                continue
            with self._window.looking() as store:
                if store is not None:
                    self._note_clock(now_ms, store.now_ms() - boot_ms())

    def _note_clock(self, now_ms: int, base_ms: int) -> None:
        if not self._hits.clock or abs(base_ms - self._hits.clock[-1][1]) > CLOCK_MS:
            self._hits.clock.append((now_ms, base_ms))

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Run:
    """The parts of a running run."""

    def __init__(self, order: Order, tree: Tree, staff: Staff, stack: ExitStack) -> None:
        self._order = order
        self._tree = tree
        self.staff = staff
        self.hits = Hits()
        self.history = History()
        self.growth = Growth()
        self.found: list[str] = []
        self.dump = ""
        self.settled_ms = 0
        """From the last blow until everything was in place."""
        self._window = Window(self._opened)
        stack.callback(self._window.shut)
        stack.enter_context(closing(Pulse(self.hits, self._window)))
        self.sampler = stack.enter_context(Sampler(self._window, self.history))
        self.striker = Striker(tree, self.hits, staff, self._window)
        self._detector = Detector()
        self._effects = Effects(order.folder)
        self._next_look_ms = 0

    def _opened(self) -> View:
        config, folder, clock = self._tree.config, self._order.folder, SystemClock()
        objects = open_objects(config, folder, [ORDERS], clock, prepare=False)
        return View(open_store(config, folder, clock, prepare=False), objects[ORDERS.name])

    @property
    def _store(self) -> Store:
        return self._window.view.store

    # --- while blows fall -----------------------------------------------------------------------------

    def strike_all(self) -> bool:
        """All blows of the seed, from when there is work, each when its time has come: one that took long is made up
        for by shorter pauses. False when nothing moved any more."""
        if not self._tried("the start", lambda: wait_until(self._moved, "the first work", READY_S, every=0.1)):
            return False
        due_ms = boot_ms()
        end_ms = due_ms + round(self._order.seconds * 1000)
        for blow in drawn(self._order.seed, self._order.seconds, soak=self._order.soak):
            due_ms += round(blow.after_s * 1000)
            next_ms = max(due_ms, boot_ms() + round(AFTER_S[0] * 1000))
            if not self._pass_until(min(end_ms, next_ms)) or boot_ms() >= end_ms:
                break
            restarts = self.hits.restarts
            if not self._tried(blow.kind, partial(self.striker.strike, blow)):
                break
            if self.hits.restarts > restarts:
                self._detector.begin_anew()
        if not self.dump:
            self._pass_until(end_ms)
        self.striker.go_on(at_once=True)
        return not self.dump

    def _tried(self, what: str, part: Callable[[], object]) -> bool:
        """False, a finding and a dump, where it can not be done."""
        try:
            part()
        except (AssertionError, KernelError, TimeoutError) as error:
            self.found.append(f"tree: after {what}: {error}")
            self.write_dump()
            return False
        return True

    def _pass_until(self, at_ms: int) -> bool:
        pause = threading.Event()
        while boot_ms() < at_ms:
            pause.wait(_TICK_S)
            self.striker.go_on()
            self.staff.look()
            self._hold_back()
            self._look_at_growth()
            if self._detector.stands_still(self._moved()):
                self.write_dump()
                return False
        return True

    def _moved(self) -> int:
        """Rows that wait for nothing do not move, and new ones are accepted even when nobody works: what counts is
        what activities did. Work is asked for all the time: where nothing is done, also nothing was accepted."""
        path = self._order.folder / "effects.jsonl"
        return path.stat().st_size if path.exists() else 0

    def _hold_back(self) -> None:
        hold = self._order.folder / HOLD
        if self.busy > LIVE_MAX:
            hold.touch()
        else:
            hold.unlink(missing_ok=True)

    @property
    def busy(self) -> int:
        """Workflows under way that do not just wait for a signal."""
        return sum(self.history.statuses.get(key) != "waiting" for key in self.sampler.live_ids())

    def _look_at_growth(self) -> None:
        if self._order.soak and boot_ms() >= self._next_look_ms:
            self._next_look_ms = boot_ms() + round(EVERY_S * 1000)
            named = [(child["name"], child["pid"]) for child in self._tree.children() if child["pid"]]
            self.growth.look([("supervisor", self._tree.session.pid), *named], boot_ms() / 1000)

    # --- when they are over -----------------------------------------------------------------------------

    def settle(self) -> None:
        """No more work comes, all signals are delivered, and everything comes to its end; else it is written down."""
        began_ms = boot_ms()
        (self._order.folder / HOLD).unlink(missing_ok=True)
        self.staff.stop("starter", "accepter", timeout=STAFF_S)
        self.staff.stop("signaller", timeout=STAFF_S)
        self.staff.stop("operator", timeout=STAFF_S)
        pause, end_ms = threading.Event(), boot_ms() + round(END_S * 1000)
        while not self._is_settled():
            if boot_ms() >= end_ms:
                self.write_dump()
                break
            pause.wait(0.5)
        self.settled_ms = boot_ms() - began_ms
        self.staff.stop("reader", timeout=STAFF_S)

    def _is_settled(self) -> bool:
        """Asked in this order: what costs most is asked last."""
        rows = self.live_rows()
        return (
            not any("claim_token" in row for row in rows)
            and not open_rows(rows, self.inbox("pending_time"))
            and all(fact.intent == "dispatched" for fact in self.object_facts())
        )

    def live_rows(self) -> list[Document]:
        """The rows that were not terminal when the sampler saw them last, as they are now."""
        found = (self._store.get(INSTANCES, workflow_id) for workflow_id in self.sampler.live_ids())
        return [row for row in found if row is not None]

    def _ids(self) -> list[str]:
        return [row[0] for row in self._pages(INSTANCES, "created_time", ("workflow_id",), "workflow_id")]

    def inbox(self, order: str = "signal_id") -> list[Document]:
        """All signals, or by `pending_time` those that no wait has taken."""
        columns = ("signal_id", "workflow_id", "signal_type", "wait_key", "generation", "pending_time", "match_time")
        return [dict(zip(columns, row, strict=True)) for row in self._pages(SIGNALS, order, columns, "signal_id")]

    def _pages(self, table: str, order: str, columns: tuple[str, ...], key: str) -> Iterator[tuple[Any, ...]]:
        asked = (*columns, order, key)
        after: tuple[Any, str] | None = None
        while page := self._store.scan(Query(table, (), order, asked, 1_000, after)):
            for row in page:
                yield row[: len(columns)]
            after = (page[-1][-2], page[-1][-1])

    def object_facts(self) -> list[ObjectFact]:
        facts: list[ObjectFact] = []
        after: str | None = None
        while page := self._window.view.objects.page(after=after, limit=500):
            after = page[-1][ORDERS.key]
            for fields in page:
                found = self._window.view.objects.get(fields[ORDERS.key])
                if found is not None and found.intent is not None:
                    result = found.fields.get("result") or {}
                    facts.append(
                        ObjectFact(
                            object_id=found.object_id,
                            status=str(found.status),
                            round=found.intent.fencing_token,
                            intent=found.intent.status,
                            result_round=result.get("round"),
                        )
                    )
        return facts

    def write_dump(self) -> None:
        pids = self._tree.pids("worker") + self._tree.pids("dispatcher")
        url = embedded_redis_url(self._order.folder)
        self.dump = dump(self._order.folder, self.live_rows(), self.inbox(), self.object_facts(), pids, url)

    def evidence(self, service: Downstream) -> Evidence:
        """Everything, when the tree has been stopped: each row is read once more and compared with its last sight."""
        rows = []
        for workflow_id in self._ids():
            row = self._store.get(INSTANCES, workflow_id)
            if row is not None:
                self.history.see(row)
                rows.append(slim(row))
        return Evidence(
            rows=rows,
            earlier_runs=self.history.earlier_runs,
            effects=self._effects.all(),
            words=JsonLines(self._order.folder / WORDS, Word).more(),
            inbox=self.inbox(),
            objects=self.object_facts(),
            calls=service.calls(),
            frames=JsonLines(self._order.folder / FRAMES, Seen).more(),
            hits=self.hits,
            slots=self._tree.config.slots,
            workers=self._tree.config.workers,
            permit_lease_s=self._tree.config.permit_lease_s,
        )


@contextmanager
def _begun(order: Order) -> Iterator[tuple[Run, Downstream, ExitStack]]:
    with open(order.folder / "stderr", "ab") as stderr, ExitStack() as outer:
        service = outer.enter_context(closing(Downstream(order.folder)))
        with ExitStack() as inner:
            tree = inner.enter_context(Tree(settings(order.folder), stderr, None if order.soak else PROGRAM))
            staff = Staff(order.folder, order.seed, order.rate, order.listeners, stderr, _ROLES)
            inner.enter_context(closing(staff))
            yield Run(order, tree, staff, outer), service, inner


def run(order: Order) -> Verdict:
    """Run it, and judge. The data folder is the caller's."""
    order.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    began_ms = boot_ms()
    with _begun(order) as (running, service, tree_and_staff):
        if running.strike_all():
            running.settle()
        tree_and_staff.close()
        evidence = running.evidence(service)
        found = [*running.found, *running.history.found, *running.staff.found, *violations(evidence)]
        reached = sizes(evidence)
        if order.soak:
            found += running.growth.findings()
        else:
            found += too_small(reached, order.seconds)
    (order.folder / "hits.json").write_bytes(msgspec.json.encode(evidence.hits))
    (order.folder / "growth.json").write_bytes(msgspec.json.encode(running.growth.curves()))
    (order.folder / "blows").write_text("\n".join(running.striker.log) + "\n")
    stuck = len(open_rows(evidence.rows, evidence.inbox)) or bool(running.dump)
    line = _line(evidence, len(found), int(stuck), (boot_ms() - began_ms) / 1000)
    more = running.growth.summary() if order.soak else table(reached, order.seconds)
    return Verdict(line, found, running.dump, [*_notes(evidence, running), *more])


def _line(e: Evidence, found: int, stuck: int, seconds: float) -> str:
    told = [word for word in e.words if word.told]
    fan_outs = sum(row["type"] == "tells" and row["status"] == "completed" for row in e.rows)
    counted = Counter(word.what for word in told)
    hits = e.hits
    return (
        f"chaos: seconds={seconds:.0f} workflows={len(e.rows)} signals={counted['signal']} fan_outs={fan_outs} "
        f"kills={hits.kills} pauses={len(hits.pauses)} flushes={hits.flushes} restarts={hits.restarts} "
        f"store_restarts={len(hits.store_restarts)} child_deaths={hits.deaths} "
        f"violations={found} stuck={stuck}"
    )


def _notes(e: Evidence, running: Run) -> list[str]:
    statuses = Counter(f"{row['type']}:{'parked' if 'parked' in row else row['status']}" for row in e.rows)
    taken = sum(step.get("takeovers", 0) for row in e.rows for step in row["steps"])
    return [
        f"looks={running.history.looks} effects={len(e.effects)} frames={len(e.frames)} calls={len(e.calls)} "
        f"objects={len(e.objects)} takeovers={taken} stalls={len(e.hits.stalls)} "
        f"settled_s={running.settled_ms / 1000:.1f}",
        " ".join(f"{name}={count}" for name, count in sorted(statuses.items())),
    ]
