"""A collection that was there before: its documents get an embedded intent and are otherwise left as they are.

What a user writes for that stands in `SHOWS` and `test_a_dozen_lines_put_an_intent_into_a_users_own_document`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId, Regex
from bson.datetime_ms import DatetimeMS
from pymongo.collection import Collection
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from kernel.business_objects import BusinessObjects
from kernel.dispatch import INTENT_FIELD
from kernel.errors import CorruptRecord, SchemaMismatch, UnknownVersion
from kernel.ids import RandomIds
from kernel.objects import Objects
from kernel.records import Document
from tests.support.mongo_server import MongoStores

SHOWS = Objects(
    name="shows",
    collection="liveShows",
    key="showKey",
    status="state",
    initial="NEW",
    columns=("channelId",),
    indexes=(("channelId",),),
    grace_ms=0,
)
AIRED = datetime(2025, 2, 3, 4, 5, 6, 789_000, UTC)


def foreign(key: str, **more: Any) -> Document:
    """A document as a user's own programs make them, over years."""
    return {
        "_id": ObjectId(),
        "showKey": key,
        "state": "NEW",
        "channelId": "c1",
        "airedAt": AIRED,
        "start_time": AIRED,
        "play_time": 3_600,
        "host": {"_id": ObjectId(), "name": "Xiao Li", "born": AIRED, "Weird.key": 1, "deep": [{"at": AIRED}, [AIRED]]},
        "views": Int64(5),
        "price": Decimal128("9.90"),
        "blob": Binary(b"\x00\x01", 5),
        "pattern": Regex("^a"),
        "nothing": None,
        "longAgo": DatetimeMS(-9_999_999_999_999),
        "Capital": 1,
        **more,
    }


class CommandLog(CommandListener):
    """What the driver says to the server."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, Document]] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.commands.append((event.command_name, dict(event.command)))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Not of interest."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Not of interest."""


@pytest.fixture
def collection(mongo_store: MongoStores) -> Iterator[Collection[Document]]:
    """The user's collection: their documents, and some that have no key at all, and their own unique index."""
    rows: Collection[Document] = mongo_store.raw(mongo_store.fresh_name())["liveShows"]
    rows.create_index("showKey", name="their_own", unique=True, sparse=False)
    rows.insert_one({"note": "no key and no status"})
    rows.insert_many([foreign("show-1"), foreign("show-2", state="completed")])
    yield rows


@pytest.fixture
def shows(mongo_store: MongoStores, collection: Collection[Document]) -> BusinessObjects:
    store = mongo_store(tables={SHOWS.place: SHOWS.table}, database=collection.database.name)
    return BusinessObjects(SHOWS, store, RandomIds())


def raw(collection: Collection[Document], key: str) -> Document:
    """As the server has it: nothing is converted on the way."""
    from bson.codec_options import CodecOptions, DatetimeConversion

    exact: CodecOptions[Document] = CodecOptions(tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_MS)
    found = collection.with_options(codec_options=exact).find_one({"showKey": key})
    assert found is not None
    return found


def embedded(shows: BusinessObjects, key: str) -> str:
    there = shows.get(key)
    assert there is not None
    asked = {"show_id": key, "stream": False}
    assert shows.embed(there, type_="summary", biz_key=f"summary:{key}", input=asked, priority=1)
    token = shows.get(key).fencing_token  # type: ignore[union-attr]
    assert token is not None
    return token


@pytest.mark.req("id-workflow-id", "req-atomic-intent", "dsp-shape")
def test_a_dozen_lines_put_an_intent_into_a_users_own_document(
    shows: BusinessObjects, collection: Collection[Document]
) -> None:
    """The intent is real: dates are dates, so that the server decides what is due. The rest is untouched."""
    before = raw(collection, "show-1")

    token = embedded(shows, "show-1")

    after = raw(collection, "show-1")
    intent = after.pop(INTENT_FIELD)
    assert after == before
    assert (intent["status"], intent["fencing_token"]) == ("pending", token)
    assert isinstance(intent["due_time"], DatetimeMS) and isinstance(intent["accepted_time"], DatetimeMS)
    assert [one.object_id for one in shows.due(after=None, limit=9)] == ["show-1"]


@pytest.mark.req("fen-cas", "req-round-change-cas")
def test_a_whole_life_leaves_every_other_field_byte_for_byte(
    shows: BusinessObjects, collection: Collection[Document]
) -> None:
    before = {key: value for key, value in raw(collection, "show-1").items() if key != "state"}
    others = [raw(collection, "show-2"), collection.find_one({"note": {"$exists": True}})]
    first = embedded(shows, "show-1")
    for token in ("d1", "d2"):
        seen = shows.read("show-1")
        assert seen is not None
        assert shows.claim("show-1", seen, token, 60_000) is not None
        assert shows.renew("show-1", first, token, 60_000)
        assert shows.release("show-1", first, token, -1, "again") is not None
    assert shows.confirm("show-1", first, None)
    assert shows.begin("show-1", first)
    assert shows.fail("show-1", first, {"error": "no sound"})
    asked = {"show_id": "show-1"}
    second = shows.new_round("show-1", first, type_="summary", biz_key="summary:show-1", input=asked, priority=1)
    assert second is not None
    assert not shows.update("show-1", first, {"result": "late"})
    assert shows.complete("show-1", second, {"result": "text", "summarised_time": 1_700_000_000_000})

    after = raw(collection, "show-1")
    assert after["summarised_time"] == DatetimeMS(1_700_000_000_000)
    ours = {INTENT_FIELD, "state", "result", "summarised_time"}
    assert {name: value for name, value in after.items() if name not in ours} == before
    assert list(before) == [name for name in after if name in before], "the order of the fields stays too"
    assert [raw(collection, "show-2"), collection.find_one({"note": {"$exists": True}})] == others


def test_what_was_read_can_be_written_back_and_is_what_it_was(
    shows: BusinessObjects, collection: Collection[Document]
) -> None:
    """A date that is read as a number and written back would be one for ever."""
    token = embedded(shows, "show-1")
    before = raw(collection, "show-1")
    found = shows.get("show-1")
    assert found is not None
    assert (found.fields["airedAt"], found.fields["start_time"]) == (AIRED, 1_738_555_506_789)

    read_back = {name: found.fields[name] for name in ("airedAt", "start_time", "views", "channelId")}
    assert shows.update("show-1", token, read_back)

    after = raw(collection, "show-1")
    assert {name: after[name] for name in read_back} == {name: before[name] for name in read_back}


def test_documents_without_a_key_or_of_another_shape_are_none_of_ours(
    shows: BusinessObjects, collection: Collection[Document]
) -> None:
    collection.insert_many(
        [
            {"showKey": 7, "channelId": "c1", INTENT_FIELD: {"due_time": AIRED}},
            {"showKey": "list", INTENT_FIELD: [{"due_time": AIRED}]},
            {"showKey": "text", INTENT_FIELD: "due_time"},
            {"showKey": "late", INTENT_FIELD: {"due_time": "now"}},
        ]
    )
    embedded(shows, "show-1")

    assert [one.object_id for one in shows.due(after=None, limit=1)] == ["show-1"]
    assert "show-1" in [one.object_id for one in shows.due(after=None, limit=9)]
    for key in ("list", "text", "late"):
        with pytest.raises((CorruptRecord, UnknownVersion), match=key):
            shows.read(key)
    assert [one["showKey"] for one in shows.page({"channelId": "c1"})][-2:] == ["show-1", "show-2"]


@pytest.mark.req("dsp-bad-intent", "dsp-list-pending")
def test_documents_whose_key_is_no_text_neither_shorten_a_page_nor_end_a_scan(
    shows: BusinessObjects, collection: Collection[Document]
) -> None:
    """They stand in front of the due ones; a short page is what ends a scan, a listing and a fan-out."""
    collection.insert_many([foreign(f"show-{n}") for n in range(3, 8)])
    ids = [f"show-{n}" for n in range(1, 8)]
    for key in ids:
        embedded(shows, key)
    intent = raw(collection, "show-1")[INTENT_FIELD]
    odd: list[Any] = [1, 2.5, True, ["show-8"], {"a": 1}, ObjectId(), AIRED]
    for key in odd:
        collection.insert_one({"showKey": key, "channelId": "c1", INTENT_FIELD: {**intent, "due_time": AIRED}})

    due: list[str] = []
    after: tuple[int, str] | None = None
    while page := shows.due(after=after, limit=3):
        due += [one.object_id for one in page]
        after = (page[-1].due_time, page[-1].object_id)
        assert len(page) == 3 or len(due) == len(ids)
    pages: list[str] = []
    while rows := shows.page({"channelId": "c1"}, after=pages[-1] if pages else None, limit=3):
        pages += [one["showKey"] for one in rows]
        assert len(rows) == 3 or len(pages) == len(ids)

    assert (sorted(due), pages) == (ids, ids)
    assert [one["showKey"] for one in shows.page(limit=9)] == ids


def test_an_index_of_the_users_that_does_the_same_is_taken(
    shows: BusinessObjects, collection: Collection[Document]
) -> None:
    names = [index["name"] for index in collection.list_indexes()]

    assert "their_own" in names and "liveShows_key" not in names
    assert {"shows_dispatch_due", "shows_by_channelId"} <= set(names)


@pytest.mark.req("dsp-confirm-request", "dsp-confirm-holder", "fen-cas", "req-round-change-cas", "dsp-not-classic")
def test_the_server_is_asked_for_one_conditional_update_each_and_for_no_transaction(
    mongo_store: MongoStores, collection: Collection[Document]
) -> None:
    """The command log: every write names key and round, and carries nothing of a transaction."""
    log = CommandLog()
    database = collection.database.name
    store = mongo_store(tables={SHOWS.place: SHOWS.table}, database=database, listeners=(log,))
    shows = BusinessObjects(SHOWS, store, RandomIds())
    first = embedded(shows, "show-1")
    log.commands.clear()

    assert shows.confirm("show-1", first, None)
    assert shows.fail("show-1", first, {"error": "no sound"})
    asked = {"show_id": "show-1"}
    assert shows.new_round("show-1", first, type_="summary", biz_key="summary:show-1", input=asked, priority=1)

    assert [name for name, _ in log.commands] == ["findAndModify"] * 3
    confirm, fail, new_round = (command["query"] for _, command in log.commands)
    for query in (confirm, fail, new_round):
        assert query["showKey"] == {"$eq": "show-1"}
        assert query["workflow_dispatch.fencing_token"]["$eq"] == first
    assert confirm["workflow_dispatch.status"]["$eq"] == "pending"
    assert new_round["state"]["$eq"] == "failed"
    assert not any({"startTransaction", "autocommit"} & set(command) for _, command in log.commands)


def test_two_documents_with_one_key_are_told_at_the_start(mongo_store: MongoStores) -> None:
    database = mongo_store.fresh_name()
    mongo_store.raw(database)["liveShows"].insert_many([{"showKey": "twice"}, {"showKey": "twice"}, {}, {}])

    with pytest.raises(SchemaMismatch, match="two rows have the same showKey"):
        mongo_store(tables={SHOWS.place: SHOWS.table}, database=database)
