"""What `bench lanes`, `permits` and `streams` find wrong, how slices are taken, and the targets beside the ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import depth_plot, workers_plot
from bench.lanes_run import SHARE_ROUNDS, share_findings
from bench.limit_watch import Watched, watch
from bench.permits_run import WATCHED
from bench.script_plan import WARM_PAIRS, ScriptPlan
from bench.script_row import flatness, row_of, target_of
from bench.script_server import Inside, ScriptServer
from bench.script_slices import PAIRS_MAX, Case, counted, quantile, timed
from bench.streams_run import hole_findings
from kernel.config import Limit
from kernel.coordination.lanes import LaneEntry
from kernel.coordination.permits import Permits
from tests.support.redis_servers import RedisTarget

ROUND = [0] * 8 + [1] * 6 + [2] * 4 + [3] * 2
PLAN = ScriptPlan(bench="lanes", depths=(100,), repeats=4, slice_s=0.001, limit_s=60.0)


def taken(lanes: Sequence[int]) -> list[LaneEntry]:
    return [LaneEntry(f"w{number}", lane, 1) for number, lane in enumerate(lanes)]


@pytest.mark.req("dc-bench-lanes")
def test_shares_are_right_wherever_the_rotation_stood() -> None:
    rotation = ROUND * SHARE_ROUNDS

    assert share_findings(taken(rotation), "one by one") == []
    assert share_findings(taken(rotation[5:] + rotation[:5]), "one by one") == []


@pytest.mark.req("dc-bench-lanes")
@pytest.mark.parametrize(
    ("lanes", "words"),
    [
        ((ROUND * SHARE_ROUNDS)[:-1], "799 of 800 ids"),
        ([0, *ROUND[:18], 0] + ROUND * (SHARE_ROUNDS - 1), "pops 0 to 19 took (10, 6, 4, 0)"),
        (ROUND * (SHARE_ROUNDS - 1) + [0] * 20, "took (9, 5, 4, 2)"),
    ],
    ids=["one missing", "a starved lane", "a burst at the end"],
)
def test_wrong_shares_are_found(lanes: list[int], words: str) -> None:
    (finding,) = share_findings(taken(lanes), "one by one")

    assert words in finding


def starts(*at_ms: float) -> list[tuple[int, int]]:
    """Starts whose calls take 2 ms each."""
    return [(round(at * 1e6), round((at + 2) * 1e6)) for at in at_ms]


@pytest.mark.req("dc-bench-permits")
def test_starts_of_one_second_are_counted_on_a_sliding_window() -> None:
    assert Watched(starts=starts(0, 10, 20)).starts_max == 3
    assert Watched(starts=starts(0, 500, 990, 1000, 1490)).starts_max == 4
    assert Watched(starts=starts(0, 994)).starts_max == 1, "their calls lie so that 1 s may be between them"
    assert Watched().starts_max == 0


@pytest.mark.req("dc-bench-permits")
def test_what_breaks_a_limit_is_found_on_a_real_server(valkey: RedisTarget) -> None:
    """The resource is allowed one more of each than was promised: both must be noticed."""
    permits = Permits(valkey.runner(), valkey.keys, lease_ms=30_000, wait_ms=100)
    more = Limit(WATCHED.max_concurrency + 1, 1000)

    seen = watch(permits, given=more, seconds=1.5)

    assert seen.findings(WATCHED)[0] == "9 calls in flight, the limit is 8"
    assert seen.findings(Limit(9, 1000)) == []
    assert seen.findings(Limit(9, 8)) == [f"{seen.starts_max} starts within 1 s, the limit is 8"]


@pytest.mark.req("dc-bench-permits")
def test_nobody_allowed_is_no_proof() -> None:
    assert Watched().findings(WATCHED) == ["no call was ever allowed while the limits were watched"]


@pytest.mark.req("dc-bench-stream")
@pytest.mark.parametrize(
    ("told", "read", "words"),
    [
        ([(0, 2), (2, 1)], [b"a", b"b", b"c"], []),
        ([(0, 2), (3, 1)], [b"a", b"b", b"c"], ["append 1 was put at offset 3, the frames before it end at 2"]),
        ([(0, 2), (-1, 1)], [b"a", b"b", b"c"], ["append 1 was put at offset -1, the frames before it end at 2"]),
        ([(0, 2), (2, 1), (3, 1)], [b"a", b"b", b"c", b"c"], ["the stream that was read has 4 of 3 records"]),
        ([(0, 2), (2, 1)], [b"a", b"c", b"b"], ["the stream that was read differs at offset 1"]),
        ([(0, 2), (2, 1)], [b"a", b"b"], ["the stream that was read has 2 of 3 records"]),
    ],
    ids=["whole", "hole", "refused", "twice", "order", "lost"],
)
def test_holes_are_found(told: list[tuple[int, int]], read: list[bytes], words: list[str]) -> None:
    assert hole_findings(told, [b"a", b"b", b"c"], read) == words


def test_a_pair_is_a_no_op_slice_and_a_slice_with_everything_put_back() -> None:
    events: list[str] = []

    def event(name: str) -> Callable[[], None]:
        return lambda: events.append(name)

    case = Case(
        op="x", n=1, depth=1, call=event("call"), prepare=lambda calls: events.append(f"prepare {calls}"),
        restore=event("restore"), calls_max=2,
    )  # fmt: skip
    seen = timed(case, event("noop"), PLAN)

    pair = ["prepare 2", "noop", "noop", "noop", "call", "call", "restore"]
    pairs = len(seen.ratios)
    assert events == pair * (WARM_PAIRS + pairs)
    assert PLAN.repeats <= pairs <= PAIRS_MAX * PLAN.repeats
    assert len(seen.calls_ns) == 2 * pairs == len(seen.per_s) * 2
    assert seen.calls_ns == sorted(seen.calls_ns)


def test_commands_inside_a_script_are_the_servers_count(valkey: RedisTarget) -> None:
    assert valkey.server is not None
    server = ScriptServer(f"unix://{valkey.server.socket}")
    try:
        server.noop()  # loads it
        case = Case(op="noop", n=0, depth=0, call=server.noop, calls_max=7)
        inside = counted(case, server.inside)

        def with_another() -> None:
            server.noop()
            server.noop()

        disturbed = server.inside(with_another, 7)
    finally:
        server.runner.close()

    assert inside is not None and inside.commands == 0
    assert inside.usec >= 0
    assert disturbed is None, "somebody else's scripts were counted as ours"


@pytest.mark.parametrize(
    ("op", "n", "depth", "target"),
    [
        ("lane_pop", 1, 1_000, 0.65),
        ("lane_pop", 1, 10_000, None),
        ("lane_pop", 1, 1_000_000, 0.60),
        ("lane_push_many", 100, 1_000_000, 9.0),
        ("permit_acquire_rate", 1, 100_000, 0.60),
        ("stream_append", 10, 1_000, None),
        ("noop_register_script", 0, 0, None),
    ],
)
def test_a_target_stands_where_the_issue_names_one(op: str, n: int, depth: int, target: float | None) -> None:
    assert target_of(op, n, depth) == target


def test_ids_are_counted_where_a_call_takes_many() -> None:
    case = Case(op="lane_push_many", n=100, depth=1_000, call=lambda: None, calls_max=3, counts=100)
    row = row_of(case, timed(case, lambda: None, PLAN), Inside(17.0, 200.0))

    assert row["unit"] == "ids"
    assert row["ratio"] > 10, "as many ids as calls"
    assert (row["calls"], row["server_us"], row["target"], row["calls_target"]) == (17.0, 200.0, 15.0, None)


def test_flat_is_the_ratio_at_the_largest_depth_over_that_at_the_smallest() -> None:
    rows = [{"op": "x", "n": 1, "depth": depth, "ratio": ratio} for depth, ratio in ((10, 0.5), (20, 0.1), (30, 0.4))]

    assert flatness([*rows, {"op": "y", "n": 1, "depth": 10, "ratio": 0.5}, {"op": "limits"}]) == {"x(1)": 0.8}


def test_quantiles_are_nearest_rank() -> None:
    assert [quantile([3, 1, 2, 4], part) for part in (0.0, 0.5, 0.99)] == [1.0, 3.0, 4.0]


def test_a_picture_has_a_line_for_each_operation_and_one_for_the_no_op() -> None:
    rows: list[dict[str, Any]] = [
        {"op": op, "n": 1, "depth": depth, "unit": "calls", "ratio": 0.5, "per_s": rate, "noop_per_s": 30_000}
        for op, rate in (("lane_pop", 20_000), ("lane_push", 25_000))
        for depth in (1_000, 1_000_000)
    ]
    none = {
        "op": "noop_held_connection",
        "n": 0,
        "depth": 0,
        "unit": "calls",
        "ratio": 1.2,
        "per_s": 1,
        "noop_per_s": 1,
    }

    lines = depth_plot.lines_of([none, *rows, {"op": "limits"}])
    picture = ElementTree.fromstring(depth_plot.svg_of("bench <lanes> & more", lines))

    assert list(lines) == ["lane_pop(1)", "lane_push(1)", "no-op"]
    assert lines["lane_pop(1)"] == [(1_000, 20_000), (1_000_000, 20_000)]
    drawn = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(drawn) == 3
    assert all(len(line.attrib["points"].split()) == 2 for line in drawn)
    assert "bench <lanes> & more" in [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]


def test_a_picture_of_nothing_is_still_one() -> None:
    picture = ElementTree.fromstring(depth_plot.svg_of("nothing was measured in time", depth_plot.lines_of([])))

    assert picture.tag == "{http://www.w3.org/2000/svg}svg"


def test_a_picture_of_workers_begins_at_nothing_and_has_a_line_for_each_durability() -> None:
    rows = [
        {"workers": workers, "slots": 8, "durability": durability, "per_s": rate * workers}
        for durability, rate in (("full", 450.25), ("normal", 600.0))
        for workers in (4, 1, 2)
    ]

    lines = workers_plot.lines_of(rows)
    picture = ElementTree.fromstring(workers_plot.svg_of("bench <workflows> & more", lines))

    assert lines["durability full, 8 slots"] == [(1, 450), (2, 900), (4, 1801)]
    drawn = picture.findall("{http://www.w3.org/2000/svg}polyline")
    points = [[tuple(map(float, point.split(","))) for point in line.attrib["points"].split()] for line in drawn]
    assert len(points) == 2 and all(len(line) == 3 for line in points)
    (one, _), (two, _), (four, _) = points[1]
    assert four - two == pytest.approx(2 * (two - one), abs=0.3), "workers are not drawn to scale"
    heights = [380 - y for _, y in points[1]]
    assert heights[2] == pytest.approx(4 * heights[0], abs=0.5), "four times the rate is four times as high"
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"bench <workflows> & more", "workers", "workflows/s", "0", "2,500"} <= set(texts)
    assert workers_plot.svg_of("nothing", workers_plot.lines_of([])).startswith("<svg")
