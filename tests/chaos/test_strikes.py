"""Each kind of blow does to a real tree what it says, and counts it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from kernel.clock import SystemClock
from kernel.runtime import STORE_FILE, open_objects, open_store
from kernel.store.tables import INSTANCES
from tests.chaos import strikes
from tests.chaos.app import ORDERS
from tests.chaos.hits import Hits
from tests.chaos.roles import PROGRAM
from tests.chaos.schedule import DECK, Blow
from tests.chaos.staff import Staff
from tests.chaos.strikes import Striker, Tree, settings
from tests.chaos.window import View, Window
from tests.support.wait import wait_until

CHILDREN = 6
"""Three workers, two dispatchers, Valkey."""


class Scene:
    """A tree with two producers, and who strikes it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        folder.mkdir(mode=0o700)
        stderr = stack.enter_context((folder / "stderr").open("ab"))
        self.tree = stack.enter_context(Tree(settings(folder), stderr, PROGRAM))
        self.staff = Staff(folder, 1, 12.0, 20, stderr, ("starter", "signaller"))
        stack.enter_context(closing(self.staff))
        self.window = Window(self._opened)
        stack.callback(self.window.shut)
        self.hits = Hits()
        self.striker = Striker(self.tree, self.hits, self.staff, self.window)

    def _opened(self) -> View:
        config, folder, clock = self.tree.config, self.tree.folder, SystemClock()
        objects = open_objects(config, folder, [ORDERS], clock, prepare=False)
        return View(open_store(config, folder, clock, prepare=False), objects[ORDERS.name])

    def strike(self, kind: str) -> None:
        """When everybody is in his place, and nobody stands still."""
        self.striker.go_on(at_once=True)
        wait_until(lambda: len(self.tree.pids()) == CHILDREN, "all children are ready")
        self.striker.strike(Blow(kind, 0.0, 7, 0.3))

    def openers(self) -> set[int]:
        """Who has the store open."""
        found = set()
        for process in psutil.process_iter():
            try:
                if str(self.tree.folder / STORE_FILE) in [file.path for file in process.open_files()]:
                    found.add(process.pid)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path / "data", stack)


@pytest.mark.fault
@pytest.mark.timeout(240)
@pytest.mark.req("dc-tests-fault")
def test_each_kind_of_blow_is_counted_and_survived(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strikes, "MET_S", 60.0)
    for kind in dict.fromkeys(DECK):
        scene.strike(kind)
    scene.striker.go_on(at_once=True)
    wait_until(lambda: len(scene.tree.pids()) == CHILDREN, "all children are ready again")

    hits = scene.hits
    assert (hits.kills, hits.deaths) == (6, 3 + CHILDREN)
    assert (len(hits.pauses), hits.flushes, hits.restarts, len(hits.store_restarts)) == (3, 1, 3, 1)
    assert hits.processes == 2 * 3 + 3 + 3, "all workers died twice and were rolled once; one died, two stood still"
    assert len(hits.wipes) == 4
    assert [line.split()[1] for line in scene.striker.log] == list(dict.fromkeys(DECK))
    assert scene.staff.found == []


@pytest.mark.fault
@pytest.mark.req("dc-tests-fault")
def test_when_everybody_has_died_nobody_has_the_stores_open(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[int]] = []
    begin_again = scene.tree.begin_again

    def looked() -> None:
        seen.append(scene.openers())
        begin_again()

    monkeypatch.setattr(scene.tree, "begin_again", looked)
    assert scene.window.view.store.get(INSTANCES, "nobody") is None
    wait_until(lambda: len({os.getpid()} & scene.openers()) == 1 < len(scene.openers()), "it is open here and there")
    scene.strike("kill_everybody")

    assert seen == [set()]
    assert scene.window.view.store.now_ms() > 0
