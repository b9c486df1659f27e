"""`bench streams`: appending to short and long streams, what aggregation saves, and whether offsets have holes
(dc-bench-stream)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from bench.script_run import ScriptRun
from bench.script_slices import Case
from bench.streamed_text import stream_text
from kernel.coordination.streams import Streams, StreamTerms
from kernel.frames import encode_text
from kernel.stream_words import RECORDS_MAX, Appended, Batch, Seniority, StreamId

_TERMS = StreamTerms(bytes_max=2**40)
"""Nothing is ever full here: what a limit costs does not depend on its size."""
_RECORD = encode_text("x" * 63)
_APPENDED_AT_ONCE = 10
_READ_AT_ONCE = 100
_WRITER = "bench"
_HOLE_REQUESTS = 300


def measure_streams(run: ScriptRun) -> None:
    """A row for each operation and length; each length grows out of the one before."""
    keys = run.server.keys("streams")
    long = _Long(Streams(run.server.runner, keys, _TERMS))
    for depth in run.plan.depths:
        long.depth = depth
        if not long.fill(run):
            return
        run.time([long.append_case(1), long.append_case(_APPENDED_AT_ONCE), long.read_case()])
    if run.late:
        return
    run.progress.phase("streaming text")
    texts = stream_text(Streams(run.server.runner, keys), run.server, keys)
    run.rows += texts
    run.lines += [
        f"  {row['op'].replace('_', ' '):<26}{row['records']:,} records and {row['bytes']:,} bytes for "
        f"{row['characters']:,} characters ({row['redis_bytes']:,} bytes in Redis), {row['per_s']:,} appends/s"
        for row in texts
    ]
    run.progress.phase("looking for holes")
    found = hole_findings(*_written(Streams(run.server.runner, keys), StreamId("holes", "holes", "1")))
    run.findings += found
    run.lines.append(f"  {'offsets':<26}{'; '.join(found) or 'no hole, every record where its append said'}")


class _Long:
    """One stream that is brought to a length and kept near it."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._stream = StreamId("long", "long", "1")
        self._resets = count(1)
        self._requests = count(1)
        self._generation = 0
        self._length = 0
        self.depth = 0

    def fill(self, run: ScriptRun | None = None) -> bool:
        """Append up to the depth; False when the time is up before that."""
        if not self._generation:
            self._begin()
        if run is not None:
            run.progress.phase("filling the stream", total=self.depth - self._length)
        begin = self._length
        while self._length < self.depth:
            if run is not None:
                if run.late:
                    return False
                run.progress.show(lambda: self._length - begin)
            self._append([_RECORD] * min(RECORDS_MAX, self.depth - self._length))
        return True

    def append_case(self, n: int) -> Case:
        records = [_RECORD] * n

        return Case(
            op="stream_append",
            n=n,
            depth=self.depth,
            call=lambda: self._append(records),
            restore=self._shorten,
            calls_max=min(4_000, max(50, self.depth // (2 * n))),
        )

    def read_case(self) -> Case:
        """The last frames, as a reader that follows gets them."""

        def call() -> Batch:
            return self._streams.read(
                self._stream,
                self._generation,
                max(0, self._length - _READ_AT_ONCE),
                bytes_max=2**20,
                count_max=_READ_AT_ONCE,
            )

        return Case(op="stream_read", n=_READ_AT_ONCE, depth=self.depth, call=call, calls_max=4_000)

    def _append(self, records: Sequence[bytes]) -> None:
        answer = self._streams.append(
            self._stream, self._generation, records, writer=_WRITER, request=next(self._requests)
        )
        if not isinstance(answer, Appended):
            raise RuntimeError(f"an append was refused where there is room: {answer!r}")
        self._length += len(records)

    def _shorten(self) -> None:
        """A short stream that has grown by half begins anew; a long one hardly grows."""
        if self._length > self.depth + self.depth // 2:
            self._begin()
            self.fill()

    def _begin(self) -> None:
        number = next(self._resets)
        generation = self._streams.reset(self._stream, Seniority(1, number), reset_id=f"reset{number}")
        assert generation is not None, "a later reset than the latest"
        self._generation, self._length = generation, 0


def _written(streams: Streams, stream: StreamId) -> tuple[list[tuple[int, int]], list[bytes], list[bytes]]:
    """Append known records in requests of several sizes, each third of which is repeated as after a lost answer:
    offset and size of each request as it was told, what was written, and what a reader gets. An offset of -1 stands for
    a request that was refused or whose repeat was answered in another way."""
    generation = streams.reset(stream, Seniority(1, 1), reset_id="holes") or 0
    told: list[tuple[int, int]] = []
    written: list[bytes] = []
    for request in range(1, _HOLE_REQUESTS + 1):
        records = [encode_text(f"{request}.{part}") for part in range(1 + request % 7)]
        written += records
        answers = [
            streams.append(stream, generation, records, writer=_WRITER, request=request)
            for _ in range(2 if request % 3 == 0 else 1)
        ]
        first = answers[0]
        sound = isinstance(first, Appended) and all(answer == Appended(generation, first.offset) for answer in answers)
        told.append((first.offset if sound and isinstance(first, Appended) else -1, len(records)))
    return told, written, _read_all(lambda at: streams.read(stream, generation, at, bytes_max=2**16, count_max=64))


def _read_all(read: Callable[[int], Batch]) -> list[bytes]:
    records: list[bytes] = []
    while batch := read(len(records)).records:
        records += batch
    return records


def hole_findings(told: Sequence[tuple[int, int]], written: Sequence[bytes], read: Sequence[bytes]) -> list[str]:
    """What is wrong with the offsets that appends told, one after the other, or with what a reader gets."""
    expected = 0
    for number, (offset, size) in enumerate(told):
        if offset != expected:
            return [f"append {number} was put at offset {offset}, the frames before it end at {expected}"]
        expected += size
    if list(written) != list(read):
        same = next((at for at, pair in enumerate(zip(written, read, strict=False)) if pair[0] != pair[1]), None)
        where = f"differs at offset {same}" if same is not None else f"has {len(read)} of {len(written)} records"
        return [f"the stream that was read {where}"]
    return []
