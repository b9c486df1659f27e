"""`workflow show | watch | attempts` as operators meet them: on observations that are there, late, strange, or away."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Self

import msgspec
import pytest

import supervisor.ops_tree
from kernel.business_objects import BusinessObjects
from kernel.clock import SystemClock
from kernel.coordination import Granted, Keys, Owner, Permits
from kernel.coordination.permits import Limit
from kernel.ids import RandomIds, workflow_id_for
from kernel.objects import Objects
from kernel.records import ErrorRecord
from kernel.runtime import OBJECTS_FILE
from kernel.runtime.observer import OBSERVE_FILE
from kernel.store.conditional import Insert
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_projection import SqliteProjection
from kernel.store.tables import SIGNALS
from tests.process.supervised import PATIENT_S
from tests.support.redis_servers import RedisTarget
from tests.support.snapshots import attempt, keep, snapshot, step_view

Operate = Callable[..., CompletedProcess[str]]
BROKEN = ErrorRecord(code="step_timeout", type="StepTimeout", message="slow", attempt=1, worker_id="w1")
READING = ("show", "attempts", "watch")


def now_ms() -> int:
    return SystemClock().wall_ms()


def answer(result: CompletedProcess[str]) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


class RunningTree:
    """The supervisor of the data folder, and what it says of its worker."""

    def __init__(self) -> None:
        self.answer: Exception | None = None
        self.children: list[dict[str, Any]] = [
            {
                "name": "worker-0", "kind": "role", "role": "worker", "state": "RUNNING", "silent": False, "pid": 1,
                "worker_id": "w-0", "slots_busy": 0, "x_slots": 2, "x_store": "up", "x_redis": "up",
            }
        ]  # fmt: skip

    def __call__(self, _folder: str, timeout_s: float) -> Self:
        if self.answer is not None:
            raise self.answer
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def request(self, _op: str) -> dict[str, Any]:
        return {"state": "RUNNING", "uptime_s": 3600.0, "app": "flows:app", "children": self.children}


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> RunningTree:
    tree = RunningTree()
    monkeypatch.setattr(supervisor.ops_tree, "ControlClient", tree)
    return tree


def signal_row(workflow_id: str, signal_id: str, **fields: Any) -> Insert:
    document = {
        "v": 1, "signal_id": signal_id, "workflow_id": workflow_id, "signal_type": "paid", "wait_key": "7",
        "generation": 0, "status": "pending", "created_time": now_ms(), **fields,
    }  # fmt: skip
    return Insert("signal", SIGNALS, signal_id, document)


@pytest.mark.req("ops-find", "dc-cli-ops", "obs-snapshot-use")
def test_show_says_first_what_it_waits_for_and_finds_it_by_id_or_key(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore
) -> None:
    at_ms = now_ms()
    seen = snapshot("order:7", created_time=at_ms - 5_000, waiting="timer", waiting_until=at_ms + 3_600_000)
    keep(observed, seen)

    by_id, by_key = operate("workflow", "show", seen.workflow_id), operate("workflow", "show", "order:7")

    assert by_id.returncode == by_key.returncode == 0
    for said in (by_id, by_key):
        assert said.stdout.startswith("pack sleeps, since ")
        assert f"{seen.workflow_id}  parcel  running  run 1  lane P1\nbiz_key   order:7\n" in said.stdout
        assert "\x1b" not in said.stdout


def test_the_json_is_the_snapshot_with_the_sentence_and_where_time_went_until_now(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore, data_dir: Path
) -> None:
    at_ms = now_ms()
    keep(observed, snapshot("k", created_time=at_ms - 9_000, updated_time=at_ms - 9_000))

    found = answer(operate("workflow", "show", "k", "--json"))

    assert (found["v"], found["status"], found["biz_key"]) == (1, "running", "k")
    assert found["now"]["waiting"] == "worker"
    assert found["now"]["help"] == f"kernel-supervisor start --data-dir {data_dir} --app MODULE:ATTRIBUTE"
    total = found["as_of"]["total"]
    assert total["scheduling_ms"] == total["total_ms"] == found["now_ms"] - (at_ms - 9_000)
    assert (found["signals"], found["object_note"]) == ([], "no application is known here: --app names it")


@pytest.mark.req("ops-find")
def test_signals_are_read_from_the_inbox(operate: Operate, observed: SqliteProjection, durable: SqliteStore) -> None:
    woken = step_view("pack", "completed", attempt=1, last_signal_id="s-1")
    gone = step_view("ship", "completed", attempt=1, last_signal_id="s-0")
    seen = snapshot("k", created_time=now_ms(), steps=(woken, gone))
    keep(observed, seen)
    for row in (
        signal_row(seen.workflow_id, "s-1", status="matched", match_time=now_ms()),
        signal_row(seen.workflow_id, "s-2", generation=4, pending_time=now_ms()),
        signal_row("wf-other", "s-9", pending_time=now_ms()),
    ):
        durable.insert(row)

    rows = {row["signal_id"]: row for row in answer(operate("workflow", "show", "k", "--json"))["signals"]}

    assert {name: row["status"] for name, row in rows.items()} == {
        "s-1": "matched",
        "s-2": "pending",
        "s-0": "forgotten",
    }
    assert (rows["s-1"]["step"], rows["s-2"]["generation"]) == ("pack", 4)


@pytest.mark.req("ops-find")
def test_one_that_waits_for_a_place_shows_who_holds_it(
    operate: Operate,
    observed: SqliteProjection,
    durable: SqliteStore,
    valkey: RedisTarget,
    running: RunningTree,
    data_dir: Path,
) -> None:
    assert valkey.server is not None
    permits = Permits(valkey.runner(), Keys("default"), lease_ms=30_000, wait_ms=30_000)
    limit = Limit(max_concurrency=1)
    assert isinstance(permits.acquire("printer", Owner("wf-holder", "print", "t"), limit, lane=1), Granted)
    at_ms = now_ms()
    seen = snapshot(
        "k", created_time=at_ms, waiting="permit", waiting_on="printer", waiting_until=at_ms + 60_000,
    )  # fmt: skip
    permits.acquire("printer", Owner(seen.workflow_id, "pack", "t"), limit, lane=1)
    keep(observed, seen)

    environ = {"REDIS_URL": f"unix://{valkey.server.socket}", "KERNEL_REDIS_BUDGET_S": str(PATIENT_S)}
    said = operate("workflow", "show", "k", environ=environ).stdout
    away = operate("workflow", "show", "k", environ={"REDIS_URL": "unix:///nowhere/redis.sock"})

    lines = said.splitlines()
    assert lines[0].startswith("pack waits for a place of printer, since ")
    assert lines[1] == f"  try: kernel-supervisor limits explain {seen.workflow_id} --data-dir {data_dir}"
    assert lines[2] == "  1 place held, 1 waiting for one, place 1 of its lane"
    assert lines[3].startswith("  held by wf-holder print, lease until ")
    assert away.returncode == 0 and "  who holds it is not known: " in away.stdout
    first, second, *_ = away.stdout.splitlines()
    assert first.endswith("; none can be given: Redis is out of reach")
    assert second == f"  try: kernel-supervisor doctor --data-dir {data_dir}"


@pytest.mark.req("ops-where-stuck")
def test_due_work_of_a_folder_without_a_supervisor_says_so(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore, data_dir: Path
) -> None:
    keep(observed, snapshot("k", created_time=now_ms()))

    first, second, *_ = operate("workflow", "show", "k", environ={"KERNEL_APP": "flows:app"}).stdout.splitlines()

    assert first.startswith("due: no worker has taken it yet for pack, since ")
    assert first.endswith(f"; no supervisor runs in {data_dir}")
    assert second == f"  try: kernel-supervisor start --data-dir {data_dir}", "its application is in the environment"
    listed = operate("workflow", "list").stderr
    assert listed.startswith(f"what is due is not taken: no supervisor runs in {data_dir}; try: ")
    keep(observed, snapshot("k", created_time=now_ms(), waiting="timer", waiting_until=now_ms() + 60_000, revision=2))
    assert operate("workflow", "list").stderr == "", "nothing is due"


@pytest.mark.req("ops-where-stuck")
def test_due_work_of_a_running_tree_is_told_by_what_its_workers_say(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore, running: RunningTree, data_dir: Path
) -> None:
    seen = snapshot("k", created_time=now_ms())
    keep(observed, seen)

    def said() -> list[str]:
        lines = operate("workflow", "show", "k").stdout.splitlines()
        return [lines[0].partition("); ")[2], *(line for line in lines[1:3] if line)]

    options = f"--data-dir {data_dir}"
    doctor = f"kernel-supervisor doctor {options}"
    assert said() == ["", f"  try: kernel-supervisor lanes {options}", f"  or: {doctor}"]
    other = f"{seen.type}@ffffeeeedddd"
    running.children[0]["x_definitions"] = [other]
    assert said() == [f"no live worker has version 0123456789ab of parcel, offered: {other}", f"  try: {doctor}"]
    running.children[0]["x_store"] = "down"
    assert said() == ["worker-0 does not reach the durable store, or can not write to it", f"  try: {doctor}"]
    running.answer = TimeoutError()
    assert said() == [f"the supervisor in {data_dir} does not answer", f"  try: {doctor}"]


@pytest.mark.req("ops-where-stuck", "ops-find")
def test_a_stopped_worker_is_told_as_one_that_its_supervisor_does_not_hear(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore, running: RunningTree
) -> None:
    at_ms = now_ms()
    held = snapshot(
        "k", created_time=at_ms, waiting="step", waiting_on="pack", claim_token="t", worker_id="w",
        worker="host/7/worker-0", lease_until=at_ms + 60_000, steps=(step_view("pack", "running", attempt=1),),
    )  # fmt: skip
    other = attempt("pack", 1, "failed", biz_key="k", worker_id="w-1")
    keep(observed, held, attempt("pack", 2, "running", biz_key="k", worker_id="w"), other)
    running.children[0] |= {"worker_id": "w", "pid": 7, "silent": True}

    shown, listed = operate("workflow", "show", "k").stdout, operate("workflow", "list").stdout

    assert "; host/7/worker-0 is silent: it was stopped, or it hangs" in shown.splitlines()[0]
    assert "step pack, its worker is silent" in listed
    first, second = operate("workflow", "attempts", "k").stdout.splitlines()
    assert first.endswith(", on w-1")
    assert second.endswith(", has not returned, its worker is silent, on w (host/7/worker-0)")


def test_a_replay_that_is_named_runs_as_it_is_printed(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore, running: RunningTree, data_dir: Path
) -> None:
    """The tree knows its application, and whoever looks need not: its code is not imported for that."""
    seen = snapshot("k", created_time=now_ms(), status="failed", waiting=None, finish_time=now_ms(), error=BROKEN)
    keep(observed, seen)

    by_tree = operate("workflow", "show", "k").stdout
    by_flag = operate("workflow", "show", "k", "--app", "other:app").stdout

    replay = f"  try: kernel-supervisor workflow replay {seen.workflow_id} --data-dir {data_dir} --app"
    assert by_tree.splitlines()[1] == f"{replay} flows:app"
    assert by_flag.splitlines()[1] == f"{replay} other:app"
    looked = "  object    not known: it is looked for with --app flows:app, the application of the tree"
    assert looked in by_tree.splitlines()


APP = """
from kernel import App, Context, Definition, Objects, Step
orders = Objects(name="orders")
app = App(definitions=[Definition(type="parcel", steps=[Step("pack", lambda ctx: 1)])], dispatch_sources=[orders])
"""


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An application in the working directory that declares business objects."""
    (tmp_path / "chain_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "chain_app:app"
    sys.modules.pop("chain_app", None)


@pytest.mark.req("ops-chain")
def test_the_chain_leads_from_the_business_object_to_the_worker(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore, data_dir: Path, application: str
) -> None:
    declared = Objects(name="orders")
    objects = SqliteStore(
        data_dir / OBJECTS_FILE, SystemClock(), durability="normal", tables={declared.place: declared.table}
    )
    objects.prepare()
    accepted = BusinessObjects(declared, objects, RandomIds()).accept(
        "order-7", type_="parcel", biz_key="shop:acme:order-7", input={"object_id": "order-7"}, priority=1
    )
    objects.close()
    token = accepted.object.fencing_token
    ran = step_view("pack", "running", attempt=2, worker_id="w-1", ready_time=now_ms())
    seen = snapshot(
        "shop:acme:order-7", created_time=now_ms(), round=token, worker_id="w-1", worker="host/7/worker-0",
        waiting="step", waiting_on="pack", steps=(ran,), claim_token="t",
    )  # fmt: skip
    keep(observed, seen)

    said = operate("workflow", "show", seen.workflow_id, "--app", application)
    chain = said.stdout.partition("\nchain\n")[2].splitlines()

    assert [line.split()[0] for line in chain] == [
        "object", "dispatch", "instance", "step", "attempt", "worker", "trace",
    ]  # fmt: skip
    assert chain[0] == "  object    orders order-7"
    assert chain[1].startswith(f"  dispatch  pending, round {token}, accepted ")
    assert chain[2].endswith(f"serves round {token}")
    assert chain[4] == f"  attempt   {seen.workflow_id}/1/pack/2"
    assert chain[5] == "  worker    w-1 (host/7/worker-0)"
    found = answer(operate("workflow", "show", "shop:acme:order-7", "--app", application, "--json"))
    assert (found["object"]["object_id"], found["object"]["status"]) == ("order-7", "pending")


def test_an_application_that_can_not_be_loaded_hides_nothing(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore
) -> None:
    keep(observed, snapshot("k", created_time=now_ms()))

    done = operate("workflow", "show", "k", "--app", "no_such_module:app")

    assert done.returncode == 0 and "  object    not known: app: no_such_module:app: " in done.stdout


@pytest.mark.req("obs-snapshot-use")
def test_attempts_are_listed_with_their_errors_in_pages(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore
) -> None:
    at_ms = now_ms()
    keep(observed, snapshot("job:1", created_time=at_ms))
    for number in range(1, 4):
        keep(observed, attempt("pack", number, "failed", updated_time=at_ms + number, error=BROKEN))
    keep(observed, attempt("ship", 1, "running", updated_time=at_ms + 9))

    text = operate("workflow", "attempts", "job:1").stdout.splitlines()
    first = answer(operate("workflow", "attempts", "job:1", "pack", "--limit", "2", "--json"))
    second = answer(
        operate("workflow", "attempts", "job:1", "pack", "--limit", "2", "--after", first["next"], "--json")
    )

    assert [line.split("  ")[1:4] for line in text] == [
        ["pack", "attempt 1", "failed"],
        ["pack", "attempt 2", "failed"],
        ["pack", "attempt 3", "failed"],
        ["ship", "attempt 1", "running"],
    ]
    assert text[0].endswith("step_timeout StepTimeout: slow (attempt 1, w1)")
    assert [row["attempt"] for row in first["attempts"] + second["attempts"]] == [1, 2, 3]
    assert second["next"] is None
    changed = operate("workflow", "attempts", "job:1", "ship", "--after", first["next"])
    assert (changed.returncode, "no page token" in changed.stderr) == (2, True)
    unknown = operate("workflow", "attempts", "job:1", "fly")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert "has no step fly; it has pack, ship" in unknown.stderr


def test_an_attempt_that_observation_lost_is_a_line_and_no_silence(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore
) -> None:
    at_ms = now_ms()
    steps = (step_view("pack", "running", attempt=3), step_view("ship"))
    keep(observed, snapshot("job:1", created_time=at_ms, steps=steps))
    keep(observed, attempt("pack", 1, "failed", updated_time=at_ms + 1), attempt("pack", 3, "running"))

    text = operate("workflow", "attempts", "job:1").stdout.splitlines()
    first = answer(operate("workflow", "attempts", "job:1", "--limit", "1", "--json"))
    last = answer(operate("workflow", "attempts", "job:1", "--limit", "1", "--after", first["next"], "--json"))

    assert len(text) == 3
    assert text[-1] == "run 1  pack  attempt 2: not known (observation lost it)"
    assert (first["unknown"], last["unknown"]) == ([], [{"workflow_run": 1, "step": "pack", "attempt": 2}])


@pytest.mark.parametrize("command", READING)
def test_what_is_not_known_is_one_line_that_names_the_repair(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore, data_dir: Path, command: str
) -> None:
    done = operate("workflow", command, "wf-nobody")

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "nothing is known of wf-nobody" in done.stderr
    assert f"`kernel-supervisor workflow repair wf-nobody --data-dir {data_dir}`" in done.stderr


@pytest.mark.parametrize("observe", ["on", "off"])
def test_where_nothing_is_observed_it_says_so(operate: Operate, data_dir: Path, observe: str) -> None:
    data_dir.mkdir()
    environ = {"KERNEL_OBSERVE": observe}

    for done in (operate("workflow", "list", environ=environ), operate("workflow", "show", "k", environ=environ)):
        assert ("the setting `observe` is off" in done.stderr) == (observe == "off")


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("name", ["", " ", "a\x1b[2Jb", "x" * 201, "\x9b", "a\nb"])
def test_what_can_be_no_id_is_refused_in_one_line(
    operate: Operate, observed: SqliteProjection, command: str, name: str
) -> None:
    done = operate("workflow", command, name)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert not set(done.stderr) & set("\x1b\x9b")


@pytest.mark.parametrize("command", READING)
def test_a_snapshot_of_a_newer_layout_is_refused_and_not_guessed(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore, command: str
) -> None:
    keep(observed, msgspec.structs.replace(snapshot("k", created_time=now_ms()), v=2))

    done = operate("workflow", command, "k")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: snapshot of 'k': layout version 2, this kernel knows 1 [unknown_version]\n"


@pytest.mark.parametrize("command", READING)
def test_a_store_that_is_away_is_one_line_and_exit_69(operate: Operate, data_dir: Path, command: str) -> None:
    nowhere = operate("workflow", command, "k")
    data_dir.mkdir()
    (data_dir / OBSERVE_FILE).write_bytes(b"no database at all" * 100)
    broken = operate("workflow", command, "k", "--json")
    silent = operate(
        "workflow", command, "k", environ={"MONGODB_URI": "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=300"}
    )

    for done in (nowhere, broken, silent):
        assert (done.returncode, done.stdout) == (69, ""), done.stderr
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_show_needs_no_durable_store(operate: Operate, observed: SqliteProjection) -> None:
    """The snapshot answers alone; only the signals are not known then."""
    keep(observed, snapshot("k", created_time=now_ms()))

    done = operate("workflow", "show", "k")

    assert done.returncode == 0 and "due: no worker has taken it yet for pack" in done.stdout
    assert "\nsignals\n  not known: " in done.stdout


@pytest.mark.req("obs-never-instances", "obs-snapshot-use", "ops-readonly")
def test_no_view_reads_an_instance_and_only_the_diagnosis_of_a_step_reads_attempts(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = snapshot("k", created_time=now_ms(), status="completed", waiting=None, finish_time=now_ms())
    keep(observed, seen, attempt(biz_key="k"))
    read: list[str] = []
    for verb in ("get", "find", "scan"):
        record(monkeypatch, verb, read)

    for arguments, tables in (
        (("list",), set()),
        (("list", "--json"), set()),
        (("show", "k"), {"workflow_snapshots", "workflow_signals"}),
        (("show", seen.workflow_id, "--json"), {"workflow_snapshots", "workflow_signals"}),
        (("watch", "k"), {"workflow_snapshots"}),
    ):
        read.clear()
        assert operate("workflow", *arguments).returncode == 0
        assert tables <= set(read) <= tables | {"workflow_snapshots"}, arguments
    read.clear()
    assert operate("workflow", "show", "wf-unknown").returncode == 1
    assert set(read) == {"workflow_snapshots"}


def record(monkeypatch: pytest.MonkeyPatch, verb: str, read: list[str]) -> None:
    """Note which table each call of the embedded stores reads."""
    plain = getattr(SqliteStore, verb)

    def noting(self: SqliteStore, first: Any, *more: Any) -> Any:
        read.append(first if isinstance(first, str) else first.table)
        return plain(self, first, *more)

    monkeypatch.setattr(SqliteStore, verb, noting)


def test_who_waited_in_vain_for_a_result_is_told_where_to_look(
    operate: Operate, data_dir: Path, application: str
) -> None:
    data_dir.mkdir()

    done = operate("workflow", "start", "parcel", "--app", application, "--biz-key", "k", "--wait", "--timeout", "0")

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    show = f"kernel-supervisor workflow show {workflow_id_for('k')} --data-dir {data_dir}"
    assert done.stderr.endswith(f"; `{show}` tells what it waits for\n")
