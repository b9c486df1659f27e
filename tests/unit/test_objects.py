"""What a declaration of business objects refuses, in one line, when it is made; and what an App takes as a source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernel import transitions
from kernel.app import App, PortsRequest
from kernel.clock import SystemClock
from kernel.codec import encode
from kernel.config import Config
from kernel.definition import plan
from kernel.dispatch import Intent
from kernel.errors import InvalidConfig, InvalidDefinition, InvalidIntent, InvalidName, Refused, SchemaMismatch
from kernel.ids import SeededIds
from kernel.intents import check_carries, check_intent, fresh_round, snapshot, verdict
from kernel.objects import Objects
from kernel.records import Instance, RunRecord, to_instance
from kernel.runtime import OBJECTS_FILE, open_objects, open_sources

SHOWS = Objects(name="shows")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "Shows"}, "Objects.name"),
        ({"name": ""}, "Objects.name"),
        ({"name": "workflow_instances"}, "a name of the kernel's own"),
        ({"collection": "kernel_meta"}, "a name of the kernel's own"),
        ({"collection": "system.users"}, "collection must be"),
        ({"collection": ""}, "collection must be"),
        ({"collection": 'a"b'}, "collection must be"),
        ({"database": "a/b"}, "database must be"),
        ({"key": "_id"}, "is no field"),
        ({"key": "a.b"}, "key must be a field of the document itself"),
        ({"key": "due_time"}, "name of a point in time"),
        ({"key": "steps.0"}, "is no field"),
        ({"key": 7}, "is no field"),
        ({"status": "object_id"}, "must be different fields"),
        ({"status": "OBJECT"}, "is no field"),
        ({"client_id": "status"}, "must be different fields"),
        ({"key": "workflow_dispatch"}, "must be different fields"),
        ({"columns": ("status",), "key": "a", "status": "A"}, "is no field"),
        ({"columns": ("showId", "showid")}, "a name occurs twice"),
        ({"columns": ("workflow_dispatch.status",)}, "or is the kernel's"),
        ({"columns": ("$where",)}, "is no field"),
        ({"columns": "show_id"}, "columns must be a list of names"),
        ({"indexes": "show_id"}, "indexes must be a list"),
        ({"indexes": (("show_id",),)}, "each is a list of declared columns"),
        ({"columns": ("show_id",), "indexes": ("show_id",)}, "each is a list of declared columns"),
        ({"columns": ("show_id",), "indexes": ((),)}, "each is a list of declared columns"),
        ({"round_fields": ("workflow_dispatch.input",)}, "no field that a new round may clear"),
        ({"round_fields": ("object_id",)}, "no field that a new round may clear"),
        ({"round_fields": "error"}, "round_fields must be a list"),
        ({"failed": "initial"}, "must differ"),
        ({"failed": True}, "a status is text or a whole number"),
        ({"closed": None}, "a status is text or a whole number"),
        ({"legacy_input": {}}, "legacy_input is not callable"),
        ({"input_bytes_max": 1}, "input_bytes_max must lie"),
        ({"input_bytes_max": 2**30}, "input_bytes_max must lie"),
        ({"input_bytes_max": True}, "input_bytes_max must lie"),
        ({"grace_ms": -1}, "grace_ms must lie"),
        ({"grace_ms": 1.5}, "grace_ms must lie"),
    ],
)
def test_a_declaration_that_can_not_work_is_refused_when_it_is_made(fields: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidDefinition, InvalidName)) as refused:
        Objects(**{"name": "shows", **fields})

    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_declaration_opens_nothing_and_names_its_table() -> None:
    declared = Objects(
        name="shows", collection="liveShows", key="showId", client_id="clientId", columns=("c",), indexes=(("c",),)
    )

    assert (declared.table.name, declared.table.key, declared.table.foreign) == ("liveShows", "showId", True)
    assert declared.table.columns == ("showId", "status", "clientId", "c", "workflow_dispatch.due_time")
    assert [(index.columns, index.present, index.unique) for index in declared.table.indexes] == [
        (("workflow_dispatch.due_time", "showId"), "workflow_dispatch.due_time", False),
        (("clientId",), "clientId", True),
        (("c", "showId"), "showId", False),
    ]


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ((SHOWS, SHOWS), "two dispatch sources have the name 'shows'"),
        ((SHOWS, Objects(name="others", collection="Shows")), "share the collection"),
        (("shows",), "expected Objects, or a function"),
        ((Objects,), "expected Objects, or a function that opens a source, got ObjectsMeta"),
        ((None,), "got NoneType"),
    ],
)
def test_an_app_refuses_what_is_no_source(sources: Any, words: str) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        App(dispatch_sources=sources)

    assert words.replace("ObjectsMeta", "Objects") in str(refused.value)


class Own:
    """A source of the application's own, as far as opening looks at it."""

    def __init__(self, name: Any) -> None:
        self.name = name


def test_sources_are_the_declared_objects_and_what_functions_open(tmp_path: Path) -> None:
    asked: list[PortsRequest] = []

    def make(request: PortsRequest) -> Any:
        asked.append(request)
        return Own("mine")

    app = App(dispatch_sources=[SHOWS, make])
    objects = open_objects(Config(), tmp_path, app.objects, SystemClock())
    request = PortsRequest(str(tmp_path), {"asr": "http://x"}, objects)

    sources = open_sources(app, request)

    assert [source.name for source in sources] == ["shows", "mine"]
    assert sources[0] is objects["shows"]
    assert asked == [request]
    assert (tmp_path / OBJECTS_FILE).exists()
    objects["shows"].close()


@pytest.mark.parametrize("name", ["shows", "Mine", "", None, 7])
def test_a_source_of_the_applications_own_needs_a_name_of_its_own(name: Any, tmp_path: Path) -> None:
    app = App(dispatch_sources=[SHOWS, lambda request: Own(name)])
    objects = open_objects(Config(), tmp_path, app.objects, SystemClock())

    with pytest.raises(InvalidConfig) as refused:
        open_sources(app, PortsRequest(str(tmp_path), {}, objects))

    assert "\n" not in str(refused.value)
    objects["shows"].close()


def test_a_declaration_that_changed_under_its_table_is_told(tmp_path: Path) -> None:
    opened = open_objects(Config(), tmp_path, (SHOWS,), SystemClock())
    opened["shows"].close()
    more = msgspec.structs.replace(SHOWS, columns=("show_id",))

    with pytest.raises(SchemaMismatch, match="table shows differs"):
        open_objects(Config(), tmp_path, (more,), SystemClock())


# --- the rules of inputs ------------------------------------------------------------------------------

PLAN = plan("summary", ["only"], identity=("tenant_id",))


def intent(token: str = "f1-a", **fields: Any) -> Intent:
    given = {"object_id": "k", "tenant_id": "t1", **fields}
    return Intent(
        v=1,
        type="summary",
        biz_key="summary:t1:k",
        priority=1,
        status="pending",
        fencing_token="f1-a",
        input=snapshot(given, token, "input", 10_000),
        accepted_time=1,
    )


@pytest.mark.req("req-input-verify")
def test_an_input_is_submitted_only_for_its_own_object_round_and_type() -> None:
    assert check_intent(intent(), PLAN, "k") == {"object_id": "k", "tenant_id": "t1", "fencing_token": "f1-a"}
    refused = {
        "another round": (intent("f2-b"), PLAN, "k"),
        "another object": (intent(), PLAN, "l"),
        "no part of the biz_key": (intent(tenant_id="t"), PLAN, "k"),
        "is of type": (intent(), plan("other", ["only"]), "k"),
        "version 0x02": (msgspec.structs.replace(intent(), input=b"\x02"), PLAN, "k"),
        "no named fields": (msgspec.structs.replace(intent(), input=b"\x01\x01"), PLAN, "k"),
        "lacks the identity field": (
            msgspec.structs.replace(intent(), input=snapshot({}, "f1-a", "input", 99)),
            PLAN,
            "k",
        ),
    }
    for words, (bad, of, object_id) in refused.items():
        with pytest.raises(InvalidIntent, match=words):
            check_intent(bad, of, object_id)
    for text in ("", "a\nb", "x" * 201):
        for field in ("biz_key", "fencing_token"):
            with pytest.raises(Refused, match=field):
                check_intent(msgspec.structs.replace(intent(), **{field: text}), PLAN, "k")


@pytest.mark.req("req-input-verify")
def test_an_input_names_its_object_in_the_field_of_the_objects_own_key_too() -> None:
    unnamed = plan("summary", ["only"])
    for field in ("object_id", "show_id"):
        other = msgspec.structs.replace(intent(), input=snapshot({field: "l"}, "f1-a", "input", 99))
        with pytest.raises(InvalidIntent, match=f"another object in '{field}'"):
            check_intent(other, unnamed, "k", key="show_id")
    own = msgspec.structs.replace(intent(), input=snapshot({"show_id": "k"}, "f1-a", "input", 99))
    assert check_intent(own, unnamed, "k", key="show_id") == {"show_id": "k", "fencing_token": "f1-a"}


class Bare(msgspec.Struct):
    object_id: str


class Renamed(msgspec.Struct, rename="camel"):
    show_id: str
    fencing_token: str


class Fit(msgspec.Struct):
    show_id: str
    fencing_token: str = ""


class Named(Bare):
    fencing_token: str = ""


@dataclass
class FitToo:
    show_id: str
    fencing_token: str


def test_a_plan_whose_input_can_not_carry_the_round_is_refused() -> None:
    for bad, field in ((Bare, "fencing_token"), (Renamed, "fencing_token"), (Bare | None, "fencing_token")):
        with pytest.raises(InvalidDefinition, match=f"^summary: its input has no field '{field}'"):
            check_carries(plan("summary", ["only"], input=bad), "object_id")
    with pytest.raises(InvalidDefinition, match="no field 'article_id' or 'object_id'"):
        check_carries(plan("summary", ["only"], input=Fit), "article_id")
    for good in (None, dict, Any, dict[str, str], Fit, FitToo, Fit | None):
        check_carries(plan("summary", ["only"], input=good), "show_id")
    for key in ("object_id", "article_id"):
        check_carries(plan("summary", ["only"], input=Named), key)


@pytest.mark.req("sor-old-input-guard", "sor-activation-same-round", "dsp-closed-instance")
def test_what_a_registration_means_for_its_intent() -> None:
    """T-03, with DECISIONS detail 8 for the last two."""
    own, other = instance(intent().input), instance(intent("f0-x").input)
    before = instance(intent("f0-x").input, "f1-a", "f0-x")
    table = {
        "created": ("confirm", "confirm"),
        "replayed": ("confirm", "confirm"),
        "failed": ("confirm", "confirm"),
        "running": ("confirm", "wait"),
        "waiting": ("confirm", "wait"),
        "parked": ("confirm", "wait"),
        "failing": ("wait", "wait"),
        "completed": ("confirm", "refuse"),
        "canceled": ("confirm", "refuse"),
    }
    for branch, expected in table.items():
        assert (verdict(branch, own, "f1-a"), verdict(branch, other, "f1-a")) == expected, branch
        assert verdict(branch, before, "f1-a") == expected[0], branch


@pytest.mark.req("sor-old-input-guard", "dsp-closed-instance")
def test_an_instance_without_a_round_counts_as_an_objects_first_only() -> None:
    unnamed, replayed = instance(snapshot_of({"n": 1})), instance(snapshot_of({"n": 1}), "f1-a")
    for branch, other in (("running", "wait"), ("parked", "wait"), ("completed", "refuse"), ("canceled", "refuse")):
        found = [verdict(branch, unnamed, token) for token in ("f1-b", "theirs", "f2-b", "f10-b")]
        assert found == ["confirm", "confirm", other, other], branch
        assert verdict(branch, replayed, "f1-b") == other
        assert verdict(branch, replayed, "f1-a") == "confirm"


def snapshot_of(value: Any) -> bytes:
    return encode(value, "input", 10_000)


def instance(input_: bytes, *rounds: str) -> Instance:
    """An instance with this input, after runs for these rounds."""
    made = transitions.create(
        workflow_id="wf",
        type_="summary",
        biz_key="summary:t1:k",
        fingerprint="f",
        step_names=["only"],
        input_=input_,
        priority=1,
        now_ms=1,
        commit_id="c",
    )
    runs = tuple(RunRecord(workflow_run=n, status="failed", round=one) for n, one in enumerate(rounds, 1))
    return msgspec.structs.replace(to_instance(made.document), runs=runs)


@pytest.mark.req("id-fencing-token", "id-token-quality")
def test_rounds_count_for_people_and_are_random_for_the_store() -> None:
    ids = SeededIds(1)
    first = fresh_round(ids)

    assert first.startswith("f1-") and fresh_round(ids) != first
    assert [fresh_round(ids, token).partition("-")[0] for token in (first, "f9-ab", "f99-0", "theirs", "f1")] == [
        *("f2", "f10", "f100", "f2", "f2")
    ]
