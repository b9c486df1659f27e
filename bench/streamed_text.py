"""Ten thousand characters on their way to a client, three ways: what gathering small writes saves (sse-aggregate).

Pieces of four characters, as a composer gives them, go straight into an append each; or into the kernel's own sink,
once without a pause between them and once with 10 ms of a clock that only this module moves, so that how many records
come out does not depend on the machine.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import Any, cast

from bench.script_plan import CHARACTERS
from bench.script_server import ScriptServer
from kernel.clock import ManualClock
from kernel.coordination.keys import Keys
from kernel.coordination.streams import Streams
from kernel.engine.ports import Runner
from kernel.frames import encode_text
from kernel.stream_sink import StreamSink
from kernel.stream_words import Appended, Seniority, StreamId
from kernel.streams import StreamSettings

PIECE = "abc "
PACE_MS = 10


class Timers:
    """The part of a Runner that a sink uses, on a clock that is moved by hand."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    def call_at(self, boot_ms: int, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (boot_ms, self._number, what))

    def advance(self, ms: int) -> None:
        """Let time pass, and call what is due then."""
        self._clock.advance(ms)
        while self._due and self._due[0][0] <= self._clock.boot_ms():
            heapq.heappop(self._due)[2]()


class Appender:
    """Where records go: one append each, at once."""

    def __init__(self, streams: Streams, stream: StreamId) -> None:
        self._streams = streams
        self._stream = stream
        generation = streams.reset(stream, Seniority(1, 1), reset_id="bench")
        assert generation is not None, "a stream of its own"
        self._generation = generation
        self.records = 0
        self.size = 0
        self.dropped = 0

    def put(self, record: bytes) -> bool:
        self.records += 1
        self.size += len(record)
        answer = self._streams.append(
            self._stream, self._generation, [record], writer="bench", request=self.records
        )  # fmt: skip
        if not isinstance(answer, Appended):
            raise RuntimeError(f"an append was refused where there is room: {answer!r}")
        return True


def stream_text(streams: Streams, server: ScriptServer, keys: Keys) -> list[dict[str, Any]]:
    """One row for each way."""
    ways: dict[str, Callable[[Appender], None]] = {
        "text_each_piece": _each_piece,
        "text_aggregated": lambda outlet: _through_sink(outlet, 0),
        "text_aggregated_paced": lambda outlet: _through_sink(outlet, PACE_MS),
    }
    rows = []
    for op, write in ways.items():
        stream = StreamId("text", op, "1")
        outlet = Appender(streams, stream)
        begin_ns = time.perf_counter_ns()
        write(outlet)
        seconds = max(1, time.perf_counter_ns() - begin_ns) / 1e9
        rows.append(
            {
                "op": op,
                "characters": CHARACTERS,
                "pieces": CHARACTERS // len(PIECE),
                "pace_ms": PACE_MS if op.endswith("_paced") else 0,
                "records": outlet.records,
                "bytes": outlet.size,
                "redis_bytes": server.memory_of(keys.stream(stream)["stream_frames"]),
                "per_s": round(outlet.records / seconds),
                "characters_per_s": round(CHARACTERS / seconds),
            }
        )
    return rows


def _each_piece(outlet: Appender) -> None:
    for _ in range(CHARACTERS // len(PIECE)):
        outlet.put(encode_text(PIECE))


def _through_sink(outlet: Appender, pace_ms: int) -> None:
    """With the kernel's own thresholds."""
    clock, settings = ManualClock(), StreamSettings()
    timers = Timers(clock)
    sink = StreamSink(
        outlet,
        runner=cast(Runner, timers),
        clock=clock,
        flush_ms=settings.flush_ms,
        flush_bytes=settings.flush_bytes,
    )
    for _ in range(CHARACTERS // len(PIECE)):
        sink.write(PIECE)
        if pace_ms:
            timers.advance(pace_ms)
    sink.close()
