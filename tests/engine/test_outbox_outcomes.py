"""What the instance that start_or_resume finds means for an intent, row by row; intents that can not be submitted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kernel import Definition, Step
from kernel.codec import decode
from kernel.dispatch import INTENT_FIELD, DueIntent
from kernel.objects import Objects
from kernel.records import ParkedRecord, to_document
from kernel.store.conditional import Insert
from kernel.store.tables import DEFINITIONS
from tests.support.outbox_rig import JOBS, SOURCE, Desk, OutboxRig

SCAN_MS = 30_000
LATER = "pending"


@pytest.fixture
def rig() -> OutboxRig:
    return OutboxRig()


def registered(rig: OutboxRig) -> str:
    """An object whose round was registered by somebody who died before confirming; its token."""
    token = rig.accept()
    rig.client.start_or_resume(
        rig.definitions[0].plan, biz_key="job:k", input={"object_id": "k", "fencing_token": token}
    )
    return token


def next_round(rig: OutboxRig) -> tuple[str, str]:
    """The object failed in its first round and its user has started the second; both tokens. The instance is of the
    first round, and running."""
    first = registered(rig)
    rig.objects.confirm("k", first, None)
    rig.fail_object("k", first)
    return first, rig.retry("k", first)


@pytest.mark.req("dsp-crash-after-start", "sor-activation-same-round", "dsp-symmetric-failures")
@pytest.mark.parametrize("status", ["running", "waiting"])
def test_an_instance_of_this_round_is_confirmed_and_left_alone(rig: OutboxRig, status: str) -> None:
    registered(rig)
    rig.set_instance(status=status)
    before = rig.instance()

    rig.settle(rig.desk())

    assert rig.intent().status == "dispatched"
    assert rig.instance() == before


@pytest.mark.req("dsp-closed-instance", "sor-completed", "sor-canceled")
@pytest.mark.parametrize("status", ["completed", "canceled"])
def test_an_instance_of_this_round_that_has_ended_is_confirmed(rig: OutboxRig, status: str) -> None:
    registered(rig)
    rig.end_instance(status)

    rig.settle(rig.desk())

    instance = rig.instance()
    assert rig.intent().status == "dispatched"
    assert instance is not None and instance.status == status


@pytest.mark.req("req-two-failures", "dsp-crash-after-start")
def test_a_round_that_was_registered_and_has_failed_since_is_confirmed_and_not_run_again(rig: OutboxRig) -> None:
    registered(rig)
    rig.end_instance("failed")

    rig.settle(rig.desk())

    instance = rig.instance()
    assert rig.intent().status == "dispatched"
    assert instance is not None and (instance.status, instance.retry_count) == ("failed", 0)


@pytest.mark.req("dsp-crash-after-round-cas")
def test_a_failed_instance_of_the_round_before_is_replayed_with_the_new_input(rig: OutboxRig) -> None:
    _first, second = next_round(rig)
    rig.end_instance("failed")
    stored = rig.intent().input

    rig.settle(rig.desk())

    instance = rig.instance()
    assert (rig.intent().status, rig.intent().fencing_token) == ("dispatched", second)
    assert instance is not None
    assert (instance.input, instance.retry_count, instance.status) == (stored, 1, "running")


@pytest.mark.req("dsp-no-confirm-failing", "sor-failing-keeps-pending", "sor-failing")
def test_while_the_round_before_is_failing_the_next_one_alternates_and_is_replayed_afterwards(rig: OutboxRig) -> None:
    first, second = next_round(rig)
    rig.end_instance("failing")
    desk = rig.desk()
    seen: list[str] = []
    desk.source.after = lambda name, args, answer: (
        seen.append(rig.intent().status) if name in ("claim", "release", "confirm") else None
    )
    for _ in range(4):
        rig.settle(desk)
        rig.pass_time(SCAN_MS)
    instance = rig.instance()
    assert instance is not None
    assert (instance.status, instance.retry_count) == ("failing", 0)
    assert seen == ["processing", "pending"] * 4
    assert rig.intent().error == "the instance is still failing: its failure finalizer may run"

    rig.end_instance("failed")
    rig.settle(desk)

    instance = rig.instance()
    assert instance is not None
    assert (instance.status, instance.retry_count) == ("running", 1)
    assert (rig.intent().status, rig.intent().fencing_token) == ("dispatched", second)
    assert first != second


@pytest.mark.req("sor-old-input-guard")
@pytest.mark.parametrize("status", ["running", "waiting"])
def test_an_instance_that_runs_with_the_round_before_is_never_confirmed(rig: OutboxRig, status: str) -> None:
    next_round(rig)
    rig.set_instance(status=status)
    before = rig.instance()
    desk = rig.desk()

    for tries in (1, 2, 3):
        rig.settle(desk)
        assert (rig.intent().status, rig.intent().tries) == ("pending", tries)
        assert rig.intent().error == f"the instance is {status} in another round"
        rig.pass_time(SCAN_MS)

    assert rig.instance() == before


@pytest.mark.req("dsp-closed-instance")
@pytest.mark.parametrize("status", ["completed", "canceled"])
def test_an_instance_that_ended_for_good_in_another_round_refuses_the_intent(rig: OutboxRig, status: str) -> None:
    """DECISIONS detail 8: a refused intent is an end, and drives the object to its closed state."""
    _first, second = next_round(rig)
    rig.end_instance(status)
    desk = rig.desk()

    rig.settle(desk)

    there = rig.objects.get("k")
    intent = rig.intent()
    assert (intent.status, intent.fencing_token, desk.counters["refused"]) == ("refused", second, 1)
    assert intent.error == f"the instance is {status} in another round"
    assert there is not None and there.status == JOBS.closed
    rig.pass_time(10 * SCAN_MS)
    rig.settle(desk)
    assert rig.intent() == intent


def parked(status: str) -> dict[str, Any]:
    return {"status": status, "parked": to_document(ParkedRecord(reason="killed its workers", since_time=1))}


@pytest.mark.parametrize(("round_", "expected"), [("this", "dispatched"), ("other", LATER)])
def test_a_parked_instance_counts_as_what_it_was(rig: OutboxRig, round_: str, expected: str) -> None:
    """It is no end: unpark brings it back."""
    if round_ == "this":
        registered(rig)
    else:
        next_round(rig)
    rig.set_instance(**parked("running"))

    rig.settle(rig.desk())

    assert rig.intent().status == expected


@pytest.mark.parametrize("rolling", [False, True])
def test_a_failed_instance_of_another_plan_refuses_unless_its_workers_are_alive(rolling: bool) -> None:
    """DECISIONS 13 and 8. While a release is rolled out the old plan's dispatchers may still replay it."""
    rig = OutboxRig()
    rig.definitions = (Definition(type="job", steps=[Step("old", str), Step("only", str)]),)
    next_round(rig)
    rig.end_instance("failed")
    instance = rig.instance()
    assert instance is not None
    if rolling:
        seen = {"v": 1, "definition_key": instance.definition_key, "type": "job", "fingerprint": "f"}
        rig.store.insert(
            Insert("seen", DEFINITIONS, instance.definition_key, {**seen, "seen_time": rig.store.now_ms()})
        )
    rig.definitions = OutboxRig.definitions
    desk = rig.desk()

    rig.settle(desk)

    assert rig.intent().status == ("pending" if rolling else "refused")
    rig.pass_time(4 * SCAN_MS)
    rig.settle(desk)
    assert rig.intent().status == "refused", "nobody has said for three scans that the old plan is at work"


def test_an_instance_whose_input_names_no_round_counts_as_this_round(rig: OutboxRig) -> None:
    rig.accept()
    rig.client.start_or_resume(rig.definitions[0].plan, biz_key="job:k", input={"object_id": "k"})

    rig.settle(rig.desk())

    assert rig.intent().status == "dispatched"


# --- intents that can not be submitted --------------------------------------------------------------


def embedded(rig: OutboxRig, object_id: str, **fields: Any) -> None:
    """Change the stored intent as a fault, or another program, would."""
    rows = rig.objects_store._rows[JOBS.place]  # type: ignore[attr-defined]
    row = msgspec.msgpack.decode(rows[object_id])
    row[INTENT_FIELD] = {k: v for k, v in {**row[INTENT_FIELD], **fields}.items() if v is not None}
    rows[object_id] = msgspec.msgpack.encode(row)


def unknown_type(rig: OutboxRig) -> None:
    embedded(rig, "bad", type="nobody_knows")


def other_round(rig: OutboxRig) -> None:
    embedded(rig, "bad", input=rig.intent("k1").input)


def other_key(rig: OutboxRig) -> None:
    """The biz_key belongs to a workflow of another type."""
    other = Definition(type="other", steps=[Step("only", str)])
    rig.client.start_or_resume(other.plan, biz_key="job:bad", input={})


def undecodable_input(rig: OutboxRig) -> None:
    embedded(rig, "bad", input=b"\x01\xc1")


def unknown_version(rig: OutboxRig) -> None:
    embedded(rig, "bad", v=99)


def undecodable(rig: OutboxRig) -> None:
    embedded(rig, "bad", priority="high")


DELAYED = [unknown_type, other_round, other_key, undecodable_input]
RESTING = [unknown_version, undecodable]


def among_hundred(rig: OutboxRig, spoil: Callable[[OutboxRig], None]) -> Desk:
    """The poison first, then 99 good ones, and one dispatcher."""
    rig.accept("bad")
    for number in range(99):
        rig.accept(f"k{number}")
    spoil(rig)
    return rig.desk(dispatch_slots=4)


@pytest.mark.req("dsp-bad-intent", "req-input-verify")
@pytest.mark.parametrize("spoil", DELAYED + RESTING)
def test_one_poison_intent_among_hundred_blocks_nobody_and_is_kept(
    rig: OutboxRig, spoil: Callable[[OutboxRig], None], caplog: pytest.LogCaptureFixture
) -> None:
    desk = among_hundred(rig, spoil)
    desk.round()  # the scan notes all hundred
    with caplog.at_level(logging.ERROR, "kernel.dispatch"):
        desk.round()

    assert [rig.intent(f"k{n}").status for n in range(99)] == ["dispatched"] * 99
    assert (desk.counters["dispatched"], desk.counters["poison"]) == (99, 1)
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == ["bad"]
    assert rig.objects_store.get(JOBS.place, "bad") is not None


@pytest.mark.req("dsp-bad-intent", "req-input-verify")
@pytest.mark.parametrize("spoil", DELAYED)
def test_a_poison_intent_comes_back_later_each_time_says_why_and_is_reported_once(
    rig: OutboxRig, spoil: Callable[[OutboxRig], None], caplog: pytest.LogCaptureFixture
) -> None:
    rig.accept("bad")
    rig.accept("k1")
    token = rig.intent("bad").fencing_token
    spoil(rig)
    desk = rig.desk()
    delays: list[int] = []

    with caplog.at_level(logging.ERROR, "kernel.dispatch"):
        for _ in range(4):
            rig.settle(desk)
            intent = rig.intent("bad")
            assert (intent.status, intent.fencing_token) == ("pending", token)
            assert intent.error
            delays.append((intent.due_time or 0) - rig.objects.now_ms())
            rig.pass_time(delays[-1])

    assert delays == sorted(delays) and delays[-1] > 2 * delays[0]
    assert len(caplog.records) == 1
    assert desk.store.names().count("create") <= (2 if spoil is other_key else 1) + 4 * (spoil is other_key)
    assert (rig.instance("bad") is None) == (spoil is not other_key)


@pytest.mark.req("dsp-bad-intent")
@pytest.mark.parametrize("spoil", RESTING)
def test_an_intent_that_does_not_decode_is_looked_at_ever_more_seldom(
    rig: OutboxRig, spoil: Callable[[OutboxRig], None], caplog: pytest.LogCaptureFixture
) -> None:
    rig.accept("bad")
    spoil(rig)
    before = rig.objects_store.get(JOBS.place, "bad")
    desk = rig.desk(dispatch_scan_ms=1_000, dispatch_delay_max_ms=16_000)

    with caplog.at_level(logging.ERROR, "kernel.dispatch"):
        for _ in range(100):
            rig.settle(desk)
            rig.pass_time(1_000)

    looks = desk.counters["poison"]
    assert 5 <= looks <= 14, "1, 2, 4, 8, 16, 16, … seconds between two looks"
    rig.index.add(SOURCE, [DueIntent("bad", rig.objects.now_ms())])
    rig.settle(desk)
    assert desk.counters["poison"] - looks <= 1, "a hint changes nothing about that"
    rig.index.add(SOURCE, [DueIntent("bad", rig.objects.now_ms())])
    looks = desk.counters["poison"]
    rig.settle(desk)
    assert desk.counters["poison"] == looks
    assert len(caplog.records) == 1
    assert rig.objects_store.get(JOBS.place, "bad") == before


def test_a_mended_intent_is_dispatched(rig: OutboxRig) -> None:
    rig.accept("bad")
    embedded(rig, "bad", type="nobody_knows")
    desk = rig.desk()
    rig.settle(desk)

    embedded(rig, "bad", type="job")
    rig.pass_time(SCAN_MS)
    rig.settle(desk)

    assert rig.intent("bad").status == "dispatched"


@pytest.mark.req("req-legacy-input")
def test_an_object_without_a_stored_input_gets_one_from_its_stable_fields_and_a_broken_one_hides_nobody() -> None:
    """Whatever today's configuration says: what can not be recovered has its conservative default."""

    def build(document: Any) -> Any:
        return {"object_id": document["object_id"], "show": document["show"], "enhanced": False, "stream": False}

    rig = OutboxRig(declaration=Objects(name=JOBS.name, grace_ms=0, legacy_input=build))
    for object_id, fields in (("bad", {}), ("legacy", {"show": "s1"})):
        rig.accept(object_id, fields=fields)
        embedded(rig, object_id, input=None)

    rig.settle(rig.desk())

    instance = rig.instance("legacy")
    assert instance is not None
    assert decode(instance.input, dict[str, Any], "input") == {
        "object_id": "legacy", "show": "s1", "enhanced": False, "stream": False,
        "fencing_token": rig.intent("legacy").fencing_token,
    }  # fmt: skip
    assert (rig.intent("legacy").status, rig.instance("bad")) == ("dispatched", None)


def test_a_fault_of_the_sources_own_code_costs_its_object_only(rig: OutboxRig) -> None:
    rig.accept("bad")
    rig.accept("good")
    desk = rig.desk()

    def broken(name: str, args: tuple[Any, ...]) -> None:
        if name == "read" and args == ("bad",):
            raise ZeroDivisionError("a bug")

    desk.source.before = broken
    rig.settle(desk)

    assert rig.intent("good").status == "dispatched"
    desk.source.before = lambda name, args: None
    rig.pass_time(SCAN_MS)
    rig.settle(desk)
    assert rig.intent("bad").status == "dispatched"


@pytest.mark.case("A40")
def test_a_document_whose_key_is_no_id_hides_nobody(rig: OutboxRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.accept("k1")
    rig.accept("bad")
    rows = rig.objects_store._rows[JOBS.place]  # type: ignore[attr-defined]
    row = msgspec.msgpack.decode(rows.pop("bad"))
    for number in range(3):
        strange = f"\x00{number}"
        rows[strange] = msgspec.msgpack.encode({**row, "object_id": strange})
    desk = rig.desk(dispatch_batch=1)

    with caplog.at_level(logging.ERROR, "kernel.dispatch"):
        for _ in range(3):
            rig.settle(desk)
            rig.pass_time(SCAN_MS)

    assert rig.intent("k1").status == "dispatched"
    assert len(caplog.records) == 3
