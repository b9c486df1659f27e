"""Every command of an operator on an empty system, beside its first start, at ten thousand rows, without Redis and with
stores that can not be read: it answers, or says in one line what is missing, with its exit status."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from kernel.clock import SystemClock
from kernel.config import Config
from kernel.observe.tables import OBSERVE_TABLES
from kernel.records import to_document
from kernel.runtime import OBJECTS_FILE, STORE_FILE, open_objects
from kernel.runtime.observer import OBSERVE_FILE
from kernel.store.conditional import Insert
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_projection import SqliteProjection
from kernel.store.tables import INSTANCES
from tests.process.shop import SHOWS
from tests.support import observations
from tests.support.snapshots import attempt, keep, snapshot

Operate = Callable[..., CompletedProcess[str]]
MANY = 10_000
STORES = (STORE_FILE, OBSERVE_FILE, OBJECTS_FILE)
APP = ("--app", "tests.process.shop:app")
ONE = "job:7"

EMPTY, BEGUN, MANY_ROWS, NO_REDIS, NO_STORE = "empty", "just begun", "many rows", "no Redis", "no store"
COMMANDS: dict[tuple[str, ...], tuple[int, int, int, int]] = {
    # What it answers on an empty folder (and on one whose stores a start is just making), at ten thousand rows, without
    # Redis, and where nothing of a store can be read.
    # 1: what was named does not exist, or can not be done; 3: no tree runs; 69: a store that it needs is not there.
    ("workflow", "list"): (0, 0, 0, 69),
    ("workflow", "list", "--count"): (0, 0, 0, 69),
    ("workflow", "list", "--by", "lane"): (0, 0, 0, 69),
    ("workflow", "show", ONE): (1, 0, 0, 69),
    ("workflow", "show", ONE, *APP): (1, 0, 0, 69),
    ("workflow", "watch", ONE): (1, 0, 0, 69),
    ("workflow", "attempts", ONE): (1, 0, 0, 69),
    ("workflow", "record", ONE): (1, 0, 0, 69),
    ("workflow", "signal", ONE, "paid", "--key", "k", "--id", "s1"): (1, 0, 0, 69),
    ("workflow", "supersede", ONE, "--yes"): (1, 0, 0, 69),
    ("workflow", "replay", ONE, "--yes", *APP): (1, 1, 1, 69),
    ("workflow", "unpark", ONE): (1, 0, 0, 69),
    ("workflow", "repair", ONE): (1, 0, 0, 69),
    ("workflow", "start", "t", "--biz-key", "new:1", *APP): (0, 0, 0, 69),
    ("lanes", "--seconds", "0"): (69, 69, 69, 69),
    ("limits", "list"): (0, 0, 0, 69),
    ("limits", "explain", ONE): (1, 0, 0, 69),
    ("limits", "set", "printer", "--max-concurrency", "1"): (0, 0, 0, 69),
    ("limits", "pause", "printer"): (0, 0, 0, 69),
    ("limits", "resume", "printer"): (0, 0, 0, 69),
    ("limits", "remove", "plotter"): (1, 1, 1, 69),
    ("dispatch", "pending", *APP): (0, 0, 0, 69),
    ("status",): (3, 3, 3, 3),
    ("doctor",): (0, 0, 69, 1),
}  # fmt: skip
MAKES = {"start", "set", "pause", "resume", "signal", "supersede", "replay", "unpark"}
"""Verbs that change something, and make the stores where there are none."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of ten thousand workflows that have ended, as many snapshots, and objects with open intents."""
    folder = tmp_path_factory.mktemp("large") / "data"
    folder.mkdir(mode=0o700)
    clock = SystemClock()
    at_ms = clock.wall_ms()
    ended = {"status": "completed", "waiting": None, "waiting_since": None, "finish_time": at_ms}
    with closing(SqliteProjection(folder / OBSERVE_FILE, clock, tables=OBSERVE_TABLES)) as observed:
        observed.prepare()
        for start in range(0, MANY, 1_000):
            numbers = range(start, start + 1_000)
            keep(observed, *(snapshot(f"job:{n}", created_time=at_ms - n, **ended) for n in numbers))
        keep(observed, attempt(biz_key=ONE))
    with closing(SqliteStore(folder / STORE_FILE, clock, durability="normal")) as durable:
        durable.prepare()
        rows = [observations.ended(f"job:{n}", finish_time=at_ms, created_time=at_ms - n) for n in range(MANY)]
        durable.insert_all([Insert("create", INSTANCES, row.workflow_id, to_document(row)) for row in rows])
    shows = open_objects(Config(), folder, (SHOWS,), clock)[SHOWS.name]
    with closing(shows):
        for number in range(20):
            shows.accept(f"s{number}", type_="t", biz_key=f"t:s{number}", input={}, priority=1)
    return folder


@pytest.fixture(params=[EMPTY, BEGUN, MANY_ROWS, NO_REDIS, NO_STORE])
def situation(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[str]:
    """The data folder, or a link to the large one."""
    if request.param in (MANY_ROWS, NO_REDIS):
        data_dir.symlink_to(request.getfixturevalue("large"))
    else:
        data_dir.mkdir()
    if request.param in (BEGUN, NO_STORE):
        for name in STORES:
            (data_dir / name).write_bytes(b"no database at all" * 100 if request.param == NO_STORE else b"")
            (data_dir / name).chmod(0o600)
    yield request.param


@pytest.mark.req("dc-cli-ops")
@pytest.mark.parametrize("words", list(COMMANDS), ids=" ".join)
def test_it_answers_or_says_in_one_line_what_is_missing(
    operate: Operate, situation: str, words: tuple[str, ...], data_dir: Path, tmp_path: Path
) -> None:
    environ = {"REDIS_URL": f"unix://{tmp_path}/nobody.sock"} if situation == NO_REDIS else {}
    column = {EMPTY: 0, BEGUN: 0, MANY_ROWS: 1, NO_REDIS: 2, NO_STORE: 3}[situation]
    expected = COMMANDS[words][column]

    said = operate(*words, environ=environ)
    as_json = operate(*words, "--json", environ=environ)

    assert (said.returncode, as_json.returncode) == (expected, expected), (said.stderr, as_json.stderr)
    for done in (said, as_json):
        assert "Traceback" not in done.stderr and "\x1b" not in done.stdout + done.stderr
        # A limit for what nobody declares is warned of, beside the line that tells of Redis.
        assert done.stderr.count("\n") <= 1 + done.stderr.startswith("warning: nobody has declared "), done.stderr
    if as_json.stdout:
        assert isinstance(json.loads(as_json.stdout), dict)
    if expected in (1, 69) and words != ("doctor",):
        assert said.stdout == "" and said.stderr.count("\n") == 1
        assert expected == 1 or said.stderr.rstrip().endswith(("_unavailable]", "[schema_mismatch]"))
    assert len(said.stdout.splitlines()) <= 60, "a page, never all of it"
    if situation == EMPTY and not MAKES & set(words):
        assert list(data_dir.iterdir()) == [], "who looks makes no store"
    if situation == BEGUN and not MAKES & set(words) and words[1:2] != ("repair",):
        assert not any((data_dir / name).stat().st_size for name in STORES), "nor does he fill one"
