"""Text of others on an operator's terminal, and questions that can not be asked: shown and not obeyed, refused.

No kernel writes such ids; a hand, or a fault, does. Messages of errors, inputs and outputs are anybody's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from kernel.clock import SystemClock
from kernel.codec import encode
from kernel.config import Config
from kernel.observe.tables import ATTEMPTS, SNAPSHOTS
from kernel.observe.views import Snapshot
from kernel.records import ErrorRecord, StepRecord, to_document
from kernel.runtime import open_objects
from kernel.store.conditional import Insert, Put, Transition
from kernel.store.projection import Keep
from kernel.store.protocol import Query
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_projection import SqliteProjection
from kernel.store.tables import INSTANCES
from tests.process.shop import SHOWS
from tests.support import observations
from tests.support.snapshots import attempt, keep, snapshot, step_view

Operate = Callable[..., CompletedProcess[str]]
EVIL = "\x1b]0;owned\x07\u202e\x9b31m\x7f\x00\x85 \u2028end"
OBEYED = set("\x1b\x07\u202e\x9b\x7f\x00\x85\u2028")
KEY = "job:1"
APP = ("--app", "tests.process.shop:app")


def now_ms() -> int:
    return SystemClock().wall_ms()


def evil_snapshot() -> Snapshot:
    broken = ErrorRecord(code="step_failed", type=EVIL, message=EVIL, attempt=1, worker_id=EVIL)
    steps = (
        step_view("pack", "failed", attempt=2, failures=2, error=broken, worker_id=EVIL, last_signal_id=EVIL),
        step_view("ship"),
    )
    return snapshot(
        KEY, created_time=now_ms() - 60_000, status="failing", error=broken, error_code="step_failed", worker=EVIL,
        worker_id=EVIL, claim_token=EVIL, waiting="step", waiting_on=EVIL, definition_fingerprint=EVIL, steps=steps,
        round=EVIL,
    )  # fmt: skip


@pytest.fixture
def tree(observed: SqliteProjection, durable: SqliteStore, data_dir: Path) -> SqliteProjection:
    """A workflow whose every text is hostile: its snapshot, an attempt, its record, and an intent."""
    broken = ErrorRecord(code="step_failed", type=EVIL, message=EVIL, attempt=1)
    seen = evil_snapshot()
    keep(observed, seen, attempt(biz_key=KEY, outcome="failed", error=broken, worker_id=EVIL))
    work = StepRecord(name="work", status="completed", attempt=1, checkpoint=encode(EVIL, "checkpoint", 1000))
    row = observations.ended(
        KEY, input=encode({EVIL: EVIL}, "input", 1000), outputs={"work": encode(EVIL, "output", 1000)}, steps=(work,),
        workflow_id=seen.workflow_id,
    )  # fmt: skip
    durable.insert(Insert("create", INSTANCES, row.workflow_id, to_document(row)))
    shows = open_objects(Config(), data_dir, (SHOWS,), SystemClock())[SHOWS.name]
    shows.accept("s1", type_="t", biz_key="t:s1", input={}, priority=1)
    shows._store.apply(Transition("by_hand", "shows", "s1", (), (Put("workflow_dispatch.error", EVIL),)))
    shows.close()
    return observed


@pytest.mark.req("ops-find")
@pytest.mark.parametrize(
    "words",
    [
        ("workflow", "list"),
        ("workflow", "list", "--by", "on"),
        ("workflow", "show", KEY),
        ("workflow", "attempts", KEY),
        ("workflow", "record", KEY),
        ("limits", "explain", KEY),
        ("dispatch", "pending", *APP),
        ("workflow", "repair", KEY),
        ("workflow", "unpark", KEY),
    ],
    ids=" ".join,
)
def test_whatever_a_text_holds_it_is_shown_and_not_obeyed(
    operate: Operate, tree: SqliteProjection, words: tuple[str, ...]
) -> None:
    text, as_json = operate(*words), operate(*words, "--json")

    assert text.returncode == as_json.returncode == 0, (text.stderr, as_json.stderr)
    for said in (text.stdout, text.stderr, as_json.stdout, as_json.stderr):
        assert not set(said) & OBEYED, words
    assert isinstance(json.loads(as_json.stdout), dict)
    if words[1] in ("show", "attempts", "record", "pending") or words[-1] == "on":
        assert "]0;owned" in text.stdout and "31m" in text.stdout, "it is not hidden either"


NAMES = ("a\x1b[2Jb", "\x9b", "a\nb", "", "x" * 201, "\u202eabc")


@pytest.mark.parametrize("name", NAMES, ids=repr)
@pytest.mark.parametrize(
    "words", ["show", "watch", "attempts", "record", "repair", "supersede --yes", "unpark", "replay --yes --app {app}"]
)
def test_what_can_be_no_id_is_one_line_and_exit_2_for_every_command(
    operate: Operate, data_dir: Path, words: str, name: str
) -> None:
    """Also where nothing was ever stored."""
    data_dir.mkdir()
    verb, *options = words.format(app=APP[1]).split()

    done = operate("workflow", verb, name, *options)

    # `repair` answers for each name by itself, so that a bad one stops no other.
    assert (done.returncode, done.stdout) == (1 if verb == "repair" else 2, ""), done.stderr
    assert done.stderr.count("\n") == 1 and not set(done.stderr) & OBEYED


@pytest.mark.parametrize("verb", ["show", "watch", "attempts"])
def test_a_snapshot_of_a_newer_schema_is_one_line_and_never_guessed(
    operate: Operate, tree: SqliteProjection, verb: str
) -> None:
    tree.keep_all([Keep(SNAPSHOTS, {**_row(tree), "v": 99, "revision": 99})])

    for options in ((), ("--json",)):
        done = operate("workflow", verb, KEY, *options)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"error: snapshot of '{KEY}': layout version 99, this kernel knows 1 [unknown_version]\n"
    explained = operate("limits", "explain", KEY)
    assert (explained.returncode, explained.stderr.count("\n")) == (1, 1)


def _row(store: SqliteProjection) -> dict[str, object]:
    found = store.get(SNAPSHOTS, KEY)
    assert found is not None
    return found


def test_a_token_of_attempts_that_was_changed_or_is_of_another_list_is_refused(
    operate: Operate, tree: SqliteProjection
) -> None:
    keep(tree, attempt("ship", biz_key=KEY), snapshot("job:2", created_time=now_ms()))
    token = json.loads(operate("workflow", "attempts", KEY, "--limit", "1", "--json").stdout)["next"]
    changed = token[:-1] + ("A" if token[-1] != "A" else "B")

    assert operate("workflow", "attempts", KEY, "--limit", "1", "--after", token).returncode == 0
    for words in ((KEY, "--after", changed), (KEY, "pack", "--after", token), ("job:2", "--after", token)):
        done = operate("workflow", "attempts", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "error: after: no page token of this list; begin again without it\n"
    hostile = operate("workflow", "attempts", KEY, "--after", "\x1b[2J")
    assert hostile.returncode == 2 and not set(hostile.stderr) & OBEYED


def test_an_attempt_of_a_newer_schema_is_one_line(operate: Operate, tree: SqliteProjection) -> None:
    (row,) = tree.rows(Query(ATTEMPTS, (), "attempt_key", ("attempt_key",), 9))
    tree.keep_all([Keep(ATTEMPTS, {**row, "v": 99, "revision": 99})])

    done = operate("workflow", "attempts", KEY)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("layout version 99, this kernel knows 1 [unknown_version]\n")
