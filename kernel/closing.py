"""What holds connections and files, and can be done with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self


class Closing:
    """Closes once what it was given; usable as `with … as …`. What it is used for afterwards fails."""

    def __init__(self, closers: Sequence[Callable[[], None]] = ()) -> None:
        self._closers = list(closers)

    def close(self) -> None:
        """Close everything, also when closing one of them fails; again and again without harm."""
        while self._closers:
            closer = self._closers.pop()
            try:
                closer()
            except Exception:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
