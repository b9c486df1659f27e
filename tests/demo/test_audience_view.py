"""What is shown of many subscribers: where they stand, and where their time went."""

from __future__ import annotations

from collections import Counter
from typing import Any

from asr_demo.audience import closing_grid, operator_line, share, shares, standing, standing_grid, standing_line
from asr_demo.ledger import Entry
from asr_demo.screen import Grid, aligned, visible
from asr_demo.summary import STEPS
from kernel import Instance, StepRecord
from kernel.records import Wait

NOW = 100_000


def instance(number: int, **steps: Any) -> Instance:
    """A summary that was created at 10 s; `steps` are fields of its steps."""
    ended = steps.pop("ended", None)
    return Instance(
        v=1,
        workflow_id=f"wf-{number}",
        type="live_summary",
        biz_key=f"b{number}",
        definition_fingerprint="f",
        definition_key="live_summary@f",
        status=ended or "running",
        business_priority=0,
        input=b"",
        steps=tuple(StepRecord(name=name, **steps.get(name, {})) for name in STEPS),
        outputs={},
        workflow_run=1,
        retry_count=0,
        revision=1,
        deaths=0,
        created_time=10_000,
        finish_time=None if ended is None else 40_000,
    )


DONE = {"status": "completed"}
AT_SPEECH = {
    "wait_for_recording": {"status": "completed", "external_wait_ms": 5_000},
    "preprocess": DONE,
    "transcribe_audio": {
        "status": "waiting",
        "external_wait_ms": 2_000,
        "traffic_wait_ms": 1_000,
        "wait": Wait(wait_id="w", kind="timer", step="transcribe_audio", step_index=2, poll_time=NOW),
    },
}
ENDED = {"ended": "completed", **AT_SPEECH, "transcribe_audio": DONE, "compose_content": DONE, "finalize": DONE}


def entry(number: int, worker: str, pid: int, took_ms: int | None) -> Entry:
    return Entry(f"wf-{number}", 1, "preprocess", 1, worker, pid, 11_000, took_ms)


def test_each_counts_where_it_is() -> None:
    waiting = {"wait_for_recording": {"status": "waiting"}}
    found = standing([instance(1, **waiting), instance(2, **AT_SPEECH), instance(3, **ENDED), instance(4)], STEPS)

    assert found["wait_for_recording", "waiting"] == 1
    assert found["wait_for_recording", "running"] == 1
    assert found["wait_for_recording", "done"] == 2
    assert found["transcribe_audio", "waiting"] == 1
    assert standing_line(found, STEPS) == "2 at wait_for_recording, 1 at transcribe_audio, 1 completed"
    assert standing_grid(found, STEPS, "t").rows[0] == ("wait_for_recording", "1", "1", "2")
    assert standing_line(Counter(), STEPS) == "nobody yet"


def test_the_parts_of_a_subscribers_time_are_the_whole() -> None:
    mine = [entry(2, "a", 1, 300), entry(2, "b", 2, 200), entry(2, "a", 3, None)]

    found = share(instance(2, **AT_SPEECH), "sub-2", mine, {"a": "worker-1", "b": "worker-0"}, now_ms=30_000)

    assert (found.event_ms, found.speech_ms, found.capacity_ms, found.ran_ms) == (5_000, 2_000, 1_000, 500)
    assert found.event_ms + found.speech_ms + found.capacity_ms + found.ran_ms + found.queued_ms == 20_000
    assert found.workers == ("worker-0 (pid 2)", "worker-1 (pid 1, 3)")
    line = operator_line(instance(2, **AT_SPEECH), found)
    assert line.startswith("sub-2: transcribe_audio waiting (timer): waits outside, looks again at ")
    assert "; by worker-0 (pid 2), worker-1 (pid 1, 3); waited for event 5.00 s, for speech 2.00 s" in line
    assert line.endswith("for capacity 1.00 s, queued 11.50 s, ran 0.50 s")


def test_many_share_rows_and_a_few_have_their_own() -> None:
    def grid(count: int) -> Grid:
        instances = {f"sub-{n}": instance(n, **ENDED) for n in range(count)}
        return closing_grid(shares(instances, [entry(0, "a", 7, 250)], {"a": "worker-0"}, NOW))

    few, each, many = grid(2), grid(250), grid(300)

    assert few.rows == [
        ("sub-0", "completed", "5.00 s", "0.00 s", "0.00 s", "24.75 s", "0.25 s", "1", "worker-0 (pid 7)"),
        ("sub-1", "completed", "5.00 s", "0.00 s", "0.00 s", "25.00 s", "0.00 s", "0", ""),
    ]
    assert [row[0] for row in each.rows] == [f"sub-{n}" for n in range(250)]
    assert len(many.rows) == 20
    assert many.rows[0][:3] == ("sub-0 … sub-14", "15 completed", "5.00 s (5.00)")
    assert many.rows[0][6:] == ("0.00 s (0.25)", "1", "worker-0")
    assert many.rows[-1][0] == "sub-285 … sub-299"


def test_tables_are_aligned_and_text_is_text() -> None:
    assert aligned(Grid("", ("a", "long name"), [("12345", "x"), ("1", "")])) == ["a      long name", "12345  x", "1"]
    assert visible("red \x1b[31m\n") == "red \\x1b[31m\\n"
