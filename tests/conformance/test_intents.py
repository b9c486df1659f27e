"""The life of an embedded dispatch intent on every store: each write hits exactly where its guards say (group 7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernel.clock import ManualClock
from kernel.codec import decode
from kernel.dispatch import INTENT_FIELD, Intent
from kernel.errors import CorruptRecord, InvalidId, UnknownVersion
from kernel.records import Document
from kernel.store.conditional import Clear, Put, Transition
from tests.conformance.articles import HOUR_MS, TABLES, Articles
from tests.conformance.conftest import MakeStore
from tests.support.stores import STORES


@pytest.fixture(params=STORES)
def articles(request: pytest.FixtureRequest, make_store: MakeStore) -> Articles:
    return Articles(make_store(request.param, TABLES))


def change(articles: Articles, *changes: Put | Clear) -> None:
    """What an operator, or another program, does behind the kernel's back."""
    articles.store.apply(Transition("by_hand", articles.declaration.place, "a1", (), changes))


ALWAYS = {"v", "type", "biz_key", "priority", "status", "fencing_token", "input", "accepted_time", "tries"}


@pytest.mark.req("dsp-shape", "dsp-states", "req-atomic-intent", "dsp-release", "dsp-same-round-retry")
def test_the_fields_of_an_intent_are_those_of_its_state(articles: Articles) -> None:
    first = articles.add(title="T")
    pending = articles.intent()
    articles.taken("d1")
    processing = articles.intent()
    due_ms = articles.release("a1", first.fencing_token, "d1", 5_000, "the store was away")
    again = articles.intent()
    change(articles, Put(f"{INTENT_FIELD}.due_time", 1))
    articles.taken("d2")
    assert articles.confirm("a1", first.fencing_token, "d2")
    dispatched = articles.intent()

    assert set(pending) == ALWAYS | {"due_time"}
    assert set(processing) == ALWAYS | {"due_time", "claim_token"}
    assert set(again) == ALWAYS | {"due_time", "error"}
    assert set(dispatched) == ALWAYS
    assert [one["status"] for one in (pending, processing, again, dispatched)] == [
        *("pending", "processing", "pending", "dispatched")
    ]
    assert {one["fencing_token"] for one in (pending, processing, again, dispatched)} == {first.fencing_token}
    assert {one["input"] for one in (pending, processing, again, dispatched)} == {first.input}
    assert (again["due_time"], again["tries"], again["error"]) == (due_ms, 1, "the store was away")
    assert decode(first.input, dict, "input") == {
        "article_id": "a1",
        "stream": True,
        "fencing_token": first.fencing_token,
    }
    assert articles.row()["title"] == "T"


@pytest.mark.req("dsp-confirm-request", "dsp-confirm-miss-dispatched")
def test_the_request_confirms_its_own_pending_round_once(articles: Articles) -> None:
    token = articles.add().fencing_token

    assert not articles.confirm("a1", "another-round", None)
    assert articles.confirm("a1", token, None)
    before = articles.row()
    assert not articles.confirm("a1", token, None)

    assert articles.row() == before
    assert before[INTENT_FIELD]["status"] == "dispatched"


@pytest.mark.req("dsp-confirm-miss-processing", "dsp-lease-respect")
def test_neither_the_request_nor_another_dispatcher_touches_a_lease_that_runs(articles: Articles) -> None:
    token = articles.add().fencing_token
    assert articles.taken("d1") is not None
    before = articles.row()

    assert not articles.confirm("a1", token, None)
    assert not articles.refuse("a1", token, None, "no")
    assert articles.taken("d2") is None

    assert articles.row() == before


@pytest.mark.req("dsp-confirm-holder", "dsp-release-fenced")
def test_a_withdrawal_holds_whoever_has_the_lease(articles: Articles) -> None:
    """The object's owner ends the intent; the dispatcher that holds it writes nothing any more."""
    token = articles.add().fencing_token
    articles.taken("d1")
    assert not articles.withdraw("a1", "another-round", "its user left")

    assert articles.withdraw("a1", token, "its user left")
    before = articles.row()
    late = [
        articles.renew("a1", token, "d1", HOUR_MS),
        articles.confirm("a1", token, "d1"),
        articles.release("a1", token, "d1", 0, "late") is not None,
        articles.confirm("a1", token, None),
    ]

    assert late == [False] * 4
    assert articles.row() == before
    assert (before["status"], before[INTENT_FIELD]["status"]) == ("closed", "refused")
    assert before[INTENT_FIELD]["error"] == "its user left"
    assert not {"claim_token", "due_time"} & set(before[INTENT_FIELD])
    assert articles.withdraw("a1", token, "again")
    assert articles.row() == before


@pytest.mark.req("dsp-confirm-holder")
@pytest.mark.parametrize("broken", ["round", "status", "token", "nothing"])
def test_the_holder_confirms_only_its_round_from_processing_by_its_own_token(broken: str, articles: Articles) -> None:
    token = articles.add().fencing_token
    articles.taken("d1")
    if broken == "status":
        change(articles, Put(f"{INTENT_FIELD}.status", "pending"))
    before = articles.row()

    confirmed = articles.confirm("a1", "f2" if broken == "round" else token, "d-other" if broken == "token" else "d1")

    assert confirmed == (broken == "nothing")
    after = articles.intent()
    if confirmed:
        assert not {"claim_token", "due_time"} & set(after)
    else:
        assert articles.row() == before


@pytest.mark.req("dsp-release-fenced", "dsp-takeover", "id-dispatch-token")
def test_an_expired_holder_changes_nothing_after_the_takeover(articles: Articles) -> None:
    token = articles.add().fencing_token
    articles.taken("d1", lease_ms=-HOUR_MS)
    assert articles.intent()["claim_token"] == "d1"
    held = articles.taken("d2")
    before = articles.row()

    late = [
        articles.renew("a1", token, "d1", HOUR_MS),
        articles.confirm("a1", token, "d1"),
        articles.release("a1", token, "d1", 0, "late") is not None,
        articles.refuse("a1", token, "d1", "late"),
    ]

    assert late == [False] * 4
    assert articles.row() == before
    assert held is not None
    assert (held.claim_token, held.fencing_token) == ("d2", token)
    assert articles.confirm("a1", token, "d2")


@pytest.mark.req("dsp-due-only", "dsp-lease-take")
def test_only_what_is_due_by_the_stores_clock_is_taken(articles: Articles) -> None:
    token = articles.add().fencing_token
    articles.taken("d1")
    articles.release("a1", token, "d1", HOUR_MS, "later")

    assert articles.taken("d2") is None
    change(articles, Put(f"{INTENT_FIELD}.due_time", articles.now_ms() - 1))
    assert articles.taken("d2") is not None


def test_a_claim_is_for_the_intent_as_it_was_seen(articles: Articles) -> None:
    """Between the reading and the claim anything may happen; then the object is left alone."""
    first = articles.add()
    articles.taken("d1", lease_ms=-HOUR_MS)
    assert articles.claim("a1", first, "d2", HOUR_MS) is None, "it was seen pending"
    seen = articles.read("a1")
    assert seen is not None
    articles.taken("d3", lease_ms=-HOUR_MS)

    assert articles.claim("a1", seen, "d4", HOUR_MS) is None, "it was seen in another's hands"
    assert articles.intent()["claim_token"] == "d3"


@pytest.mark.req("dsp-lease-renew")
def test_a_renewal_moves_the_expiry_and_keeps_the_token(articles: Articles) -> None:
    token = articles.add().fencing_token
    articles.taken("d1", lease_ms=1_000)
    before = articles.intent()

    assert articles.renew("a1", token, "d1", HOUR_MS)
    assert not articles.renew("a1", "f9", "d1", HOUR_MS)

    after = articles.intent()
    assert after["due_time"] > before["due_time"] + HOUR_MS // 2
    assert {**after, "due_time": 0} == {**before, "due_time": 0}


@pytest.mark.parametrize("holder", [None, "d1"])
def test_a_refused_intent_is_an_end_and_closes_the_object_in_the_same_write(
    holder: str | None, articles: Articles
) -> None:
    """DECISIONS detail 8."""
    token = articles.add(title="T").fencing_token
    if holder is not None:
        articles.taken(holder)

    assert articles.refuse("a1", token, holder, "completed in another round\x1b[2J")
    assert articles.refuse("a1", token, holder, "a repeat is the same answer")

    row = articles.row()
    intent = row[INTENT_FIELD]
    assert (row["status"], row["title"], intent["status"]) == ("closed", "T", "refused")
    assert intent["error"] == "completed in another round\\x1b[2J"
    assert not {"claim_token", "due_time"} & set(intent)
    assert articles.due(after=None, limit=10) == []
    assert articles.taken("d2") is None
    assert not articles.confirm("a1", token, holder)


def test_a_refusal_does_not_write_over_a_business_end(articles: Articles) -> None:
    token = articles.add().fencing_token
    assert articles.complete("a1", token, {"result.text": "done"})

    assert articles.refuse("a1", token, None, "too late")

    row = articles.row()
    assert (row["status"], row["result"], row[INTENT_FIELD]["status"]) == ("completed", {"text": "done"}, "refused")


def test_due_intents_come_in_pages_and_ended_ones_do_not(articles: Articles) -> None:
    tokens = {f"a{n}": articles.add(f"a{n}").fencing_token for n in range(9)}
    articles.confirm("a3", tokens["a3"], None)
    articles.refuse("a5", tokens["a5"], None, "no")

    found: list[str] = []
    after = None
    while page := articles.due(after=after, limit=2):
        assert len(page) <= 2
        found += [one.object_id for one in page]
        after = (page[-1].due_time, page[-1].object_id)

    assert found == sorted(found, key=lambda name: (articles.intent(name)["due_time"], name))
    assert set(found) == set(tokens) - {"a3", "a5"}


@pytest.mark.req("dsp-bad-intent")
@pytest.mark.parametrize("due_time", ["soon", True, {"$gt": 0}, [1]])
def test_an_intent_whose_time_is_none_is_never_taken_and_hides_no_other(due_time: object, articles: Articles) -> None:
    articles.add("a1")
    change(articles, Put(f"{INTENT_FIELD}.due_time", due_time))
    articles.add("a2")

    assert [one.object_id for one in articles.due(after=None, limit=1)] == ["a2"]
    with pytest.raises(CorruptRecord, match="due_time"):
        articles.read("a1")
    seen = articles.read("a2")
    assert seen is not None
    assert articles.claim("a1", seen, "d1", HOUR_MS) is None


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ((Put(f"{INTENT_FIELD}.v", 2),), UnknownVersion),
        ((Clear(f"{INTENT_FIELD}.v"),), UnknownVersion),
        ((Put(f"{INTENT_FIELD}.status", "sent"),), CorruptRecord),
        ((Clear(f"{INTENT_FIELD}.input"),), CorruptRecord),
        ((Put(f"{INTENT_FIELD}.priority", "high"),), CorruptRecord),
    ],
)
def test_an_intent_that_this_kernel_does_not_know_is_refused_and_left_alone(
    changes: tuple[Put | Clear, ...], error: type[Exception], articles: Articles
) -> None:
    articles.add()
    change(articles, *changes)
    before = articles.row()

    with pytest.raises(error, match="a1"):
        articles.read("a1")
    with pytest.raises(error):
        articles.get("a1")

    assert articles.row() == before


VERBS: dict[str, Callable[[Articles, Intent], object]] = {
    "claim": lambda articles, seen: articles.claim("a1", seen, "d1", HOUR_MS),
    "renew": lambda articles, seen: articles.renew("a1", seen.fencing_token, "d1", HOUR_MS),
    "confirm": lambda articles, seen: articles.confirm("a1", seen.fencing_token, None),
    "confirm as holder": lambda articles, seen: articles.confirm("a1", seen.fencing_token, "d1"),
    "release": lambda articles, seen: articles.release("a1", seen.fencing_token, "d1", 0, "x"),
    "refuse": lambda articles, seen: articles.refuse("a1", seen.fencing_token, None, "x"),
    "update": lambda articles, seen: articles.update("a1", seen.fencing_token, {"title": "x"}),
    "new round": lambda articles, seen: articles.next("a1", seen.fencing_token),
    "read": lambda articles, _seen: articles.read("a1"),
    "get": lambda articles, _seen: articles.get("a1"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_object_that_was_deleted_meanwhile_is_a_miss_and_comes_not_back(verb: str, articles: Articles) -> None:
    seen = articles.add()
    articles.delete()

    assert not VERBS[verb](articles, seen)

    assert articles.store.get(articles.declaration.place, "a1") is None
    assert articles.due(after=None, limit=10) == []


@pytest.mark.parametrize("object_id", ["", "x" * 201, "a\x00b", "a\nb", "\udcff", " "])
def test_an_id_that_can_be_none_is_refused_before_anything_is_asked(object_id: str, articles: Articles) -> None:
    seen = articles.add()
    for call in (
        lambda: articles.read(object_id),
        lambda: articles.get(object_id),
        lambda: articles.claim(object_id, seen, "d", 1),
        lambda: articles.confirm(object_id, "f", None),
        lambda: articles.refuse(object_id, "f", None, "r"),
        lambda: articles.update(object_id, "f", {"title": "x"}),
        lambda: articles.add(object_id),
    ):
        with pytest.raises(InvalidId, match="article_id"):
            call()


@pytest.mark.req("req-legacy-input", "req-one-snapshot")
@pytest.mark.parametrize("kind", STORES)
def test_an_object_without_an_input_gets_a_conservative_one_that_stays(
    kind: str, make_store: MakeStore, clock: ManualClock
) -> None:
    """Whatever the configuration says today: the input is built from the document alone, and kept by the claim."""
    import msgspec

    from tests.conformance.articles import ARTICLES

    def conservative(document: Document) -> dict[str, object]:
        return {"article_id": document["article_id"], "tenant": document["tenant"], "stream": False, "enhance": False}

    declared = msgspec.structs.replace(ARTICLES, legacy_input=conservative)
    articles = Articles(make_store(kind, TABLES), declared)
    token = articles.add(tenant="t1").fencing_token
    change(articles, Clear(f"{INTENT_FIELD}.input"))

    seen = articles.read("a1")
    held = articles.taken("d1")
    change(articles, Put("tenant", "t2"))
    later = articles.read("a1")

    assert seen is not None and held is not None and later is not None
    assert decode(seen.input, dict, "input") == {
        "article_id": "a1",
        "tenant": "t1",
        "stream": False,
        "enhance": False,
        "fencing_token": token,
    }
    assert seen.input == held.input == later.input == articles.intent()["input"]
