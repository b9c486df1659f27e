"""Boundaries 46–53: signals come, wake, and are marked; and one event is told to many."""

from __future__ import annotations

from fanout import FanOutEvent, start_fan_out
from fanout.event import fan_out_key
from kernel import transitions
from kernel.ids import workflow_id_for
from kernel.records import Document
from kernel.store.tables import SIGNALS
from tests.simulation.crash.fault import Call
from tests.simulation.crash.scenes import scene
from tests.simulation.crash.stage import INDEX_MS, SETTINGS, TAKEOVER_MS, Stage
from tests.simulation.crash.waiting import KEY
from tests.simulation.crash.working import checked
from tests.simulation.flows import SIGNAL, Item, wait_key

L6_MS = INDEX_MS


def waits(s: Stage, *, dispatchers: int = 1) -> str:
    """A workflow that waits for a signal, and nothing else; its id."""
    flow = s.flow(s.script("a", Item("told")), s.work("b"))
    s.staff(dispatchers=dispatchers)
    workflow_id = s.start(flow)
    s.until(lambda: s.status(workflow_id) == "waiting", "it waits")
    return workflow_id


def inbox(s: Stage) -> Document | None:
    return s.store.get(SIGNALS, "told")


def woken_once(s: Stage, workflow_id: str) -> None:
    """The signal has woken its wait, is marked, and will never wake another one."""
    checked(s, workflow_id, "completed", {"a": 2, "b": 1}, (1, 1))
    assert s.plant.hits["activate_signal"] == 1

    def marked() -> bool:
        row = inbox(s)
        return row is not None and row["status"] == "matched"

    s.until(marked, "it is marked", L6_MS)
    row = inbox(s) or {}
    assert row["match_time"] >= row["created_time"] and "pending_time" not in row
    assert s.plant.hits["mark_matched"] == 1


@scene("46", "receive_signal")
def a_signal_is_stored(s: Stage) -> None:
    """Its producer repeats, with the same id, until somebody has said that it is there."""
    workflow_id = waits(s)
    s.arm("receive_signal", "api")
    asked = s.ask(s.tell(workflow_id, KEY))
    s.fired()
    assert (inbox(s) is None) == (s.point == "a")
    if s.point == "b":
        s.until(lambda: asked.done, "an answer")
        assert not asked.answer.duplicate
    else:
        again = s.answered(s.tell(workflow_id, KEY))
        assert again.duplicate == (s.point == "c"), "a duplicate is no error"
    woken_once(s, workflow_id)
    assert s.answered(s.tell(workflow_id, KEY)).duplicate
    assert s.plant.hits["receive_signal"] == 1


@scene("47", "activate_signal")
def a_signal_wakes(s: Stage) -> None:
    workflow_id = waits(s)
    before = s.instance(workflow_id)
    s.arm("activate_signal", "api", workflow_id)
    s.ask(s.tell(workflow_id, KEY))
    s.fired()
    row = s.instance(workflow_id)
    if s.point != "a":
        assert row.resume is not None and (row.resume.kind, row.resume.signal_id) == ("signal", "told")
        assert (row.steps[0].last_signal_id, row.wait, row.status) == ("told", None, "running")
    late = transitions.activate_signal(before, 0, signal_id="told", now_ms=s.hub.now_ms, commit_id="late")
    s.until(lambda: s.plant.hits["activate_signal"] == 1, "it is woken", L6_MS)
    assert s.misses(late), "at most one wait, at most once"
    woken_once(s, workflow_id)


@scene("48", "mark_matched")
def a_signal_is_marked(s: Stage) -> None:
    """Filled later, from the step that bears the id; never a second activation."""
    workflow_id = waits(s)
    s.arm("mark_matched", key="told")
    s.ask(s.tell(workflow_id, KEY))
    s.fired()
    row = inbox(s)
    assert row is not None and row["status"] == s.pick("pending", "matched", "matched")
    woken_once(s, workflow_id)


@scene("49", "lanes.push")
def what_a_signal_has_woken_is_queued(s: Stage) -> None:
    workflow_id = waits(s)
    s.arm("lanes.push", when=lambda call: s.plant.hits_of[call.process, "activate_signal"] == 1)
    s.ask(s.tell(workflow_id, KEY))
    s.fired()
    s.until(lambda: s.entries(workflow_id, "a") == (2,), "the scan finds it", INDEX_MS)
    woken_once(s, workflow_id)


@scene("49", "lanes.wakeup")
def workers_are_woken_for_a_signal(s: Stage) -> None:
    workflow_id = waits(s)
    s.wakeups()
    s.arm("lanes.wakeup", when=lambda call: s.plant.hits_of[call.process, "activate_signal"] == 1)
    s.ask(s.tell(workflow_id, KEY))
    s.fired()
    s.until(lambda: s.entries(workflow_id, "a") == (2,), "the poll finds it", SETTINGS.poll_ms + 1_000)
    woken_once(s, workflow_id)


def unmatched(s: Stage) -> str:
    """A signal that is stored beside the wait that it matches: its producer was killed between the two writes."""
    workflow_id = waits(s, dispatchers=2)
    producer = s.arm("receive_signal", "api", point="c")
    s.ask(s.tell(workflow_id, KEY))
    s.until(lambda: bool(producer.fired), "its producer is dead")
    return workflow_id


@scene("50", f"scan {SIGNALS} by pending_time")
def the_inbox_is_swept(s: Stage) -> None:
    """By several at once, as it comes."""
    workflow_id = unmatched(s)
    s.arm(f"scan {SIGNALS} by pending_time")
    s.fired()
    s.until(lambda: s.plant.hits["activate_signal"] == 1, "it is matched (L6)", L6_MS)
    woken_once(s, workflow_id)


@scene("50", "activate_signal")
def the_sweep_wakes(s: Stage) -> None:
    workflow_id = unmatched(s)
    s.arm("activate_signal", key=workflow_id)
    s.fired()
    s.until(lambda: s.plant.hits["activate_signal"] == 1, "it is matched (L6)", L6_MS)
    woken_once(s, workflow_id)


def forgotten(s: Stage, call: str, keep_ms: int) -> None:
    """Rows that nobody can miss are removed; who removes them dies, and the next pass does it."""
    s.until(lambda: inbox(s) is not None, "it is stored")
    s.hub.jump(keep_ms)
    s.arm(call, key="told")
    s.fired()
    assert (inbox(s) is None) == (s.point != "a")
    s.until(lambda: inbox(s) is None, "it is gone", TAKEOVER_MS)
    assert s.plant.hits[call] == 1


@scene("50", "forget_matched")
def a_signal_that_was_used_is_forgotten(s: Stage) -> None:
    workflow_id = waits(s)
    s.answered(s.tell(workflow_id, KEY))
    woken_once(s, workflow_id)
    forgotten(s, "forget_matched", SETTINGS.signal_matched_keep_ms)


@scene("50", "forget_pending")
def a_signal_for_nobody_is_forgotten(s: Stage) -> None:
    s.staff()
    s.answered(s.tell(workflow_id_for("nobody"), "nobody"))
    forgotten(s, "forget_pending", SETTINGS.signal_pending_keep_ms)


EVENT = FanOutEvent(event_id="event-0", signal_type=SIGNAL, wait_key="everybody", identities={"list": "event-0"})
SUBSCRIBERS = 5


def told_to_all(s: Stage, call: str, first: int = 0) -> None:
    """Five subscribers, two a page. The fault comes at the first such call after `first` pages were told."""
    item = Item("told")
    flow = s.flow(s.script("a", item), s.work("b"))
    s.staff()
    ids = [s.start(flow, f"sub-{number}") for number in range(SUBSCRIBERS)]
    s.until(lambda: all(s.status(one) == "waiting" for one in ids), "all wait")
    keys = [wait_key(f"sub-{number}", "a", item) for number in range(SUBSCRIBERS)]
    s.audience[EVENT.event_id] = [(one, key, 0) for one, key in zip(ids, keys, strict=True)]
    s.facts.update((key, 0) for key in keys)

    def on_that_page(at: Call) -> bool:
        return s.plant.hits["yield_step"] == first

    s.arm(call, "worker", when=on_that_page)
    s.answered(lambda api: start_fan_out(api.client, s.fan_out, EVENT))
    s.fired()
    fan_id = workflow_id_for(fan_out_key(s.fan_out.type, EVENT))
    told = s.instance(fan_id)
    if call == "yield_step":
        assert (told.steps[0].checkpoint is None) == (s.point == "a" and first == 0)
    end = s.ended(fan_id)
    assert end.status == "completed"
    for one in ids:
        assert s.ended(one).status == "completed", "no subscriber is skipped"
        # Whoever was killed may have been at work for a subscriber as well, which is entered once more then.
        assert sum(s.entries(one, "a", "b")) <= 3 + int(s.killed)
    assert s.plant.hits["activate_signal"] == s.plant.hits["receive_signal"] == SUBSCRIBERS, "the same ids each time"
    assert s.plant.made_in["page.read"] == 3 + s.pick(*REPEATS[call])


REPEATS = {"page.read": (0, 1, 1), "receive_signal": (1, 0, 1), "yield_step": (1, 0, 0)}
"""How many pages more were read than there are."""


@scene("51", "page.read")
def a_page_is_read(s: Stage) -> None:
    told_to_all(s, "page.read", first=1)


@scene("52", "receive_signal")
def a_page_is_told(s: Stage) -> None:
    told_to_all(s, "receive_signal", first=1)


@scene("52", "receive_signal")
def the_first_page_is_told(s: Stage) -> None:
    told_to_all(s, "receive_signal")


@scene("53", "yield_step")
def a_page_is_behind(s: Stage) -> None:
    told_to_all(s, "yield_step")


@scene("53", "yield_step")
def the_second_page_is_behind(s: Stage) -> None:
    told_to_all(s, "yield_step", first=1)
