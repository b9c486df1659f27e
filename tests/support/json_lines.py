"""A file to which several processes append one JSON record a line, as it is read while they go on."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class JsonLines(Generic[T]):
    """Reads on from where it stopped; a line that is not whole yet is left for the next time."""

    def __init__(self, path: Path, type_: type[T]) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(type_)
        self._read = 0

    def more(self) -> list[T]:
        """The records that have come since the last call; none while the file is not there."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        return [self._decoder.decode(line) for line in data.splitlines()]
