"""`kernel-supervisor dispatch pending`: what an operator sees of accepted work that is not registered yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel.business_objects import BusinessObjects
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.dispatch import DueIntent
from kernel.errors import StoreUnavailable
from kernel.objects import Objects
from kernel.runtime import open_objects
from kernel.store.conditional import Clear, Put, Transition
from supervisor.ops_dispatch import _open_intents

COMMAND = Path(sys.executable).with_name("kernel-supervisor")
PROGRAM = """
from kernel import App, Definition, Objects, Step

SHOWS = Objects(name="shows", grace_ms=0)
TASKS = Objects(name="tasks", key="task_id", grace_ms=0)


app = App(
    definitions=[Definition(type="t", steps=[Step("only", lambda ctx: None)])],
    dispatch_sources=[SHOWS, TASKS],
)
legacy = App(
    definitions=list(app.definitions.values()),
    dispatch_sources=[
        Objects(name="tasks", key="task_id", grace_ms=0, legacy_input=lambda document: {"x": document["needed"]})
    ],
)
empty = App(definitions=list(app.definitions.values()))
"""
SHOWS = Objects(name="shows", grace_ms=0)
TASKS = Objects(name="tasks", key="task_id", grace_ms=0)


class Shell:
    """A folder with an application and, when a test opens them, its objects."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(PROGRAM)
        self.data = folder / "data"
        self.data.mkdir()

    def open(self) -> dict[str, BusinessObjects]:
        return open_objects(Config(), self.data, (SHOWS, TASKS), SystemClock())

    def pending(self, *arguments: str, app: str = "shop:app") -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KERNEL_")}
        return subprocess.run(
            [COMMAND, "dispatch", "pending", "--app", app, "--data-dir", str(self.data), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.folder,
            env=environ,
        )

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        answer = self.pending("--json", *arguments)
        assert (answer.returncode, answer.stderr) == (0, "")
        told = json.loads(answer.stdout)
        assert told["v"] == 1
        rows: list[dict[str, Any]] = told["pending"]
        return rows


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def objects(shell: Shell) -> Iterator[dict[str, BusinessObjects]]:
    opened = shell.open()
    yield opened
    for one in opened.values():
        one.close()


def accept(objects: BusinessObjects, object_id: str) -> str:
    made = objects.accept(object_id, type_="t", biz_key=f"t:{object_id}", input={"a": 1}, priority=1)
    assert made.object.fencing_token is not None
    return made.object.fencing_token


@pytest.mark.req("dsp-list-pending")
def test_open_intents_are_listed_with_age_status_round_tries_and_error(
    shell: Shell, objects: dict[str, BusinessObjects]
) -> None:
    shows, tasks = objects["shows"], objects["tasks"]
    waiting, held = accept(shows, "s1"), accept(tasks, "t1")
    accept(shows, "s2")
    shows.confirm("s2", shows.read("s2").fencing_token, None)  # type: ignore[union-attr]
    tasks.claim("t1", tasks.read("t1"), "d1", -1)  # type: ignore[arg-type]
    tasks.release("t1", held, "d1", -1, "the store was away")
    tasks.claim("t1", tasks.read("t1"), "d2", 60_000)  # type: ignore[arg-type]

    rows = {row["object_id"]: row for row in shell.rows()}

    assert set(rows) == {"s1", "t1"}
    assert (rows["s1"]["source"], rows["t1"]["source"]) == ("shows", "tasks")
    assert (rows["s1"]["status"], rows["t1"]["status"]) == ("pending", "processing")
    assert (rows["s1"]["fencing_token"], rows["t1"]["fencing_token"]) == (waiting, held)
    assert (rows["s1"]["tries"], rows["s1"]["error"]) == (0, None)
    assert (rows["t1"]["tries"], rows["t1"]["error"]) == (1, "the store was away")
    assert all(row["age_ms"] >= 0 and row["biz_key"] == f"t:{key}" for key, row in rows.items())

    lines = shell.pending().stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("shows  s1  pending  age ")
    assert lines[1].endswith("the store was away")


@pytest.mark.req("dsp-list-pending")
def test_a_long_list_comes_in_pages_and_says_when_it_is_cut(shell: Shell, objects: dict[str, BusinessObjects]) -> None:
    for number in range(405):
        accept(objects["shows"], f"s{number:03d}")
    accept(objects["tasks"], "t1")

    assert len(shell.rows("--limit", "1000")) == 406
    assert len({row["object_id"] for row in shell.rows("--limit", "405")}) == 405
    answer = shell.pending("--limit", "3")
    assert len(answer.stdout.splitlines()) == 4
    assert answer.stdout.splitlines()[-1] == "… and more: only the first 3 are shown (--limit)"
    assert json.loads(shell.pending("--limit", "405", "--json").stdout)["more"] is True
    assert json.loads(shell.pending("--limit", "406", "--json").stdout)["more"] is False


def test_an_empty_system_says_so_and_makes_no_file(shell: Shell) -> None:
    answer = shell.pending()

    assert (answer.returncode, answer.stdout) == (0, "every accepted object is registered\n")
    assert list(shell.data.iterdir()) == []
    assert shell.rows() == []


def test_of_an_application_without_objects_nothing_is_vouched_for(
    shell: Shell, objects: dict[str, BusinessObjects]
) -> None:
    """What another one has accepted in the same folder was not looked at."""
    accept(objects["shows"], "s1")

    told = shell.pending(app="shop:empty")
    answer = json.loads(shell.pending("--json", app="shop:empty").stdout)

    words = "shop:empty declares no business objects: there was nothing to look at\n"
    assert (told.returncode, told.stdout) == (0, words)
    assert answer == {"v": 1, "pending": [], "more": False, "declared": False}


def test_what_others_wrote_can_neither_steer_the_terminal_nor_hide_a_row(
    shell: Shell, objects: dict[str, BusinessObjects]
) -> None:
    shows = objects["shows"]
    for key, changes in {
        "s1": (Put("workflow_dispatch.error", "\x1b[2J\r\nall is well\u202e"),),
        "s2": (Put("workflow_dispatch.v", 9),),
        "s3": (Put("workflow_dispatch.input", "no bytes"),),
        "s4": (Put("workflow_dispatch.fencing_token", "\x07bell"),),
    }.items():
        accept(shows, key)
        shows._store.apply(Transition("by_hand", "shows", key, (), changes))
    accept(shows, "s5")

    answer = shell.pending()

    assert answer.returncode == 0
    assert len(answer.stdout.splitlines()) == 5
    assert not set("\x1b\r\x07\u202e") & set(answer.stdout)
    assert "\\x1b[2J\\r\\nall is well\\u202e" in answer.stdout
    rows = {row["object_id"]: row for row in shell.rows()}
    assert [rows[key]["status"] for key in ("s1", "s2", "s3", "s4", "s5")] == [
        *("pending", "unreadable", "unreadable", "pending", "pending")
    ]
    assert rows["s2"]["error"].startswith("unknown_version: ")
    assert rows["s3"]["error"].startswith("corrupt_record: ")


@pytest.mark.req("dsp-list-pending", "req-legacy-input")
def test_an_object_whose_legacy_input_can_not_be_built_is_a_row_and_hides_no_other(
    shell: Shell, objects: dict[str, BusinessObjects]
) -> None:
    tasks = objects["tasks"]
    for key in ("t1", "t2", "t3"):
        accept(tasks, key)
    tasks._store.apply(Transition("by_hand", "tasks", "t2", (), (Clear("workflow_dispatch.input"),)))

    answer = shell.pending(app="shop:legacy")

    assert (answer.returncode, answer.stderr) == (0, "")
    assert len(answer.stdout.splitlines()) == 3
    rows = {row["object_id"]: row for row in json.loads(shell.pending("--json", app="shop:legacy").stdout)["pending"]}
    assert [rows[key]["status"] for key in ("t1", "t2", "t3")] == ["pending", "unreadable", "pending"]
    assert rows["t2"]["error"] == "invalid_intent: legacy input of tasks 't2': KeyError: 'needed'"


def test_whatever_a_source_of_the_users_own_raises_for_one_object_hides_no_other() -> None:
    """Its code may do anything; a store that is away is no fault of one object."""

    class Theirs:
        name = "theirs"
        away = False

        def due(self, *, after: tuple[int, str] | None, limit: int) -> list[DueIntent]:
            return [] if after else [DueIntent("a", 1), DueIntent("b", 2)]

        def read(self, object_id: str) -> None:
            if self.away:
                raise StoreUnavailable("away")
            raise KeyError(object_id)

    theirs: Any = Theirs()
    rows = list(_open_intents(theirs))

    assert [(row.object_id, row.status, row.error) for row in rows] == [
        *(("a", "unreadable", "KeyError: 'a'"), ("b", "unreadable", "KeyError: 'b'"))
    ]
    theirs.away = True
    with pytest.raises(StoreUnavailable):
        list(_open_intents(theirs))


@pytest.mark.parametrize(
    ("arguments", "app", "status", "words"),
    [
        (("--limit", "0"), "shop:app", 2, "--limit"),
        (("--limit", "many"), "shop:app", 2, "--limit"),
        ((), "shop:nothing", 2, "expected a kernel.App"),
        ((), "nowhere:app", 2, "no module 'nowhere'"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: tuple[str, ...], app: str, status: int, words: str, shell: Shell) -> None:
    answer = shell.pending(*arguments, app=app)

    assert (answer.returncode, answer.stdout) == (status, "")
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_folder_that_is_not_there_is_no_empty_system(shell: Shell) -> None:
    shell.data.rmdir()

    answer = shell.pending()

    assert (answer.returncode, answer.stdout) == (69, "")
    assert "there is no data folder" in answer.stderr
