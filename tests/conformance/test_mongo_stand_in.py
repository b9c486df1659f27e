"""Canaries: if a repair of SecantusDB stops applying, one of these says so before lease tests go silently wrong."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import bson
import pytest
from bson.binary import Binary
from bson.int64 import Int64

from kernel.records import Document
from kernel.store.tables import INSTANCES
from tests.conformance.instances import instance_document
from tests.conformance.mongo_rows import claim
from tests.support.mongo_server import MongoServer, MongoStores
from tests.support.secantus_launcher import RETRYABLE_RECORDS_KEPT

pytestmark = pytest.mark.stand_in


@pytest.fixture
def collection(mongo_store: MongoStores) -> Any:
    """An empty collection without indexes."""
    return mongo_store.raw(mongo_store.fresh_name())["canary"]


@pytest.mark.parametrize(("seconds", "past"), [(-1, True), (60, False), (3_600, False), (-3_600, True)])
def test_repair_1_now_is_compared_with_stored_dates(collection: Any, seconds: int, past: bool) -> None:
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    collection.insert_one({"at": at})
    assert (collection.find_one({"$expr": {"$lte": ["$at", "$$NOW"]}}) is not None) == past
    assert (collection.find_one({"$expr": {"$gt": ["$at", "$$NOW"]}}) is not None) != past
    update = [{"$set": {"hit": {"$literal": True}, "later": {"$add": ["$$NOW", {"$literal": 5_000}]}}}]
    row = collection.find_one_and_update({"$expr": {"$lte": ["$at", "$$NOW"]}}, update, return_document=True)
    assert (row is not None) == past
    if row is not None:
        assert abs((row["later"] - datetime.now(UTC)).total_seconds() - 5) < 60


class Wire:
    """A bare connection: the driver would not let us send a retryable write twice."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)

    def close(self) -> None:
        self._socket.close()

    def send(self, command: Document) -> None:
        body = struct.pack("<iB", 0, 0) + bson.encode(command)
        self._socket.sendall(struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body)

    def receive(self) -> Document:
        (length,) = struct.unpack("<i", self._exactly(4))
        return bson.decode(self._exactly(length - 4)[17:])

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "the server closed the connection"
            data += piece
        return data


@pytest.fixture
def wire(mongo_server: MongoServer) -> Iterator[Wire]:
    assert mongo_server.driver.address is not None
    wire = Wire(mongo_server.driver.address[1])
    yield wire
    wire.close()


def _retryable(collection: Any, lsid: Document, number: int, update: Document) -> Document:
    updates = [{"q": {"name": "counter"}, "u": update}]
    envelope = {"lsid": lsid, "txnNumber": Int64(number), "$db": collection.database.name}
    return {"update": collection.name, "updates": updates, **envelope}


def test_repair_2_a_repeated_write_is_answered_from_its_record_and_only_so_many_are_kept(
    collection: Any, wire: Wire
) -> None:
    collection.insert_one({"name": "counter", "n": 0})
    lsid = {"id": Binary(uuid4().bytes, 4)}
    increment = _retryable(collection, lsid, 1, {"$inc": {"n": 1}})
    for _ in range(3):
        wire.send(increment)
        assert wire.receive()["nModified"] == 1
    assert collection.find_one({})["n"] == 1, "a repeated write was applied again"
    other = {"id": Binary(uuid4().bytes, 4)}
    for number in range(RETRYABLE_RECORDS_KEPT):
        wire.send(_retryable(collection, other, number + 1, {"$set": {"n": 1}}))
    for _ in range(RETRYABLE_RECORDS_KEPT):
        assert wire.receive()["ok"] == 1.0
    # The record of the first write is the oldest of 2,001 and was dropped.
    wire.send(increment)
    wire.receive()
    assert collection.find_one({})["n"] == 2, "more records are kept than the repair allows"


def test_repair_4_a_repeated_write_is_recognised_although_less_time_is_left(collection: Any, wire: Wire) -> None:
    collection.insert_one({"name": "counter", "n": 0})
    increment = _retryable(collection, {"id": Binary(uuid4().bytes, 4)}, 1, {"$inc": {"n": 1}})
    for left_ms in (5_000, 4_100):
        wire.send({**increment, "maxTimeMS": left_ms})
        assert wire.receive()["nModified"] == 1
    assert collection.find_one({})["n"] == 1


def _fastest_s(action: Callable[[int], object], times: int) -> float:
    """What else the machine does makes some of them slow, and none of them fast."""
    spent = []
    for number in range(times):
        started = time.perf_counter()
        action(number)
        spent.append(time.perf_counter() - started)
    return min(spent)


def test_repair_3_a_claim_by_key_does_not_scan_the_collection(mongo_store: MongoStores) -> None:
    store = mongo_store()
    rows = mongo_store.raw()[INSTANCES]

    def fill(first: int, end: int) -> None:
        past = datetime.now(UTC) - timedelta(hours=1)
        fields = {"claimable_time": past, "created_time": past}
        rows.insert_many([{**instance_document(f"wf-{number}", 0), **fields} for number in range(first, end)])

    fill(0, 40)
    few = _fastest_s(lambda number: store.apply(claim(f"wf-{number}")), 30)
    fill(40, 4_000)
    many = _fastest_s(lambda number: store.apply(claim(f"wf-{2_000 + number}")), 30)
    # A scan of a hundred times the rows is well over ten times slower; a busy machine is not.
    assert many < 6 * few, f"{few * 1000:.1f} ms among 40 rows, {many * 1000:.1f} ms among 4,000"
