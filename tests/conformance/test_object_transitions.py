"""Every transition of a business object in every state, on every store: where it hits, and exactly what it changes.

The table is written from the specification (groups 4, 7, 11; DECISIONS detail 8), not from the constructors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kernel import transitions as make
from kernel.dispatch import INTENT_FIELD, Intent, to_intent
from kernel.records import Document
from kernel.store.conditional import MISSED, Applied, Insert, Transition
from kernel.store.protocol import Store
from kernel.store.tables import Table
from tests.conformance.articles import TABLES
from tests.conformance.conftest import MakeStore
from tests.support.stores import HOUR_MS, STORES

TABLE: Table = TABLES["articles"]
ROUND, HOLDER = "f1-aa", "d1"
INTENT_STATUSES = ("pending", "processing", "dispatched", "refused")
BUSINESS_STATUSES = ("initial", "processing", "completed", "failed", "closed", "their own")
NEXT = Intent(
    v=1,
    type="summary",
    biz_key="summary:k",
    priority=2,
    status="pending",
    fencing_token="f2-bb",
    input=b"\x01\x02",
    accepted_time=1_700_000_000_000,
    due_time=1_700_000_002_000,
)


def full_row(key: str, now_ms: int, status: str, intent: str) -> Document:
    """A row on which every change shows; it is due, and it has a holder when it is processing."""
    holder = {"claim_token": HOLDER} if intent == "processing" else {}
    ended = intent in ("dispatched", "refused")
    return {
        "article_id": key,
        "status": status,
        "title": "T",
        "error": "old",
        "result": {"text": "old", "kept": 1},
        INTENT_FIELD: {
            "v": 1,
            "type": "job",
            "biz_key": f"job:{key}",
            "priority": 1,
            "status": intent,
            "tries": 3,
            "fencing_token": ROUND,
            "input": b"\x01\x01",
            "accepted_time": now_ms - HOUR_MS,
            "error": "last",
            **({} if ended else {"due_time": now_ms - HOUR_MS}),
            **holder,
        },
    }


class Case(NamedTuple):
    """`build` gets the key, the row as seen, round and holder; it hits in these states of intent and object."""

    build: Callable[[str, Intent, str, str], Transition]
    intents: tuple[str, ...]
    objects: tuple[str, ...]
    changes: tuple[str, ...]


def _of(field: str) -> str:
    return f"{INTENT_FIELD}.{field}"


def _refuse(holder: bool, closed: bool) -> Callable[[str, Intent, str, str], Transition]:
    return lambda key, seen, token, lease: make.refuse_dispatch(
        "articles",
        key,
        token,
        lease if holder else None,
        "no",
        status_field="status",
        seen_status="initial",
        closed="closed" if closed else None,
    )


def _withdraw(closed: bool) -> Callable[[str, Intent, str, str], Transition]:
    return lambda key, seen, token, lease: make.withdraw_dispatch(
        "articles",
        key,
        token,
        "no",
        status_field="status",
        seen_status="initial",
        closed="closed" if closed else None,
    )


ANY = BUSINESS_STATUSES
CASES: dict[str, tuple[Case, ...]] = {
    "claim_dispatch": (
        Case(
            lambda key, seen, token, lease: make.claim_dispatch("articles", key, seen, "d2", 9_000),
            ("pending", "processing"),
            ANY,
            (_of("status"), _of("claim_token"), _of("due_time")),
        ),
        Case(
            lambda key, seen, token, lease: make.claim_dispatch(
                "articles", key, Intent(**{**_plain(seen), "input": b"new"}), "d2", 9_000, keep_input=True
            ),
            ("pending", "processing"),
            ANY,
            (_of("status"), _of("claim_token"), _of("due_time"), _of("input")),
        ),
    ),
    "renew_dispatch": (
        Case(
            lambda key, seen, token, lease: make.renew_dispatch("articles", key, token, lease, 9_000),
            ("processing",),
            ANY,
            (_of("due_time"),),
        ),
    ),
    "confirm_dispatch": (
        Case(
            lambda key, seen, token, lease: make.confirm_dispatch("articles", key, token),
            ("pending",),
            ANY,
            (_of("status"), _of("due_time"), _of("error")),
        ),
        Case(
            lambda key, seen, token, lease: make.confirm_dispatch("articles", key, token, lease),
            ("processing",),
            ANY,
            (_of("status"), _of("due_time"), _of("claim_token"), _of("error")),
        ),
    ),
    "release_dispatch": (
        Case(
            lambda key, seen, token, lease: make.release_dispatch("articles", key, token, lease, 9_000, "x" * 3_000),
            ("processing",),
            ANY,
            (_of("status"), _of("due_time"), _of("claim_token"), _of("tries"), _of("error")),
        ),
    ),
    "refuse_dispatch": (
        Case(
            _refuse(False, True), ("pending",), ("initial",), (_of("status"), _of("due_time"), _of("error"), "status")
        ),
        Case(_refuse(False, False), ("pending",), ("initial",), (_of("status"), _of("due_time"), _of("error"))),
        Case(
            _refuse(True, True),
            ("processing",),
            ("initial",),
            (_of("status"), _of("due_time"), _of("claim_token"), _of("error"), "status"),
        ),
    ),
    "withdraw_dispatch": (
        Case(
            _withdraw(True),
            ("pending", "processing"),
            ("initial",),
            (_of("status"), _of("due_time"), _of("claim_token"), _of("error"), "status"),
        ),
        Case(
            _withdraw(False),
            ("pending", "processing"),
            ("initial",),
            (_of("status"), _of("due_time"), _of("claim_token"), _of("error")),
        ),
    ),
    "new_round": (
        Case(
            lambda key, seen, token, lease: make.new_round(
                "articles",
                key,
                token,
                NEXT,
                status_field="status",
                failed="failed",
                initial="initial",
                clear=("error", "result.text"),
            ),
            INTENT_STATUSES,
            ("failed",),
            ("status", "error", "result.text", _of("*")),
        ),
    ),
    "update_object": (
        Case(
            lambda key, seen, token, lease: make.update_object(
                "articles", key, token, {"title": "new"}, ("error",), status_field="status"
            ),
            INTENT_STATUSES,
            ANY,
            ("title", "error"),
        ),
        Case(
            lambda key, seen, token, lease: make.update_object(
                "articles", key, token, {"title": "new"}, status_field="status", when_status=("initial", "their own")
            ),
            INTENT_STATUSES,
            ("initial", "their own"),
            ("title",),
        ),
        Case(
            lambda key, seen, token, lease: make.update_object(
                "articles", key, token, {"summary.text": "new"}, status_field="status", when_absent=("summary.text",)
            ),
            INTENT_STATUSES,
            ANY,
            ("summary",),
        ),
        Case(
            lambda key, seen, token, lease: make.update_object(
                "articles", key, token, {"title": "new"}, status_field="status", when_absent=("title",)
            ),
            (),
            (),
            (),
        ),
    ),
    "embed_intent": (
        Case(
            lambda key, seen, token, lease: make.embed_intent(
                "articles", key, NEXT, status_field="status", status="initial", seen_status="failed"
            ),
            (),
            (),
            (),
        ),
    ),
}
ALL = [(f"{name}-{at}", case) for name, cases in CASES.items() for at, case in enumerate(cases)]


def _plain(intent: Intent) -> dict[str, Any]:
    return {name: getattr(intent, name) for name in intent.__struct_fields__}


def changed(before: Document, after: Document) -> set[str]:
    """The fields that differ; those of `result` and of the intent one by one, the intent as `.*` when it is another."""
    found = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    for outer in ("result", INTENT_FIELD):
        if outer in found:
            found.remove(outer)
            old, new = before.get(outer, {}), after.get(outer, {})
            inner = {f"{outer}.{name}" for name in {*old, *new} if old.get(name) != new.get(name)}
            found |= {_of("*")} if outer == INTENT_FIELD and _of("fencing_token") in inner else inner
    return found


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, make_store: MakeStore) -> Store:
    return make_store(request.param, TABLES)


def place(store: Store, key: str, status: str, intent: str) -> tuple[Document, Intent]:
    document = full_row(key, store.now_ms(), status, intent)
    store.insert(Insert("create", "articles", key, document))
    stored = store.get("articles", key)
    assert stored is not None
    return stored, to_intent(stored[INTENT_FIELD], key)


@pytest.mark.req("dsp-confirm-request", "dsp-confirm-holder", "dsp-lease-take", "req-round-change-cas", "fen-cas")
@pytest.mark.parametrize(("name", "case"), ALL, ids=[name for name, _ in ALL])
def test_it_hits_in_its_states_and_changes_exactly_its_fields(name: str, case: Case, store: Store) -> None:
    for intent in INTENT_STATUSES:
        for status in BUSINESS_STATUSES:
            key = f"{intent}-{status}"
            before, seen = place(store, key, status, intent)

            answer = store.apply(case.build(key, seen, ROUND, HOLDER))

            after = store.get("articles", key)
            assert after is not None
            if intent in case.intents and status in case.objects:
                assert answer == Applied(after), key
                taken_over = name.startswith("claim") and intent == "processing"
                unheld = name.startswith("withdraw") and intent == "pending"
                as_before = {_of("status")} if taken_over else {_of("claim_token")} if unheld else set()
                assert changed(before, after) == set(case.changes) - as_before, key
            else:
                assert (answer, after) == (MISSED, before), key


HELD = [
    (name, case)
    for name, case in ALL
    if case.intents == ("processing",) and name.split("-")[0] not in ("new_round", "update_object")
]


@pytest.mark.req("dsp-release-fenced", "fen-zero-rows", "dsp-confirm-holder")
@pytest.mark.parametrize(("name", "case"), ALL, ids=[name for name, _ in ALL])
def test_another_round_or_another_holder_moves_nothing(name: str, case: Case, store: Store) -> None:
    for at, (intent, status) in enumerate((i, s) for i in case.intents for s in case.objects):
        key = f"k{at}"
        before, seen = place(store, key, status, intent)
        others = [case.build(key, Intent(**{**_plain(seen), "fencing_token": "f9"}), "f9", HOLDER)]
        if (name, case) in HELD:
            others.append(case.build(key, seen, ROUND, "d9"))

        for other in others:
            assert store.apply(other) == MISSED

        assert store.get("articles", key) == before


@pytest.mark.parametrize(("name", "case"), ALL, ids=[name for name, _ in ALL])
def test_an_object_that_is_not_there_is_missed(name: str, case: Case, store: Store) -> None:
    _, seen = place(store, "k", "initial", "pending")

    assert store.apply(case.build("nobody", seen, ROUND, HOLDER)) == MISSED
    assert store.get("articles", "nobody") is None


@pytest.mark.req("dsp-due-only", "dsp-lease-respect")
@pytest.mark.parametrize("intent", ["pending", "processing"])
def test_a_lease_is_taken_from_what_is_due_only(intent: str, store: Store) -> None:
    for key, due in {"late": -HOUR_MS, "early": HOUR_MS}.items():
        document = full_row(key, store.now_ms(), "initial", intent)
        document[INTENT_FIELD]["due_time"] = store.now_ms() + due
        store.insert(Insert("create", "articles", key, document))
        seen = to_intent(document[INTENT_FIELD], key)

        answer = store.apply(make.claim_dispatch("articles", key, seen, "d2", 9_000))

        assert isinstance(answer, Applied) is (key == "late")


def test_an_intent_is_embedded_once_and_only_in_the_status_that_was_seen(store: Store) -> None:
    def embed(key: str, seen: str | None) -> bool:
        made = make.embed_intent("articles", key, NEXT, status_field="status", status="initial", seen_status=seen)
        return isinstance(store.apply(made), Applied)

    for key, status in {"none": None, "failed": "failed", "done": "completed"}.items():
        own: Document = {"article_id": key, "title": "T", **({} if status is None else {"status": status})}
        store.insert(Insert("by_hand", "articles", key, own))

    assert [embed("none", "failed"), embed("none", None), embed("none", None)] == [False, True, False]
    assert [embed("failed", None), embed("failed", "failed"), embed("failed", "initial")] == [False, True, False]
    assert embed("done", "failed") is False
    row = store.get("articles", "none")
    assert row is not None
    assert (row["title"], row["status"], to_intent(row[INTENT_FIELD], "none")) == ("T", "initial", NEXT)


def test_the_bounds_of_texts_and_times(store: Store) -> None:
    place(store, "k", "initial", "processing")
    before_ms = store.now_ms()
    store.apply(make.release_dispatch("articles", "k", ROUND, HOLDER, 9_000, "x" * 3_000))
    after_ms = store.now_ms()

    row = store.get("articles", "k")
    assert row is not None
    assert len(row[INTENT_FIELD]["error"]) == 2_000
    assert row[INTENT_FIELD]["tries"] == 4
    assert before_ms - 50 <= row[INTENT_FIELD]["due_time"] - 9_000 <= after_ms + 50
