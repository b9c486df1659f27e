"""The run's own view of the stores. It is shut while everybody dies who has them open: the next one to open a store
then finds nothing but its files, as after the end of a machine's last process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kernel.business_objects import BusinessObjects
from kernel.store.protocol import Store


class View(NamedTuple):
    """What can be looked at."""

    store: Store
    objects: BusinessObjects

    def close(self) -> None:
        self.store.close()
        self.objects.close()


class Window:
    """Open or shut. Who shuts it waits for those that are looking; threads beside him find it shut and look later."""

    def __init__(self, opened: Callable[[], View]) -> None:
        self._opened = opened
        self._view: View | None = opened()
        self._looking = 0
        self._changed = threading.Condition()

    @property
    def view(self) -> View:
        """For the thread that opens and shuts it."""
        assert self._view is not None, "the window is shut"
        return self._view

    @contextmanager
    def looking(self) -> Iterator[Store | None]:
        """For other threads: the store, which stays open within the block; None while the window is shut."""
        with self._changed:
            view = self._view
            self._looking += view is not None
        try:
            yield None if view is None else view.store
        finally:
            with self._changed:
                self._looking -= view is not None
                self._changed.notify_all()

    def shut(self) -> None:
        with self._changed:
            view, self._view = self._view, None
            self._changed.wait_for(lambda: not self._looking)
        if view is not None:
            view.close()

    def open(self) -> None:
        if self._view is None:
            self._view = self._opened()
