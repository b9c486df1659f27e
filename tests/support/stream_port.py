"""Client streams in memory: the model of the scripts as the kernel's port, with faults that a test sets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from kernel.errors import CoordinationUnavailable
from kernel.frames import Frame, Terminal, decode
from kernel.stream_words import Appended, Batch, NotAppended, Seniority, StreamId, TerminalReference
from kernel.stream_writer import StreamPort
from tests.support.stream_model import StreamModel


class MemoryStreams:
    """Many streams. `down`: nothing answers; `lose`: so many answers get lost after the work was done; `gate`: calls
    hang until it is set; `before` is called with the name of each call before it is made."""

    def __init__(self, now_ms: Callable[[], int], bytes_max: int = 1_000_000) -> None:
        self._now_ms = now_ms
        self._bytes_max = bytes_max
        self._lock = threading.RLock()
        self.models: dict[StreamId, StreamModel] = {}
        self.down = False
        self.lose = 0
        self.gate: threading.Event | None = None
        self.before: Callable[[str], None] = lambda name: None
        self.calls: list[str] = []

    def append(
        self, stream: StreamId, generation: int, records: Sequence[bytes], *, writer: str, request: int
    ) -> Appended | NotAppended:
        answer = self._made(
            "append", stream, lambda model: model.append(generation, list(records), writer, request, self._bytes_max)
        )
        if isinstance(answer, str):
            return NotAppended(cast(Any, answer))
        return Appended(answer[1], answer[0]) if isinstance(answer, tuple) else Appended(generation, answer)

    def reset(self, stream: StreamId, seniority: Seniority, *, reset_id: str, keep: bool = False) -> int | None:
        age = (seniority.created_ms, seniority.revision)
        answer = self._made("reset", stream, lambda model: model.reset(age, reset_id, keep, self._now_ms()))
        return answer if isinstance(answer, int) else None

    def finish(self, stream: StreamId, seniority: Seniority, record: bytes) -> int | Literal["stale", "absent"]:
        age = (seniority.created_ms, seniority.revision)
        answer: Any = self._made("finish", stream, lambda model: model.finish(age, record))
        return answer  # type: ignore[no-any-return]

    def read(
        self, stream: StreamId, generation: int, offset: int, *, bytes_max: int, count_max: int, watch_ms: int = 0
    ) -> Batch:
        found, start, length, terminal, records = self._made(
            "read", stream, lambda model: model.read(generation, offset, bytes_max, count_max, watch_ms > 0)
        )
        return Batch(found, start, length, None if terminal is None else TerminalReference(*terminal), records)

    def generation(self, stream: StreamId) -> int:
        answer: int = self._made("generation", stream, lambda model: model.generation or 0)
        return answer

    def _made(self, name: str, stream: StreamId, call: Callable[[StreamModel], Any]) -> Any:
        self.calls.append(name)
        self.before(name)
        if self.gate is not None:
            self.gate.wait(30)
        with self._lock:
            if self.down:
                raise CoordinationUnavailable(f"{name}: down")
            answer = call(self.of(stream))
            if self.lose > 0:
                self.lose -= 1
                raise CoordinationUnavailable(f"{name}: the answer got lost")
        return answer

    # --- looking -------------------------------------------------------------------------------------------

    def of(self, stream: StreamId) -> StreamModel:
        return self.models.setdefault(stream, StreamModel())

    def frames(self, stream: StreamId) -> list[Frame | Terminal]:
        return [decode(record) for record in self.of(stream).frames]

    def text(self, stream: StreamId) -> str:
        """The text frames, put together."""
        return "".join(f.data for f in self.frames(stream) if isinstance(f, Frame) and f.msg_type == "text")

    def wipe(self) -> None:
        with self._lock:
            for model in self.models.values():
                model.wipe()


class StreamsView:
    """A port as one worker process sees it: when the process is dead, none of its calls arrives any more."""

    def __init__(self, inner: StreamPort, dead: Callable[[], bool]) -> None:
        self._inner = inner
        self._dead = dead

    def __getattr__(self, name: str) -> Any:
        if self._dead():
            raise CoordinationUnavailable("this process is dead")
        return getattr(self._inner, name)
