"""Why is it not moving? The one thing that a workflow waits for, in a sentence, and what one can do about it.

Read from a snapshot alone, as of a moment by the store's clock. A snapshot is made by events, and none tells that a
time has come: whatever was to go on by itself, and has not, is due and waits for a worker (ops-where-stuck).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Literal

import msgspec

from kernel.observe.views import Snapshot, StepView, Waiting
from kernel.records import ErrorRecord
from supervisor.ops_shell import clock_text, many, span_text

_ERROR_SHOWN = 300
_NAME = "kernel-supervisor"

Holder = Literal["runs", "gone", "unknown"]
"""Whether the worker runs that holds the claim in a snapshot: a dead one makes no event (`supervisor.ops_workers`)."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """`waiting` is None for a workflow that has ended. Times are ms by the store's clock; `until` is when it goes on by
    itself at the latest, None when nobody knows or it never does. `help` is a command line, or None."""

    waiting: Waiting | None
    sentence: str
    on: str | None = None
    since: int | None = None
    until: int | None = None
    help: str | None = None


def reading(snapshot: Snapshot, now_ms: int, holder: Holder = "unknown") -> Reading:
    """What it waits for at `now_ms`: exactly one thing. `holder`: whether the worker that executes it still runs."""
    if snapshot.waiting is None:
        return _ended(snapshot)
    waiting, since, until = snapshot.waiting, snapshot.waiting_since, snapshot.waiting_until
    doubt, remedy = "", None
    if until is not None and until <= now_ms:
        waiting, since, until = "worker", until, None
    elif is_left(snapshot.waiting, snapshot.lease_until, holder, now_ms):
        waiting, since = "worker", snapshot.lease_until
        doubt = f", when the lease of {_who(snapshot)}, which does not run any more, ran out as last seen"
    elif waiting == "step":
        doubt, remedy = _doubt(snapshot, now_ms, holder)
    told = _SENTENCES[waiting](snapshot)
    parts = [told]
    if since is not None:
        parts.append(f"since {clock_text(since)} ({span_text(now_ms - since)})")
    if until is not None:
        parts.append(_until(waiting, until, now_ms))
    sentence = ", ".join(parts) + doubt
    return Reading(
        waiting=waiting,
        sentence=sentence if snapshot.error is None else f"{sentence}; it is failing: {error_text(snapshot.error)}",
        on=snapshot.waiting_on,
        since=since,
        until=until,
        help=remedy or _help(waiting, snapshot),
    )


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
    if (until is not None and until <= now_ms) or is_left(waiting, lease_until, holder, now_ms):
        return "worker (due)"
    what = waiting if on is None or waiting in ("worker", "parked") else f"{waiting} {on}"
    if waiting == "step" and holder == "gone":
        return f"{what}, its worker is gone"
    if waiting == "step" and holder == "unknown" and lease_until is not None and lease_until <= now_ms:
        return f"{what}, or its worker is gone"
    return what if until is None else f"{what}, until {clock_text(until)}"


def is_left(waiting: Waiting | None, lease_until: int | None, holder: Holder, now_ms: int) -> bool:
    """Whether it is claimed by a worker that runs no more, and whose lease as last seen is over: anybody may take it.
    A lease alone says nothing: it is renewed without an event."""
    return waiting == "step" and holder == "gone" and lease_until is not None and lease_until <= now_ms


def _doubt(snapshot: Snapshot, now_ms: int, holder: Holder) -> tuple[str, str | None]:
    """What is to be said against "is executed by", and the command that finds out; nothing while its worker runs, or
    its lease does."""
    lease = snapshot.lease_until
    if holder == "gone":
        told = f"; {_who(snapshot)} does not run any more"
        if lease is not None:
            when = f"{clock_text(lease)} (in {span_text(lease - now_ms)})"
            told += f": another worker takes it when the lease ends, not before {when}"
        return told, None if lease is not None else command("workflow repair", snapshot.workflow_id)
    if holder == "runs" or lease is None or lease > now_ms:
        return "", None
    ended = f"{clock_text(lease)} ({span_text(now_ms - lease)} ago)"
    told = f"; its lease as last seen ended at {ended}: it is renewed unseen, or {_who(snapshot)} is dead"
    return told, command("workflow repair", snapshot.workflow_id)


def error_text(error: ErrorRecord) -> str:
    """An error in one line: code, class, message, and in which attempt of whom."""
    name = "" if error.type == error.code else f" {error.type}"
    message = error.message if len(error.message) <= _ERROR_SHOWN else f"{error.message[:_ERROR_SHOWN]}…"
    where = [f"attempt {error.attempt}"] if error.attempt else []
    where += [error.worker_id] if error.worker_id else []
    return f"{error.code}{name}: {message}" + (f" ({', '.join(where)})" if where else "")


def _ended(snapshot: Snapshot) -> Reading:
    when = "" if snapshot.finish_time is None else f" at {clock_text(snapshot.finish_time)}"
    took = f" after {span_text(snapshot.split.total_ms)}"
    why = "" if snapshot.error is None else f": {error_text(snapshot.error)}"
    again = command("workflow replay", snapshot.workflow_id) if snapshot.status == "failed" else None
    return Reading(waiting=None, sentence=f"{snapshot.status}{when}{took}{why}", help=again)


def _step_of(snapshot: Snapshot) -> StepView | None:
    """The step that it is at; None between two steps, and while `prepare` or a finalizer runs."""
    name = snapshot.waiting_on if snapshot.waiting == "step" else snapshot.current_step
    return next((step for step in snapshot.steps if step.name == name), None)


def _step_name(snapshot: Snapshot) -> str:
    step = _step_of(snapshot)
    return "the workflow" if step is None else step.name


def _worker(snapshot: Snapshot) -> str:
    if snapshot.current_step is None:
        return "due: no worker has taken it yet"
    return f"due: no worker has taken it yet for {snapshot.current_step}"


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


def _permit(snapshot: Snapshot) -> str:
    return f"{_step_name(snapshot)} waits for a place of {snapshot.waiting_on}"


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
    "permit": _permit,
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
    }
    return f"{words.get(waiting, 'until')} {clock_text(until)} (in {span_text(until - now_ms)})"


def _help(waiting: Waiting, snapshot: Snapshot) -> str | None:
    workflow_id = snapshot.workflow_id
    step = _step_of(snapshot)
    match waiting:
        case "worker":
            return f"{_NAME} lanes"
        case "step" | "retry":
            return command("workflow attempts", workflow_id, *(() if step is None else (step.name,)))
        case "permit":
            return command("limits explain", workflow_id)
        case "parked":
            return command("workflow unpark", workflow_id)
        case "version":
            return f"{_NAME} start --app MODULE:ATTRIBUTE, of the release that has this version"
        case "signal" if step is not None and step.wait is not None and step.wait.signal_type is not None:
            wait = step.wait
            options = ["--key", str(wait.wait_key), "--generation", str(wait.generation or 0)]
            return f"{command('workflow signal', workflow_id, str(wait.signal_type), *options)} --id SIGNAL_ID"
    return None


def command(verb: str, *words: str) -> str:
    """A command line to paste: words of others are quoted."""
    return " ".join([_NAME, verb, *(shlex.quote(word) for word in words)])
