"""Calling the stream scripts by hand: every argument visible, `now_ms` included, and what the keys hold."""

from __future__ import annotations

from typing import Any

from kernel.coordination import BoundScript, ScriptRunner
from kernel.stream_words import StreamId
from lua import get
from tests.support.redis_servers import RedisTarget
from tests.support.stream_model import Age

STREAM = StreamId("object-42", "wf-42", "f1")
START = 1_800_000_000_000
RUNNING, READ_OUT, KEPT = 600_000, 60_000, 900_000
BYTES_MAX = 1_000_000


class RawStream:
    """The scripts of one stream with a clock that the test sets."""

    def __init__(self, target: RedisTarget, *, stream: StreamId = STREAM, runner: ScriptRunner | None = None) -> None:
        self.target = target
        self.runner = runner if runner is not None else target.runner()
        self.stream = stream
        self.keys = target.keys.stream(stream)
        self._bound: dict[str, BoundScript] = {}

    def call(self, name: str, *args: bytes | str | int) -> Any:
        if name not in self._bound:
            script = get(name)
            self._bound[name] = BoundScript(script, self.target.keys.of(script, stream=self.stream))
        return self.runner.call(self._bound[name], *args)

    def append(
        self, generation: int, *records: bytes, writer: str = "w", request: int = 1, bytes_max: int = BYTES_MAX,
        running: int = RUNNING, kept: int = KEPT,
    ) -> int | tuple[int, int] | str:  # fmt: skip
        """The offset, (offset, generation) when a new one began, or why not."""
        first = (self.target.keys.stream_channel, self.stream.tag, bytes_max, running, kept)
        return _answer(self.call("stream_append", *first, f"{generation} {writer} {request}", *records))

    def reset(
        self, age: Age, reset_id: str = "r", *, keep: bool = False, now: int = START, kept: int = KEPT
    ) -> int | str:
        terms = f"{age[0]} {age[1]} {reset_id} {int(keep)} {kept} {self.stream.tag}"
        reply: int | str = _answer(self.call("stream_reset", terms, self.target.keys.stream_channel, now))
        return reply

    def finish(self, age: Age, record: bytes, *, read_out: int = READ_OUT, kept: int = KEPT) -> int | str:
        terms = f"{age[0]} {age[1]} {read_out} {kept} {self.stream.tag}"
        reply: int | str = _answer(self.call("stream_finish", terms, record, self.target.keys.stream_channel))
        return reply

    def read(
        self, generation: int = 0, offset: int = 0, *, bytes_max: int = BYTES_MAX, count_max: int = 1000, watch: int = 0
    ) -> tuple[int, int, int, tuple[int, int, bytes] | None, list[bytes]]:
        found, start, length, terminal, *records = self.call(
            "stream_read", f"{generation} {offset} {bytes_max} {count_max} {watch}"
        )
        return found, start, length, _reference(terminal), records

    # --- what the keys hold --------------------------------------------------------------------------------

    def frames(self) -> list[bytes]:
        return list(self.target.client.lrange(self.keys["stream_frames"], 0, -1))

    def generation(self) -> int | None:
        value = self.target.client.get(self.keys["stream_generation"])
        return None if value is None else int(value)

    def terminal(self) -> tuple[int, int, bytes] | None:
        return _reference(self.target.client.get(self.keys["stream_terminal"]) or b"")

    def state(self) -> tuple[Age, str, int, int, dict[str, tuple[int, int]]] | None:
        """((created, revision), reset_id, next, bytes, writers)."""
        text = self.target.client.get(self.keys["stream_state"])
        if text is None:
            return None
        created, revision, reset_id, next_, size, *writers = text.decode().split(" ")
        last = {w: (int(r), int(at)) for w, r, at in zip(writers[::3], writers[1::3], writers[2::3], strict=True)}
        return (int(created), int(revision)), reset_id, int(next_), int(size), last

    def lives(self, part: str) -> int:
        """Milliseconds that a key still has."""
        return int(self.target.client.pttl(self.keys[f"stream_{part}"]))


def _answer(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode()
    return tuple(reply) if isinstance(reply, list) else reply


def _reference(text: bytes) -> tuple[int, int, bytes] | None:
    if not text:
        return None
    generation, offset, record = text.split(b" ", 2)
    return int(generation), int(offset), record
