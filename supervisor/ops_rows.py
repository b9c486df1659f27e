"""What `doctor` says of work that waits in the durable store: put aside, of a version that nobody runs, or due."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernel.fingerprint import version_shown
from kernel.runtime.examining import ROWS_MAX, Due, Rows
from supervisor.ops_check import LATE_MS, Check, Verdict
from supervisor.ops_shell import many, span_text
from supervisor.ops_tree import Tree

_SHOWN = 5


def row_checks(rows: Rows, tree: Tree, *, is_embedded: bool) -> Iterator[Check]:
    """Of a store that other machines share, whoever has reported a version lately may be one of them."""
    if rows.parked:
        remedy = "`kernel-supervisor workflow show ID` tells why, `kernel-supervisor workflow unpark ID` puts it back"
        yield Check("rows.parked", "warn", f"{_counted(rows.parked)} put aside because their workers died", remedy)
    else:
        yield Check("rows.parked", "ok", "no workflow is put aside")
    yield _damaged_check(rows)
    stranded = _stranded(rows, tree, is_embedded=is_embedded)
    yield _version_check(rows, tree, stranded, is_embedded=is_embedded)
    yield _due_check(rows, tree, stranded, is_embedded=is_embedded)


def _damaged_check(rows: Rows) -> Check:
    """Workers leave such a row alone and say why in the log; nobody but its operator can end it (A45)."""
    if not rows.damaged:
        return Check("rows.damaged", "ok", "what is due can be read")
    told = ", ".join(rows.damaged[:_SHOWN])
    more = "" if len(rows.damaged) <= _SHOWN else f" and {len(rows.damaged) - _SHOWN} more"
    count = len(rows.damaged)
    text = f"{_counted(count)} due, and {'its row does' if count == 1 else 'their rows do'} not decode: {told}{more}"
    remedy = "`kernel-supervisor workflow record ID` names the field; restore the row from a backup"
    return Check("rows.damaged", "warn", text, remedy)


def _stranded(rows: Rows, tree: Tree, *, is_embedded: bool) -> Mapping[str, Due]:
    """What is due and of a version that no worker offers. Nothing is where that is not known: without workers nobody
    takes anything, and which versions the next ones have is theirs to tell."""
    if not tree.workers or tree.offered is None:
        return {}
    live = tree.offered if is_embedded else tree.offered | {version_shown(key) for key in rows.live}
    return {key: due for key, due in rows.due.items() if version_shown(key) not in live}


def _version_check(rows: Rows, tree: Tree, stranded: Mapping[str, Due], *, is_embedded: bool) -> Check:
    """At once for what is due; the dispatchers push it away for an hour only when no worker has told of that version
    for three scan periods."""
    live = _live_text(rows, tree, is_embedded=is_embedded)
    waiting = dict(rows.deferred)
    for key, due in stranded.items():
        waiting[key] = waiting.get(key, 0) + due.count
    if not waiting:
        return Check("rows.version", "ok", f"no workflow waits for a version that nobody runs; {live}")
    found = sorted(waiting.items())
    told = ", ".join(f"{_counted(count)} of {version_shown(key)}" for key, count in found[:_SHOWN])
    more = "" if len(found) <= _SHOWN else f" and of {len(found) - _SHOWN} more"
    remedy = "start a worker that has this version: they go on by themselves; a mistaken one is ended by "
    remedy += "`kernel-supervisor workflow supersede ID`"
    return Check("rows.version", "warn", f"no live worker for {told}{more}; {live}", remedy)


def _live_text(rows: Rows, tree: Tree, *, is_embedded: bool) -> str:
    """What the workers of this tree offer; of others, and where these have not told yet, what was seen and how long
    ago: a worker that ended takes nothing back."""
    offered = tree.offered if tree.workers else None
    others = {key: ago_ms for key, ago_ms in rows.live.items() if offered is None or version_shown(key) not in offered}
    seen = ", ".join(f"{version_shown(key)} ({span_text(ago_ms)} ago)" for key, ago_ms in sorted(others.items()))
    told = f"versions seen within {span_text(rows.live_ms)}: {seen or 'none'}"
    if offered is None:
        return told
    here = f"live versions: {', '.join(sorted(offered)) or 'none'}"
    return here if is_embedded or not seen else f"{here}; of other trees {told}"


def _due_check(rows: Rows, tree: Tree, stranded: Mapping[str, Due], *, is_embedded: bool) -> Check:
    """Work that could be done now, against those who could do it."""
    if not rows.due:
        return Check("rows.due", "ok", "no workflow waits for a worker")
    count = sum(due.count for due in rows.due.values())
    text = f"{_counted(count)} due, the oldest for {span_text(_oldest_ms(rows.due))}"
    is_late = _oldest_ms({key: due for key, due in rows.due.items() if key not in stranded}) > LATE_MS
    if tree.is_silent:
        return Check("rows.due", "warn", f"{text}; whether workers run is not known", "see the check `tree`")
    if tree.workers or (not is_embedded and rows.live):
        lost = sum(due.count for due in stranded.values())
        who = f"{many(tree.workers, 'worker')} can take them" if tree.workers else "workers elsewhere were seen lately"
        if lost:
            whom = "none of them" if lost == count else f"all but {lost} of them"
            who = f"{many(tree.workers, 'worker')} can take {whom}: the check rows.version tells why"
        remedy = "`kernel-supervisor lanes` tells what moves; more workers or slots, if all are busy"
        if lost and not is_late:
            remedy = "see the check rows.version"
        return Check("rows.due", "warn" if is_late or lost else "ok", f"{text}; {who}", remedy)
    return _nobody(text, tree, is_late=is_late)


def _nobody(text: str, tree: Tree, *, is_late: bool) -> Check:
    if tree.status is not None:
        why = "; ".join(tree.unable) or ("the tree is draining" if tree.is_draining else "this tree has no worker")
        remedy = "`kernel-supervisor stop`, then `kernel-supervisor start --workers N`"
        if tree.unable:
            remedy = "see the check `tree`"
        return Check("rows.due", "fail" if is_late else "warn", f"{text}, and nobody to take them: {why}", remedy)
    verdict: Verdict = "fail" if is_late and tree.dead_pid is not None else "warn"
    return Check("rows.due", verdict, f"{text}, and nobody to take them: no tree runs", "`kernel-supervisor start`")


def _oldest_ms(due: Mapping[str, Due]) -> int:
    return max((one.oldest_ms for one in due.values()), default=0)


def _counted(count: int) -> str:
    return f"{'at least ' if count >= ROWS_MAX else ''}{count} workflow{'' if count == 1 else 's'}"
