"""One client stream in plain Python: what the scripts of lua/v1/stream_*.lua must do, written to be read.

Random tests compare every reply and every key of the scripts with this. Times to live are left to tests of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PLACE = 64
WRITERS_MAX = 8
Age = tuple[int, int]


@dataclass
class StreamModel:
    """One stream. `writers` maps a writer to its last (request, offset), in the order of their last appends."""

    frames: list[bytes] = field(default_factory=list)
    generation: int | None = None
    known: bool = False
    """Whether the bookkeeping (the key `state`) exists."""
    age: Age = (0, 0)
    reset_id: str = ""
    next: int = 0
    bytes: int = 0
    writers: dict[str, tuple[int, int]] = field(default_factory=dict)
    terminal: tuple[int, int, bytes] | None = None
    watched: bool = False
    told: int = 0
    """Wakeups published."""

    def append(
        self, generation: int, records: list[bytes], writer: str, request: int, bytes_max: int
    ) -> int | tuple[int, int] | str:
        if not self.known or self.generation != generation:
            return "generation"
        last = self.writers.get(writer)
        if last is not None and last[0] == request:
            return last[1]
        if last is not None and last[0] > request:
            return "request"
        if self.terminal is not None:
            return "terminal"
        size = sum(len(record) + PLACE for record in records)
        if self.bytes + size > bytes_max:
            return "full"
        begun = self._lost()
        first = self.next
        self.frames += records
        self.next += len(records)
        self.bytes += size
        self.writers.pop(writer, None)
        self.writers[writer] = (request, first)
        while len(self.writers) > WRITERS_MAX:
            del self.writers[next(iter(self.writers))]
        self.told += self.watched
        return (first, self.generation or 0) if begun else first

    def reset(self, age: Age, reset_id: str, keep: bool, now: int) -> int | str:
        if self.known:
            if self.generation is not None and self.reset_id == reset_id:
                return self.generation
            if self.age > age:
                return "stale"
        kept = keep and self.known and self.generation is not None and self.terminal is None
        if not kept:
            self._begin(now if self.generation is None else self.generation + 1)
            self.terminal = None
            self.told += self.watched
        self.known, self.age, self.reset_id = True, age, reset_id
        assert self.generation is not None
        return self.generation

    def finish(self, age: Age, record: bytes) -> int | str:
        if self.generation is None or not self.known:
            self.told += self.watched
            return "absent"
        if self.age > age:
            return "stale"
        if self.terminal is not None and self.age == age:
            return self.terminal[1]
        if self.terminal is not None:
            self._begin(self.generation + 1)
        else:
            self._lost()
        self.frames.append(record)
        self.terminal = (self.generation, self.next, record)
        self.next += 1
        self.bytes += len(record) + PLACE
        self.age = age
        self.told += self.watched
        return self.terminal[1]

    def read(
        self, generation: int, offset: int, bytes_max: int, count_max: int, watch: bool
    ) -> tuple[int, int, int, tuple[int, int, bytes] | None, list[bytes]]:
        self.watched = self.watched or watch
        found = self.generation or 0
        start = offset if generation == found and offset <= len(self.frames) else 0
        taken: list[bytes] = []
        for record in self.frames[start:] if found else []:
            if len(taken) == count_max or (taken and sum(map(len, taken)) + len(record) > bytes_max):
                break
            taken.append(record)
        return found, start, len(self.frames), self.terminal, taken

    def wipe(self) -> None:
        """As FLUSHALL; what was told stays told."""
        self.__init__(told=self.told)  # type: ignore[misc]

    def _lost(self) -> bool:
        """A list that is not as it was left begins a new generation."""
        if len(self.frames) == self.next:
            return False
        self._begin((self.generation or 0) + 1)
        return True

    def _begin(self, generation: int) -> None:
        self.generation = generation
        self.frames, self.next, self.bytes, self.writers = [], 0, 0, {}
