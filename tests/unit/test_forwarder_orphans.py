"""Frames whose generation is gone: its time to live ran out before theirs, or a server evicted it."""

from __future__ import annotations

import pytest

from kernel.forwarder import Outcome
from tests.unit.test_forwarder import DONE, STREAM, Desk, said


@pytest.mark.req("sse-double-check")
def test_frames_without_a_generation_keep_no_reader_busy_and_hide_no_end() -> None:
    desk = Desk()
    desk.begin()
    desk.write("a", "b")
    desk.port.of(STREAM).generation = None
    reader = desk.reader()

    for _ in range(5):
        reader.poll()
        assert reader.wait_ms() > 0, "there is nothing to read at once"
        desk.clock.advance(reader.wait_ms())
    desk.outcome = Outcome(DONE, None)
    desk.clock.advance(60_000)

    assert said(reader.poll()) == ["[terminal]"]
    assert reader.ended
