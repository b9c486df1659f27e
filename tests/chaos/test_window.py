"""The run's view of the stores is shut only when nobody looks, and nobody looks while it is shut."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kernel.clock import SystemClock
from kernel.errors import StoreUnavailable
from kernel.runtime import open_objects, open_store
from kernel.store.tables import INSTANCES
from tests.chaos.app import ORDERS
from tests.chaos.strikes import settings
from tests.chaos.window import View, Window
from tests.support.wait import stays, wait_until


@pytest.fixture
def window(tmp_path: Path) -> Window:
    def opened() -> View:
        config, clock = settings(tmp_path), SystemClock()
        objects = open_objects(config, tmp_path, [ORDERS], clock)
        return View(open_store(config, tmp_path, clock), objects[ORDERS.name])

    return Window(opened)


def test_it_is_shut_when_the_last_look_is_over_and_open_again_with_another_view(window: Window) -> None:
    first, shut = window.view, threading.Event()
    shutting = threading.Thread(target=lambda: (window.shut(), shut.set()))
    with window.looking() as store:
        assert store is first.store
        shutting.start()
        stays(lambda: not shut.is_set(), "it waits for who looks", seconds=0.2)
        assert first.store.get(INSTANCES, "nobody") is None, "what is looked at stays open"
        with window.looking() as another:
            assert another is None, "a look that comes now is turned away, and holds nothing up"
    wait_until(shut.is_set, "it is shut")
    shutting.join()
    with pytest.raises(StoreUnavailable):
        first.store.get(INSTANCES, "nobody")

    window.open()
    with window.looking() as store:
        assert store is window.view.store is not first.store
    window.shut()
