"""Why is it not moving? The one thing that a workflow waits for, in a sentence, and what one can do about it.

Read from a snapshot alone, as of a moment by the store's clock. A snapshot is made by events, and none tells that a
time has come: whatever was to go on by itself, and has not, is due and waits for a worker (ops-where-stuck).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec

from kernel.observe.views import Snapshot, StepView, Waiting
from kernel.records import ErrorRecord
from supervisor.ops_hindrance import Hindrance
from supervisor.ops_shell import Given, clock_text, many, span_text

_ERROR_SHOWN = 300

Holder = Literal["runs", "silent", "gone", "unknown"]
"""Whether the worker runs that holds the claim in a snapshot: one that is dead or stopped makes no event
(`supervisor.ops_workers`)."""


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What is known beside a snapshot at the moment at which it is read."""

    holder: Holder = "unknown"
    hindrance: Hindrance | None = None
    """Why nobody takes it, of one that is due."""
    is_redis_away: bool = False
    """Of one that waits for a permit."""
    names: Mapping[str, str] = {}
    """Of workers that are known as more than an id."""
    given: Given = Given()


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """`waiting` is None for a workflow that has ended. Times are ms by the store's clock; `until` is when it goes on by
    itself at the latest, None when nobody knows or it never does. `help` is a command line, or None; `more_help` is
    another, for what the first may not find."""

    waiting: Waiting | None
    sentence: str
    on: str | None = None
    since: int | None = None
    until: int | None = None
    help: str | None = None
    more_help: str | None = None


class _Case(NamedTuple):
    """A reading before it is a sentence: what is told, and what is to be said against it."""

    waiting: Waiting
    told: str
    since: int | None
    until: int | None
    help: str | None
    doubt: str = ""
    more_help: str | None = None


_ALONE = Beside()


def reading(snapshot: Snapshot, now_ms: int, beside: Beside = _ALONE) -> Reading:
    """What it waits for at `now_ms`: exactly one thing."""
    if snapshot.waiting is None:
        return _ended(snapshot, beside.given)
    case = _case(snapshot, snapshot.waiting, now_ms, beside)
    parts = [case.told]
    if case.since is not None:
        parts.append(f"since {clock_text(case.since)} ({span_text(now_ms - case.since)})")
    if case.until is not None:
        parts.append(_until(case.waiting, case.until, now_ms))
    sentence = ", ".join(parts) + case.doubt
    return Reading(
        waiting=case.waiting,
        sentence=sentence if snapshot.error is None else f"{sentence}; it is failing: {error_text(snapshot.error)}",
        on=snapshot.waiting_on,
        since=case.since,
        until=case.until,
        help=case.help,
        more_help=case.more_help,
    )


def _case(snapshot: Snapshot, waiting: Waiting, now_ms: int, beside: Beside) -> _Case:
    since, until = snapshot.waiting_since, snapshot.waiting_until
    is_over = until is not None and until <= now_ms
    if waiting == "permit":
        return _at_permit(snapshot, is_over, beside)
    if is_left(waiting, snapshot.lease_until, beside.holder, now_ms):
        left = f", when the lease of {_who(snapshot)}, which does not run any more, ran out as last seen"
        return _due(snapshot, snapshot.lease_until, beside, left)
    if is_over or (waiting == "worker" and until is None):
        return _due(snapshot, until if is_over else since, beside)
    remedy = _help(waiting, snapshot, beside.given)
    doubt = ""
    if waiting == "step":
        doubt, against = _doubt(snapshot, now_ms, beside)
        remedy = against or remedy
    return _Case(waiting, _SENTENCES[waiting](snapshot), since, until, remedy, doubt)


def _due(snapshot: Snapshot, since: int | None, beside: Beside, left: str = "") -> _Case:
    """Anybody may take it; where nothing is seen that hinders, two views may know why nobody does."""
    told = "due: no worker has taken it yet"
    if snapshot.current_step is not None:
        told += f" for {snapshot.current_step}"
    why = beside.hindrance
    if why is not None:
        return _Case("worker", told, since, None, why.help, f"{left}; {why.text}")
    given = beside.given
    return _Case("worker", told, since, None, given.line("lanes"), left, given.line("doctor"))


def _at_permit(snapshot: Snapshot, is_over: bool, beside: Beside) -> _Case:
    """A step whose time to ask again has come waits for its place still: whoever takes it asks, and may be refused."""
    told = f"{_step_name(snapshot)} waits for a place of {snapshot.waiting_on}"
    since, until = snapshot.waiting_since, None if is_over else snapshot.waiting_until
    now = ", asks again now" if is_over else ""
    why = beside.hindrance
    if why is not None:
        return _Case("permit", told, since, until, why.help, f"{now}; {why.text}")
    if beside.is_redis_away:
        away = f"{now}; none can be given: Redis is out of reach"
        return _Case("permit", told, since, until, beside.given.line("doctor"), away)
    return _Case("permit", told, since, until, _help("permit", snapshot, beside.given), now)


def is_due(waiting: Waiting | None, until: int | None, now_ms: int, *, lease_until: int | None, holder: Holder) -> bool:
    """Whether a worker could take it at `now_ms`, or could ask for its permit."""
    if waiting == "worker" and until is None:
        return True
    is_over = waiting is not None and until is not None and until <= now_ms
    return is_over or is_left(waiting, lease_until, holder, now_ms)


def brief(
    waiting: Waiting | None,
    on: str | None,
    until: int | None,
    now_ms: int,
    *,
    lease_until: int | None = None,
    holder: Holder = "unknown",
) -> str:
    """The same in a few words, for a row of a list; empty for a workflow that has ended."""
    if waiting is None:
        return ""
    what = waiting if on is None or waiting in ("worker", "parked") else f"{waiting} {_shown(waiting, on)}"
    if (until is not None and until <= now_ms) or is_left(waiting, lease_until, holder, now_ms):
        return f"{what}, asks again now" if waiting == "permit" else "worker (due)"
    if waiting == "step" and holder in ("gone", "silent"):
        return f"{what}, its worker is {holder}"
    if waiting == "step" and holder == "unknown" and lease_until is not None and lease_until <= now_ms:
        return f"{what}, or its worker is gone"
    if until is None:
        return what
    return f"{what}, until {clock_text(until)}" if waiting != "worker" else f"worker, not before {clock_text(until)}"


def _shown(waiting: Waiting, on: str) -> str:
    """A fingerprint is shown by its beginning, here as everywhere."""
    return on[:12] if waiting == "version" else on


def is_left(waiting: Waiting | None, lease_until: int | None, holder: Holder, now_ms: int) -> bool:
    """Whether it is claimed by a worker that runs no more, and whose lease as last seen is over: anybody may take it.
    A lease alone says nothing: it is renewed without an event."""
    return waiting == "step" and holder == "gone" and lease_until is not None and lease_until <= now_ms


def _doubt(snapshot: Snapshot, now_ms: int, beside: Beside) -> tuple[str, str | None]:
    """What is to be said against "is executed by", and the command that finds out; nothing while its worker runs, or
    its lease does."""
    lease, holder, given = snapshot.lease_until, beside.holder, beside.given
    if holder == "silent":
        told = f"; {_who(snapshot)} is silent: it was stopped, or it hangs"
        return f"{told}. Another worker takes it when its lease ends", given.line("status")
    if holder == "gone":
        told = f"; {_who(snapshot)} does not run any more"
        if beside.hindrance is not None:
            return f"{told}; {beside.hindrance.text}", beside.hindrance.help
        if lease is not None:
            when = f"{clock_text(lease)} (in {span_text(lease - now_ms)})"
            told += f": another worker takes it when the lease ends, not before {when}"
        return told, None if lease is not None else given.line("workflow repair", snapshot.workflow_id)
    if holder == "runs" or lease is None or lease > now_ms:
        return "", None
    ended = f"{clock_text(lease)} ({span_text(now_ms - lease)} ago)"
    told = f"; its lease as last seen ended at {ended}: it is renewed unseen, or {_who(snapshot)} is dead"
    return told, given.line("workflow repair", snapshot.workflow_id)


def error_text(error: ErrorRecord) -> str:
    """An error in one line: code, class, message, and in which attempt of whom."""
    name = "" if error.type == error.code else f" {error.type}"
    message = error.message if len(error.message) <= _ERROR_SHOWN else f"{error.message[:_ERROR_SHOWN]}…"
    where = [f"attempt {error.attempt}"] if error.attempt else []
    where += [error.worker_id] if error.worker_id else []
    return f"{error.code}{name}: {message}" + (f" ({', '.join(where)})" if where else "")


def _ended(snapshot: Snapshot, given: Given) -> Reading:
    when = "" if snapshot.finish_time is None else f" at {clock_text(snapshot.finish_time)}"
    took = f" after {span_text(snapshot.split.total_ms)}"
    why = "" if snapshot.error is None else f": {error_text(snapshot.error)}"
    again = given.line("workflow replay", snapshot.workflow_id, app=True) if snapshot.status == "failed" else None
    return Reading(waiting=None, sentence=f"{snapshot.status}{when}{took}{why}", help=again)


def _step_of(snapshot: Snapshot) -> StepView | None:
    """The step that it is at; None between two steps, and while `prepare` or a finalizer runs."""
    name = snapshot.waiting_on if snapshot.waiting == "step" else snapshot.current_step
    return next((step for step in snapshot.steps if step.name == name), None)


def _step_name(snapshot: Snapshot) -> str:
    step = _step_of(snapshot)
    return "the workflow" if step is None else step.name


def _worker(snapshot: Snapshot) -> str:
    """Not due yet: it rests because a worker gave it up, or died."""
    return f"{_step_name(snapshot)} was interrupted, and another worker goes on with it"


def _who(snapshot: Snapshot) -> str:
    return snapshot.worker or snapshot.worker_id or "its worker"


def _executed(snapshot: Snapshot) -> str:
    who = snapshot.worker or snapshot.worker_id or "a worker"
    step = _step_of(snapshot)
    if step is None:
        return f"executed by {who}: prepare, a finalizer, or what lies between two steps"
    again = f", taken over {many(step.takeovers, 'time')}" if step.takeovers else ""
    return f"{step.name} is executed by {who}, attempt {step.attempt}{again}"


def _signal(snapshot: Snapshot) -> str:
    step = _step_of(snapshot)
    wait = None if step is None else step.wait
    if wait is None or wait.signal_type is None:
        return f"{_step_name(snapshot)} waits for the signal {snapshot.waiting_on or 'of its wait'}"
    return (
        f"{wait.step} waits for the signal {wait.signal_type}, key {wait.wait_key}, generation {wait.generation or 0}"
    )


def _timer(snapshot: Snapshot) -> str:
    return f"{_step_name(snapshot)} sleeps"


def _retry(snapshot: Snapshot) -> str:
    step = _step_of(snapshot)
    if step is None or step.error is None:
        return f"{_step_name(snapshot)} has failed and is tried again"
    return f"{step.name} has failed {many(step.failures, 'time')} and is tried again: {error_text(step.error)}"


def _finalizer(snapshot: Snapshot) -> str:
    what = finalizing(snapshot)
    if snapshot.finalizer is None:
        return f"its {what} has failed and is tried again"
    tries, error = many(snapshot.finalizer.attempt, "time"), error_text(snapshot.finalizer.error)
    return f"its {what} has failed {tries} and is tried again: {error}"


def finalizing(snapshot: Snapshot) -> str:
    """What of the Definition it is that has failed beside the steps; a row of an older kernel does not tell."""
    record = snapshot.finalizer
    return "finalizer, or prepare," if record is None or record.what is None else record.what


def _version(snapshot: Snapshot) -> str:
    if snapshot.deferred is None:
        return f"no live worker has version {snapshot.definition_fingerprint[:12]} of {snapshot.type}"
    offered = ", ".join(one[:12] for one in snapshot.deferred.offered) or "none"
    return f"no live worker has version {snapshot.deferred.stored[:12]} of {snapshot.type}, offered: {offered}"


def _parked(snapshot: Snapshot) -> str:
    reason = "for a reason that is not known" if snapshot.parked is None else snapshot.parked.reason
    return f"put aside until somebody helps: {reason}"


_SENTENCES: dict[Waiting, Callable[[Snapshot], str]] = {
    "worker": _worker,
    "step": _executed,
    "signal": _signal,
    "timer": _timer,
    "retry": _retry,
    "finalizer": _finalizer,
    "version": _version,
    "parked": _parked,
}


def _until(waiting: Waiting, until: int, now_ms: int) -> str:
    words = {
        "signal": "looks again by itself at",
        "permit": "asks again by itself at",
        "version": "is looked at again at",
        "worker": "not before",
    }
    return f"{words.get(waiting, 'until')} {clock_text(until)} (in {span_text(until - now_ms)})"


def _help(waiting: Waiting, snapshot: Snapshot, given: Given) -> str | None:
    workflow_id = snapshot.workflow_id
    step = _step_of(snapshot)
    match waiting:
        case "step" | "retry":
            return given.line("workflow attempts", workflow_id, *(() if step is None else (step.name,)))
        case "permit":
            return given.line("limits explain", workflow_id)
        case "parked":
            return given.line("workflow unpark", workflow_id)
        case "version":
            return f"{given.line('start', app=True)}, of the release that has this version"
        case "signal" if step is not None and step.wait is not None and step.wait.signal_type is not None:
            wait = step.wait
            options = ["--key", str(wait.wait_key), "--generation", str(wait.generation or 0)]
            return given.line("workflow signal", workflow_id, str(wait.signal_type), *options, "--id", "SIGNAL_ID")
    return None
