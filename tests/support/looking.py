"""Looking again and again from a thread of its own while a test goes on."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Looking(ABC):
    """Within `with`, `_turn` is called every `every_s` seconds. When it fails `_failed` is told why, and nobody looks
    on: a look that ended must be a finding, or the test would rest on nothing."""

    def __init__(self, name: str, every_s: float) -> None:
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _turn(self) -> None: ...

    @abstractmethod
    def _failed(self, error: Exception) -> None: ...

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._every_s):
                self._turn()
        except Exception as error:
            self._failed(error)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
