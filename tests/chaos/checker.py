"""What must be true when everything has come to its end: rows, inbox, objects and ledgers (RELIABILITY §3.1).

A finding is a text that begins with the invariant that is broken. Nothing is taken from logs. What a pause, a wipe or a
machine that stood still excuses is said where it is excused; everything else is strict.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from kernel.codec import decode
from kernel.ids import workflow_id_for
from kernel.records import Document
from kernel.states import TERMINAL
from tests.chaos.app import AT_ONCE, CALL_S, PAGE, PAGES, PAUSE, RESUME, ROUND, STARTS, TIMER
from tests.chaos.hits import CLOCK_MS, Hits, Span
from tests.chaos.words import Seen, Word
from tests.faults.downstream import Call, most_at_once, too_many_starts
from tests.faults.effects import ENTER, LEAVE, Effect

SUSPENDING = frozenset(("nap", "wait", "turn", "long", "listen", "tell_subscribers"))
"""Steps that are entered more than once in one attempt."""
WAVE_WIDTH = 3


class ObjectFact(msgspec.Struct, frozen=True):
    """A business object as it stands at the end."""

    object_id: str
    status: str
    round: str
    intent: str
    result_round: str | None = None


class Evidence(msgspec.Struct):
    """All that the checker reads."""

    rows: list[Document]
    earlier_runs: list[Document] = []
    effects: list[Effect] = []
    words: list[Word] = []
    inbox: list[Document] = []
    """signal_id, workflow_id, signal_type, wait_key, generation, pending_time, match_time."""
    objects: list[ObjectFact] = []
    calls: list[Call] = []
    frames: list[Seen] = []
    hits: Hits = msgspec.field(default_factory=Hits)
    slots: int = 4
    workers: int = 3
    permit_lease_s: float = 1.5


def violations(evidence: Evidence) -> list[str]:
    """Every broken rule."""
    return [
        *accepted_once(evidence),
        *done_is_done(evidence),
        *entered_once_an_attempt(evidence),
        *side_by_side(evidence),
        *made_by_its_holder(evidence),
        *extra_entries(evidence),
        *rounds(evidence),
        *signals(evidence),
        *timers(evidence),
        *limits(evidence),
        *streams(evidence),
        *by_hand(evidence),
        *ended_as_they_should(evidence),
    ]


# --- S1, S2: what was accepted ----------------------------------------------------------------------------


def accepted_once(e: Evidence) -> Iterator[str]:
    counted = Counter(row["biz_key"] for row in e.rows)
    asked = {word.key for word in e.words if word.what == "start"}
    asked |= {f"served:{word.key}" for word in e.words if word.what == "object"}
    for key in sorted({word.key for word in e.words if word.what == "start" and word.told}):
        if not counted[key]:
            yield f"S1: {key} was told to have started and is nowhere"
    for key, count in counted.items():
        if count > 1:
            yield f"S2: {key} has {count} rows"
    for row in e.rows:
        if row["workflow_id"] != workflow_id_for(row["biz_key"]):
            yield f"S2: {row['biz_key']} has the id {row['workflow_id']}"
        if row["biz_key"] not in asked and row["type"] != "tells":
            yield f"S1: {row['biz_key']} was started by nobody"
    known = {fact.object_id: fact for fact in e.objects}
    for word in e.words:
        if word.what == "object" and word.told and word.note in ("registered", "accepted"):
            if word.key not in known:
                yield f"S1: {word.key} was told to be {word.note} and does not exist"
            elif not counted[f"served:{word.key}"]:
                yield f"S1: {word.key} was told to be {word.note} and has no workflow"
    for fact in e.objects:
        if fact.intent != "dispatched":
            yield f"S1: the intent of {fact.object_id} is {fact.intent}"


# --- S3, S4: attempts and their ends ------------------------------------------------------------------------


def done_is_done(e: Evidence) -> Iterator[str]:
    """S4: a step that has ended in a run is not entered again in it. No clock is asked: only a beginning that was
    committed gives the next number, and none can be committed after the end."""
    ended = {
        (row["workflow_id"], row["workflow_run"], step["name"]): step["attempt"]
        for row in (*e.earlier_runs, *e.rows)
        for step in row["steps"]
        if step["status"] in ("completed", "skipped")
    }
    for effect in e.effects:
        last = ended.get((effect.workflow_id, effect.run, str(effect.step)))
        if last is not None and effect.attempt > last:
            which = f"{effect.what} in attempt {effect.attempt} of {effect.step}"
            yield f"S4: {effect.workflow_id}: {which}, ended in {last}"


def entered_once_an_attempt(e: Evidence) -> Iterator[str]:
    """S3: only a committed beginning is an attempt, and it is entered at most once."""
    counted = Counter(
        (x.workflow_id, x.run, x.step, x.attempt)
        for x in e.effects
        if x.what == ENTER and x.step is not None and x.step not in SUSPENDING
    )
    for (workflow_id, run, step, attempt), count in counted.items():
        if count > 1:
            yield f"S3: {workflow_id} run {run}: attempt {attempt} of {step} was entered {count} times"


def side_by_side(e: Evidence) -> Iterator[str]:
    """S3: two invocations of a step overlap only where the first one's process stood still past its lease."""
    inside: dict[tuple[object, ...], Effect] = {}
    spans: dict[tuple[object, ...], list[tuple[Effect, int]]] = defaultdict(list)
    for effect in e.effects:
        step = (effect.workflow_id, effect.run, effect.step)
        if effect.what == ENTER:
            inside[(*step, effect.worker_id)] = effect
        elif effect.what == LEAVE and (*step, effect.worker_id) in inside:
            spans[step].append((inside.pop((*step, effect.worker_id)), effect.at_ms))
    for invocations in spans.values():
        invocations.sort(key=lambda invocation: invocation[0].at_ms)
        for (first, left_ms), (second, _) in pairwise(invocations):
            if second.at_ms < left_ms and not e.hits.excuses(first.pid, first.at_ms - 5_000, left_ms):
                yield f"S3: {first.workflow_id}: {first.step} by {first.pid} and {second.pid} side by side"


def made_by_its_holder(e: Evidence) -> Iterator[str]:
    """S3: a committed output is that of the attempt and the worker that the record names; a stale one is seen here."""
    for row in (*e.earlier_runs, *e.rows):
        for step in row["steps"]:
            data = row["outputs"].get(step["name"])
            output = None if data is None else decode(data, Any, "output")
            if not isinstance(output, dict) or "by" not in output:
                continue
            told, known = (output["by"], output["attempt"]), (step.get("worker_id"), step["attempt"])
            if told != known:
                yield f"S3: {row['biz_key']}: the output of {step['name']} is of {told}, the record of {known}"


def extra_entries(e: Evidence) -> Iterator[str]:
    """Steps taken over from who died or stood still: no more than processes hit, times what each may hold at once."""
    taken = sum(step.get("takeovers", 0) for row in (*e.earlier_runs, *e.rows) for step in row["steps"])
    allowed = (e.hits.processes + e.workers * len(e.hits.stalls)) * e.slots * WAVE_WIDTH
    if taken > allowed:
        yield f"extra: {taken} steps were taken over, the {e.hits.processes} processes hit explain {allowed}"


# --- S7: business rounds ------------------------------------------------------------------------------------


class _Landed(NamedTuple):
    round: str
    began_ms: int
    at_ms: int


def rounds(e: Evidence) -> Iterator[str]:
    """S7: once a later round has written, an earlier one writes nothing any more; the result is of the last round."""
    landed: dict[str, list[_Landed]] = defaultdict(list)
    for effect in e.effects:
        if effect.what == ROUND:
            note = msgspec.json.decode(effect.note)
            if note["landed"]:
                landed[note["object"]].append(_Landed(note["round"], note["began_ms"], effect.at_ms))
    for fact in e.objects:
        if fact.result_round is not None and fact.result_round != fact.round:
            yield f"S7: {fact.object_id} is in round {fact.round} and holds a result of {fact.result_round}"
        writes = landed[fact.object_id]
        now = [write for write in writes if write.round == fact.round]
        if now:
            since_ms = min(write.at_ms for write in now)
            for write in writes:
                if write.round != fact.round and write.began_ms > since_ms:
                    late_ms = write.began_ms - since_ms
                    yield f"S7: {fact.object_id}: round {write.round} wrote {late_ms} ms after {fact.round}"


# --- S9, S10: what woke whom --------------------------------------------------------------------------------


def signals(e: Evidence) -> Iterator[str]:
    """S9: a signal wakes one wait, of its own generation; what is told is in the inbox, once."""
    rows = {row["signal_id"]: row for row in e.inbox}
    if len(rows) != len(e.inbox):
        yield "S9: the inbox holds a signal twice"
    woke: dict[str, set[tuple[object, ...]]] = defaultdict(set)
    for effect in e.effects:
        if effect.what != RESUME:
            continue
        kind, generation, signal_id = effect.note.split(" ", 2)
        if kind != "signal":
            continue
        woke[signal_id].add((effect.workflow_id, effect.run, effect.step, int(generation)))
        row = rows.get(signal_id)
        if row is None:
            yield f"S9: {effect.workflow_id} was woken by {signal_id}, which is not in the inbox"
        elif (row["workflow_id"], row["generation"]) != (effect.workflow_id, int(generation)):
            yield f"S9: {signal_id} is for generation {row['generation']} and woke generation {generation}"
        elif row["match_time"] is None:
            yield f"S9: {signal_id} woke {effect.workflow_id} and is still pending"
    for signal_id, waits in woke.items():
        if len(waits) > 1:
            yield f"S9: {signal_id} woke {len(waits)} waits"
    for word in e.words:
        if word.what == "signal" and word.told and word.key not in rows:
            yield f"S9: {word.key} was told to be delivered and is not in the inbox"


def timers(e: Evidence) -> Iterator[str]:
    """S10: no sleep ends before its time, and none ends twice in one attempt that nobody took over."""
    for effect in e.effects:
        if effect.what == TIMER:
            count, begun_ms = effect.note.split()
            slept_ms = e.hits.store_ms(effect.at_ms).to_ms - e.hits.store_ms(int(begun_ms)).from_ms
            early_ms = round(PAUSE.total_seconds() * 1000) - slept_ms
            if early_ms > CLOCK_MS:
                yield f"S10: {effect.workflow_id}: sleep {count} ended {early_ms} ms early"
    yield from _more_often(e, TIMER, "S10", "was woken from one sleep")
    yield from _more_often(e, PAGE, "S4", "turned one page")


def _more_often(e: Evidence, what: str, name: str, words: str) -> Iterator[str]:
    """How often one and the same stretch of a step was entered: once, and once more for each death or takeover."""
    counted = Counter((x.workflow_id, x.run, x.step, x.note.split()[0], x.attempt) for x in e.effects if x.what == what)
    for (workflow_id, _, _, part, _), count in counted.items():
        if count > 1:
            yield f"{name}: {workflow_id} {words} ({part}) {count} times"


# --- S11: places ----------------------------------------------------------------------------------------------


def limits(e: Evidence) -> Iterator[str]:
    """S11, by the service's own count. Whose process stood still past its lease is not counted any more (its calls go
    on); after a wipe of Redis at most as many again hold places until they have renewed, and until they end."""
    calls = [call for call in e.calls if not e.hits.excuses(call.pid, call.start_ms, call.end_ms or call.start_ms)]
    slack_ms = round(e.permit_lease_s * 1000 / 3) + round(CALL_S * 1000) + 1_000
    wipes = [Span(span.from_ms, span.to_ms + slack_ms) for span in e.hits.wipes]
    calm = [call for call in calls if not any(s.meets(call.start_ms, call.end_ms or call.start_ms) for s in wipes)]
    for found, limit, when in ((calm, AT_ONCE, "in calm"), (calls, 2 * AT_ONCE, "around a wipe")):
        most = most_at_once(found)
        if most > limit:
            yield f"S11: {most} calls at once {when}, at most {limit} are allowed"
        said = too_many_starts(found, STARTS * limit // AT_ONCE, limit)
        if said is not None:
            yield f"S11: {said}, {when}"


# --- S14: readers ---------------------------------------------------------------------------------------------


def streams(e: Evidence) -> Iterator[str]:
    """S14: between two resets a reader sees one generation, of one attempt, in order; and nothing after the end."""
    readers: dict[str, list[Seen]] = defaultdict(list)
    for seen in e.frames:
        readers[seen.reader].append(seen)
    for reader, events in readers.items():
        shown: set[tuple[int, int, int]] = set()
        offset = -1
        for number, seen in enumerate(events):
            if seen.event == "reset":
                shown, offset = set(), -1
            elif seen.event == "terminal" and number != len(events) - 1:
                yield f"S14: {reader} was given more after the end"
            elif seen.event == "frame":
                shown.add((seen.generation, seen.run, seen.attempt))
                if len(shown) > 1:
                    yield f"S14: {reader} was given frames of {sorted(shown)} in one view"
                    break
                if seen.offset <= offset:
                    yield f"S14: {reader} was given offset {seen.offset} after {offset}"
                offset = seen.offset


# --- ends -----------------------------------------------------------------------------------------------------


def by_hand(e: Evidence) -> Iterator[str]:
    """S6: what an operator was told to have ended is canceled, and a replay that was told has made a run."""
    rows = {row["biz_key"]: row for row in e.rows}
    replays = Counter(word.key for word in e.words if word.what == "replay" and word.told and word.note == "replayed")
    asked = Counter(word.key for word in e.words if word.what == "replay" and not word.told)
    for word in e.words:
        if word.what == "supersede" and word.told and word.note == "changed" and rows[word.key]["status"] != "canceled":
            yield f"S6: {word.key} was superseded and is {rows[word.key]['status']}"
    for key, row in rows.items():
        if row["type"] == "fails" and not 1 + replays[key] <= row["workflow_run"] <= 1 + max(asked[key], replays[key]):
            yield f"S6: {key} is in run {row['workflow_run']} after {replays[key]} replays"


def waits_for_nothing(row: Document, pending: Iterable[Document]) -> bool:
    """Whether a row waits for signals alone, none of which has arrived."""
    waits = [step["wait"] for step in row["steps"] if "wait" in step]
    if row["status"] != "waiting" or not waits or any("poll_time" in w or w["kind"] != "signal" for w in waits):
        return False
    wanted = {(w["signal_type"], w["wait_key"], w["generation"]) for w in waits}
    return not any((s["signal_type"], s["wait_key"], s["generation"]) in wanted for s in pending)


def open_rows(rows: Iterable[Document], inbox: Iterable[Document]) -> list[Document]:
    """The rows that are neither terminal, nor parked with a reason, nor waiting for what truly did not happen."""
    pending: dict[str, list[Document]] = defaultdict(list)
    for signal in inbox:
        if signal["match_time"] is None:
            pending[signal["workflow_id"]].append(signal)
    return [
        row
        for row in rows
        if row["status"] not in TERMINAL
        and not row.get("parked", {}).get("reason")
        and not waits_for_nothing(row, pending[row["workflow_id"]])
    ]


def ended_as_they_should(e: Evidence) -> Iterator[str]:
    """Claims are given back, and each workflow has come to the end that its type has."""
    for row in e.rows:
        if "claim_token" in row:
            yield f"end: {row['biz_key']} is claimed by {row['worker']} and nothing runs"
    for row in open_rows(e.rows, e.inbox):
        yield f"end: {row['biz_key']} is {row['status']} at revision {row['revision']}"
    expected = {"cut": {"completed", "canceled"}, "fails": {"completed", "failed"}, "served": {"completed", "failed"}}
    turned: dict[str, set[int]] = defaultdict(set)
    for effect in e.effects:
        if effect.what == PAGE:
            turned[effect.workflow_id].add(int(effect.note))
    for row in e.rows:
        if row["status"] in TERMINAL and row["status"] not in expected.get(row["type"], {"completed"}):
            yield f"end: {row['biz_key']} is {row['status']}: {row.get('error')}"
        pages = sorted(turned[row["workflow_id"]])
        if row["type"] == "pages" and row["status"] == "completed" and pages != list(range(PAGES + 1)):
            yield f"end: {row['biz_key']} turned the pages {pages}"
