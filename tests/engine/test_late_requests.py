"""Publishers that are held up longer than their round lasts, and objects whose other half was moved by hand (T-15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernel.clock import ManualClock
from kernel.codec import encode
from kernel.definition import Definition, Step
from kernel.dispatch import Snapshot, round_of
from kernel.records import to_instance
from kernel.requests import Requests, StreamIdentity
from kernel.store.conditional import Put
from kernel.store.memory import MemoryStore
from tests.engine.articles_rig import ARTICLES, ArticlesRig
from tests.support.stores import sqlite_store

TABLES = {ARTICLES.place: ARTICLES.table}


@pytest.fixture(params=["memory", "sqlite"])
def rig(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[ArticlesRig]:
    store = MemoryStore(clock, TABLES) if request.param == "memory" else sqlite_store(tmp_path, clock, TABLES)
    yield ArticlesRig(store, clock=clock)
    store.close()


def other_publisher(rig: ArticlesRig) -> Requests:
    """A process that is not held up."""
    return Requests(rig.client, rig.objects, rig.definitions[0].plan, ids=rig.ids)


def run_and_fail(rig: ArticlesRig, publisher: Requests) -> str:
    """One more round from its request to its failure on both sides; its token."""
    answer = publisher.request({"object_id": "k", "stream": False}, object_id="k")
    assert answer.outcome == "registered" and answer.stream is not None
    rig.end_instance("failed")
    rig.fail_object("k", answer.stream.fencing_token)
    return answer.stream.fencing_token


# --- a round that is over ------------------------------------------------------------------------------


@pytest.mark.req("req-two-failures", "req-round-then-start", "dsp-confirm-miss-round", "sor-old-input-guard")
@pytest.mark.parametrize("rounds", [2, 3])
def test_a_publisher_that_was_stopped_before_its_start_runs_no_round_that_is_over(
    rounds: int, rig: ArticlesRig
) -> None:
    """A dispatcher registered its round meanwhile, which failed; the user's next ones were registered and failed."""
    tokens: list[str] = []
    rig.meanwhile(
        "client.start_or_resume", lambda: tokens.extend(run_and_fail(rig, other_publisher(rig)) for _ in range(rounds))
    )

    answer = rig.request()

    instance = rig.instance()
    assert instance is not None
    assert (instance.status, instance.workflow_run, round_of(instance.input)) == ("failed", rounds, tokens[-1])
    assert (answer.outcome, answer.detail) == ("in_progress", "the round has changed")
    assert answer.stream is not None and answer.stream.fencing_token == tokens[-1]


@pytest.mark.req("req-two-failures", "req-round-then-start")
def test_a_round_that_was_never_registered_is_not_registered_when_it_is_over(rig: ArticlesRig) -> None:
    """Its user gave it up and asked again: no instance tells of it, only the object does."""
    second: list[str] = []

    def given_up() -> None:
        first = rig.token()
        rig.fail_object("k", first)
        second.append(rig.retry("k", first, input={"object_id": "k"}))

    rig.meanwhile("client.start_or_resume", given_up)

    answer = rig.request()

    assert rig.instance() is None
    assert (answer.outcome, answer.detail) == ("in_progress", "the round has changed")
    assert (rig.token(), rig.intent().status) == (second[0], "pending")


def replayed_by(rig: ArticlesRig, token: str, definition: Definition | None = None) -> str:
    """What the entry itself answers to the stored input of a round: its branch. The row is failed before."""
    plan = (definition or rig.definitions[0]).plan
    data = encode({"object_id": "k", "fencing_token": token}, "input", 10_000)
    found = rig.client.start_or_resume(plan, biz_key="job:k", input=Snapshot(data)).branch
    rig.end_instance("failed")
    return found


@pytest.mark.req("sor-same-entry", "sor-activation-same-round", "req-two-failures")
def test_the_entry_refuses_every_round_that_the_instance_has_run_for(rig: ArticlesRig) -> None:
    """Whoever submits it, and also where a changed plan began with fresh steps."""
    changed = Definition(
        type="job", on_changed_plan="fresh_run", steps=[Step("only", lambda ctx: "done"), Step("more", lambda ctx: 1)]
    )
    assert [replayed_by(rig, token) for token in ("f1-a", "f2-b")] == ["created", "replayed"]
    assert replayed_by(rig, "f3-c", changed) == "replayed"
    before = rig.instance()

    assert [replayed_by(rig, token, changed) for token in ("f1-a", "f2-b", "f3-c")] == ["failed"] * 3

    assert rig.instance() == before
    assert before is not None and [run.round for run in before.runs] == ["f1-a", "f2-b"]
    assert replayed_by(rig, "f4-d", changed) == "replayed"


def test_a_row_of_a_kernel_that_kept_no_rounds_is_read_and_replayed(rig: ArticlesRig) -> None:
    replayed_by(rig, "f1-a")
    replayed_by(rig, "f2-b")
    instance = rig.instance()
    assert instance is not None
    old = [{name: value for name, value in run.items() if name != "round"} for run in rows_of(rig)["runs"]]
    rig.set_instance(runs=old)

    assert to_instance(rows_of(rig)).runs[0].round is None
    assert replayed_by(rig, "f3-c") == "replayed"


def rows_of(rig: ArticlesRig) -> dict[str, Any]:
    instance = rig.instance()
    assert instance is not None
    found = rig.store.get("workflow_instances", instance.workflow_id)
    assert found is not None
    return found


def test_an_input_that_names_no_possible_round_bloats_no_summary(rig: ArticlesRig) -> None:
    for value in ("x" * 100_000, "a\nb", 7, ""):
        data = encode({"fencing_token": value}, "input", 200_000)
        assert round_of(data) is None


@pytest.mark.req("dsp-confirm-miss-round")
@pytest.mark.parametrize("end", ["running", "completed"])
def test_a_late_requester_is_told_of_the_round_that_is_there(end: str, rig: ArticlesRig) -> None:
    """It was stopped before its start; the next round runs, or has its result."""
    second: list[str] = []

    def meanwhile() -> None:
        publisher = other_publisher(rig)
        run_and_fail(rig, publisher)
        answer = publisher.request({"object_id": "k"}, object_id="k")
        assert answer.stream is not None
        second.append(answer.stream.fencing_token)
        if end == "completed":
            rig.end_instance("completed")
            assert rig.objects.complete("k", second[0], {"result": "text"})

    rig.meanwhile("client.start_or_resume", meanwhile)

    answer = rig.request()

    assert answer.detail == "the round has changed"
    assert answer.outcome == ("completed" if end == "completed" else "in_progress")
    assert answer.stream == StreamIdentity("k", rig.instance().workflow_id, second[0])  # type: ignore[union-attr]
    assert (rig.token(), rig.intent().status) == (second[0], "dispatched")


def test_a_requester_whose_refusal_misses_is_told_what_the_object_says(rig: ArticlesRig) -> None:
    """Its workflow was canceled; between that answer and its refusal the object got its next round."""
    rig.request()
    first = rig.token()
    rig.end_instance("canceled")
    rig.fail_object("k", first)
    rig.publisher()
    third: list[str] = []

    def next_round() -> None:
        token = rig.token()
        rig.fail_object("k", token)
        third.append(rig.retry("k", token, input={"object_id": "k"}))

    rig.meanwhile("objects.refuse", next_round)

    answer = rig.request()

    assert (answer.outcome, answer.detail) == ("in_progress", "the round has changed")
    assert answer.stream is not None and answer.stream.fencing_token == third[0]
    assert rig.intent().status == "pending"


# --- withdrawn objects ---------------------------------------------------------------------------------


@pytest.mark.req("req-status-branches")
def test_an_object_that_is_withdrawn_before_the_start_starts_nothing(rig: ArticlesRig) -> None:
    rig.meanwhile("client.start_or_resume", lambda: rig.objects.withdraw("k", rig.token(), "its user left"))

    answer = rig.request()

    assert (answer.outcome, answer.detail) == ("refused", "its user left")
    assert rig.instance() is None


@pytest.mark.req("dsp-takeover", "dsp-confirm-holder")
def test_a_withdrawn_object_stays_so_under_the_lease_of_a_dispatcher_that_died(rig: ArticlesRig) -> None:
    rig.accept("k", input={"object_id": "k"})
    held = rig.objects.claim("k", rig.intent(), "d1", 3_000)
    assert held is not None

    assert rig.objects.withdraw("k", held.fencing_token, "its user left")
    late = rig.objects.confirm("k", held.fencing_token, "d1")
    desk = rig.desk()
    for _ in range(4):
        rig.settle(desk)
        rig.pass_time(31_000)

    assert late is False
    assert (rig.row()["status"], rig.intent().status, rig.instance()) == ("closed", "refused", None)
    assert rig.request().outcome == "refused"


# --- an instance that was started by its key ------------------------------------------------------------


def by_hand(rig: ArticlesRig) -> str:
    """An operator's `workflow start --biz-key …`, with an input that names no round."""
    handle = rig.client.start_or_resume(rig.definitions[0].plan, biz_key="job:k", input={"object_id": "k"})
    return handle.branch


@pytest.mark.req("sor-old-input-guard", "dsp-closed-instance")
@pytest.mark.parametrize(
    ("end", "first", "second"),
    [
        ("running", "registered", "accepted"),
        ("waiting", "registered", "accepted"),
        ("completed", "registered", "refused"),
        ("canceled", "registered", "refused"),
        ("failed", "registered", "registered"),
    ],
)
def test_an_instance_without_a_round_serves_an_objects_first_one_only(
    end: str, first: str, second: str, rig: ArticlesRig
) -> None:
    """T-03 and detail 8: the second waits for the end of what lives, and is refused by what has ended for good."""
    bring: Callable[[], object] = lambda: (  # noqa: E731
        rig.set_instance(status=end) if end in ("running", "waiting") else rig.end_instance(end)
    )
    assert by_hand(rig) == "created"
    bring()
    assert rig.request().outcome == first
    if end == "failed":
        assert round_of(rig.instance().input) == rig.token()  # type: ignore[union-attr]
        rig.end_instance("failed")
    rig.fail_object("k", rig.token())
    rig.publisher()

    assert rig.request().outcome == second

    served = round_of(rig.instance().input)  # type: ignore[union-attr]
    assert (served == rig.token()) is (end == "failed")


@pytest.mark.req("sor-old-input-guard")
def test_a_failed_round_that_is_replayed_by_hand_does_not_serve_the_next_one(rig: ArticlesRig) -> None:
    rig.failed_round()
    assert by_hand(rig) == "replayed"
    rig.publisher()

    assert rig.request().outcome == "accepted"
    assert rig.intent().status == "pending"
    rig.end_instance("failed")
    rig.settle(rig.desk())
    rig.pass_time(31_000)
    rig.settle()

    assert round_of(rig.instance().input) == rig.token()  # type: ignore[union-attr]
    assert rig.intent().status == "dispatched"


# --- rows of the table that were dead ends ---------------------------------------------------------------


@pytest.mark.req("req-status-branches", "req-round-change-cas")
def test_a_failed_object_whose_round_was_refused_gets_its_next_round(rig: ArticlesRig) -> None:
    rig.accept("k", input={"object_id": "k"})
    first = rig.token()
    rig.fail_object("k", first)
    assert rig.objects.refuse("k", first, None, "it could not be registered")
    assert (rig.row()["status"], rig.intent().status) == ("failed", "refused")

    answer = rig.request()

    assert (answer.outcome, answer.new_round) == ("registered", True)
    assert rig.token() != first


@pytest.mark.req("id-client-idem", "req-round-change-cas")
@pytest.mark.parametrize("key", ["object_id", "article_id"])
def test_a_client_that_repeats_its_id_under_a_fresh_object_id_retries_the_object_that_it_has(
    key: str, clock: ManualClock
) -> None:
    made = Definition(type="job", identity=(key,), steps=[Step("only", lambda ctx: "done")])
    rig = ArticlesRig(clock=clock, definition=made, declaration=msgspec.structs.replace(ARTICLES, key=key))
    first = rig.requests.request({key: "n1"}, object_id="n1", client_id="c")
    assert first.stream is not None
    rig.end_instance("failed", "n1")
    rig.fail_object("n1", first.stream.fencing_token)

    again = rig.requests.request({key: "n2"}, object_id="n2", client_id="c")

    assert (again.outcome, again.object_id, again.new_round) == ("registered", "n1", True)
    assert rig.objects.get("n2") is None
    instance = rig.instance("n1")
    assert instance is not None and instance.retry_count == 1


def test_a_superseded_workflow_leaves_its_object_to_be_withdrawn_by_its_owner(rig: ArticlesRig) -> None:
    """As `Requests` says: the two rows are two, and each end is told to its own."""
    stream = rig.request().stream
    assert stream is not None
    rig.client.supersede(stream.workflow_id)
    assert rig.request().outcome == "in_progress"

    assert rig.objects.withdraw("k", stream.fencing_token, "superseded")

    assert (rig.request().outcome, rig.row()["status"]) == ("refused", "closed")


def test_what_the_object_says_is_asked_for_right_before_the_write_that_starts(rig: ArticlesRig) -> None:
    """The order of the calls: a reading of the object after start_or_resume has begun."""
    rig.request()

    at = rig.calls.index("client.start_or_resume")
    assert rig.calls[at + 1 : at + 3] == ["objects.read", "objects.confirm"]
    rig.by_hand(Put("status", "completed"))
    assert rig.request().outcome == "completed"
