"""Every transition in every state, on every store: it hits where it may, changes what it may, and nothing else."""

from __future__ import annotations

import pytest

from kernel import transitions
from kernel.records import COMMIT_IDS_KEPT, Document
from kernel.store.conditional import MISSED, Applied, Insert, Transition
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from tests.conformance.instances import differences, row
from tests.conformance.test_object_transitions import CASES as OBJECT_CASES
from tests.conformance.transition_table import CASES, COMMIT, Case, built, hits, states


def name_of(case: Case) -> str:
    return f"{case.name}-{'-'.join(case.step or case.statuses)}"


def placed(case: Case, key: str, now_ms: int, status: str | None = None, step: str | None = None) -> Document:
    """The case's full row under `key`, in another state if one is given."""
    document = {**case.row(now_ms), "workflow_id": key, "biz_key": f"biz:{key}"}
    document["status"] = status or document["status"]
    document["steps"][0]["status"] = step or document["steps"][0]["status"]
    return document


def store_all(store: Store, documents: list[Document]) -> None:
    store.insert_all([Insert("create", INSTANCES, document["workflow_id"], document) for document in documents])


@pytest.mark.req("stp-states", "rec-revision-each-commit", "clm-atomic")
@pytest.mark.case("A03", "A07")
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_transition_hits_in_its_states_only_and_changes_its_fields_only(case: Case, store: Store) -> None:
    now_ms = store.now_ms()
    rows = {f"{status}-{step}": placed(case, f"{status}-{step}", now_ms, status, step) for status, step in states(case)}
    store_all(store, list(rows.values()))

    for status, step in states(case):
        before = rows[f"{status}-{step}"]
        answer = store.apply(built(case, before, now_ms))
        after = row(store, before["workflow_id"])

        if not hits(case, status, step):
            assert answer == MISSED, (status, step)
            assert after == before, (status, step)
            continue
        assert answer == Applied(after), (status, step)
        assert differences(before, after) <= case.declared, (status, step)
        assert after["revision"] == before["revision"] + case.revision
        assert after["commit_ids"][1:] == [COMMIT][: case.commit]


@pytest.mark.req("rec-revision-each-commit", "rec-claim-not-revision", "cmp-atomic", "clm-release-clears", "slp-atomic")
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_one_write_changes_every_field_that_the_transition_is_for(case: Case, store: Store) -> None:
    """On a row where each change shows: no declared field is left as it was."""
    now_ms = store.now_ms()
    before = placed(case, "full", now_ms)
    store_all(store, [before])

    store.apply(built(case, before, now_ms))

    assert differences(before, row(store, "full")) == case.declared


@pytest.mark.req("core-inv-token", "clm-every-write", "clm-late-worker", "slp-lost", "fin-success-commit")
@pytest.mark.case("A08", "A09")
@pytest.mark.parametrize("case", [case for case in CASES if case.held], ids=name_of)
def test_the_token_of_an_earlier_claim_moves_nothing(case: Case, store: Store) -> None:
    now_ms = store.now_ms()
    taken = {**placed(case, "taken", now_ms), "claim_token": "token-of-the-new-holder"}
    free = {name: value for name, value in placed(case, "free", now_ms).items() if name != "claim_token"}
    store_all(store, [taken, free])

    for before in (taken, free):
        assert store.apply(built(case, before, now_ms)) == MISSED
        assert row(store, before["workflow_id"]) == before


@pytest.mark.case("A04")
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_row_that_is_not_there_is_missed(case: Case, store: Store) -> None:
    now_ms = store.now_ms()

    assert store.apply(built(case, placed(case, "nobody", now_ms), now_ms)) == MISSED
    assert store.get(INSTANCES, "nobody") is None


@pytest.mark.req("clm-every-write")
def test_the_table_names_every_constructor_and_who_must_hold_the_claim() -> None:
    """A new transition needs a row in the table; only those that DECISIONS detail S3 lists do without the token."""
    without_a_write = {"Held", "Rest", "create"}
    of_the_limits = {"first_limit", "set_limit", "unset_limit", "declare_limit"}  # test_limits.py
    of_the_inbox = {"receive_signal", "mark_matched", "forget_matched", "forget_pending"}  # test_inbox.py
    elsewhere = without_a_write | of_the_inbox | of_the_limits | set(OBJECT_CASES) | {"accept_object"}
    assert {case.name for case in CASES} == set(transitions.__all__) - elsewhere

    tokenless = {case.name for case in CASES if not case.held}
    assert tokenless == {
        *("claim", "claim_alone", "claim_handed_over", "activate_timer", "activate_signal", "supersede", "unpark"),
        *("replay_failed", "fresh_run", "raise_priority", "defer_for_fingerprint", "release_deferred"),
    }


@pytest.mark.case("A74")
def test_the_marks_of_writers_are_bounded(store: Store) -> None:
    now_ms = store.now_ms()
    case = next(case for case in CASES if case.name == "release_deferred")
    store_all(store, [placed(case, "busy", now_ms)])
    marks = [f"mark-{n}" for n in range(COMMIT_IDS_KEPT + 9)]

    for mark in marks:
        again = transitions.raise_priority("busy", 0)
        changed = Transition(again.name, again.table, again.key, (), again.changes, mark)
        assert isinstance(store.apply(changed), Applied)

    assert row(store, "busy")["commit_ids"] == marks[-COMMIT_IDS_KEPT:]
