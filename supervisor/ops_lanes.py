"""`kernel-supervisor lanes`: the four ready lanes, and which of them does not move and why (ops-lanes, lane-stats-use).

The figures of the lanes are one call of the stats script. What is taken from them, and each one's share against its
weight, needs two looks; what the workers do is asked of the supervisor of this data folder, where one runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from kernel.clock import Clock, SystemClock
from kernel.config import Config, load
from kernel.coordination.keys import LANES, Keys
from kernel.coordination.lane_sample import HEADS_MAX, Heads, LaneSample
from kernel.coordination.lanes import LaneReport, Lanes, LaneStats
from kernel.errors import CoordinationUnavailable
from kernel.runtime import embedded_redis_url, open_lanes
from kernel.states import PRIORITIES
from supervisor.cli_numbers import Seconds
from supervisor.control_client import ControlClient, NoSupervisor
from supervisor.ops_lane_due import unqueued
from supervisor.ops_lane_verdict import Crew, Taken, Unqueued, Verdict, crew_of, loudest, verdict
from supervisor.ops_shell import (
    Given,
    aligned,
    begin_again,
    patient,
    pause,
    say_json,
    span_text,
    store_command,
    visible,
)

REPORTED_MS = 2_000
_NAMES = {lane: name for name, lane in PRIORITIES.items()}


class Look(msgspec.Struct, frozen=True):
    """One look at everything: the lanes, the candidates at their heads, the workers, when (ms, boot clock), and, only
    if all lanes are empty, what is due without being in one."""

    report: LaneReport
    heads: Heads
    crew: Crew | None
    crew_silence: str | None
    at_ms: int
    unqueued: dict[int, Unqueued]

    def verdicts(self, taken: Taken | None) -> list[Verdict]:
        return [verdict(stats, taken, self.crew, self.unqueued.get(stats.lane)) for stats in self.report.lanes]


@click.command()
@click.option("--seconds", type=Seconds(3600), default=2.0, help="Between two looks (default 2; 0: one look).")
@click.option("--watch", is_flag=True, help="Again and again, until interrupted.")
@store_command
def lanes(seconds: float, watch: bool, data_dir: str | None, config_file: str | None, as_json: bool) -> None:
    """Each lane: how much is due and since when, its share against its weight, and whether it moves."""
    config = load({"data_dir": data_dir}, file=config_file).config
    if watch and not seconds:
        raise click.UsageError("--watch needs time between two looks: --seconds above 0")
    given = Given(data_dir, config_file)
    with _desk(config, config_file) as desk:
        before = desk.look()
        while True:
            taken = None
            if seconds:
                pause(seconds)
                taken, before = desk.since(before)
            if watch and not as_json:
                begin_again()
            _say(before, taken, config, given, as_json=as_json)
            sys.stdout.flush()
            if not watch:
                return


class _Desk:
    """The lanes of one namespace, and the supervisor that may run beside them."""

    def __init__(self, opened: tuple[Lanes, LaneSample], config: Config, config_file: str | None, clock: Clock) -> None:
        self._lanes, self._sample = opened
        self._data_dir = config.data_dir
        self._config = config
        self._config_file = config_file
        self._clock = clock

    def look(self) -> Look:
        report = self._lanes.report()
        heads = self._sample.heads(report.server_ms)
        crew, silence = self._crew()
        at_ms = self._clock.boot_ms()
        is_empty = not any(stats.depth for stats in report.lanes)
        elsewhere = unqueued(self._config, self._config_file, self._clock) if is_empty else {}
        return Look(report, heads, crew, silence, at_ms, elsewhere)

    def since(self, before: Look) -> tuple[Taken, Look]:
        """What was taken since `before`, and the look that ends the window."""
        taken = self._sample.taken(before.heads)
        now = self.look()
        full = tuple(len(heads) == HEADS_MAX == count for heads, count in zip(before.heads.lanes, taken, strict=True))
        window_ms = now.at_ms - before.at_ms
        return Taken(window_ms, tuple(taken), full, _claimed(before.crew, now.crew, window_ms)), now

    def _crew(self) -> tuple[Crew | None, str | None]:
        try:
            with ControlClient(self._data_dir) as client:
                return crew_of(client.request("status")), None
        except NoSupervisor as nobody:
            return None, str(nobody)
        except TimeoutError:
            return None, f"the supervisor of {self._data_dir} does not answer"


def _claimed(before: Crew | None, now: Crew | None, window_ms: int) -> int | None:
    """Claims between two looks. Workers report once a second: a shorter window tells nothing."""
    if before is None or now is None or window_ms < REPORTED_MS or now.claims < before.claims:
        return None
    return now.claims - before.claims


@contextmanager
def _desk(config: Config, config_file: str | None) -> Iterator[_Desk]:
    clock = SystemClock()
    opened = open_lanes(patient(config), config.redis_url or embedded_redis_url(config.data_dir), clock)
    if opened is None:
        raise CoordinationUnavailable(
            f"no Redis is known here: no tree runs in {config.data_dir}, and REDIS_URL is not set"
        )
    try:
        sample = LaneSample(opened[1], Keys(config.namespace))
        yield _Desk((opened[0], sample), config, config_file, clock)
    finally:
        opened[1].close()


# --- saying it ---------------------------------------------------------------------------------------------


def _say(look: Look, taken: Taken | None, config: Config, given: Given, *, as_json: bool) -> None:
    verdicts = look.verdicts(taken)
    if as_json:
        say_json(as_builtins(look, taken, verdicts, config.lane_weights))
        return
    for line in as_lines(look, taken, verdicts, config.lane_weights, given):
        click.echo(visible(line))


def as_builtins(look: Look, taken: Taken | None, verdicts: list[Verdict], weights: tuple[int, ...]) -> dict[str, Any]:
    """For programs. `now_ms` is Redis' time of the figures."""
    rows = [
        {
            **msgspec.to_builtins(stats),
            "name": _NAMES[lane],
            "weight": weights[lane],
            "weight_share": weights[lane] / sum(weights),
            "taken": None if taken is None else taken.lanes[lane],
            "taken_is_at_least": taken is not None and taken.full[lane],
            "share": None if taken is None else taken.share(lane),
            "verdict": verdicts[lane].word,
            "reason": verdicts[lane].reason,
            "oldest": look.heads.oldest(lane),
            "unqueued": msgspec.to_builtins(look.unqueued.get(lane)),
        }
        for lane, stats in enumerate(look.report.lanes)
    ]
    return {
        "v": 1,
        "now_ms": look.report.server_ms,
        "window_ms": None if taken is None else taken.window_ms,
        "cursor": look.report.cursor,
        "burst_left": look.report.burst_left,
        "epoch": look.report.epoch,
        "lanes": rows,
        "workers": None if look.crew is None else msgspec.to_builtins(look.crew),
        "supervisor": look.crew_silence or "ok",
    }


def as_lines(
    look: Look, taken: Taken | None, verdicts: list[Verdict], weights: tuple[int, ...], given: Given
) -> list[str]:
    """For people: the sentence first, then the table, the oldest of each lane, the workers."""
    stats = look.report.lanes
    heads = ("LANE", "OLDEST WAIT", "READY", "DELAYED", "TAKEN", "SHARE", "WEIGHT", "VERDICT")
    table = aligned(heads, (_row(stats[lane], taken, verdicts[lane], weights) for lane in range(LANES)))
    oldest = [
        f"oldest in P{lane}  {given.line('workflow show', workflow_id)}"
        for lane in range(LANES)
        if (workflow_id := look.heads.oldest(lane)) is not None
    ]
    return [*_headline(stats, verdicts, look.crew, given), "", *table, "", *oldest, _crew_text(look)]


def _headline(stats: list[LaneStats], verdicts: list[Verdict], crew: Crew | None, given: Given) -> list[str]:
    """The sentence, and where to look on when the lanes do not know the cause."""
    lane = loudest(verdicts)
    word, reason = verdicts[lane].word, verdicts[lane].reason
    doctor = f"  try: {given.line('doctor')}"
    if word in ("empty", "later"):
        unable = "" if crew is None else "; ".join(crew.unable)
        # Work that was taken and could not be claimed is in no lane for a moment, or comes back later.
        return [f"nothing is due in any lane, but {unable}", doctor] if unable else ["nothing is due in any lane"]
    if word == "not queued":
        return [f"all lanes are empty; of P{lane} ({_NAMES[lane]}) {reason}", doctor]
    waited = (
        f"P{lane} ({_NAMES[lane]}) has waited {span_text(stats[lane].oldest_wait_ms)}: " if stats[lane].ready else ""
    )
    told = f"{waited or f'P{lane} ({_NAMES[lane]}): '}{word}{f', {reason}' if reason else ''}"
    return [told, doctor] if word == "not moving" else [told]


def _row(stats: LaneStats, taken: Taken | None, found: Verdict, weights: tuple[int, ...]) -> tuple[str, ...]:
    lane = stats.lane
    share = None if taken is None else taken.share(lane)
    return (
        f"P{lane} {_NAMES[lane]}",
        span_text(stats.oldest_wait_ms) if stats.ready else "-",
        str(stats.ready),
        str(stats.delayed),
        "-" if taken is None else f"{taken.lanes[lane]}{'+' if taken.full[lane] else ''}",
        "-" if share is None else f"{share:.0%}",
        f"{weights[lane] / sum(weights):.0%}",
        f"{found.word}: {found.reason}" if found.reason else found.word,
    )


def _crew_text(look: Look) -> str:
    crew = look.crew
    if crew is None:
        return f"workers: {look.crew_silence}"
    slots = "" if crew.slots is None else f" of {crew.slots}"
    unable = "".join(f"; {why}" for why in crew.unable)
    return f"workers: {crew.workers}, slots busy {crew.busy}{slots}{unable}"
