"""`workflow replay | repair | record`: what an operator may run again, rebuild, and look into."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from kernel import Context, Definition, Step, plan
from kernel.clock import SystemClock
from kernel.ids import workflow_id_for
from kernel.observe.tables import SNAPSHOTS
from kernel.runtime import STORE_FILE
from kernel.runtime.observer import OBSERVE_FILE
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_projection import SqliteProjection
from kernel.store.sqlite_rows import BODY
from kernel.store.tables import INSTANCES
from tests.conformance.instances import instance_document, put
from tests.process.supervised import Supervised
from tests.support.engine_rig import LiveRig
from tests.support.snapshots import keep, snapshot

Operate = Callable[..., CompletedProcess[str]]
APP = """
from kernel import App, Definition, Step
two = Definition(type="two_steps", steps=[Step("pack", lambda ctx: 1), Step("ship", lambda ctx: 2)])
changed = Definition(type="changed", steps=[Step("renamed", lambda ctx: 1)])
app = App(definitions=[two, changed])
"""


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "replay_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "replay_app:app"
    sys.modules.pop("replay_app", None)


@pytest.fixture
def rig(data_dir: Path) -> Iterator[LiveRig]:
    """A workflow's tree, as far as it fits into this process, on the data folder that the command is given."""
    data_dir.mkdir(exist_ok=True)
    store = SqliteStore(data_dir / STORE_FILE, SystemClock(), durability="normal")
    store.prepare()
    made = LiveRig(store)
    yield made
    made.close()
    store.close()


def fail(ctx: Context) -> Any:
    raise ValueError("the \x1b[2J box is broken")


TWO = Definition(type="two_steps", steps=[Step("pack", lambda ctx: "packed"), Step("ship", fail)])
CHANGED = Definition(type="changed", steps=[Step("only", fail)])


def failed(rig: LiveRig, definition: Definition, key: str, input: Any = None) -> str:
    """A workflow that has failed; its workers are gone when the command looks at it."""
    worker = rig.worker(definition)
    workflow_id = rig.start(definition, key, input)
    rig.wait_ended(workflow_id)
    worker.loop.drain()
    assert rig.status(workflow_id) == "failed"
    return workflow_id


def answer(result: CompletedProcess[str], status: int = 0) -> dict[str, Any]:
    assert result.returncode == status, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.req("sor-failed-replay")
def test_a_failed_workflow_runs_again_with_its_stored_input(rig: LiveRig, operate: Operate, application: str) -> None:
    workflow_id = failed(rig, TWO, "k", {"order": 7})
    before = rig.row(workflow_id)

    tried = operate("workflow", "replay", workflow_id, "--app", application, "--dry-run")
    untouched = rig.row(workflow_id)
    done = operate("workflow", "replay", workflow_id, "--app", application, "--yes")

    after = rig.instance(workflow_id)
    assert (tried.returncode, tried.stdout, untouched) == (0, "", before)
    assert tried.stderr.startswith(f"{workflow_id}  two_steps k, run 1, failed by activity_error: ")
    assert tried.stderr.endswith("; again: ship\n") and "\x1b" not in tried.stderr
    assert (done.returncode, done.stdout) == (0, f"replayed  {workflow_id}\n")
    assert (after.status, after.workflow_run, after.input) == ("running", 2, before["input"])
    assert [step.status for step in after.steps] == ["completed", "pending"]


@pytest.mark.req("req-two-failures")
def test_one_that_serves_a_business_round_is_its_users_to_start_over(
    rig: LiveRig, operate: Operate, application: str
) -> None:
    workflow_id = failed(rig, TWO, "k", {"object_id": "7", "fencing_token": "f1-aa"})
    before = rig.row(workflow_id)

    done = operate("workflow", "replay", workflow_id, "--app", application, "--yes")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"{workflow_id}  has failed for the round f1-aa of its business object: only a request of its user "
        "starts it over\n"
    )
    assert rig.row(workflow_id) == before


@pytest.mark.req("fpr-replay")
def test_one_of_another_version_runs_again_only_as_a_fresh_run(
    rig: LiveRig, operate: Operate, application: str
) -> None:
    workflow_id = failed(rig, CHANGED, "k")

    refused = operate("workflow", "replay", workflow_id, "--app", application, "--yes")
    done = operate("workflow", "replay", workflow_id, "--app", application, "--yes", "--fresh", "--json")

    assert refused.returncode == 1
    assert "failed under another version of changed: --fresh runs all steps of the new one" in refused.stderr
    assert answer(done) == {"v": 1, "replayed": [workflow_id], "refused": []}
    after = rig.instance(workflow_id)
    assert [(step.name, step.status) for step in after.steps] == [("renamed", "pending")]
    assert after.definition_key == plan("changed", ["renamed"]).key


def test_of_many_each_is_told_of_and_one_refusal_stops_no_other(
    rig: LiveRig, operate: Operate, application: str
) -> None:
    first = failed(rig, TWO, "a")
    second = failed(rig, TWO, "b")
    foreign = failed(rig, Definition(type="foreign", steps=[Step("only", fail)]), "c")
    live = rig.start(TWO, "d")

    done = operate(
        *("workflow", "replay", first, "wf-nobody", live, foreign, second, first),
        *("--app", application, "--yes", "--json"),
    )

    found = answer(done, 1)
    assert found["replayed"] == [first, second]
    assert {row["workflow_id"]: row["reason"] for row in found["refused"]} == {
        "wf-nobody": "does not exist",
        live: "is running: only a failed workflow is run again",
        foreign: "is of type foreign; the application has changed, two_steps",
    }


def test_nobody_can_be_asked_where_there_is_no_terminal(operate: Operate, rig: LiveRig, application: str) -> None:
    done = operate("workflow", "replay", "wf-1", "--app", application)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "say --yes where nobody can be asked, or --dry-run" in done.stderr


@pytest.mark.fault
@pytest.mark.parametrize(
    "words", [("workflow", "replay", "wf-1"), ("workflow", "start", "t", "--biz-key", "k"), ("dispatch", "pending")]
)
def test_who_names_no_application_is_told_which_one_runs_here(
    supervise: Callable[..., Supervised], operate: Operate, words: tuple[str, ...]
) -> None:
    """First of all, before anything is asked; and it is told, not taken: nothing is imported that nobody has named."""
    nobody = operate(*words)
    supervise(app="no_such_module:app").wait_running()
    there = operate(*words)

    assert (nobody.returncode, there.returncode) == (2, 2)
    assert nobody.stderr == "error: app: name your application, for example --app flows:app\n"
    assert there.stderr == ("error: app: name your application; the tree that runs here has --app no_such_module:app\n")


def test_every_verb_takes_a_biz_key_and_says_of_nobody_that_it_does_not_exist(
    rig: LiveRig, operate: Operate, application: str
) -> None:
    """Who misspells a name must not read `changed false` and believe that there was nothing to do."""
    workflow_id = failed(rig, TWO, "order:1")
    live = rig.start(TWO, "order:2")
    aside = workflow_id_for("order:3")
    put_aside = {"reason": "poison", "since_time": 1}
    put(rig.store, instance_document(aside, rig.store.now_ms(), parked=put_aside, without=("claimable_time",)))

    ended = [answer(operate("workflow", "supersede", "order:2", "--yes", "--json")) for _ in range(2)]
    back = [answer(operate("workflow", "unpark", "order:3", "--json"))["changed"] for _ in range(2)]
    told = [operate("workflow", *words) for words in (("supersede", "order:2", "--yes"), ("unpark", "order:3"))]
    recorded = answer(operate("workflow", "record", "order:1", "--json"))
    ran = answer(operate("workflow", "replay", "order:1", workflow_id, "--app", application, "--yes", "--json"))

    assert ended == [{"v": 1, "changed": changed, "status": "canceled"} for changed in (True, False)]
    assert rig.status(live) == "canceled"
    assert [(done.returncode, done.stderr) for done in told] == [
        (0, f"{live} is canceled already: nothing was changed\n"),
        (0, f"{aside} was not put aside, it is running: nothing was changed\n"),
    ]
    assert back == [True, False] and "parked" not in rig.row(aside)
    assert recorded["workflow_id"] == workflow_id
    assert ran["replayed"] == [workflow_id], "named twice, run once"
    for verb in ("supersede", "unpark", "record"):
        done = operate("workflow", verb, "order:9", *VERBS[verb])
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "error: workflow order:9 does not exist\n"
    nobody = answer(operate("workflow", "replay", "order:9", "--app", application, "--yes", "--json"), 1)
    assert nobody["refused"] == [{"workflow_id": "order:9", "reason": "does not exist"}]


VERBS: dict[str, tuple[str, ...]] = {
    "replay": ("--yes", "--app", "replay_app:app"),
    "record": (),
    "repair": (),
    "unpark": (),
    "supersede": ("--yes",),
    "signal": ("paid", "--key", "k", "--id", "s-1"),
}


@pytest.mark.parametrize("verb", list(VERBS))
def test_a_store_that_is_away_is_one_line_and_exit_69(operate: Operate, application: str, verb: str) -> None:
    more = VERBS[verb]
    nowhere = operate("workflow", verb, "wf-1", *more)
    away = {"MONGODB_URI": "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=300"}
    silent = operate("workflow", verb, "wf-1", *more, environ=away)

    for done in (nowhere, silent):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (69, "", 1), done.stderr


@pytest.mark.parametrize("verb", list(VERBS))
def test_no_verb_needs_redis(rig: LiveRig, operate: Operate, application: str, tmp_path: Path, verb: str) -> None:
    workflow_id = failed(rig, TWO, "k")

    done = operate("workflow", verb, workflow_id, *VERBS[verb], environ={"REDIS_URL": f"unix://{tmp_path}/nobody"})

    assert done.returncode == 0, done.stderr
    assert (rig.status(workflow_id) == "running") == (verb == "replay")


# --- repair ------------------------------------------------------------------------------------------------


@pytest.mark.req("obs-repair", "obs-repair-finished", "dc-cli-ops")
def test_repair_brings_back_what_show_has_forgotten_and_writes_no_instance(
    rig: LiveRig, operate: Operate, data_dir: Path
) -> None:
    workflow_id = failed(rig, TWO, "k")
    before = rig.row(workflow_id)
    assert operate("workflow", "show", workflow_id).returncode == 1

    done = operate("workflow", "repair", workflow_id)
    shown = operate("workflow", "show", workflow_id)
    attempts = operate("workflow", "attempts", "k").stdout.splitlines()

    assert done.returncode == 0
    assert done.stdout.startswith(f"repaired  {workflow_id}  failed  revision {before['revision']}  ")
    assert shown.returncode == 0 and shown.stdout.startswith("failed at ")
    again = f"workflow replay {workflow_id} --data-dir {data_dir} --app MODULE:ATTRIBUTE"
    assert f"  try: kernel-supervisor {again}\n" in shown.stdout
    assert [line.split("  ")[1:4:2] for line in attempts] == [["pack", "completed"], ["ship", "failed"]]
    assert rig.row(workflow_id) == before
    assert sorted(path.name for path in data_dir.glob("*.sqlite")) == [OBSERVE_FILE, STORE_FILE]


@pytest.mark.req("obs-repair")
def test_repair_takes_a_key_and_refuses_what_it_does_not_know_each_for_itself(rig: LiveRig, operate: Operate) -> None:
    workflow_id = failed(rig, TWO, "k")
    live = rig.start(TWO, "live")
    assert operate("workflow", "repair", live).returncode == 0  # nothing was known of it

    found = answer(operate("workflow", "repair", "k", "wf-nobody", live, "--json"), 1)

    first, unknown, running = found["workflows"]
    assert (first["repaired"]["workflow_id"], first["refused"]) == (workflow_id, None)
    assert unknown["refused"] == "no workflow is known as 'wf-nobody'"
    assert (running["repaired"]["status"], running["refused"]) == ("running", None)


@pytest.mark.req("obs-repair")
def test_repair_of_all_looks_at_everything_and_rebuilds_what_is_missing(rig: LiveRig, operate: Operate) -> None:
    worker = rig.worker(TWO)
    ids = [rig.start(TWO, f"k{number}") for number in range(5)]
    rig.wait_ended(*ids)
    worker.loop.drain()

    first = answer(operate("workflow", "repair", "--all", "--json"))
    again = operate("workflow", "repair", "--all")

    assert first == {"v": 1, "looked": 5, "repaired": 5, "unreadable": []}
    assert (again.returncode, again.stdout) == (0, "5 workflows looked at, 0 repaired\n")
    assert answer(operate("workflow", "list", "--count", "--by", "status", "--json"))["counts"][0]["n"] == 5


def test_repair_wants_names_or_all(operate: Operate, rig: LiveRig) -> None:
    for arguments in ((), ("--all", "wf-1")):
        done = operate("workflow", "repair", *arguments)
        assert (done.returncode, done.stderr) == (2, "error: name workflows, or say --all\n")


@pytest.mark.req("obs-revision-guard")
def test_repair_never_puts_back_an_older_state(rig: LiveRig, operate: Operate, observed: SqliteProjection) -> None:
    workflow_id = failed(rig, TWO, "k")
    newer = snapshot("k", revision=10_000, created_time=SystemClock().wall_ms(), current_step="ship")
    keep(observed, newer)

    operate("workflow", "repair", workflow_id)

    kept = observed.get(SNAPSHOTS, "k")
    assert kept is not None and kept["revision"] == 10_000


# --- record ------------------------------------------------------------------------------------------------


def test_record_shows_what_a_step_was_given_and_has_left(rig: LiveRig, operate: Operate) -> None:
    workflow_id = failed(rig, TWO, "k", {"order": "7\x1b[2J"})

    text = operate("workflow", "record", workflow_id)
    found = answer(operate("workflow", "record", workflow_id, "--json"))

    assert text.returncode == 0 and "\x1b" not in text.stdout
    assert text.stdout.splitlines()[1:4] == [
        'input       {"order": "7\\u001b[2J"}',
        "pack  completed",
        '    output      "packed"',
    ]
    assert (found["v"], found["input"], found["outputs"]) == (1, {"order": "7\x1b[2J"}, {"pack": "packed"})


def test_a_row_that_is_damaged_is_one_line(rig: LiveRig, operate: Operate, data_dir: Path) -> None:
    workflow_id = failed(rig, TWO, "k")
    with closing(sqlite3.connect(data_dir / STORE_FILE)) as file, file:
        file.execute(f"UPDATE {INSTANCES} SET {BODY} = X'c1' WHERE workflow_id = ?", (workflow_id,))

    done = operate("workflow", "record", workflow_id)

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
