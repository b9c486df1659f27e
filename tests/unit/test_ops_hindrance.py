"""Why due work is not taken: only what is seen, and the command that leads on."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.clock import ManualClock
from kernel.config import Config
from kernel.errors import StoreUnavailable
from kernel.fingerprint import version_shown
from kernel.store.conditional import Insert
from kernel.store.memory import MemoryStore
from kernel.store.tables import DEFINITIONS
from supervisor.ops_hindrance import Hindrance, Offered, hindrance, offered_versions
from supervisor.ops_shell import Given
from supervisor.ops_tree import Tree
from tests.support.snapshots import snapshot

DUE = snapshot()
KEY = f"{DUE.type}@{DUE.definition_fingerprint}"
MINE = version_shown(KEY)
OTHER = f"{DUE.type}@ffffeeeedddd"
GIVEN = Given("R", None, "flows:app")


def worker(**fields: Any) -> dict[str, Any]:
    plain = {"name": "worker-0", "kind": "role", "role": "worker", "state": "RUNNING", "silent": False}
    return {**plain, "slots_busy": 0, "x_slots": 2, "x_store": "up", "x_redis": "up", **fields}


def tree(*children: dict[str, Any], **status: Any) -> Tree:
    return Tree(folder="/R", status={"state": "RUNNING", "uptime_s": 5.0, **status, "children": list(children)})


NOTHING: Offered | None = None
CASES: list[tuple[Tree, Offered | None, str | None, str]] = [
    (tree(worker()), frozenset({MINE, OTHER}), None, ""),
    # Who has just begun has reported nothing yet.
    (tree(worker()), None, None, ""),
    (Tree(folder="/R"), NOTHING, "no supervisor runs in /R", "start --data-dir R --app flows:app"),
    (Tree(folder="/R", dead_pid=7), NOTHING, "no supervisor runs in /R", "start --data-dir R --app flows:app"),
    (Tree(folder="/R", is_silent=True), NOTHING, "the supervisor in /R does not answer", "doctor --data-dir R"),
    (
        tree(worker(), state="DRAINING"), frozenset({MINE}), "the tree is draining and takes nothing new",
        "status --data-dir R",
    ),
    (tree(), frozenset({MINE}), "this tree has no worker", "doctor --data-dir R"),
    (
        tree(worker(x_store="down")), frozenset({MINE}),
        "worker-0 does not reach the durable store, or can not write to it", "doctor --data-dir R",
    ),
    (
        tree(worker(x_redis="down")), frozenset({MINE}),
        "worker-0 does not reach Redis and takes work from the store alone", "doctor --data-dir R",
    ),
    (
        tree(worker(silent=True)), frozenset({MINE}), "worker-0 is silent: stopped, or it hangs",
        "doctor --data-dir R",
    ),
    (
        tree(worker()), frozenset({OTHER, "courier@1111"}),
        "no live worker has version 0123456789ab of parcel, offered: parcel@ffffeeeedddd", "doctor --data-dir R",
    ),
    (
        tree(worker()), frozenset({"courier@1111"}), "no live worker has the type parcel, offered: courier@1111",
        "doctor --data-dir R",
    ),
    (tree(worker(slots_busy=2)), frozenset({MINE}), "all 2 slots are busy", "lanes --data-dir R"),
    # One that can not take anything beside one that can.
    (tree(worker(silent=True), worker()), frozenset({MINE}), None, ""),
]  # fmt: skip


@pytest.mark.req("ops-where-stuck")
@pytest.mark.parametrize(("found", "offered", "text", "command"), CASES)
def test_it_says_what_is_seen_and_names_the_command_that_leads_on(
    found: Tree, offered: Offered | None, text: str | None, command: str
) -> None:
    seen = hindrance(DUE, found, lambda: offered, GIVEN, is_alone=True)

    assert seen == (None if text is None else Hindrance(text, f"kernel-supervisor {command}"))


def test_beside_a_shared_store_others_may_run() -> None:
    seen = hindrance(DUE, Tree(folder="/R"), lambda: None, GIVEN, is_alone=False)

    assert seen is not None
    assert seen.text == "no supervisor runs in /R, and of other trees beside this store nothing is known here"


class Reported:
    """A store with one version that was reported `ago_ms` ago."""

    def __init__(self, ago_ms: int) -> None:
        clock = ManualClock()
        self.store = MemoryStore(clock)
        document = {"v": 1, "definition_key": KEY, "type": DUE.type, "fingerprint": DUE.definition_fingerprint}
        self.store.insert(Insert("seen", DEFINITIONS, KEY, {**document, "seen_time": clock.wall_ms() - ago_ms}))


@pytest.mark.req("ops-where-stuck")
@pytest.mark.parametrize(
    ("told", "ago_ms", "settings", "offered"),
    [
        ([MINE], 0, {}, {MINE}),
        # Reported by an earlier tree of this folder; its successor runs other steps.
        ([OTHER], 6_000, {}, {OTHER}),
        ([OTHER], 6_000, {"mongodb_uri": "mongodb://shared:1"}, {MINE, OTHER}),
        ([OTHER], 91_000, {"mongodb_uri": "mongodb://shared:1"}, {OTHER}),
        # Who has just begun has told of nothing yet.
        (None, 0, {}, None),
        (None, 0, {"mongodb_uri": "mongodb://shared:1"}, None),
    ],
)
def test_a_version_is_offered_by_who_has_it_now(
    told: list[str] | None, ago_ms: int, settings: dict[str, Any], offered: set[str] | None
) -> None:
    found = offered_versions(Reported(ago_ms).store, Config(**settings), tree(worker(x_definitions=told)))

    assert found == (None if offered is None else frozenset(offered))


def test_a_store_that_does_not_answer_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Reported(0).store

    def away() -> int:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "now_ms", away)

    assert offered_versions(store, Config(mongodb_uri="mongodb://shared:1"), tree(worker(x_definitions=[MINE]))) is None
