"""Business rounds with real executions: each result carries its round, and no round writes into another (group 11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernel import business_objects as module
from kernel import transitions
from kernel.business_objects import BusinessObjects
from kernel.codec import decode
from kernel.context import Context
from kernel.definition import Definition
from kernel.errors import NonRetryable
from kernel.objects import Objects
from kernel.records import Document
from kernel.requests import RequestAnswer, Requests
from kernel.store.conditional import MISSED, Applied, Transition
from kernel.store.memory import MemoryStore
from kernel.transitions import Held
from kernel.transitions.dispatch import ROUND
from tests.engine.flows import flow, step
from tests.support.engine_rig import RigWorker, SteppedRig
from tests.support.engine_runner import Killed

ARTICLES = Objects(name="articles", grace_ms=0)
LEASE_MS = 60_000


class Newsroom:
    """Articles whose summary a workflow composes: the activity and the finalizers write to the object, by its round."""

    def __init__(self, rig: SteppedRig) -> None:
        self.rig = rig
        self.object_store = MemoryStore(rig.clock, {ARTICLES.place: ARTICLES.table})
        self.objects = BusinessObjects(ARTICLES, self.object_store, rig.ids)
        self.composed: list[str] = []
        self.written: list[tuple[str, str, bool]] = []
        """(who, round, whether it changed a row) of each business write."""
        self.before_write: Callable[[Context], None] = lambda ctx: None
        self.definition = self.make()
        self.requests = Requests(rig.client, self.objects, self.definition.plan, ids=rig.ids)

    def make(self) -> Definition:
        return flow(
            self.rig,
            step(self.rig, "compose", self.compose),
            type="summary",
            success_finalizer=lambda ctx: None,
            failure_finalizer=self.give_up,
        )

    def compose(self, ctx: Context) -> str:
        """An activity as an author writes one: look, do the work, write under the round of the input."""
        object_id, token = ctx.input["object_id"], ctx.input["fencing_token"]
        there = self.objects.get(object_id)
        if there is None or there.fencing_token != token:
            raise NonRetryable("the object has another round by now")
        if there.status == ARTICLES.completed:
            return str(there.fields["result"])  # an earlier attempt of this round has written it
        self.composed.append(token)
        text = f"text of {token}"
        self.before_write(ctx)
        self.note("compose", token, self.objects.complete(object_id, token, {"result": text}))
        return text

    def give_up(self, ctx: Context) -> None:
        object_id, token = ctx.input["object_id"], ctx.input["fencing_token"]
        self.note("finalizer", token, self.objects.fail(object_id, token, {"error": "no sound"}))

    def note(self, who: str, token: str, changed: bool) -> None:
        self.written.append((who, token, changed))

    def request(self) -> RequestAnswer:
        return self.requests.request({"object_id": "k"}, object_id="k")

    def worker(self) -> RigWorker:
        return self.rig.worker(self.definition)

    def row(self) -> Document:
        document = self.object_store.get(ARTICLES.place, "k")
        assert document is not None
        return document

    @property
    def token(self) -> str:
        found = self.objects.get("k")
        assert found is not None and found.fencing_token is not None
        return found.fencing_token


@pytest.fixture
def room(rig: SteppedRig) -> Newsroom:
    return Newsroom(rig)


def held_late(room: Newsroom) -> list[Callable[[], bool]]:
    """The first round's activity does not write: its write comes when the test calls it."""
    late: list[Callable[[], bool]] = []

    def hold(ctx: Context) -> None:
        if not late:
            token = ctx.input["fencing_token"]
            late.append(lambda: room.objects.complete("k", token, {"result": f"late text of {token}"}))
            raise NonRetryable("the connection broke")

    room.before_write = hold
    return late


@pytest.mark.req(
    "fen-timeline", "fen-zero-rows", "fen-cas", "fen-fail-keeps-round", "fen-input-copy", "req-round-then-start"
)
def test_a_result_of_the_first_round_that_comes_after_the_second_is_refused(room: Newsroom) -> None:
    """f1 fails, the user opens f2, f2 writes its result, the residual write of f1 arrives: the five points."""
    late = held_late(room)
    room.worker()
    first = room.request().stream
    assert first is not None
    room.rig.finish(first.workflow_id)
    failed = room.row()
    assert (failed["status"], failed["error"], room.token) == ("failed", "no sound", first.fencing_token)
    assert failed["workflow_dispatch"]["status"] == "dispatched"

    second = room.request().stream
    assert second is not None
    room.rig.finish(second.workflow_id)
    before = room.row()
    landed = late[0]()

    assert landed is False
    assert room.row() == before
    assert before["result"] == f"text of {second.fencing_token}"
    assert second.fencing_token != first.fencing_token
    assert second.workflow_id == first.workflow_id
    assert room.composed == [first.fencing_token, second.fencing_token]
    assert room.request().outcome == "completed"


@pytest.mark.req("fen-both-needed")
@pytest.mark.parametrize("guarded", [True, False])
def test_without_the_round_in_the_guard_a_late_result_would_land(
    guarded: bool, room: Newsroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation: the claim token of the workflow store can not stop it, because it is another row's."""
    if not guarded:
        real = transitions.update_object

        def unguarded(*args: Any, **named: Any) -> Transition:
            made = real(*args, **named)
            left = tuple(guard for guard in made.guards if guard.field != ROUND)
            return Transition(made.name, made.table, made.key, left, made.changes)

        monkeypatch.setattr(module.transitions, "update_object", unguarded)
    late = held_late(room)
    room.worker()
    first = room.request().stream
    assert first is not None
    room.rig.finish(first.workflow_id)
    assert room.request().new_round

    late[0]()

    assert ("result" in room.row()) is not guarded


@pytest.mark.req("fen-both-needed")
@pytest.mark.parametrize("guarded", [True, False])
def test_without_the_claim_token_in_the_guard_the_first_worker_would_advance_the_seconds_run(
    guarded: bool, room: Newsroom
) -> None:
    """Both work for the same round, so the fencing token can not tell them apart."""
    rig = room.rig
    late: list[Transition] = []

    def first_worker_stalls(ctx: Context) -> None:
        if not late:
            row = rig.row(ctx.workflow_id)
            held = Held(ctx.workflow_id, row["claim_token"])
            late.append(
                transitions.complete_step(
                    held, rig.instance(ctx.workflow_id), 0, output=b"A", elapsed_ms=1, worker_id="A", commit_id="A"
                )
            )
            first.kill()
            raise Killed
        made = late[0]
        if not guarded:
            left = tuple(guard for guard in made.guards if guard.field != "claim_token")
            made = Transition(made.name, made.table, made.key, left, made.changes, made.commit_id)
        answers.append(rig.store.apply(made))

    answers: list[Any] = []
    room.before_write = first_worker_stalls
    first = room.worker()
    stream = room.request().stream
    assert stream is not None
    rig.pass_once(first)
    rig.advance(LEASE_MS)
    second = room.worker()
    rig.pass_once(second)

    assert isinstance(answers[0], Applied) is not guarded
    assert (answers[0] == MISSED) is guarded
    if guarded:
        rig.finish(stream.workflow_id)
        assert rig.output(stream.workflow_id) == f"text of {stream.fencing_token}"


@pytest.mark.req("fen-worker-change", "id-fencing-token", "id-three-independent", "id-dispatch-token", "fen-not-merged")
def test_the_three_tokens_change_each_for_its_own_reason_and_never_meet(room: Newsroom) -> None:
    """A dispatcher is replaced, then a worker: the round stays, and no value stands in two places."""
    rig, objects = room.rig, room.objects
    accepted = objects.accept(
        "k", type_="summary", biz_key="summary:k", input={"object_id": "k"}, priority=0
    ).object.fencing_token
    assert accepted is not None
    leases: list[str] = []
    for token in (rig.ids.token(), rig.ids.token()):
        seen = objects.read("k")
        assert seen is not None
        held = objects.claim("k", seen, token, -1)
        assert held is not None and held.claim_token is not None
        leases.append(held.claim_token)
        assert room.row()["workflow_dispatch"]["claim_token"] == token
    handle = rig.client.start_or_resume(
        room.definition.plan, biz_key="summary:k", input={"object_id": "k", "fencing_token": accepted}
    )
    assert objects.confirm("k", accepted, leases[1])
    assert "claim_token" not in room.row()["workflow_dispatch"]

    claims: list[str] = []

    def note_claim(ctx: Context) -> None:
        claims.append(rig.row(ctx.workflow_id)["claim_token"])
        if len(claims) == 1:
            first.kill()
            raise Killed

    room.before_write = note_claim
    first = room.worker()
    rig.pass_once(first)
    rig.advance(LEASE_MS)
    room.worker()
    rig.finish(handle.workflow_id)

    assert room.token == accepted
    tokens = [accepted, *leases, *claims]
    assert len(tokens) == len(set(tokens)) == 5
    row, instance = room.row(), rig.row(handle.workflow_id)
    assert row["result"] == f"text of {accepted}"
    assert "fencing_token" not in instance
    assert decode(instance["input"], dict, "input")["fencing_token"] == accepted
    assert "claim_token" not in row


@pytest.mark.req("fen-finalizer", "dsp-no-confirm-failing", "sor-failing", "sor-failing-keeps-pending")
def test_the_finalizer_of_the_first_round_can_not_mark_the_second_failed(room: Newsroom) -> None:
    """It wrote "failed", its worker died, the user was quick: the finalizer runs again and changes nothing."""
    rig = room.rig
    held_late(room)
    first = room.worker()
    first.store.fail_once("finish_failed", "kill_before")
    stream = room.request().stream
    assert stream is not None
    rig.pass_once(first)
    assert (rig.status(stream.workflow_id), room.row()["status"]) == ("failing", "failed")
    quick = room.request()
    assert (quick.outcome, quick.new_round, quick.detail) == ("accepted", True, "the workflow is failing")
    before = room.row()
    rig.advance(LEASE_MS)

    room.worker()
    rig.run(lambda: rig.status(stream.workflow_id) == "failed", "the end of round 1", rig.workers[1])

    assert room.written[-2:] == [
        ("finalizer", stream.fencing_token, True),
        ("finalizer", stream.fencing_token, False),
    ]
    assert room.row() == before
    assert room.row()["workflow_dispatch"]["status"] == "pending"
    assert room.request().outcome == "registered"
    rig.finish(stream.workflow_id)
    assert room.row()["result"] == f"text of {room.token}"


@pytest.mark.req("fen-idempotent-shortcut")
def test_an_activity_that_runs_again_finds_the_result_of_its_round_and_does_not_do_it_twice(room: Newsroom) -> None:
    """Killed after the business write and before the commit of the step."""
    rig = room.rig
    first = room.worker()
    first.store.fail_once("complete_step", "kill_before")
    stream = room.request().stream
    assert stream is not None
    rig.pass_once(first)
    assert first.dead
    assert room.row()["status"] == "completed"

    rig.advance(LEASE_MS)
    room.worker()
    rig.finish(stream.workflow_id)

    assert room.composed == [stream.fencing_token]
    assert rig.ledger.steps() == ["compose", "compose"]
    assert rig.output(stream.workflow_id) == f"text of {stream.fencing_token}"


@pytest.mark.req("fen-stop-on-old", "dsp-confirm-late-workflow-stays", "sor-old-input-guard")
def test_an_execution_whose_round_is_over_stops_and_writes_nothing(room: Newsroom) -> None:
    """The workflow of f1 still waits for a worker when its object is in f2 already. It ends, and f2 runs."""
    rig = room.rig
    first = room.request().stream
    assert first is not None
    assert room.objects.fail("k", first.fencing_token, {"error": "given up by hand"})
    second = room.request()
    assert (second.outcome, second.new_round, second.detail) == ("accepted", True, "the workflow is running")
    before = room.row()
    room.worker()

    rig.finish(first.workflow_id)

    assert rig.status(first.workflow_id) == "failed"
    assert room.composed == []
    assert room.written == [("finalizer", first.fencing_token, False)]
    assert room.row() == before
    assert room.request().outcome == "registered"
    rig.finish(first.workflow_id)
    assert (rig.status(first.workflow_id), room.row()["status"]) == ("completed", "completed")
    assert room.row()["result"] == f"text of {room.token}"


@pytest.mark.req("req-dispatched-meaning")
def test_dispatched_says_that_it_is_registered_and_nothing_about_the_work(room: Newsroom) -> None:
    stream = room.request().stream
    assert stream is not None

    assert room.row()["workflow_dispatch"]["status"] == "dispatched"
    assert (room.row()["status"], room.rig.status(stream.workflow_id)) == ("initial", "running")


@pytest.mark.req("sor-no-second-instance", "id-fencing-token", "fen-fail-keeps-round")
def test_five_failed_rounds_are_one_instance_and_five_tokens(room: Newsroom) -> None:
    rig = room.rig

    def always(ctx: Context) -> None:
        raise NonRetryable("no sound")

    room.before_write = always
    room.worker()
    tokens: list[str] = []
    for _ in range(5):
        stream = room.request().stream
        assert stream is not None
        tokens.append(stream.fencing_token)
        rig.finish(stream.workflow_id)
        assert (room.row()["status"], room.token) == ("failed", tokens[-1])

    assert len(set(tokens)) == 5
    assert room.composed == tokens
    assert rig.instance(stream.workflow_id).retry_count == 4
    assert [who for who, _, changed in room.written if changed] == ["finalizer"] * 5
