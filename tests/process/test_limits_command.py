"""`kernel-supervisor limits …` as operators meet it: on the embedded store, with Redis and without."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from kernel.clock import SystemClock
from kernel.config import Limit
from kernel.coordination import Granted, Keys, Owner, Permits
from kernel.limits import Limits, read_limit
from kernel.observe.tables import OBSERVE_TABLES
from kernel.observe.views import Snapshot
from kernel.permit_words import WORKFLOW
from kernel.runtime.observer import OBSERVE_FILE
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_projection import SqliteProjection
from kernel.store.tables import INSTANCES
from supervisor.cli import main
from tests.process.supervised import PATIENT_S
from tests.process.test_cli import command
from tests.process.test_ops_show import record
from tests.support.redis_servers import RedisTarget
from tests.support.snapshots import keep, snapshot, step_view

Result = CompletedProcess[str]
APP = """
from kernel import App, Limit
app = App(limits={"printer": Limit(max_concurrency=8, max_starts_per_second=2)})
"""
SCANNING = """
from kernel import App, Definition, Limit, Step
scan = Definition(type="scan", steps=[Step("scan", lambda ctx: None, resource="lamp")])
app = App(definitions=[scan], limits={"scanner": Limit(max_concurrency=1)})
"""


@pytest.fixture
def store(data_dir: Path) -> Iterator[SqliteStore]:
    data_dir.mkdir()
    opened = SqliteStore(data_dir / "store.sqlite", SystemClock(), lease_ms=30_000)
    opened.prepare()
    yield opened
    opened.close()


@pytest.fixture
def permits(valkey: RedisTarget) -> Permits:
    return Permits(valkey.runner(), Keys("default"), lease_ms=30_000, wait_ms=30_000)


@pytest.fixture
def limits(
    data_dir: Path,
    valkey: RedisTarget,
    store: SqliteStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Result]:
    """Run the command on this test's store and Redis (`redis` gives another address), in this process: starting an
    interpreter for each costs more than all the rest."""
    assert valkey.server is not None
    here = f"unix://{valkey.server.socket}"
    for name in [name for name in os.environ if name.startswith("KERNEL_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str, redis: str = here) -> Result:
        monkeypatch.setenv("REDIS_URL", redis)
        monkeypatch.setenv("KERNEL_REDIS_BUDGET_S", str(PATIENT_S))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["limits", *arguments, "--data-dir", str(data_dir)])
        said = capsys.readouterr()
        return Result(arguments, int(ended.value.code or 0), said.out, said.err)

    return run


@pytest.fixture
def gone(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/nobody.sock"


def answer(result: Result) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def waiting(store: SqliteStore, permits: Permits, limit: Limit) -> None:
    """`holder` holds the printer's only place, `waiter` was refused after it, as the engine records it."""
    now_ms = store.now_ms()
    holder = Owner("holder", "step_0", "token-h")
    assert isinstance(permits.acquire("printer", holder, limit, lane=2), Granted)
    for workflow_id in ("before", "waiter"):
        permits.acquire("printer", Owner(workflow_id, "step_0", "t"), limit, lane=2)
    running = step_view("step_0", "running", attempt=1, started_time=now_ms - 8_000)
    held = {"claim_token": "token-h", "claim_time": now_ms - 9_000, "waiting": "step", "waiting_on": "step_0"}
    refused = {"waiting": "permit", "waiting_on": "printer", "waiting_until": now_ms + 25_000}
    seen(
        store,
        snapshot("h", workflow_id="holder", created_time=now_ms - 9_000, steps=(running,), **held),
        snapshot(
            "w", workflow_id="waiter", created_time=now_ms - 9_000, business_priority=2, current_step="step_0",
            waiting_since=now_ms - 5_000, **refused,
        ),
    )  # fmt: skip


def seen(store: SqliteStore, *snapshots: Snapshot) -> None:
    """Keep these beside the store."""
    path = Path(store.path).parent / OBSERVE_FILE
    with closing(SqliteProjection(path, SystemClock(), durability="normal", tables=OBSERVE_TABLES)) as observed:
        observed.prepare()
        keep(observed, *snapshots)


@pytest.mark.req("prm-config-each", "prm-lower", "prm-raise", "prm-pause")
def test_set_pause_and_resume_are_facts_that_every_process_reads(
    limits: Callable[..., Result], store: SqliteStore
) -> None:
    elsewhere = Limits(store, SystemClock(), {"printer": Limit(max_concurrency=8)}, cache_ms=0)

    assert answer(limits("set", "printer", "--max-concurrency", "4", "--starts-per-second", "1", "--json")) == {
        "v": 1, "resource": "printer", "max_concurrency": 4, "max_starts_per_second": 1, "paused": False, "handed": 0,
    }  # fmt: skip
    assert elsewhere.of("printer") == Limit(4, 1)
    assert "PAUSED" in limits("pause", "printer").stdout
    assert elsewhere.of("printer") == Limit(4, 1, True)
    assert limits("resume", "printer").stdout == "printer  at most 4 at once, 1 starts/s\n"
    assert elsewhere.of("printer") == Limit(4, 1)


@pytest.mark.req("prm-raise", "prm-control-point")
def test_a_raised_limit_is_handed_to_those_who_wait_at_once(
    limits: Callable[..., Result], store: SqliteStore, permits: Permits
) -> None:
    waiting(store, permits, Limit(max_concurrency=1))

    assert answer(limits("set", "printer", "--max-concurrency", "3", "--json"))["handed"] == 2
    assert permits.stats("printer").reserved == 2


@pytest.mark.req("prm-stats")
def test_list_shows_limits_holders_starts_and_who_waits_in_which_lane(
    limits: Callable[..., Result], store: SqliteStore, permits: Permits
) -> None:
    limit = Limit(max_concurrency=1, max_starts_per_second=9)
    waiting(store, permits, limit)
    Limits(store, SystemClock(), {"printer": Limit(8, 9), "scanner": Limit(2)}).announce()
    limits("set", "printer", "--max-concurrency", "1")

    found = answer(limits("list", "--json"))
    text = limits("list").stdout

    printer, scanner = found["resources"]
    keys = permits.stats("printer")
    assert found["redis"] == "ok"
    assert (printer["resource"], printer["max_concurrency"], printer["max_starts_per_second"]) == ("printer", 1, 9)
    assert printer["declared"] == {"max_concurrency": 8, "max_starts_per_second": 9, "paused": False}
    assert printer["set"] == {"max_concurrency": 1}
    assert (printer["in_flight"], printer["waiting"], printer["waiting_by_lane"]) == (1, 2, [0, 0, 2, 0])
    assert [(holder["workflow_id"], holder["step"], holder["expiry_ms"]) for holder in printer["holders"]] == [
        ("holder", "step_0", keys.holders[0].expiry_ms)
    ]
    assert (scanner["max_concurrency"], scanner["set"], scanner["in_flight"]) == (2, {}, 0)
    assert "held by holder step_0" in text
    assert "P2 2" in text


def test_list_with_an_application_shows_what_it_declares(
    limits: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "printing.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))

    (row,) = answer(limits("list", "--app", "printing:app", "--json"))["resources"]

    assert (row["resource"], row["max_concurrency"], row["set"]) == ("printer", 8, {})


@pytest.mark.req("prm-stats")
def test_explain_tells_the_limit_the_holder_since_when_and_the_place_in_line(
    limits: Callable[..., Result], store: SqliteStore, permits: Permits
) -> None:
    limits("set", "printer", "--max-concurrency", "1")
    waiting(store, permits, Limit(max_concurrency=1))

    found = answer(limits("explain", "waiter", "--json"))
    text = limits("explain", "waiter").stdout

    assert (found["resource"], found["step"], found["reason"]) == ("printer", "step_0", "concurrency")
    assert (found["place"], found["lane"], found["waiting"], found["max_concurrency"]) == (2, 2, 2, 1)
    (holder,) = found["holders"]
    since_ms = found["since_ms"] - 3_000  # it was refused 3 s after the other began
    assert (holder["workflow_id"], holder["since_ms"]) == ("holder", since_ms)
    for words in (
        "waits for printer since",
        "at most 1 at once",
        "place 2 in lane P2",
        "held by   holder step_0 since",
    ):
        assert words in text


@pytest.mark.req("prm-pause")
def test_explain_says_when_the_resource_is_paused(
    limits: Callable[..., Result], store: SqliteStore, permits: Permits
) -> None:
    waiting(store, permits, Limit(max_concurrency=1))
    limits("pause", "printer")

    assert answer(limits("explain", "waiter", "--json"))["reason"] == "paused"
    assert "the resource is paused" in limits("explain", "waiter").stdout


def test_a_workflow_that_waits_for_nothing_is_told_so(limits: Callable[..., Result], store: SqliteStore) -> None:
    free = snapshot("order:1", created_time=store.now_ms())
    seen(store, free)

    for name in (free.workflow_id, "order:1"):
        assert limits("explain", name).stdout == f"{free.workflow_id} is running and waits for no permit\n"
    assert answer(limits("explain", "order:1", "--json"))["waits"] is False
    unknown = limits("explain", "nobody")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr.startswith("error: nothing is known of nobody: ")


@pytest.mark.req("obs-never-instances")
def test_explain_reads_no_instance_and_tells_the_line_of_a_workflow_that_waits_as_a_whole(
    limits: Callable[..., Result], store: SqliteStore, permits: Permits, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = Limit(max_concurrency=1)
    waiting(store, permits, limit)
    permits.acquire("printer", Owner("whole", WORKFLOW, "t"), limit, lane=1)
    wait = {"waiting": "permit", "waiting_on": "printer", "current_step": "step_0"}
    seen(store, snapshot("x", workflow_id="whole", created_time=store.now_ms(), **wait))
    read: list[str] = []
    for verb in ("get", "find", "scan"):
        record(monkeypatch, verb, read)

    found = answer(limits("explain", "whole", "--json"))

    assert (found["step"], found["place"], found["lane"], found["waiting"]) == (WORKFLOW, 1, 1, 3)
    assert INSTANCES not in read and "workflow_snapshots" in read


def test_a_name_that_nobody_declares_is_warned_of_and_taken_back(
    limits: Callable[..., Result], store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scanning.py").write_text(SCANNING)
    monkeypatch.syspath_prepend(str(tmp_path))
    Limits(store, SystemClock(), {"printer": Limit(8)}).announce()

    mistyped = limits("set", "pritner", "--max-concurrency", "1", "--json")
    strange = limits("pause", "nope")
    known = [
        limits("pause", "printer"),
        limits("set", "tenant_work:acme", "--max-concurrency", "1"),
        limits("resume", "scanner", "--app", "scanning:app"),
        limits("resume", "lamp", "--app", "scanning:app"),
    ]
    removed = [limits("remove", name) for name in ("pritner", "nope", "printer", "tenant_work:acme", "lamp")]
    again = limits("remove", "nope")

    assert answer(mistyped)["max_concurrency"] == 1
    assert mistyped.stderr == (
        "warning: nobody has declared pritner; did you mean printer? limits remove takes this back\n"
    )
    assert (strange.returncode, strange.stderr) == (
        0,
        "warning: nobody has declared nope; limits remove takes this back\n",
    )
    assert [(done.returncode, done.stderr) for done in known + removed] == [(0, "")] * 9
    assert removed[2].stdout == "printer  at most 8 at once, any starts/s\n"
    assert (again.returncode, again.stdout, again.stderr) == (1, "", "error: nothing was set for nope\n")
    assert [row["resource"] for row in answer(limits("list", "--json"))["resources"]] == ["printer", "scanner"]


@pytest.mark.req("prm-fail-closed")
def test_without_redis_everything_works_and_one_line_says_what_is_unknown(
    limits: Callable[..., Result], store: SqliteStore, permits: Permits, gone: str
) -> None:
    waiting(store, permits, Limit(max_concurrency=1))

    changed = limits("set", "printer", "--max-concurrency", "7", redis=gone)
    listed = limits("list", redis=gone)
    explained = limits("explain", "waiter", redis=gone)

    record = read_limit(store, "printer")
    assert record is not None and record.max_concurrency == 7
    assert changed.stderr.startswith("warning: nobody has declared printer; limits remove takes this back\n")
    changed.stderr = changed.stderr.partition("\n")[2]
    for result in (changed, listed, explained):
        assert result.returncode == 0
        assert result.stderr.startswith("places and lines are unknown: permit_")
        assert result.stderr.count("\n") == 1
    assert "at most 7 at once" in listed.stdout
    assert "waits for printer since" in explained.stdout
    assert answer(limits("explain", "waiter", "--json", redis=gone))["holders"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("set", "printer", "--max-concurrency", "-1"), "--max-concurrency: a whole number"),
        (("set", "printer", "--max-concurrency", "1.5"), "--max-concurrency: a whole number"),
        (("set", "printer", "--max-concurrency", "nan"), "--max-concurrency: a whole number"),
        (("set", "printer", "--starts-per-second", "1000001"), "max_starts_per_second: a whole number"),
        (("set", "printer", "--starts-per-second", "9" * 40), "--starts-per-second: a whole number"),
        (("set", "printer"), "say --max-concurrency, --starts-per-second or both"),
        (("set", "a.b", "--max-concurrency", "1"), "resource: 'a.b' is no name"),
        (("pause", "Printer"), "resource: 'Printer' is no name"),
        (("list", "pr inter"), "resource: 'pr inter' is no name"),
        (("explain", "\x1b[2J"), "workflow_id: "),
    ],
)
def test_a_bad_request_is_one_line_and_exit_2_and_writes_nothing(
    limits: Callable[..., Result], store: SqliteStore, arguments: tuple[str, ...], words: str
) -> None:
    result = limits(*arguments)

    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert words in result.stderr
    assert "\x1b" not in result.stderr
    assert read_limit(store, "printer") is None


@pytest.mark.req("prm-control-point")
def test_the_installed_command_sets_and_lists(data_dir: Path, store: SqliteStore) -> None:
    """The same from a shell, with no Redis known anywhere."""
    none = {"REDIS_URL": "", "VALKEY_URL": ""}
    done = command("limits", "set", "printer", "--max-concurrency", "1", "--data-dir", str(data_dir), environ=none)
    listed = command("limits", "list", "--json", "--data-dir", str(data_dir), environ=none)

    assert (done.returncode, done.stdout) == (0, "printer  at most 1 at once, any starts/s\n")
    assert done.stderr.splitlines()[1:] == ["places and lines are unknown: no Redis is known here"]
    (row,) = answer(listed)["resources"]
    assert (row["resource"], row["max_concurrency"], row["in_flight"]) == ("printer", 1, None)


def test_a_store_that_is_not_there_is_one_line_and_exit_69(tmp_path: Path) -> None:
    result = command("limits", "list", "--data-dir", str(tmp_path / "nowhere"))

    assert result.returncode == 69
    assert result.stderr == f"error: there is no data folder {tmp_path / 'nowhere'} [store_unavailable]\n"
