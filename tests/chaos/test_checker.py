"""The checker finds what it looks for: evidence that is whole passes, and each single fault is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kernel.codec import encode
from kernel.ids import workflow_id_for
from tests.chaos.app import AT_ONCE, RESOURCE, RESUME, ROUND, STARTS, TIMER
from tests.chaos.checker import Evidence, ObjectFact, violations
from tests.chaos.history import History, between, halves
from tests.chaos.hits import Hits, Pause, Span
from tests.chaos.words import Seen, Word
from tests.faults.downstream import Call
from tests.faults.effects import EFFECT, ENTER, LEAVE, Effect

KEY, WAITING, ORDER = "chain:1:1", "waits:1:1", "order-1"
ID, WAITING_ID = workflow_id_for(KEY), workflow_id_for(WAITING)
BELL = f"bell:{WAITING}:1"
LONG_AGO = 1_000_000
TOO_MANY_STARTS = range(1_000, 1_000 + 2 * (STARTS + AT_ONCE + 1), 2)


def row(key: str, type_: str, step: str, **fields: Any) -> dict[str, Any]:
    made = encode({"by": "w1", "attempt": 1, "value": 0}, "output", 1_000)
    done = {"name": step, "status": "completed", "attempt": 1, "worker_id": "w1", "finish_time": 1_000}
    whole: dict[str, Any] = {
        "workflow_id": workflow_id_for(key), "biz_key": key, "type": type_, "status": "completed", "revision": 5,
        "workflow_run": 1, "outputs": {step: made}, "steps": [done], "commit_ids": ["c1", "c2", "c3", "c4", "c5"],
    }  # fmt: skip
    return whole | fields


def effect(what: str, at_ms: int, note: str = "", **fields: Any) -> Effect:
    known: dict[str, Any] = {
        "what": what, "at_ms": at_ms, "wall_ms": at_ms, "pid": 1, "worker_id": "w1", "workflow_id": ID, "run": 1,
        "step": "a", "attempt": 1, "note": note,
    }  # fmt: skip
    return Effect(**(known | fields))


def business_write(round_: str, began_ms: int, at_ms: int) -> Effect:
    note = {"object": ORDER, "round": round_, "landed": True, "began_ms": began_ms}
    return effect(ROUND, at_ms, msgspec.json.encode(note).decode(), workflow_id=f"of {round_}", step=None)


def bell(**fields: Any) -> dict[str, Any]:
    known = {
        "signal_id": BELL, "workflow_id": WAITING_ID, "signal_type": "bell", "wait_key": WAITING, "generation": 1,
        "pending_time": None, "match_time": 700,
    }  # fmt: skip
    return known | fields


WOKEN = effect(RESUME, 800, f"signal 1 {BELL}", workflow_id=WAITING_ID, step="wait")


def whole() -> Evidence:
    """Three workflows, an object, a signal, two calls, one reader: all as it should be."""
    told = [
        Word(what="start", key=KEY, told=True, of="chain"),
        Word(what="signal", key=BELL, told=True, of=WAITING_ID),
        Word(what="object", key=ORDER, told=True, note="registered"),
    ]
    return Evidence(
        rows=[row(KEY, "chain", "a"), row(WAITING, "waits", "wait"), row(f"served:{ORDER}", "served", "serve")],
        effects=[
            effect(ENTER, 900), effect(EFFECT, 950), effect(LEAVE, 990), WOKEN, effect(TIMER, 900, "1 700", step="nap"),
            business_write("f1", 100, 110), business_write("f2", 200, 210),
        ],
        words=[*(msgspec.structs.replace(word, told=False) for word in told), *told, Word(what="start", key=WAITING)],
        inbox=[bell()],
        objects=[ObjectFact(ORDER, "completed", "f2", "dispatched", "f2")],
        calls=[Call(1, RESOURCE, ID, 100, 200)] * AT_ONCE,
        frames=[seen("frame", 1, 0), seen("frame", 1, 1), seen("reset"), seen("frame", 2, 0), seen("terminal")],
    )  # fmt: skip


def seen(event: str, generation: int = 0, offset: int = 0, attempt: int = 1) -> Seen:
    return Seen(reader="r", workflow_id=ID, event=event, generation=generation, offset=offset, run=1, attempt=attempt)


def waiting_row(**fields: Any) -> dict[str, Any]:
    wait = {"kind": "signal", "signal_type": "bell", "wait_key": WAITING, "generation": 1, **fields}
    step = {"name": "wait", "status": "waiting", "attempt": 0, "wait": wait}
    return row(WAITING, "waits", "wait", status="waiting", outputs={}, steps=[step])


def test_what_is_whole_passes() -> None:
    assert violations(whole()) == []


def test_what_truly_waits_and_what_is_parked_with_a_reason_passes() -> None:
    evidence = whole()
    evidence.rows[1] = waiting_row()
    evidence.rows[0]["status"] = "running"
    evidence.rows[0]["parked"] = {"reason": "three deaths", "since_time": 1}
    evidence.inbox = [bell(generation=9)]
    evidence.effects.remove(WOKEN)
    assert violations(evidence) == []


Breaking = Callable[[Evidence], Any]
BROKEN: list[tuple[str, Breaking]] = [
    ("S1: chain:1:1 was told to have started and is nowhere", lambda e: e.rows.pop(0)),
    ("S1: chain:2:1 was started by nobody", lambda e: e.rows.append(row("chain:2:1", "chain", "a"))),
    ("S1: order-1 was told to be registered and has no workflow", lambda e: e.rows.pop(2)),
    ("S1: order-1 was told to be registered and does not exist", lambda e: e.objects.clear()),
    ("S1: the intent of order-1 is pending",
     lambda e: e.objects.append(ObjectFact(ORDER, "initial", "f2", "pending"))),
    ("S2: chain:1:1 has 2 rows", lambda e: e.rows.append(e.rows[0])),
    ("S2: chain:1:1 has the id wf-1", lambda e: e.rows[0].update(workflow_id="wf-1")),
    ("S3: " + ID + " run 1: attempt 1 of a was entered 2 times", lambda e: e.effects.append(effect(ENTER, 995))),
    ("a by 1 and 2 side by side",
     lambda e: e.effects.extend([effect(ENTER, 960, pid=2, worker_id="w2", attempt=2),
                                 effect(LEAVE, 970, pid=2, worker_id="w2", attempt=2)])),
    ("S3: chain:1:1: the output of a is of ('w1', 1), the record of ('w2', 2)",
     lambda e: e.rows[0]["steps"][0].update(worker_id="w2", attempt=2)),
    ("S4: " + ID + ": enter in attempt 2 of a, ended in 1",
     lambda e: e.effects.append(effect(ENTER, 1_100, attempt=2))),
    ("S4: " + ID + ": effect in attempt 2 of a, ended in 1",
     lambda e: e.effects.append(effect(EFFECT, 1_100, attempt=2))),
    ("extra: 1 steps were taken over", lambda e: e.rows[0]["steps"][0].update(takeovers=1)),
    ("S6: chain:1:1 was superseded and is completed",
     lambda e: e.words.append(Word(what="supersede", key=KEY, told=True, note="changed"))),
    ("S6: fails:1:1 is in run 2 after 0 replays",
     lambda e: (e.rows.append(row("fails:1:1", "fails", "a", workflow_run=2)),
                e.words.append(Word(what="start", key="fails:1:1")))),
    ("S7: order-1 is in round f2 and holds a result of f1",
     lambda e: e.objects.append(ObjectFact(ORDER, "completed", "f2", "dispatched", "f1"))),
    ("S7: order-1: round f1 wrote 90 ms after f2", lambda e: e.effects.append(business_write("f1", 300, 310))),
    ("S9: the inbox holds a signal twice", lambda e: e.inbox.append(bell())),
    ("is for generation 2 and woke generation 1", lambda e: e.inbox[0].update(generation=2)),
    ("is still pending", lambda e: e.inbox[0].update(match_time=None)),
    ("S9: " + BELL + " woke 2 waits",
     lambda e: e.effects.append(effect(RESUME, 850, f"signal 1 {BELL}", workflow_id=WAITING_ID, step="other"))),
    ("was told to be delivered and is not in the inbox", lambda e: e.inbox.clear()),
    ("S10: " + ID + ": sleep 1 ended 50 ms early",
     lambda e: e.effects.append(effect(TIMER, 850, "1 700", step="nap", attempt=2))),
    ("was woken from one sleep (1) 2 times", lambda e: e.effects.append(effect(TIMER, 901, "1 700", step="nap"))),
    (f"S11: {AT_ONCE + 1} calls at once in calm", lambda e: e.calls.append(Call(1, RESOURCE, ID, 150, 160))),
    (f"S11: {STARTS + AT_ONCE + 1} calls began within 1 s",
     lambda e: e.calls.extend(Call(1, RESOURCE, ID, at_ms, at_ms + 1) for at_ms in TOO_MANY_STARTS)),
    ("S14: r was given frames of [(1, 1, 1), (2, 1, 2)] in one view",
     lambda e: e.frames.insert(2, seen("frame", 2, 0, attempt=2))),
    ("S14: r was given offset 1 after 1", lambda e: e.frames.insert(2, seen("frame", 1, 1))),
    ("S14: r was given more after the end", lambda e: e.frames.append(seen("frame", 2, 1))),
    ("end: chain:1:1 is claimed by here/1/0", lambda e: e.rows[0].update(claim_token="t", worker="here/1/0")),
    ("end: chain:1:1 is running at revision 5", lambda e: e.rows[0].update(status="running")),
    ("end: chain:1:1 is failed", lambda e: e.rows[0].update(status="failed")),
    ("end: waits:1:1 is waiting",
     lambda e: (e.rows.__setitem__(1, waiting_row()), e.inbox.__setitem__(0, bell(match_time=None)))),
    ("end: waits:1:1 is waiting", lambda e: e.rows.__setitem__(1, waiting_row(poll_time=5))),
    ("end: pages:1:1 turned the pages []",
     lambda e: (e.rows.append(row("pages:1:1", "pages", "turn")), e.words.append(Word(what="start", key="pages:1:1")))),
]  # fmt: skip


@pytest.mark.req("dc-tests-fault")
@pytest.mark.parametrize(("words", "breaking"), BROKEN, ids=[words[:60] for words, _ in BROKEN])
def test_a_single_fault_is_named(words: str, breaking: Breaking) -> None:
    evidence = whole()
    breaking(evidence)
    assert words in "\n".join(violations(evidence))


def test_what_a_pause_or_a_wipe_explains_is_excused_and_nothing_beside_it() -> None:
    """A fifth call beside one whose process stood still, and around a wipe; an entry of who has just woken."""
    evidence = whole()
    evidence.calls.append(Call(2, RESOURCE, ID, 150, 160))
    assert len(violations(evidence)) == 1
    evidence.hits = Hits(pauses=[Pause(2, Span(100, 155))])
    assert violations(evidence) == []
    evidence.hits = Hits(wipes=[Span(90, 95)])
    assert violations(evidence) == []
    evidence.hits = Hits(wipes=[Span(LONG_AGO, LONG_AGO)])
    assert len(violations(evidence)) == 1
    evidence.calls.extend([Call(1, RESOURCE, ID, 150, 160)] * AT_ONCE)
    evidence.hits = Hits(wipes=[Span(90, 95)])
    assert "around a wipe" in "\n".join(violations(evidence)), "twice the limit, and no more"


def test_a_step_of_the_wall_clock_that_the_store_absorbed_or_followed_is_no_finding() -> None:
    """Times are the store's: what the wall says does not matter, and a step that it followed moves its time."""
    evidence = whole()
    evidence.effects = [msgspec.structs.replace(effect, wall_ms=effect.wall_ms + 10_000) for effect in evidence.effects]
    assert violations(evidence) == []
    evidence.hits = Hits(clock=[(0, 0), (5_000, 300)])
    assert evidence.hits.store_ms(900) == Span(900, 900)
    assert evidence.hits.store_ms(5_500) == Span(5_500, 5_800)
    assert evidence.hits.store_ms(9_000) == Span(9_300, 9_300)


def test_takeovers_are_excused_by_as_many_processes_as_were_hit() -> None:
    evidence = whole()
    evidence.rows[0]["steps"][0]["takeovers"] = 12
    evidence.hits = Hits(processes=1)
    assert violations(evidence) == []
    evidence.rows[0]["steps"][0]["takeovers"] = 13
    assert violations(evidence) == ["extra: 13 steps were taken over, the 1 processes hit explain 12"]


# --- sights of rows while work goes on ------------------------------------------------------------------------

LIVE = row(KEY, "chain", "a", status="running", claimable_time=9, revision=3, commit_ids=["c1", "c2", "c3"])
LATER = LIVE | {"revision": 4, "commit_ids": ["c1", "c2", "c3", "c4"]}


def test_a_row_that_goes_on_passes() -> None:
    history = History()
    replayed = row(KEY, "chain", "a", workflow_run=2, status="running", claimable_time=9, revision=6)
    for sight in (LIVE, LATER, LATER, row(KEY, "chain", "a", status="failed"),
                  replayed | {"commit_ids": [f"c{n}" for n in range(1, 7)]}):  # fmt: skip
        history.see(sight)
    assert history.found == []
    assert [earlier["status"] for earlier in history.earlier_runs] == ["failed"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"revision": 2}, "S3: chain:1:1 (revision 3 → 2): a revision was taken back"),
        ({"commit_ids": ["c1", "c2", "x"]}, "commit c3 is gone from the log"),
        ({"revision": 6}, "1 commits made more than as many revisions"),
        ({"revision": 3, "status": "waiting"}, "['status'] changed and the revision did not"),
        ({"outputs": {"a": b"other"}}, "S4: chain:1:1 (revision 3 → 4): the output of a changed"),
        ({"steps": [{"name": "a", "status": "pending"}]}, "step a was completed and became pending"),
    ],
)
def test_a_row_that_does_not_go_on_is_found(change: dict[str, Any], words: str) -> None:
    assert words in "\n".join(between(LIVE, LATER | change))


@pytest.mark.parametrize("status", ["completed", "canceled", "failed"])
def test_what_was_terminal_and_moves_again_is_found_unless_it_is_a_replay(status: str) -> None:
    ended = row(KEY, "chain", "a", status=status)
    moved = ended | {"status": "running", "revision": 6, "commit_ids": [*ended["commit_ids"], "c6"]}
    again = moved | {"workflow_run": 2}
    assert list(between(ended, moved)) == [f"S6: chain:1:1 (revision 5 → 6): was {status} and became running"]
    assert (list(between(ended, again)) == []) == (status == "failed")


def test_one_half_of_a_write_is_found_and_a_wait_for_a_signal_alone_is_none() -> None:
    assert list(halves(waiting_row())) == []
    assert "nobody will ever look" in "\n".join(halves(row(KEY, "chain", "a", status="running")))
    assert "S5" in "\n".join(halves(row(KEY, "chain", "a", outputs={})))
