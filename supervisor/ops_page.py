"""One workflow on one screen: what it waits for, where time went, errors, signals, and the chain of its identities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernel.observe.views import Attempt, Snapshot, StepView
from kernel.records import RunRecord
from supervisor.ops_now import Beside, Holder, error_text, finalizing, reading
from supervisor.ops_shell import Given, clock_text, many, span_text, visible
from supervisor.ops_surroundings import Surroundings
from supervisor.ops_timeline import as_of, bar_lines, table

NOBODY: Mapping[str, str] = {}
_ALONE = Beside()


def page(
    snapshot: Snapshot, around: Surroundings, now_ms: int, *, plain: bool, beside: Beside = _ALONE
) -> Iterator[str]:
    """Lines that are safe to show: text of others with its control characters written out, and our colours."""
    now = reading(snapshot, now_ms, beside)
    yield visible(now.sentence)
    for word, line in (("try", now.help), ("or", now.more_help)):
        if line is not None:
            yield visible(f"  {word}: {line}")
    yield from map(visible, _holders(around))
    yield ""
    yield from map(visible, _head(snapshot, now_ms, beside.names))
    shown = as_of(snapshot, now_ms)
    yield ""
    yield "timeline"
    yield from bar_lines(shown, plain=plain)
    yield ""
    yield "where time went, in seconds"
    yield from table(shown)
    for title, lines in (
        ("errors", _errors(snapshot, beside.given)),
        ("signals", _signals(around)),
        ("chain", _chain(snapshot, around, beside.names)),
        ("earlier runs", map(_run, snapshot.runs)),
    ):
        told = [visible(f"  {line}") for line in lines]
        if told:
            yield from ("", title, *told)


def _head(snapshot: Snapshot, now_ms: int, names: Mapping[str, str]) -> Iterator[str]:
    yield (
        f"{snapshot.workflow_id}  {snapshot.type}  {snapshot.status}  run {snapshot.workflow_run}  "
        f"lane P{snapshot.business_priority}"
    )
    yield f"biz_key   {snapshot.biz_key}"
    age = span_text(now_ms - snapshot.created_time)
    yield f"created   {clock_text(snapshot.created_time)} ({age} ago)"
    seen = span_text(now_ms - snapshot.updated_time)
    yield f"seen      {clock_text(snapshot.updated_time)} ({seen} ago), revision {snapshot.revision}"
    workers = list(dict.fromkeys(step.worker_id for step in snapshot.steps if step.worker_id is not None))
    if workers:
        yield f"workers   {', '.join(worker_text(worker, names) for worker in workers)}"
    if snapshot.deaths:
        yield f"deaths    {many(snapshot.deaths, 'worker')} died of it, or beside it"


def _holders(around: Surroundings) -> Iterator[str]:
    if around.permit_note is not None:
        yield f"  who holds it is not known: {around.permit_note}"
    if around.permit is None:
        return
    held = around.permit
    place = "not in line: it asks again by itself" if held.place is None else f"place {held.place} of its lane"
    yield f"  {many(held.held, 'place')} held, {held.waiting} waiting for one, {place}"
    for holder in held.holders:
        yield f"  held by {holder.owner.workflow_id} {holder.owner.step}, lease until {clock_text(holder.expiry_ms)}"


def _errors(snapshot: Snapshot, given: Given) -> Iterator[str]:
    """The last error of each step, and where all of them are: a snapshot keeps no others."""
    for step in snapshot.steps:
        if step.error is not None:
            more = f", the last of {step.failures}" if step.failures > 1 else ""
            yield f"{step.name}: {error_text(step.error)}{more}"
    if snapshot.finalizer is not None:
        tried = f"{finalizing(snapshot).removesuffix(',')}, try {snapshot.finalizer.attempt}"
        yield f"{tried}: {error_text(snapshot.finalizer.error)}"
    if snapshot.error is not None:
        yield f"the workflow: {error_text(snapshot.error)}"
    if any(step.error is not None for step in snapshot.steps):
        yield f"each attempt with its error: {given.line('workflow attempts', snapshot.workflow_id)}"


def _signals(around: Surroundings) -> Iterator[str]:
    for row in around.signals:
        what = row.signal_id
        if row.signal_type is not None:
            what += f"  {row.signal_type}, key {row.wait_key}, generation {row.generation}"
        sent = "" if row.created_time is None else f", sent {clock_text(row.created_time)}"
        match row.status:
            case "pending":
                yield f"pending    {what}{sent}"
            case "matched":
                when = "" if row.match_time is None else f" at {clock_text(row.match_time)}"
                yield f"matched    {what}{sent}, woke {row.step}{when}"
            case _:
                yield f"forgotten  {what}, woke {row.step}; its row is not kept any more"
    if around.more_signals:
        yield "… and more"
    if around.signals_note is not None:
        yield f"not known: {around.signals_note}"


def _chain(snapshot: Snapshot, around: Surroundings, names: Mapping[str, str]) -> Iterator[str]:
    """Business object → intent → instance → step → attempt → worker and trace (ops-chain)."""
    found = around.object
    if found is None:
        yield f"object    not known: {around.object_note}"
    else:
        yield f"object    {found.source} {found.object_id}"
        tries = f", {found.tries} vain {'try' if found.tries == 1 else 'tries'}" if found.tries else ""
        error = "" if found.error is None else f": {found.error}"
        since = clock_text(found.accepted_time)
        yield f"dispatch  {found.status}, round {found.fencing_token}, accepted {since}{tries}{error}"
    served = "" if snapshot.round is None else f", serves round {snapshot.round}"
    if found is not None and snapshot.round is not None and snapshot.round != found.fencing_token:
        served += ", which is over"
    yield (
        f"instance  {snapshot.workflow_id} of {snapshot.biz_key}, run {snapshot.workflow_run}, "
        f"version {snapshot.definition_fingerprint[:12]}{served}"
    )
    step = _current(snapshot)
    if step is not None:
        yield f"step      {step.name}, {step.status}"
        if step.attempt:
            yield f"attempt   {snapshot.workflow_id}/{snapshot.workflow_run}/{step.name}/{step.attempt}"
        if step.worker_id is not None:
            yield f"worker    {worker_text(step.worker_id, names)}"
    yield f"trace     {snapshot.trace_id}"


def _current(snapshot: Snapshot) -> StepView | None:
    """The step that it is at, or the last one that was entered."""
    for step in snapshot.steps:
        if step.name == snapshot.current_step:
            return step
    entered = [step for step in snapshot.steps if step.attempt]
    return entered[-1] if entered else None


def _run(run: RunRecord) -> str:
    when = "" if run.finish_time is None else f" at {clock_text(run.finish_time)}"
    served = "" if run.round is None else f" for round {run.round}"
    why = "" if run.error is None else f": {error_text(run.error)}"
    return f"run {run.workflow_run}{served}  {run.status}{when}{why}"


def worker_text(worker_id: str, names: Mapping[str, str]) -> str:
    """A worker by its id, which errors name as well, and as its machine and its supervisor know it."""
    name = names.get(worker_id)
    return worker_id if name is None else f"{worker_id} ({name})"


def attempt_line(
    attempt: Attempt, now_ms: int, *, names: Mapping[str, str] = NOBODY, holder: Holder = "unknown"
) -> str:
    """One attempt of a step, for a list of them; safe to show. `holder`: of one that has not returned, whether its
    worker runs."""
    began = "-" if attempt.started_time is None else clock_text(attempt.started_time)
    parts = [_ran(attempt, now_ms)]
    if attempt.outcome == "running" and holder in ("gone", "silent"):
        parts.append(f"its worker is {holder}")
    if attempt.traffic_wait_ms:
        parts.append(f"waited {attempt.traffic_wait_ms / 1000:.3f} s for a permit")
    if attempt.takeovers:
        parts.append(f"taken over {many(attempt.takeovers, 'time')}")
    if attempt.worker_id is not None:
        parts.append(f"on {worker_text(attempt.worker_id, names)}")
    error = "" if attempt.error is None else f"  {error_text(attempt.error)}"
    told = f"run {attempt.workflow_run}  {attempt.step}  attempt {attempt.attempt}  {attempt.outcome}  {began}"
    return visible(f"{told}  {', '.join(parts)}{error}")


def unknown_line(run: int, step: str, number: int) -> str:
    """An attempt that the snapshot counts and of which there is no row; safe to show."""
    return visible(f"run {run}  {step}  attempt {number}: not known (observation lost it)")


def _ran(attempt: Attempt, now_ms: int) -> str:
    """How long the activity ran: known when it has returned, and only then."""
    ran = f"ran {attempt.elapsed_ms / 1000:.3f} s"
    if attempt.outcome == "running" and attempt.started_time is not None:
        return f"entered {span_text(now_ms - attempt.started_time)} ago, has not returned"
    # A row that a repair has made of an error alone has no times.
    is_untimed = attempt.outcome in ("running", "lost", "stuck") or attempt.started_time is None
    if not is_untimed:
        return ran
    return f"{ran} before that" if attempt.elapsed_ms else "ran for a time that is not known"
