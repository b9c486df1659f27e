"""What a request may bring: identities and decisions of its own object and round, stored once and never recomputed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kernel.clock import ManualClock
from kernel.codec import decode, encode
from kernel.definition import Definition, Step
from kernel.dispatch import INTENT_FIELD
from kernel.errors import (
    InputIdentityChanged,
    InvalidDefinition,
    InvalidId,
    InvalidInput,
    InvalidIntent,
    Refused,
    TooLarge,
)
from kernel.ids import workflow_id_for
from kernel.requests import Requests
from kernel.store.conditional import Clear, Put
from tests.engine.articles_rig import ARTICLES, ArticlesRig
from tests.support.engine_runner import Killed


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    object_id: str
    tenant_id: str
    stream: bool
    fencing_token: str = ""


TYPED = Definition(
    type="job", input=Asked, identity=("object_id", "tenant_id"), steps=[Step("only", lambda ctx: "done")]
)


@pytest.fixture
def typed(clock: ManualClock) -> ArticlesRig:
    return ArticlesRig(clock=clock, definition=TYPED)


def asked(object_id: str = "k", tenant_id: str = "t1", stream: bool = True) -> Asked:
    return Asked(object_id=object_id, tenant_id=tenant_id, stream=stream)


@pytest.mark.req("req-input-two-kinds", "req-entry-decision-fixed", "req-one-snapshot")
def test_a_typed_input_gets_its_round_and_is_stored_once_for_every_path(typed: ArticlesRig) -> None:
    """Flags that are flipped, and fields that change afterwards, change nothing: only the dispatcher registers it."""
    typed.die_at("client.start_or_resume", after=False)
    with pytest.raises(Killed):
        typed.request(input=asked(), biz_key="job:t1:k")
    stored = typed.intent().input
    typed.by_hand(Put("tenant_id", "t9"), Put("stream", False))
    desk = typed.desk()

    typed.settle(desk)

    row = typed.client.get(workflow_id_for("job:t1:k"))
    assert row is not None
    assert row.input == stored
    assert decode(row.input, Asked, "input") == msgspec.structs.replace(asked(), fencing_token=typed.token())


@pytest.mark.req("req-input-verify", "req-input-small", "req-input-two-kinds")
@pytest.mark.parametrize(
    ("value", "biz_key", "error", "message"),
    [
        (asked("other"), "job:t1:k", InvalidIntent, "names another object"),
        (asked(tenant_id="t2"), "job:t1:k", InvalidIntent, "identity field 'tenant_id'"),
        ({"object_id": "k"}, "job:t1:k", InvalidInput, "tenant_id"),
        ({"object_id": "k", "tenant_id": "t1", "stream": "yes"}, "job:t1:k", InvalidInput, "stream"),
        (asked(tenant_id="x" * 1_001), "job:t1:k", InvalidInput, "1001 characters"),
        ({**{f"k{n}": "x" * 900 for n in range(20)}}, "job:t1:k", TooLarge, "bytes"),
        (asked(), "", InvalidId, "biz_key"),
        (asked(), "a\nb", InvalidId, "biz_key"),
    ],
)
def test_what_a_dispatcher_would_refuse_is_refused_before_anything_is_written(
    value: Any, biz_key: str, error: type[Refused], message: str, typed: ArticlesRig
) -> None:
    with pytest.raises(error, match=message) as refused:
        typed.request(input=value, biz_key=biz_key)

    assert "\n" not in str(refused.value)
    assert typed.object_ids() == []
    assert typed.writes() == []


def test_a_request_names_its_object(typed: ArticlesRig) -> None:
    with pytest.raises(InvalidId, match="object_id or a client_id"):
        typed.requests.request(asked())


def test_a_retry_for_another_identity_is_refused_before_its_round_is_installed(typed: ArticlesRig) -> None:
    """DECISIONS 16. Afterwards it would be a round that nobody can ever register."""
    typed.requests.request(asked(), object_id="k", biz_key="job:t1:t2:k")
    typed.fail_object("k", typed.token())
    before = typed.row()

    with pytest.raises(InputIdentityChanged, match="tenant_id"):
        typed.request(input=asked(tenant_id="t2"))

    assert typed.row() == before


@pytest.mark.req("req-input-verify")
@pytest.mark.parametrize("field", ["fencing_token", "object_id", "tenant_id", "bytes"])
def test_a_stored_input_that_does_not_belong_to_its_intent_is_never_submitted(field: str, typed: ArticlesRig) -> None:
    """An old snapshot, or one of another object, can not dispatch this round."""
    typed.accept("k", input=asked(), biz_key="job:t1:k")
    given = {**msgspec.to_builtins(asked()), "fencing_token": typed.token()}
    data = b"\x01\xc1" if field == "bytes" else encode({**given, field: "another"}, "input", 10_000)
    typed.by_hand(Put(f"{INTENT_FIELD}.input", data))
    typed.publisher()

    answer = typed.request(input=asked())

    assert answer.outcome == "accepted"
    assert "invalid_intent" in answer.detail
    assert "client.start_or_resume" not in typed.writes()
    assert typed.client.get(workflow_id_for("job:t1:k")) is None
    assert typed.intent().status == "pending"


@pytest.mark.parametrize("status", ["initial", "failed", "completed"])
def test_an_object_of_another_type_of_work_is_not_touched(status: str, typed: ArticlesRig) -> None:
    typed.accept("k", type_="another", input=asked())
    typed.by_hand(Put("status", status))
    before = typed.row()

    with pytest.raises(InvalidIntent, match="belongs to workflows of type 'another'"):
        typed.request(input=asked(), biz_key="job:t1:k")

    assert typed.row() == before
    assert typed.writes() == []


@pytest.mark.req("req-legacy-input")
def test_a_legacy_intent_without_an_input_is_registered_with_what_its_fields_say(clock: ManualClock) -> None:
    def conservative(document: dict[str, Any]) -> dict[str, Any]:
        return {"object_id": document["object_id"], "stream": False, "enhance": False}

    declared = msgspec.structs.replace(ARTICLES, legacy_input=conservative)
    rig = ArticlesRig(clock=clock, declaration=declared)
    rig.accept("k", input={"stream": True, "enhance": True})
    rig.by_hand(Clear(f"{INTENT_FIELD}.input"))

    rig.settle(rig.desk())

    instance = rig.instance()
    assert instance is not None
    assert decode(instance.input, dict, "input") == {
        "object_id": "k",
        "stream": False,
        "enhance": False,
        "fencing_token": rig.token(),
    }


def test_a_fresh_intent_is_left_to_its_request_for_a_moment(clock: ManualClock) -> None:
    """A dispatcher that is as fast as the request would only take its lease away."""
    declared = msgspec.structs.replace(ARTICLES, grace_ms=2_000)
    rig = ArticlesRig(clock=clock, declaration=declared)
    desk = rig.desk()
    rig.meanwhile("client.start_or_resume", lambda: rig.settle(desk))

    rig.request()

    assert desk.counters["dispatched"] == 0
    assert rig.intent().status == "dispatched"


class Unaware(msgspec.Struct):
    object_id: str


class Nameless(msgspec.Struct):
    fencing_token: str


def test_a_desk_whose_workflows_could_not_see_their_round_is_refused_when_it_is_made(clock: ManualClock) -> None:
    only = [Step("only", lambda ctx: "done")]
    with pytest.raises(InvalidDefinition, match="its input has no field 'fencing_token'"):
        ArticlesRig(clock=clock, definition=Definition(type="job", input=Unaware, steps=only))
    declared = msgspec.structs.replace(ARTICLES, key="article_id")
    with pytest.raises(InvalidDefinition, match="its input has no field 'article_id' or 'object_id'"):
        ArticlesRig(clock=clock, definition=Definition(type="job", input=Nameless, steps=only), declaration=declared)
    ArticlesRig(clock=clock, definition=TYPED, declaration=declared)


@pytest.mark.req("req-input-verify")
def test_an_input_of_another_object_is_refused_under_whatever_key(clock: ManualClock) -> None:
    declared = msgspec.structs.replace(ARTICLES, key="article_id")
    rig = ArticlesRig(clock=clock, declaration=declared)
    with pytest.raises(InvalidIntent, match="another object in 'article_id'"):
        rig.requests.request({"article_id": "other"}, object_id="k")
    assert rig.objects.get("k") is None

    rig.accept("k", input={"article_id": "other"})
    rig.settle(rig.desk())

    assert rig.instance() is None
    assert (rig.intent().status, rig.intent().tries) == ("pending", 1)
    assert "another object in 'article_id'" in str(rig.intent().error)


def test_a_definition_serves_where_a_plan_does_and_anything_else_is_told_in_one_line(clock: ManualClock) -> None:
    rig = ArticlesRig(clock=clock)
    desk = Requests(rig.client, rig.objects, TYPED, ids=rig.ids)
    assert desk.request(asked(), object_id="k", biz_key="job:t1:k").outcome == "registered"
    handle = rig.client.start_or_resume(TYPED, biz_key="job:t1:k", input=asked())
    assert handle.branch == "running"
    assert rig.client.start_many(TYPED, [("job:t1:l", asked("l"))])[0].branch == "created"

    wrong: Any = "job"
    for made in (
        lambda: Requests(rig.client, rig.objects, wrong),
        lambda: rig.client.start_or_resume(wrong, biz_key="x"),
        lambda: rig.client.start_many(wrong, []),
    ):
        with pytest.raises(InvalidDefinition, match=r"^plan: give a Plan or a Definition, not str$"):
            made()
