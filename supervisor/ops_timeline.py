"""Where time went: a bar for each step, and the same figures as a table whose columns sum to the total (lat-split).

A snapshot knows how long each kind of time lasted and not in which order: a bar lies where its step lay, and inside it
the four kinds follow each other in the order of the legend. Each has a glyph of its own; colour comes on top.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import click
import msgspec

from kernel.observe.views import Snapshot, Split, StepView, Waiting
from kernel.states import STEP_RUNNING, STEP_WAITING, TERMINAL
from supervisor.ops_shell import many, visible

BAR_CELLS = 48
_NAME_CELLS = 40


class Kind(NamedTuple):
    """One kind of time: its field in a Split, its name for people, its glyph, the same where only ASCII is shown."""

    field: str
    name: str
    glyph: str
    ascii: str
    colour: str


KINDS = (
    Kind("scheduling_ms", "scheduling", "░", ".", "blue"),
    Kind("traffic_ms", "permit", "▒", "%", "yellow"),
    Kind("external_ms", "external", "─", "-", "magenta"),
    Kind("execution_ms", "execution", "█", "#", "green"),
)
_COLOURS = {glyph: kind.colour for kind in KINDS for glyph in (kind.glyph, kind.ascii)}
_OF_WAITING: dict[Waiting, str] = {
    "step": "execution_ms",
    "signal": "external_ms",
    "timer": "external_ms",
    "permit": "traffic_ms",
}


class Bar(NamedTuple):
    """One row: the name of a step, the cells before its bar, the bar, and what stands behind it."""

    name: str
    offset: int
    cells: str
    note: str


def as_of(snapshot: Snapshot, now_ms: int) -> Snapshot:
    """The snapshot with the time since its last event counted to what goes on since then: no event tells that a wait
    lasts. One that has ended stays as it is, and so does one from the future of this clock."""
    more = now_ms - snapshot.updated_time
    if snapshot.status in TERMINAL or more <= 0:
        return snapshot
    steps = [step if step.finish_time is not None else _grown(step, snapshot, more) for step in snapshot.steps]
    kind = "scheduling_ms" if snapshot.waiting is None else _OF_WAITING.get(snapshot.waiting, "scheduling_ms")
    return msgspec.structs.replace(
        snapshot, split=_with(snapshot.split, kind, more), steps=tuple(steps), updated_time=now_ms
    )


def _grown(step: StepView, snapshot: Snapshot, more: int) -> StepView:
    if step.ready_time is None:
        return step
    if step.status == STEP_RUNNING and snapshot.claim_token is not None:
        kind = "execution_ms"
    elif step.status == STEP_WAITING:
        kind = "external_ms"
    else:
        asked = snapshot.waiting == "permit" and snapshot.current_step == step.name
        kind = "traffic_ms" if asked else "scheduling_ms"
    return msgspec.structs.replace(step, split=_with(step.split, kind, more))


def _with(split: Split, kind: str, more: int) -> Split:
    return msgspec.structs.replace(split, total_ms=split.total_ms + more, **{kind: getattr(split, kind) + more})


def bars(snapshot: Snapshot, *, plain: bool, cells: int = BAR_CELLS) -> list[Bar]:
    """A row for each step on one axis, from the beginning of the run to its end or the snapshot's last moment."""
    begin = snapshot.run_time
    end = snapshot.finish_time if snapshot.finish_time is not None else snapshot.updated_time
    whole = max(1, end - begin)
    return [_bar(step, begin, whole, cells, plain=plain) for step in snapshot.steps]


def _bar(step: StepView, begin: int, whole: int, cells: int, *, plain: bool) -> Bar:
    name, note = visible(_short(step.name)), visible(_note(step))
    if step.ready_time is None or _is_of_earlier_run(step, begin):
        return Bar(name, 0, "", note if step.ready_time is None else f"{note}, in an earlier run")
    length = min(cells, max(1, round(step.split.total_ms * cells / whole)))
    offset = min(cells - length, max(0, round((step.ready_time - begin) * cells / whole)))
    parts = [getattr(step.split, kind.field) for kind in KINDS]
    glyphs = [kind.ascii if plain else kind.glyph for kind in KINDS]
    if not sum(parts):
        return Bar(name, offset, "", note)
    shared = _shared(parts, length)
    return Bar(name, offset, "".join(glyph * n for glyph, n in zip(glyphs, shared, strict=True)), note)


def _is_of_earlier_run(step: StepView, run_time: int) -> bool:
    """A replay keeps what was completed before it."""
    return step.finish_time is not None and step.finish_time <= run_time


def _shared(parts: Sequence[int], cells: int) -> list[int]:
    """`cells` given out in the ratio of `parts`: every cell once, the largest remainders first."""
    whole = sum(parts)
    exact = [part * cells / whole for part in parts]
    given = [int(share) for share in exact]
    order = sorted(range(len(parts)), key=lambda index: given[index] - exact[index])
    for index in order[: cells - sum(given)]:
        given[index] += 1
    return given


def _note(step: StepView) -> str:
    parts: list[str] = [step.status]
    if step.attempt > 1 or step.failures:
        parts.append(f"attempt {step.attempt}")
    if step.failures:
        parts.append(f"{step.failures} failed")
    if step.takeovers:
        parts.append(f"{step.takeovers} taken over")
    if step.traffic_wait_count:
        parts.append(many(step.traffic_wait_count, "permit wait"))
    return ", ".join(parts)


def bar_lines(snapshot: Snapshot, *, plain: bool) -> Iterator[str]:
    """The rows as text, and the legend below; glyphs painted, which click takes away where no terminal reads."""
    rows = bars(snapshot, plain=plain)
    width = max((len(row.name) for row in rows), default=0)
    edge = "|" if plain else "▏"
    for row in rows:
        space = " " * (BAR_CELLS - row.offset - len(row.cells))
        yield f"  {row.name:<{width}}  {edge}{' ' * row.offset}{painted(row.cells)}{space}  {row.note}".rstrip()
    told = "   ".join(f"{painted((kind.ascii if plain else kind.glyph) * 2)} {kind.name}" for kind in KINDS)
    yield f"  {'':<{width}}   {told}"


def painted(cells: str) -> str:
    """Glyphs in their colours."""
    return "".join(click.style("".join(run), fg=_COLOURS[glyph]) for glyph, run in groupby(cells))


def table(snapshot: Snapshot) -> list[str]:
    """Seconds, to the millisecond, so that the sums are exact: a row for each step that this run has come to, and
    the workflow. Of steps side by side each counts by itself, and the workflow along the critical path."""
    rows = [
        (visible(_short(step.name)), step.split)
        for step in snapshot.steps
        if step.ready_time is not None and not _is_of_earlier_run(step, snapshot.run_time)
    ]
    rows.append(("workflow", snapshot.split))
    width = max(len(name) for name, _ in rows)
    heads = [*(kind.name for kind in KINDS), "total"]
    lines = [f"  {'':<{width}}  " + "  ".join(f"{head:>10}" for head in heads)]
    for name, split in rows:
        figures = [*(getattr(split, kind.field) for kind in KINDS), split.total_ms]
        lines.append(f"  {name:<{width}}  " + "  ".join(f"{ms / 1000:>10.3f}" for ms in figures))
    return lines


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CELLS else f"{name[: _NAME_CELLS - 1]}…"
