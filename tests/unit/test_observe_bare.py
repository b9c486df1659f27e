"""What the queue holds of a record: nothing that users wrote, and the same answers to all that is asked later."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.codec import encode
from kernel.dispatch import round_of
from kernel.observe.bare import INPUT_BYTES_KEPT, bare
from kernel.observe.projection import attempts_of, snapshot_of
from kernel.records import ErrorRecord, StepRecord
from tests.support.observations import CREATED_MS, record

LONG = "x" * 5_000


def coded(value: Any) -> bytes:
    return encode(value, "input", 10_000_000)


@pytest.mark.parametrize(
    "data",
    [
        coded({"fencing_token": "round-1", "text": LONG}),
        coded({"text": LONG, "fencing_token": "round-2"}),
        coded({"text": LONG}),
        coded({"fencing_token": 7, "text": LONG}),
        coded({"fencing_token": None, "text": LONG}),
        coded({"fencing_token": "r" * 201, "text": LONG}),
        coded({"fencing_token": LONG}),
        coded({"fencing_token": "", "text": LONG}),
        coded({1: LONG, "fencing_token": "round-3"}),
        coded({f"field-{n}": LONG for n in range(70_000 // 5_000)} | {"fencing_token": "round-4"}),
        coded([LONG, "fencing_token"]),
        coded(LONG),
        coded({"fencing_token": "round-5", "text": LONG})[:-10],
        b"\x02" + coded({"fencing_token": "round-6", "text": LONG})[1:],
        b"\x01\x80" + LONG.encode(),
        coded({"fencing_token": "short"}),
        coded(None),
        b"",
    ],
)
def test_the_round_of_the_input_is_kept_and_a_long_input_is_not(data: bytes) -> None:
    held = bare(record("job", input=data)).input

    assert round_of(held) == round_of(data)
    assert len(held) <= INPUT_BYTES_KEPT
    assert LONG.encode() not in held


def test_a_bare_record_projects_to_what_the_whole_one_does() -> None:
    error = ErrorRecord(code="broken", type="ValueError", message="no", attempt=2)
    steps = (
        StepRecord(name="a", status="completed", attempt=1, checkpoint=b"c" * 9_000, finish_time=CREATED_MS + 5),
        StepRecord(name="b", status="running", attempt=3, error=error, errors=(error, error), started_time=CREATED_MS),
    )
    whole = record(
        "job", 8, steps=steps, outputs={"a": b"o" * 9_000}, input=coded({"fencing_token": "round-9", "text": LONG})
    )

    held = bare(whole)

    assert snapshot_of(held, CREATED_MS + 99) == snapshot_of(whole, CREATED_MS + 99)
    for index, event in ((0, "step.completed"), (1, "step.retried")):
        assert attempts_of(event, held, index, CREATED_MS) == attempts_of(event, whole, index, CREATED_MS)
    assert (held.outputs, [step.checkpoint for step in held.steps], held.steps[1].errors) == ({}, [None, None], ())
    assert whole.steps == steps, "the record itself is as it was"
