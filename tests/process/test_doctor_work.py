"""What `doctor` says of work that waits: of versions that no worker offers, and of what was accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel import App
from kernel.business_objects import BusinessObjects
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.runtime import open_objects
from kernel.runtime.examining import Due, Rows
from kernel.store.conditional import Put, Transition
from supervisor.boot import Program
from supervisor.ops_accepted import accepted_checks
from supervisor.ops_check import Check, completed
from supervisor.ops_rows import row_checks
from supervisor.ops_shell import Given
from supervisor.ops_tree import Tree
from tests.process.shop import SHOWS
from tests.process.test_doctor import diagnosed
from tests.process.test_doctor_ailing import make_due
from tests.support.wait import wait_until

APP = "tests.process.shop:app"
empty = App()
MINE, OTHER = f"billing@{'a' * 64}", f"billing@{'b' * 64}"


def worker(*versions: str, **more: Any) -> dict[str, Any]:
    return child("worker") | {"x_definitions": list(versions)} | more


def child(role: str, **more: Any) -> dict[str, Any]:
    return {"name": f"{role}-0", "role": role, "kind": role, "state": "RUNNING", "silent": False, "loops": {}} | more


def tree(*children: dict[str, Any]) -> Tree:
    return Tree(folder="/x", status={"state": "RUNNING", "app": "a:b", "children": list(children)})


def looked(
    found: Tree, *, is_embedded: bool = True, live: dict[str, int] | None = None, **due: int
) -> dict[str, Check]:
    """The checks of rows, with so many due of the version `mine` and of `other`."""
    keys = {"mine": MINE, "other": OTHER}
    rows = Rows(
        parked=0,
        deferred={},
        live=live or {},
        live_ms=90_000,
        due={keys[name]: Due(count, 5_000) for name, count in due.items()},
    )
    return {check.name: check for check in row_checks(rows, found, is_embedded=is_embedded)}


def test_due_work_of_a_version_that_no_worker_offers_is_told_at_once() -> None:
    checks = looked(tree(worker("billing@aaaaaaaaaaaa")), other=2, live={OTHER: 12_300})

    assert (checks["rows.version"].verdict, checks["rows.version"].text) == (
        "warn",
        "no live worker for 2 workflows of billing@bbbbbbbbbbbb; live versions: billing@aaaaaaaaaaaa",
    )
    assert (checks["rows.due"].verdict, checks["rows.due"].text) == (
        "warn",
        "2 workflows due, the oldest for 5.0 s; 1 worker can take none of them: the check rows.version tells why",
    )


def test_what_some_worker_can_take_is_no_fault() -> None:
    both = looked(tree(worker("billing@aaaaaaaaaaaa"), worker("billing@bbbbbbbbbbbb")), mine=1, other=2)
    one = looked(tree(worker("billing@aaaaaaaaaaaa")), mine=1, other=2)

    assert {check.verdict for check in both.values()} == {"ok"}
    assert both["rows.due"].text.endswith("2 workers can take them")
    assert "1 worker can take all but 2 of them" in one["rows.due"].text


@pytest.mark.parametrize("silent", [worker(state="BACKOFF"), worker(silent=True), child("worker")])
def test_a_worker_that_has_not_told_or_does_not_run_condemns_nothing(silent: dict[str, Any]) -> None:
    checks = looked(tree(silent), other=2, live={OTHER: 12_300})

    assert checks["rows.version"].verdict == "ok"
    assert checks["rows.version"].text.endswith("versions seen within 90.0 s: billing@bbbbbbbbbbbb (12.3 s ago)")


def test_of_a_shared_store_a_version_of_another_tree_is_told_with_its_age() -> None:
    checks = looked(tree(worker("billing@aaaaaaaaaaaa")), other=2, live={OTHER: 12_300}, is_embedded=False)

    assert {check.verdict for check in checks.values()} == {"ok"}
    assert checks["rows.version"].text.endswith(
        "live versions: billing@aaaaaaaaaaaa; of other trees versions seen within 90.0 s: "
        "billing@bbbbbbbbbbbb (12.3 s ago)"
    )


@pytest.mark.fault
def test_the_workers_of_a_real_tree_tell_what_they_offer(supervise, durable, data_dir) -> None:
    """A version that lately ran here and was stopped in order is no live one."""
    make_due(durable, 2, ago_ms=5_000)
    found = supervise(Program(), app=APP)
    found.wait_running()
    wait_until(lambda: found.child("worker-0").get("x_definitions"), "the worker has told")

    checks = diagnosed(data_dir, environ={"REDIS_URL": ""})

    assert checks["rows.version"]["text"].startswith("no live worker for 2 workflows of billing@aaaaaaaaaaaa; live ")
    assert "can take none of them" in checks["rows.due"]["text"]


@pytest.fixture
def shows(data_dir: Path) -> Iterator[BusinessObjects]:
    data_dir.mkdir(mode=0o700)
    opened = open_objects(Config(), data_dir, (SHOWS,), SystemClock())[SHOWS.name]
    yield opened
    opened.close()


@pytest.fixture
def accepted(shows: BusinessObjects, data_dir: Path) -> Callable[..., Check]:
    """The check of the one source of the application, with one object that is due for so long."""

    def look(found: Tree, *, ago_ms: int = 0) -> Check:
        shows.accept("s1", type_="t", biz_key="t:s1", input={"a": 1}, priority=1)
        due = shows.now_ms() - ago_ms
        shows._store.apply(Transition("by_hand", SHOWS.place, "s1", (), (Put("workflow_dispatch.due_time", due),)))
        (check,) = accepted_checks(Config(data_dir=str(data_dir), app=APP), found)
        return check

    return look


OUTBOX = f"outbox.{SHOWS.name}"


@pytest.mark.req("dsp-list-pending")
@pytest.mark.parametrize(
    ("found", "ago_ms", "verdict", "words"),
    [
        (tree(child("dispatcher", loops={OUTBOX: 0.1})), 100_000, "warn", "the oldest due for 100.0 s"),
        (tree(child("dispatcher", loops={OUTBOX: 0.1})), 1_000, "ok", "1 accepted object not registered"),
        (tree(child("dispatcher", loops={"outbox.others": 0.1})), 1_000, "warn", "here does not know shows"),
        (tree(worker()), 1_000, "warn", "nobody to do it: the tree that runs here has no dispatcher"),
        (Tree(folder="/x"), 1_000, "warn", "nobody to do it: no tree runs"),
        (Tree(folder="/x", is_silent=True), 1_000, "ok", "1 accepted object not registered"),
    ],
)
def test_accepted_work_that_nobody_registers_is_told(accepted, found, ago_ms, verdict, words) -> None:
    check = accepted(found, ago_ms=ago_ms)

    assert (check.name, check.verdict) == ("accepted.shows", verdict)
    assert words in check.text
    assert check.remedy


def test_nothing_due_and_nothing_declared_are_no_faults(shows, data_dir) -> None:
    found = tree(worker())
    waiting, none, unknown = (
        list(accepted_checks(Config(data_dir=str(data_dir), app=app), found))
        for app in (APP, "tests.process.test_doctor_work:empty", None)
    )

    assert [check.text for check in waiting] == [
        "no accepted object waits for a dispatcher (the tree that runs here has no dispatcher)"
    ]
    assert [check.text for check in none] == ["tests.process.test_doctor_work:empty declares no business objects"]
    assert unknown == []


def test_a_source_of_the_users_own_that_fails_ends_no_diagnosis(data_dir, monkeypatch) -> None:
    def broken(_request: object) -> Any:
        raise RuntimeError("no such queue")

    data_dir.mkdir()
    monkeypatch.setattr("tests.process.shop.app.source_makers", (broken,))

    (check,) = accepted_checks(Config(data_dir=str(data_dir), app=APP), Tree(folder=str(data_dir)))

    assert (check.verdict, check.text) == ("warn", f"a dispatch source of {APP} fails: RuntimeError: no such queue")


@pytest.mark.parametrize(
    ("given", "remedy", "shown"),
    [
        (Given(), "`kernel-supervisor start`", "kernel-supervisor start --app MODULE:ATTRIBUTE"),
        (Given(app=None), "`kernel-supervisor start`: it goes on", "kernel-supervisor start: it goes on"),
        (
            Given("my data", "k.toml", "a:b"),
            "`kernel-supervisor stop`, then `kernel-supervisor start --workers N`",
            "kernel-supervisor stop --data-dir 'my data' --config k.toml, then "
            "kernel-supervisor start --workers N --data-dir 'my data' --config k.toml --app a:b",
        ),
        (Given("d"), "`kernel-supervisor config check`", "kernel-supervisor config check"),
        (Given("d"), "look at `ps`", "look at `ps`"),
    ],
)
def test_remedies_repeat_what_was_typed(given: Given, remedy: str, shown: str) -> None:
    assert completed(remedy, given) == shown
