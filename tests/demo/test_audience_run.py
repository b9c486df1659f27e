"""`kernel-supervisor demo --subscribers`: one show, many users, each summary delivered once (issue 3, group 29)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from click.testing import CliRunner

import asr_demo
from asr_demo.live import main
from asr_demo.speech import AsrTask
from asr_demo.summary import WAIT_STEP
from kernel.codec import decode
from tests.demo.aftermath import Aftermath
from tests.demo.command import demo, report

pytestmark = [pytest.mark.fault, pytest.mark.timeout(240)]
COUNT = 25


class Ran(NamedTuple):
    """A run that is over: what it said, and what it left."""

    done: subprocess.CompletedProcess[str]
    report: dict[str, Any]
    left: Aftermath


@contextmanager
def run(folder: Path, clip: Path, *arguments: str) -> Iterator[Ran]:
    data = folder / "data"
    done = demo(folder, "--json", "--audio", str(clip), "--data-dir", str(data), *arguments)
    said = report(done)
    left = Aftermath(data)
    try:
        yield Ran(done, said, left)
    finally:
        left.close()


@pytest.fixture(scope="module")
def ran(clip: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """The 25 users of the command's default."""
    with run(tmp_path_factory.mktemp("audience"), clip, "--subscribers") as ran:
        yield ran


@pytest.fixture
def ran_with(clip: Path, tmp_path: Path) -> Iterator[Callable[..., Ran]]:
    """A run of this test's own, with other options."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(run(tmp_path, clip, *arguments))


def assert_all_is_well(ran: Ran, count: int) -> None:
    """Every promise of `--json`, and the rows behind it."""
    found, left = ran.report, ran.left
    assert ran.done.returncode == 0, ran.done.stderr
    assert (found["subscribers"], found["workflows"]) == (count, count + 2)
    assert (found["completed"], found["lost"]) == (count + 2, 0)
    assert (found["deliveries"], found["duplicate_deliveries"], found["signals"]) == (count, 0, count)
    assert found["stale_writes_refused"] >= 1
    assert len(found["summary"]) > 0

    names = left.subscriptions()
    assert len(names) == count
    for name in names:
        there = left.subscription(name)
        assert (there.status, left.summary(name).status) == ("completed", "completed"), name
        assert there.intent is not None
        assert there.intent.status == "dispatched"
        assert left.delivered(name) == there.fields["summary"] == found["summary"]
    assert (left.received().deliveries, left.received().duplicates) == (count, 0)
    tally = left.told().tally
    assert tally.told + tally.duplicates + tally.unknown == count


@pytest.mark.req("fan-page-signals", "fan-waiter-isolated")
def test_every_subscriber_gets_one_summary(ran: Ran) -> None:
    assert_all_is_well(ran, COUNT)
    assert (ran.report["killed"], ran.report["asr_submits"], ran.report["recognitions"]) == ([], COUNT, 1)
    assert ran.left.told().tally.pages == 3


@pytest.mark.req("fan-observer")
def test_only_the_observer_looks_again_and_again(ran: Ran) -> None:
    """The others read the show when they come, when they are told, and, on a slow machine, at their poll fallback."""
    left = ran.left
    looks = [len(left.entries(left.summary(name), WAIT_STEP)) for name in left.subscriptions()]

    assert len(left.entries(left.observer(), "watch_show")) >= 4
    assert max(looks) <= 4
    assert sum(looks) <= 3 * COUNT
    assert left.fan_out().created_time <= (left.observer().finish_time or 0)


def test_what_a_request_only_accepted_is_registered_by_the_dispatcher(ran: Ran) -> None:
    said = re.search(r"(\d+) were registered by their request, (\d+) only accepted", ran.done.stderr)

    assert said is not None
    assert int(said[1]) + int(said[2]) == COUNT
    assert int(said[2]) >= 3
    assert ran.left.subscription("sub-002").status == "completed"


@pytest.mark.req("e2e-operator")
def test_it_tells_where_the_time_went_and_who_worked(ran: Ran) -> None:
    lines = ran.done.stderr.splitlines()
    view = next(line for line in lines if "an operator's view of" in line)
    place = ("transcribe_audio waiting (timer)", "looks again at ", "; by worker-")
    times = ("waited for event ", "for speech ", "for capacity ", "queued ", "ran ")
    assert [part for part in (*place, *times) if part not in view] == []
    heading = next(place for place, line in enumerate(lines) if line.startswith("subscriber "))
    assert all(column in lines[heading] for column in ("waited for event", "for capacity", "ran", "by"))
    rows = lines[heading + 1 : heading + 1 + COUNT]
    assert [row.split()[:2] for row in rows] == [[f"sub-{number:03}", "completed"] for number in range(1, COUNT + 1)]


@pytest.mark.req("id-sample-names")
def test_the_first_user_is_followed_by_object_workflow_round_task_and_live_resource(ran: Ran) -> None:
    told = [line for line in ran.done.stderr.splitlines() if " sub-001 " in line]
    workflow_id = ran.left.summary("sub-001").workflow_id
    beginning = rf"object sub-001, workflow {workflow_id}, round f1-[0-9a-f]{{16}}, live resource architecture-night$"
    assert [line for line in told if re.search(beginning, line)], told
    assert [line for line in told if re.search(r"transcribe_audio +is task asr-[0-9a-f]{32} of provider", line)], told
    assert "registered as f2-" in ran.done.stderr


@pytest.mark.req("core-checkpoint-vs-product")
def test_the_checkpoint_says_where_to_go_on_and_the_object_what_the_user_gets(ran: Ran) -> None:
    """The text is in the business object and not in the workflow's row; the task's id is the other way round."""
    for name in ran.left.subscriptions():
        workflow, there = ran.left.summary(name), ran.left.subscription(name)
        row = msgspec.msgpack.encode(workflow)
        assert there.fields["segments"], "the transcript"
        assert all(segment.encode() not in row for segment in there.fields["segments"] if len(segment) > 10)
        checkpoint = workflow.steps[workflow.step_index("transcribe_audio")].checkpoint
        assert checkpoint is not None
        task: AsrTask = decode(checkpoint, AsrTask, "checkpoint")
        assert task.task_id
        assert task.task_id not in str(there.fields)


@pytest.mark.req("fen-side-effect-kinds")
def test_each_kind_of_side_effect_comes_to_one_effect_in_its_own_way(ran: Ran) -> None:
    """The kinds of T-17 in one run: the written table names a way for each, and the rows show that it held."""
    ways = re.findall(r"^\| (.+?) \| (.+?) \|$", (Path(asr_demo.__file__).parent / "README.md").read_text(), re.M)
    told = " / ".join(way for _, way in ways)
    for way in ("conditional write", "unique key", "idempotency key", "its id in the checkpoint", "its user starts"):
        assert way in told

    left, names = ran.left, ran.left.subscriptions()
    assert len(left.refusals()) == 1, "conditional write: the late one of an old round changed nothing"
    assert left.received().deliveries == len(names), "unique key: one row a subscription"
    assert ran.report["asr_submits"] == len(names), "idempotency key, and the task's id in the checkpoint"
    polls = [entry for name in names for entry in left.entries(left.summary(name), "transcribe_audio")]
    assert len(polls) > len(names), "the step was entered again and again, and asked for its task"
    assert left.summary("sub-001").retry_count == 1, "by hand: the hung call was not made again in its round"


@pytest.mark.req("fen-timeline", "fen-zero-rows")
def test_a_late_write_of_the_failed_round_is_refused(ran: Ran) -> None:
    """f1 fails while its write is held; the user retries; f2 writes; f1's write comes and changes nothing."""
    left = ran.left
    workflow = left.summary("sub-001")
    first, *more = left.refusals()
    there = left.subscription("sub-001")
    assert more == []
    assert (first.object_id, first.field) == ("sub-001", "summary")
    assert first.fencing_token.startswith("f1-")
    assert first.installed == there.fencing_token
    assert (there.fencing_token or "").startswith("f2-")
    assert there.fields["summary"] == ran.report["summary"]
    assert "error" not in there.fields
    # It comes when the second round's summary is there, which may be a moment before the step that wrote it commits.
    second = [entry for entry in left.entries(workflow, "compose_content") if entry.workflow_run == 2]
    assert first.at_ms >= second[0].at_ms, "the second round was under way when the first one's came"
    held, late = (ran.done.stderr.find(words) for words in ("now the answer to f1 comes", "writes its summary, late"))
    assert 0 < held < late, "it was held until the second round had its summary"
    assert first.pid in {entry.pid for entry in left.entries(workflow, "compose_content") if entry.workflow_run == 1}


@pytest.mark.req("e2e-redo")
def test_a_retry_runs_only_what_had_failed(ran: Ran) -> None:
    left = ran.left
    workflow = left.summary("sub-001")
    by_run = {(entry.workflow_run, entry.step) for entry in left.entries(workflow)}

    assert (workflow.workflow_run, workflow.retry_count) == (2, 1)
    assert {step for run, step in by_run if run == 2} == {"compose_content", "finalize"}
    assert {step for run, step in by_run if run == 1} == {
        WAIT_STEP,
        "preprocess",
        "transcribe_audio",
        "compose_content",
    }
    assert left.speech_tasks() == COUNT, "one task each, also for the one with two rounds"


@pytest.mark.req("flt-process-exit")
def test_a_delivery_whose_worker_died_is_repeated_and_recognised(ran_with: Callable[..., Ran]) -> None:
    ran = ran_with("--subscribers", "2", "--kill-worker-at", "finalize")

    assert_all_is_well(ran, 2)
    assert len(ran.report["killed"]) == 1
    assert ran.report["takeovers"] >= 1
    assert ran.report["repeated_calls"] >= 1


def test_with_every_process_killed_the_result_is_the_same(ran_with: Callable[..., Ran]) -> None:
    """Workers, dispatcher, speech service, Redis and supervisor, in the order of this seed; Redis is also emptied."""
    ran = ran_with("--subscribers", "6", "--chaos", "--seed", "2")

    assert_all_is_well(ran, 6)
    assert (ran.report["seed"], ran.report["redis_wipes"]) == (2, 2)
    assert len(set(ran.report["killed"])) == 9
    for name in ("worker-0", "worker-1", "dispatcher-0", "asr", "valkey", "supervisor"):
        assert f"chaos: SIGKILL {name} " in ran.done.stderr
    assert ran.report["asr_submits"] == 6, "a submit that was repeated is recognised by its key"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--chaos",), "--chaos: needs --subscribers"),
        (("--subscribers", "3", "--seed", "1"), "--seed: needs --chaos"),
        (("--subscribers", "0"), "0 is not in the range"),
        (("--subscribers", "many"), "'many' is no whole number"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)

    done = CliRunner().invoke(main, arguments)

    assert done.exit_code == 2
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == []
