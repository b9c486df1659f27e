"""Accepting, guarded writes and rounds on every store; whatever else a document holds stays (groups 4, 11)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from kernel.dispatch import INTENT_FIELD
from kernel.errors import InvalidInput, InvalidObject, OutcomeUnknown, StoreUnavailable, TooLarge
from kernel.store.conditional import Put, Transition
from tests.conformance.articles import ARTICLES, HOUR_MS, TABLES, Articles, intent_of
from tests.conformance.conftest import MakeStore
from tests.support.lossy_store import LossyStore
from tests.support.stores import STORES


@pytest.fixture(params=STORES)
def articles(request: pytest.FixtureRequest, make_store: MakeStore) -> Articles:
    return Articles(make_store(request.param, TABLES))


FIELDS: dict[str, Any] = {
    "title": "Nacht\u2028talk",
    "showId": "s1",
    "viewCount": 3,
    "ratio": 0.5,
    "live": True,
    "seat": {"row": 7, "Ünïcode key": [1, {"a b": None, "t_time": 5}], "workflow_dispatch": 1},
    "tags": ["a", ["b"]],
    "raw": b"\x00$",
    "aired_time": 1_700_000_000_000,
    "published": datetime(2026, 3, 1, 12, 30, 0, 123_000, UTC),
    "steps": [1, 2],
    "nothing": None,
}
KEPT = {
    **{name: value for name, value in FIELDS.items() if name != "nothing"},
    "seat": {"row": 7, "Ünïcode key": [1, {"t_time": 5}], "workflow_dispatch": 1},
}


def fail(articles: Articles, token: str) -> None:
    assert articles.begin("a1", token)
    assert articles.fail("a1", token, {"error": "no sound"})


# --- accepting ----------------------------------------------------------------------------------------


@pytest.mark.req("req-atomic-intent", "dsp-not-classic")
def test_accepting_is_one_insert_that_holds_the_object_and_its_pending_intent(make_store: MakeStore) -> None:
    store = LossyStore(make_store("memory", TABLES))
    articles = Articles(store)

    articles.add(title="T")

    assert [type(write).__name__ for write in store.sent] == ["Insert"]
    assert store.sent[0].document == articles.row()  # type: ignore[union-attr]
    assert articles.intent()["status"] == "pending"


def test_a_users_fields_are_the_same_on_every_store_and_no_write_of_ours_changes_them(articles: Articles) -> None:
    token = articles.add(**FIELDS).fencing_token
    assert articles.get("a1").fields == {**KEPT, "article_id": "a1", "status": "initial"}  # type: ignore[union-attr]

    articles.taken("d1")
    articles.renew("a1", token, "d1", HOUR_MS)
    articles.release("a1", token, "d1", -1, "x")
    articles.taken("d2")
    articles.confirm("a1", token, "d2")
    fail(articles, token)
    second = articles.next("a1", token)
    assert second is not None
    articles.complete("a1", second)

    assert articles.get("a1").fields == {**KEPT, "article_id": "a1", "status": "completed"}  # type: ignore[union-attr]


def test_a_time_is_kept_to_the_millisecond_whatever_its_zone(articles: Articles) -> None:
    """What MongoDB keeps of one; a field `…_time` is whole milliseconds, however it was given."""
    east = datetime(2026, 3, 1, 14, 30, 0, 123_999, timezone(timedelta(hours=2)))
    articles.add(published=east, aired_time=east)

    found = articles.get("a1")

    assert found is not None
    assert found.fields["published"] == datetime(2026, 3, 1, 12, 30, 0, 123_000, UTC)
    assert found.fields["aired_time"] == 1_772_368_200_123


@pytest.mark.req("id-client-idem", "req-resolve-object")
def test_the_same_client_id_is_the_same_object_and_a_normal_answer(articles: Articles) -> None:
    def accept(article_id: str, client_id: str) -> Any:
        return articles.accept(
            article_id, type_="t", biz_key=f"t:{article_id}", input={}, priority=0, client_id=client_id
        )

    first = accept("a1", "c1")
    same_client = accept("a2", "c1")
    same_object = accept("a1", "c2")
    other = accept("a3", "c3")

    assert [one.created for one in (first, same_client, same_object, other)] == [True, False, False, True]
    assert [one.object.object_id for one in (first, same_client, same_object)] == ["a1"] * 3
    assert same_client.object == same_object.object == first.object
    assert articles.by_client("c1") == first.object
    assert articles.by_client("c2") is None
    assert articles.get("a2") is None


def test_objects_without_a_client_id_do_not_stand_in_each_others_way(articles: Articles) -> None:
    articles.add("a1")
    articles.add("a2")

    assert [one["article_id"] for one in articles.page()] == ["a1", "a2"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"article_id": "a2"}, "'article_id' can not be given"),
        ({"status": "done"}, "'status' can not be given"),
        ({"request_id": "c"}, "'request_id' can not be given"),
        ({INTENT_FIELD: {}}, "can not be given"),
        ({"a.b": 1}, "can not be given"),
        ({"$set": 1}, "is no field"),
        ({"Title": 1}, "is no field"),
        ({"": 1}, "is no field"),
        ({"x" * 70: {}, "y": object()}, "y: a object can not be stored"),
        ({"x": {"$a": 1}}, "can not name a field"),
        ({"x": {"a.b": 1}}, "can not name a field"),
        ({"x": {1: 1}}, "can not name a field"),
        ({"x": {"a\0": 1}}, "can not name a field"),
        ({"x": 2**63}, "beyond 64 bits"),
        ({"x": float("nan")}, "not a number"),
        ({"x": "\udcff"}, "no valid Unicode"),
        ({"x": datetime(2026, 1, 1)}, "needs its zone"),
        ({"x": {1, 2}}, "a set can not be stored"),
    ],
)
def test_a_field_that_not_every_store_can_keep_is_refused_before_the_write(
    fields: dict[str, Any], message: str, articles: Articles
) -> None:
    with pytest.raises(InvalidObject, match=message) as refused:
        articles.accept("a1", type_="t", biz_key="b", input={}, priority=0, fields=fields)

    assert "\n" not in str(refused.value)
    assert articles.page() == []


def test_a_structure_without_an_end_is_refused(articles: Articles) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidObject, match="nested more than"):
        articles.accept("a1", type_="t", biz_key="b", input={}, priority=0, fields={"x": endless})


@pytest.mark.req("req-input-small", "req-input-two-kinds")
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"text": "x" * 1_001}, InvalidInput, "text: has 1001 characters"),
        ({f"k{n}": "x" * 1_000 for n in range(9)}, TooLarge, "bytes encoded"),
        ({"body": b"raw"}, InvalidInput, "body: holds text, numbers, booleans"),
        ({"deep": {"er": 1}}, InvalidInput, "deep: holds text"),
        ({"many": ["x"] * 101}, InvalidInput, "at most 100 items"),
        ({1: "x"}, InvalidInput, "name of every field"),
        ("just text", InvalidInput, "named fields"),
        (None, InvalidInput, "named fields"),
        ({"lone": "\udcff"}, InvalidInput, "encoded"),
    ],
)
def test_an_input_that_holds_more_than_identities_and_decisions_is_refused_at_acceptance(
    value: Any, error: type[Exception], message: str, articles: Articles
) -> None:
    with pytest.raises(error, match=message):
        articles.accept("a1", type_="t", biz_key="b", input=value, priority=0)

    assert articles.page() == []


# --- rounds -------------------------------------------------------------------------------------------


@pytest.mark.req("req-round-change-cas", "fen-fail-keeps-round", "id-fencing-token", "dsp-crash-after-round-cas")
def test_a_new_round_replaces_status_intent_and_the_fields_of_the_last_one_together(articles: Articles) -> None:
    first = articles.add(title="T")
    articles.confirm("a1", first.fencing_token, None)
    articles.update("a1", first.fencing_token, {"result.text": "half", "result.kept": 1})
    fail(articles, first.fencing_token)
    failed = articles.row()
    assert (failed["status"], failed["error"]) == ("failed", "no sound")
    assert failed[INTENT_FIELD]["fencing_token"] == first.fencing_token
    assert failed[INTENT_FIELD]["status"] == "dispatched"

    token = articles.next("a1", first.fencing_token)

    row = articles.row()
    second = articles.read("a1")
    assert second is not None
    assert token == second.fencing_token != first.fencing_token
    assert (row["status"], row["title"], row["result"]) == ("initial", "T", {"kept": 1})
    assert "error" not in row
    assert (second.status, second.tries, second.priority) == ("pending", 0, 1)
    assert second.input != first.input
    assert [one.object_id for one in articles.due(after=None, limit=9)] == ["a1"]


@pytest.mark.req("req-round-change-cas")
@pytest.mark.parametrize("why", ["wrong round", "not failed", "completed"])
def test_a_new_round_of_anything_else_changes_nothing(why: str, articles: Articles) -> None:
    token = articles.add().fencing_token
    if why == "wrong round":
        fail(articles, token)
    if why == "completed":
        articles.complete("a1", token)
    before = articles.row()

    assert articles.next("a1", "f1-stale" if why == "wrong round" else token) is None

    assert articles.row() == before


@pytest.mark.req("id-fencing-token", "id-token-quality")
def test_the_rounds_of_an_object_are_numbered_for_people_and_never_repeat(articles: Articles) -> None:
    tokens = [articles.add().fencing_token]
    for _ in range(11):
        fail(articles, tokens[-1])
        token = articles.next("a1", tokens[-1])
        assert token is not None
        tokens.append(token)

    assert [token.partition("-")[0] for token in tokens] == [f"f{n}" for n in range(1, 13)]
    assert len({token.partition("-")[2] for token in tokens}) == len(tokens)


# --- business writes ----------------------------------------------------------------------------------


@pytest.mark.req("fen-cas", "fen-zero-rows", "fen-finalizer")
@pytest.mark.parametrize(
    "late",
    [
        lambda articles, token: articles.update("a1", token, {"result.text": "late"}),
        lambda articles, token: articles.complete("a1", token, {"result.text": "late"}),
        lambda articles, token: articles.fail("a1", token, {"error": "late"}),
        lambda articles, token: articles.begin("a1", token),
        lambda articles, token: articles.withdraw("a1", token, "late"),
    ],
)
def test_a_write_of_an_old_round_changes_no_row(late: Callable[[Articles, str], bool], articles: Articles) -> None:
    first = articles.add().fencing_token
    fail(articles, first)
    assert articles.next("a1", first) is not None
    before = articles.row()

    assert late(articles, first) is False

    assert articles.row() == before


def test_a_business_write_sets_and_clears_what_it_names_and_nothing_else(articles: Articles) -> None:
    token = articles.add(**FIELDS).fencing_token

    assert articles.update("a1", token, {"viewCount": 4, "seat.row": 8, "title": None, "resultText": "$done"})

    found = articles.get("a1")
    assert found is not None
    expected = {**KEPT, "viewCount": 4, "resultText": "$done", "seat": {**KEPT["seat"], "row": 8}}
    del expected["title"]
    assert found.fields == {**expected, "article_id": "a1", "status": "initial"}


def test_a_business_write_may_ask_for_the_status(articles: Articles) -> None:
    token = articles.add().fencing_token

    assert not articles.update("a1", token, {"title": "x"}, when_status="processing")
    assert not articles.complete("a1", "another")
    assert articles.begin("a1", token) and articles.begin("a1", token)
    assert articles.update("a1", token, {"title": "x"}, when_status=("initial", "processing"))
    assert articles.complete("a1", token, {"result.text": "r"}) and articles.complete("a1", token)
    assert not articles.fail("a1", token)
    assert not articles.begin("a1", token)

    row = articles.row()
    assert (row["status"], row["title"], row["result"]) == ("completed", "x", {"text": "r"})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"article_id": "a2"},
        {"request_id": "c"},
        {INTENT_FIELD: {}},
        {f"{INTENT_FIELD}.fencing_token": "f9"},
        {f"{INTENT_FIELD}.status": None},
        {"a.b.c": 1},
        {"$set": 1},
        {"steps.0": 1},
        {"x": object()},
    ],
)
def test_a_business_write_can_not_touch_identity_nor_intent(changes: dict[str, Any], articles: Articles) -> None:
    token = articles.add().fencing_token
    before = articles.row()

    with pytest.raises(InvalidObject):
        articles.update("a1", token, changes)

    assert articles.row() == before


@pytest.mark.parametrize("time_ms", [2**62, -(2**62), 253_402_300_800_000, -62_135_596_800_001])
@pytest.mark.parametrize("shape", ["field", "part", "map"])
def test_a_time_that_no_store_could_give_back_is_refused_before_any_write(
    time_ms: int, shape: str, articles: Articles
) -> None:
    changes = {"field": {"a_time": time_ms}, "part": {"seat.a_time": time_ms}, "map": {"seat": [{"a_time": time_ms}]}}
    token = articles.add().fencing_token
    before = articles.row()

    with pytest.raises(InvalidObject, match=f"a_time: {time_ms} ms is no time between the years 1 and 9999"):
        articles.update("a1", token, changes[shape])
    if shape != "part":
        with pytest.raises(InvalidObject):
            articles.add("a2", **changes[shape])

    assert articles.row() == before
    assert articles.get("a2") is None
    for kept in (253_402_300_799_999, -62_135_596_800_000, -5, 0):
        assert articles.update("a1", token, {"a_time": kept})
        assert articles.row()["a_time"] == kept


@pytest.mark.parametrize("end", ["completed", "failed", "their own"])
def test_a_result_is_not_written_over_by_a_withdrawal(end: str, articles: Articles) -> None:
    """What has ended has ended; an intent that is still open then is refused all the same."""
    token = articles.add().fencing_token
    assert articles.update("a1", token, {"status": end})

    assert articles.withdraw("a1", token, "its user left")

    assert (articles.row()["status"], articles.intent()["status"]) == (end, "refused")


def test_a_withdrawn_object_is_closed_and_registers_nothing_any_more(articles: Articles) -> None:
    pending, dispatched = articles.add("a1").fencing_token, articles.add("a2").fencing_token
    articles.confirm("a2", dispatched, None)

    assert articles.withdraw("a1", pending, "its user left")
    assert articles.withdraw("a2", dispatched, "its user left")

    assert (articles.row("a1")["status"], articles.intent("a1")["status"]) == ("closed", "refused")
    assert (articles.row("a2")["status"], articles.intent("a2")["status"]) == ("closed", "dispatched")
    assert articles.due(after=None, limit=9) == []


# --- pages --------------------------------------------------------------------------------------------


def test_pages_by_a_declared_index_follow_each_other_by_an_immutable_cursor(articles: Articles) -> None:
    for n in range(7):
        articles.add(f"a{n}", showId=f"s{n % 2}", seat={"row": n})

    found: list[dict[str, Any]] = []
    after = None
    while page := articles.page({"showId": "s0"}, after=after, limit=3, columns=("seat.row", "status", "request_id")):
        found += page
        after = page[-1]["article_id"]
        articles.update(after, intent_of(articles.get(after)).fencing_token, {"title": "changed meanwhile"})  # type: ignore[arg-type]

    assert found == [
        {"article_id": f"a{n}", "seat.row": n, "status": "initial", "request_id": None} for n in (0, 2, 4, 6)
    ]
    assert articles.page({"showId": "s1", "seat.row": 3}) == [{"article_id": "a3"}]
    assert articles.page({"showId": "unknown"}) == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda articles: articles.page({"status": "initial"}),
        lambda articles: articles.page({"seat.row": 1}),
        lambda articles: articles.page({"title": 1}),
        lambda articles: articles.page(columns=("title",)),
        lambda articles: articles.page(limit=0),
        lambda articles: articles.page(limit=1_001),
    ],
)
def test_a_page_that_no_index_serves_is_refused(ask: Callable[[Articles], Any], articles: Articles) -> None:
    with pytest.raises(InvalidObject):
        ask(articles)


# --- lost answers -------------------------------------------------------------------------------------

WRITES: dict[str, Callable[[Articles, str], object]] = {
    "confirm": lambda articles, token: articles.confirm("a1", token, None),
    "claim": lambda articles, _token: articles.taken("d1"),
    "refuse": lambda articles, token: articles.refuse("a1", token, None, "no"),
    "update": lambda articles, token: articles.update("a1", token, {"title": "x", "gone": None}),
    "begin": lambda articles, token: articles.begin("a1", token),
    "complete": lambda articles, token: articles.complete("a1", token, {"result.text": "r"}),
}
HELD: dict[str, Callable[[Articles, str], object]] = {
    "renew": lambda articles, token: articles.renew("a1", token, "d1", HOUR_MS),
    "confirm as holder": lambda articles, token: articles.confirm("a1", token, "d1"),
    "release": lambda articles, token: articles.release("a1", token, "d1", 1_000, "x"),
    "refuse as holder": lambda articles, token: articles.refuse("a1", token, "d1", "no"),
}


@pytest.mark.case("A52")
@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("verb", [*WRITES, *HELD])
def test_a_lost_answer_is_decided_by_one_more_read(verb: str, lost: str, articles: Articles) -> None:
    token = articles.add().fencing_token
    twin = articles.add("a2").fencing_token
    if verb in HELD:
        articles.taken("d1")
    lossy = LossyStore(articles.store)
    unsure = Articles(lossy)
    getattr(lossy, f"lose_{lost}")()

    assert {**WRITES, **HELD}[verb](unsure, token)

    assert len(lossy.sent) == (2 if lost == "request" or verb == "renew" else 1)
    intent = articles.intent()
    assert intent.get("tries") == (1 if verb == "release" else 0)
    assert articles.intent("a2")["fencing_token"] == twin


@pytest.mark.case("A52")
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_accepting_and_starting_over_survive_a_lost_answer(lost: str, articles: Articles) -> None:
    lossy = LossyStore(articles.store)
    unsure = Articles(lossy)
    getattr(lossy, f"lose_{lost}")()
    first = unsure.add().fencing_token
    fail(articles, first)
    getattr(lossy, f"lose_{lost}")()

    second = unsure.next("a1", first)

    assert second is not None
    assert articles.intent()["fencing_token"] == second


def test_what_nobody_can_decide_is_unknown_and_never_a_miss(articles: Articles) -> None:
    token = articles.add().fencing_token

    class Gone(LossyStore):
        def get(self, table: str, key: str) -> Any:
            raise StoreUnavailable("away")

    lossy = Gone(articles.store)
    lossy.lose_reply()
    with pytest.raises(OutcomeUnknown):
        Articles(lossy).confirm("a1", token, None)


@pytest.mark.case("A52")
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_lost_write_is_not_sent_over_a_later_one_of_its_round(lost: str, articles: Articles) -> None:
    """Another attempt of the same round was faster: nothing in the row tells which of the two came first."""
    token = articles.add(progress=1).fencing_token

    class Overtaken(LossyStore):
        def get(self, table: str, key: str) -> Any:
            articles.update("a1", token, {"progress": 3})
            return self.inner.get(table, key)

    lossy = Overtaken(articles.store)
    getattr(lossy, f"lose_{lost}")()

    with pytest.raises(OutcomeUnknown):
        Articles(lossy).update("a1", token, {"progress": 2})

    assert articles.row()["progress"] == 3
    assert len(lossy.sent) == 1


@pytest.mark.case("A52")
@pytest.mark.parametrize("changes", [{"title": "x"}, {"status": "completed", "result": {"text": "r"}}])
def test_the_second_copy_of_a_lost_write_hits_only_while_no_other_has(
    changes: dict[str, Any], articles: Articles
) -> None:
    """It was lost; between the reading and the second copy another attempt of the round has written."""
    token = articles.add().fencing_token

    class Overtaken(LossyStore):
        def apply(self, transition: Transition) -> Any:
            if len(self.sent) == 1:
                articles.update("a1", token, {**changes, "title": "of the other"})
            return super().apply(transition)

    lossy = Overtaken(articles.store)
    lossy.lose_request()
    when = {"when_status": ("initial", "completed")} if "status" in changes else {}

    with pytest.raises(OutcomeUnknown):
        Articles(lossy).update("a1", token, {**changes, "result": {"text": "late"}}, **when)  # type: ignore[arg-type]

    assert articles.row()["title"] == "of the other"
    assert articles.row().get("result") == changes.get("result")


@pytest.mark.case("A52")
def test_a_lost_write_of_a_round_that_is_over_is_a_miss(articles: Articles) -> None:
    token = articles.add().fencing_token
    fail(articles, token)
    lossy = LossyStore(articles.store)
    unsure = Articles(lossy)
    lossy.lose_request()
    assert unsure.begin("a1", token) is False
    assert articles.next("a1", token) is not None
    lossy.lose_request()
    assert unsure.update("a1", token, {"title": "late"}) is False
    assert len(lossy.sent) == 2


@pytest.mark.case("A52")
def test_a_miss_after_a_lost_answer_is_not_taken_for_a_success_of_another(articles: Articles) -> None:
    """d1's lost confirm finds d2 in possession: it did not land, and it is not d1's to say so."""
    token = articles.add().fencing_token
    articles.taken("d1", lease_ms=-HOUR_MS)
    articles.taken("d2")
    lossy = LossyStore(articles.store)
    lossy.lose_request()

    assert Articles(lossy).confirm("a1", token, "d1") is False
    assert articles.intent()["claim_token"] == "d2"


def test_the_declared_statuses_may_be_numbers(make_store: MakeStore) -> None:
    """Users' documents have what they have."""
    import msgspec

    numbers = {name: at for at, name in enumerate(("initial", "processing", "completed", "failed", "closed"))}
    declared = msgspec.structs.replace(ARTICLES, status="stateCode", **numbers)
    tables = {declared.place: declared.table}
    for kind in STORES:
        articles = Articles(make_store(kind, tables), declared)
        first = articles.add().fencing_token
        assert not articles.update("a1", first, {"title": "x"}, when_status=3)
        assert articles.begin("a1", first) and articles.fail("a1", first)
        assert articles.row()["stateCode"] == 3
        second = articles.next("a1", first)
        assert second is not None
        assert articles.refuse("a1", second, None, "no")
        assert articles.row()["stateCode"] == 4


def test_an_object_of_the_users_own_program_gets_its_first_intent_once(articles: Articles) -> None:
    articles.add("a1")
    articles.store.apply(Transition("by_hand", "articles", "a1", (), (Put("title", "T"),)))
    there = articles.get("a1")
    assert there is not None

    assert not articles.embed(there, type_="t", biz_key="b", input={}, priority=0), "it has one"
