"""The request side, row by row: what each state of the object means, and what is left when a step fails (T-15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel.clock import ManualClock
from kernel.codec import decode
from kernel.dispatch import INTENT_FIELD
from kernel.errors import InvalidIntent, OutcomeUnknown, StoreUnavailable
from kernel.ids import workflow_id_for
from kernel.requests import StreamIdentity
from kernel.store.conditional import Insert, Put
from kernel.store.memory import MemoryStore
from tests.engine.articles_rig import ARTICLES, ArticlesRig
from tests.support.engine_runner import Killed
from tests.support.outbox_rig import SOURCE
from tests.support.stores import sqlite_store

TABLES = {ARTICLES.place: ARTICLES.table}


@pytest.fixture(params=["memory", "sqlite"])
def rig(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[ArticlesRig]:
    store = MemoryStore(clock, TABLES) if request.param == "memory" else sqlite_store(tmp_path, clock, TABLES)
    yield ArticlesRig(store, clock=clock)
    store.close()


# --- the table ----------------------------------------------------------------------------------------


@pytest.mark.req("req-order", "req-atomic-intent", "dsp-candidate-add", "sor-returns")
def test_a_new_object_is_stored_then_started_then_confirmed(rig: ArticlesRig) -> None:
    answer = rig.request(fields={"title": "T"})

    assert rig.writes() == ["objects.accept", "announce", "client.start_or_resume", "objects.confirm"]
    intent = rig.intent()
    assert (answer.outcome, answer.created, answer.new_round) == ("registered", True, False)
    assert answer.stream == StreamIdentity("k", workflow_id_for("job:k"), intent.fencing_token)
    assert (rig.row()["title"], rig.row()["status"], intent.status) == ("T", "initial", "dispatched")
    instance = rig.instance()
    assert instance is not None
    assert instance.input == intent.input
    assert [one[:2] for one in rig.announced] == [(SOURCE, "k")]


def in_pending(rig: ArticlesRig) -> None:
    rig.accept("k", input={"object_id": "k", "stream": True})


def in_processing(rig: ArticlesRig) -> None:
    rig.request()
    assert rig.objects.begin("k", rig.token())


def in_completed(rig: ArticlesRig) -> None:
    rig.request()
    assert rig.objects.complete("k", rig.token(), {"result": "text"})


def in_closed(rig: ArticlesRig) -> None:
    rig.request()
    assert rig.objects.withdraw("k", rig.token(), "its user left")


def in_lease(rig: ArticlesRig) -> None:
    in_pending(rig)
    assert rig.objects.claim("k", rig.intent(), "d1", 60_000) is not None


def in_state_of_users_own(rig: ArticlesRig) -> None:
    rig.request()
    rig.by_hand(Put("status", "transcribing"))


STATES: dict[str, tuple[Callable[[ArticlesRig], object], str, bool]] = {
    # state, what the request answers, whether the round changes
    "initial, pending": (in_pending, "registered", False),
    "initial, dispatched": (lambda rig: rig.request(), "in_progress", False),
    "initial, held by a dispatcher": (in_lease, "in_progress", False),
    "processing": (in_processing, "in_progress", False),
    "a status of the user's own": (in_state_of_users_own, "in_progress", False),
    "completed": (in_completed, "completed", False),
    "failed": (lambda rig: rig.failed_round(), "registered", True),
    "closed": (in_closed, "refused", False),
}


@pytest.mark.req("req-status-branches", "req-resolve-object", "id-stream-identity")
@pytest.mark.parametrize("state", STATES)
def test_each_state_has_its_answer_and_only_a_failed_object_gets_a_new_round(state: str, rig: ArticlesRig) -> None:
    arrange, outcome, changes = STATES[state]
    arrange(rig)
    before, token = rig.row(), rig.token()
    rig.publisher()

    answer = rig.request()

    assert (answer.outcome, answer.created, answer.new_round) == (outcome, False, changes)
    assert (rig.token() != token) is changes
    assert answer.stream == StreamIdentity("k", workflow_id_for("job:k"), rig.token())
    assert rig.object_ids() == ["k"]
    if outcome in ("in_progress", "completed", "refused"):
        assert rig.row() == before
        assert rig.writes() == []
    else:
        assert rig.intent().status == "dispatched"
    if outcome == "completed":
        assert answer.object is not None
        assert answer.object.fields["result"] == "text"


@pytest.mark.req("req-round-then-start", "req-round-change-cas", "id-fencing-token", "fen-input-copy", "req-start-args")
def test_a_retry_installs_its_round_before_it_starts_it(rig: ArticlesRig) -> None:
    first = rig.failed_round()
    assert rig.instance().business_priority == 0  # type: ignore[union-attr]
    rig.publisher()

    answer = rig.request(input={"object_id": "k", "stream": False})

    assert rig.writes() == ["objects.new_round", "announce", "client.start_or_resume", "objects.confirm"]
    assert answer.new_round
    instance = rig.instance()
    assert instance is not None
    given = decode(instance.input, dict, "input")
    assert given == {"object_id": "k", "stream": False, "fencing_token": rig.token()}
    assert (instance.status, instance.retry_count) == ("running", 1)
    assert rig.token() != first
    assert (rig.row()["status"], "error" in rig.row(), rig.intent().priority) == ("initial", False, 1)


@pytest.mark.req("req-start-args", "sor-priority-rise")
@pytest.mark.parametrize(("priority", "lane"), [("realtime", 0), ("async", 1), ("compensation", 3)])
def test_the_priority_of_the_request_is_the_lane_of_the_workflow(priority: str, lane: int, rig: ArticlesRig) -> None:
    rig.publisher(priority=priority)

    rig.request()

    instance = rig.instance()
    assert instance is not None
    assert (instance.business_priority, rig.queue.lane_of(instance.workflow_id)) == (lane, lane)


@pytest.mark.req("req-resolve-object")
def test_a_document_of_the_users_own_gets_its_first_round(rig: ArticlesRig) -> None:
    for key, fields in {"k": {"title": "T"}, "l": {"status": "initial"}, "m": {"status": "failed"}}.items():
        rig.objects_store.insert(Insert("by_hand", SOURCE, key, {"object_id": key, **fields}))

        answer = rig.request(key)

        assert (answer.outcome, answer.created, answer.new_round) == ("registered", False, False)
        assert (rig.row(key)["status"], rig.intent(key).status) == ("initial", "dispatched")
    assert rig.row()["title"] == "T"
    rig.objects_store.insert(Insert("by_hand", SOURCE, "n", {"object_id": "n", "status": "completed", "result": 1}))
    assert rig.request("n").outcome == "completed"
    assert INTENT_FIELD not in rig.row("n")


@pytest.mark.req("id-client-idem", "req-resolve-object")
def test_a_client_id_finds_the_object_that_it_made(rig: ArticlesRig) -> None:
    asked = {"stream": True}
    first = rig.requests.request(asked, client_id="c1", fields={"title": "T"})
    again = rig.requests.request(asked, client_id="c1", fields={"title": "other"})
    by_id = rig.requests.request(asked, object_id=first.object_id)

    assert first.created and not again.created
    assert [one.outcome for one in (first, again, by_id)] == ["registered", "in_progress", "in_progress"]
    assert {one.object_id for one in (first, again, by_id)} == set(rig.object_ids())
    row = rig.row(first.object_id)
    assert (row["request_id"], row["title"]) == ("c1", "T")
    tokens = {row["request_id"], rig.intent(first.object_id).biz_key, rig.token(first.object_id), first.object_id}
    assert len(tokens) == 4


def test_an_object_that_its_user_deletes_meanwhile_is_refused_and_stays_away(rig: ArticlesRig) -> None:
    for call, arrange in {
        "objects.confirm": lambda: None,
        "objects.new_round": lambda: rig.failed_round("k2"),
    }.items():
        key = "k2" if call == "objects.new_round" else "k1"
        arrange()
        rig.publisher()
        rig.meanwhile(call, lambda key=key: rig.delete(key))

        answer = rig.request(key)

        assert (answer.outcome, answer.detail) == ("refused", "the object was deleted")
        assert rig.objects.get(key) is None


# --- the confirmation misses --------------------------------------------------------------------------


@pytest.mark.req("dsp-confirm-miss-dispatched")
def test_a_round_that_a_dispatcher_has_confirmed_meanwhile_is_registered(rig: ArticlesRig) -> None:
    rig.meanwhile("objects.confirm", lambda: rig.objects.confirm("k", rig.token(), None))

    assert rig.request().outcome == "registered"
    assert rig.intent().status == "dispatched"


@pytest.mark.req("dsp-confirm-miss-processing")
def test_a_round_that_a_dispatcher_holds_meanwhile_is_left_to_it(rig: ArticlesRig) -> None:
    held: list[Any] = []

    def take() -> None:
        assert rig.objects.claim("k", rig.intent(), "d1", 60_000) is not None
        held.append(rig.row())

    rig.meanwhile("objects.confirm", take)

    answer = rig.request()

    assert answer.outcome == "registered"
    assert [rig.row()] == held
    assert rig.intent().claim_token == "d1"


@pytest.mark.req("dsp-confirm-miss-round", "dsp-confirm-late-workflow-stays")
def test_a_round_that_has_changed_meanwhile_is_told_and_left_alone(rig: ArticlesRig) -> None:
    rows: list[Any] = []

    def next_round() -> None:
        rig.fail_object("k", rig.token())
        rig.retry("k", rig.token(), input={"object_id": "k"})
        rows.append(rig.row())

    rig.meanwhile("objects.confirm", next_round)

    answer = rig.request()

    assert (answer.outcome, answer.detail) == ("in_progress", "the round has changed")
    assert answer.stream is not None
    assert answer.stream.fencing_token == rig.token()
    assert rig.row() == rows[0]
    assert (rig.intent().status, rig.row()["status"]) == ("pending", "initial")
    instance = rig.instance()
    assert instance is not None, "the workflow of the old round stays"
    assert decode(instance.input, dict, "input")["fencing_token"] != rig.token()


def test_a_round_that_is_refused_meanwhile_is_refused(rig: ArticlesRig) -> None:
    rig.meanwhile("objects.confirm", lambda: rig.objects.refuse("k", rig.token(), None, "closed by hand"))

    answer = rig.request()

    assert (answer.outcome, answer.detail) == ("refused", "closed by hand")
    assert rig.request().outcome == "refused"


# --- a start that fails -------------------------------------------------------------------------------


@pytest.mark.req("req-two-failures", "req-order", "dsp-same-round-retry")
def test_a_start_that_fails_leaves_the_same_round_pending_for_whoever_comes_next(rig: ArticlesRig) -> None:
    def away(name: str, args: tuple[Any, ...]) -> None:
        if name == "start_or_resume":
            raise StoreUnavailable("the kernel's store is away")

    rig.asked_client.before = away
    answers = [rig.request() for _ in range(3)]
    pending = rig.intent()
    rig.asked_client.before = lambda name, args: None
    last = rig.request()

    assert [one.outcome for one in answers] == ["accepted"] * 3
    assert "store_unavailable" in answers[0].detail
    assert [one.created for one in answers] == [True, False, False]
    assert (pending.status, pending.tries) == ("pending", 0)
    assert last.outcome == "registered"
    assert (rig.token(), rig.intent().input) == (pending.fencing_token, pending.input)


def test_an_object_that_can_not_be_stored_is_the_callers_error(rig: ArticlesRig) -> None:
    for error in (StoreUnavailable("away"), OutcomeUnknown("lost")):

        def away(name: str, args: tuple[Any, ...], error: Exception = error) -> None:
            raise error

        rig.asked_objects.before = away
        with pytest.raises(type(error)):
            rig.request()
    assert rig.object_ids() == []
    assert rig.instance() is None


def test_a_confirmation_that_fails_is_a_dispatchers_business(rig: ArticlesRig) -> None:
    def away() -> None:
        raise OutcomeUnknown("lost")

    rig.meanwhile("objects.confirm", away)
    answer = rig.request()

    assert (answer.outcome, answer.detail) == ("registered", "not confirmed yet: outcome_unknown")
    desk = rig.desk()
    rig.settle(desk)
    assert rig.intent().status == "dispatched"
    assert desk.counters["dispatched"] == 1


@pytest.mark.req("dsp-candidate-add")
def test_a_redis_that_is_away_costs_promptness_only(rig: ArticlesRig) -> None:
    rig.index.down = True

    assert rig.request().outcome == "registered"
    assert rig.announced


@pytest.mark.req("dsp-candidate-add", "dsp-no-simultaneous")
def test_what_was_announced_is_taken_by_a_dispatcher_without_a_scan(rig: ArticlesRig) -> None:
    rig.die_at("client.start_or_resume", after=False)
    with pytest.raises(Killed):
        rig.request()
    desk = rig.desk(dispatch_scan_ms=3_600_000)

    rig.settle(desk)

    assert rig.intent().status == "dispatched"
    assert desk.counters["scans"] <= 1


# --- what start_or_resume finds (T-03) ----------------------------------------------------------------


def retried_against(rig: ArticlesRig, status: str) -> Any:
    """The user retries while the workflow of the first round is still in that status."""
    rig.request()
    token = rig.token()
    if status != "running":
        if status == "waiting":
            rig.set_instance("k", status="waiting")
        else:
            rig.end_instance(status, "k")
    rig.fail_object("k", token)
    rig.publisher()
    return rig.request(input={"object_id": "k", "stream": False})


@pytest.mark.req("sor-old-input-guard", "sor-failing-keeps-pending", "sor-failing", "dsp-no-confirm-failing")
@pytest.mark.parametrize("status", ["running", "waiting", "failing"])
def test_a_new_round_against_a_live_older_one_stays_pending(status: str, rig: ArticlesRig) -> None:
    """B-06: the input of a live instance is never swapped."""
    answer = retried_against(rig, status)

    assert (answer.outcome, answer.new_round, answer.detail) == ("accepted", True, f"the workflow is {status}")
    assert rig.intent().status == "pending"
    instance = rig.instance()
    assert instance is not None
    assert (instance.status, instance.retry_count) == (status, 0)
    assert decode(instance.input, dict, "input")["fencing_token"] != rig.token()

    rig.end_instance("failed", "k")
    assert rig.request().outcome == "registered"
    instance = rig.instance()
    assert instance is not None
    assert (instance.status, instance.retry_count) == ("running", 1)
    assert decode(instance.input, dict, "input") == {
        "object_id": "k",
        "stream": False,
        "fencing_token": rig.token(),
    }


@pytest.mark.req("dsp-closed-instance")
@pytest.mark.parametrize("status", ["completed", "canceled"])
def test_a_new_round_that_can_never_be_registered_is_refused_and_its_object_closed(
    status: str, rig: ArticlesRig
) -> None:
    """DECISIONS detail 8."""
    answer = retried_against(rig, status)

    assert (answer.outcome, answer.new_round) == ("refused", True)
    assert status in answer.detail
    assert (rig.intent().status, rig.row()["status"]) == ("refused", "closed")
    assert rig.intent().error == answer.detail
    assert rig.request().outcome == "refused"


@pytest.mark.req("dsp-closed-instance", "sor-completed", "sor-canceled", "sor-activation-same-round")
@pytest.mark.parametrize("status", ["running", "waiting", "completed", "canceled", "failed"])
def test_the_same_round_is_confirmed_whatever_became_of_its_workflow(status: str, rig: ArticlesRig) -> None:
    """The process before died between start and confirm; the workflow went on. It runs no second time."""
    rig.die_at("client.start_or_resume", after=True)
    with pytest.raises(Killed):
        rig.request()
    if status == "waiting":
        rig.set_instance("k", status="waiting")
    elif status != "running":
        rig.end_instance(status, "k")
    before = rig.instance()
    rig.publisher()

    assert rig.request().outcome == "registered"

    assert rig.intent().status == "dispatched"
    assert rig.instance() == before


@pytest.mark.req("req-round-race", "req-round-then-start")
def test_the_loser_of_two_retries_starts_nothing(rig: ArticlesRig) -> None:
    rig.failed_round()
    rig.publisher()
    rows: list[Any] = []

    def other_retry() -> None:
        rig.retry("k", rig.token(), input={"object_id": "k", "stream": False})
        rows.append(rig.row())

    rig.meanwhile("objects.new_round", other_retry)

    answer = rig.request()

    assert (answer.outcome, answer.new_round, answer.detail) == ("in_progress", False, "another retry was first")
    assert rig.writes() == ["objects.new_round"]
    assert [rig.row()] == rows
    assert answer.stream is not None
    assert answer.stream.fencing_token == rig.token()


@pytest.mark.req("req-input-verify", "req-round-change-cas")
def test_a_retry_whose_input_is_of_another_object_installs_no_round(rig: ArticlesRig) -> None:
    rig.failed_round()
    rig.publisher()
    before = rig.row()

    with pytest.raises(InvalidIntent, match="names another object"):
        rig.request(input={"object_id": "other"})

    assert rig.row() == before
    assert rig.writes() == []
