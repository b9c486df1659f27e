"""What the driver raises, in the kernel's words: the right class, one line, and nothing of the URI."""

from __future__ import annotations

import threading

import pytest
from bson.errors import InvalidBSON, InvalidDocument
from dns.resolver import NXDOMAIN, LifetimeTimeout, NoNameservers
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    DocumentTooLarge,
    InvalidURI,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
    WTimeoutError,
)

from kernel.clock import ManualClock
from kernel.errors import (
    CorruptRecord,
    InvalidConfig,
    InvalidTransition,
    KernelError,
    OutcomeUnknown,
    StoreUnavailable,
    TooLarge,
)
from kernel.store.mongo import MongoStore
from kernel.store.mongo_client import checked_hosts
from kernel.store.mongo_errors import translated

PASSWORD = "canary-pa55"
DRIVER_TEXT = f"mongodb://user:{PASSWORD}@db:27017/?x=y"


def raised(error: BaseException, *, writing: bool) -> KernelError:
    with pytest.raises(KernelError) as caught, translated("claim of instances 'wf'", "db:27017", writing=writing):
        raise error
    assert "\n" not in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__, "the driver's error would be printed with the traceback"
    return caught.value


@pytest.mark.req("clm-uncertain")
@pytest.mark.parametrize(
    "error",
    [
        AutoReconnect(DRIVER_TEXT),
        NetworkTimeout(DRIVER_TEXT),
        NotPrimaryError(DRIVER_TEXT),
        WaitQueueTimeoutError(DRIVER_TEXT),
        WTimeoutError(DRIVER_TEXT, 64),
        WriteConcernError(DRIVER_TEXT, 100),
        OperationFailure(DRIVER_TEXT, 11600),
        OperationFailure(DRIVER_TEXT, 50),
        OperationFailure(DRIVER_TEXT, 1, {"errorLabels": ["RetryableWriteError"]}),
        PyMongoError(DRIVER_TEXT),
    ],
)
def test_a_write_that_may_have_been_applied_is_unknown_and_the_same_read_unavailable(error: PyMongoError) -> None:
    assert type(raised(error, writing=True)) is OutcomeUnknown
    assert type(raised(error, writing=False)) is StoreUnavailable


@pytest.mark.parametrize("writing", [True, False])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ServerSelectionTimeoutError(DRIVER_TEXT), StoreUnavailable),
        (OperationFailure(DRIVER_TEXT, 112, {"codeName": "WriteConflict"}), StoreUnavailable),
        (OperationFailure(DRIVER_TEXT, 18), InvalidConfig),
        (OperationFailure(DRIVER_TEXT, 13), InvalidConfig),
        (ConfigurationError(DRIVER_TEXT), InvalidConfig),
        (InvalidURI(DRIVER_TEXT), InvalidConfig),
        (DocumentTooLarge(DRIVER_TEXT), TooLarge),
        (OperationFailure(DRIVER_TEXT, 10334), TooLarge),
        (OperationFailure(DRIVER_TEXT, 11000), InvalidTransition),
        (InvalidBSON(DRIVER_TEXT), CorruptRecord),
        (InvalidDocument(DRIVER_TEXT), InvalidTransition),
        (OverflowError(DRIVER_TEXT), InvalidTransition),
    ],
)
def test_a_write_that_was_certainly_not_applied_says_why(error: Exception, kind: type, writing: bool) -> None:
    assert type(raised(error, writing=writing)) is kind


def test_arithmetic_on_a_row_of_another_shape_is_a_corrupt_record() -> None:
    assert type(raised(OperationFailure(DRIVER_TEXT, 14), writing=True)) is CorruptRecord


def test_an_error_names_the_row_the_servers_and_the_code() -> None:
    error = raised(OperationFailure(DRIVER_TEXT, 112, {"codeName": "WriteConflict"}), writing=True)
    assert str(error) == "claim of instances 'wf': MongoDB at db:27017 refuses (112 WriteConflict)"


@pytest.mark.req("dc-mongo-required")
@pytest.mark.parametrize(
    "uri",
    [
        f"mongodb://user:{PASSWORD}/x@db:27017",
        f"mongodb+srv://user:{PASSWORD}",
        f"mongodb://us@er:{PASSWORD}@db:27017",
        f"mongodb://user:{PASSWORD}%zz@db",
        f"mongodb://db:{PASSWORD}",
        f"mongodb://user:{PASSWORD}@db/?w=none&bad",
        f"postgres://user:{PASSWORD}@db",
        PASSWORD,
        "",
    ],
)
def test_a_uri_that_is_none_is_one_line_that_shows_nothing_of_it(uri: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        MongoStore(uri, "kernel", ManualClock())
    assert str(caught.value).startswith("mongodb_uri: no valid MongoDB URI")
    assert "\n" not in str(caught.value)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "hosts"),
    [
        (f"mongodb://user:{PASSWORD}@a:1,b/?replicaSet=r", "a:1, b:27017"),
        (f"mongodb+srv://user:{PASSWORD}@cluster.example.org/?x=1", "cluster.example.org"),
        ("mongodb+srv://cluster.example.org", "cluster.example.org"),
        ("mongodb://%2Ftmp%2Fm.sock", "/tmp/m.sock"),
    ],
)
def test_messages_name_the_hosts_of_the_uri_and_no_credentials(uri: str, hosts: str) -> None:
    assert checked_hosts(uri) == hosts


def test_a_uri_is_checked_without_opening_a_connection() -> None:
    before = threading.active_count()
    store = MongoStore("mongodb://127.0.0.1:1/", "kernel", ManualClock())
    assert threading.active_count() <= before, "the driver's monitors are running"
    store.close()


@pytest.mark.case("A63")
@pytest.mark.parametrize("cause", [NXDOMAIN(), NoNameservers(), LifetimeTimeout(timeout=1.0, errors=[]), OSError(101)])
@pytest.mark.parametrize("writing", [True, False])
def test_a_name_service_that_does_not_answer_is_an_outage_and_no_wrong_setting(cause: Exception, writing: bool) -> None:
    error = ConfigurationError(DRIVER_TEXT)
    error.__cause__ = cause

    found = raised(error, writing=writing)

    assert isinstance(found, StoreUnavailable), "nothing was sent, and a child that starts in it ends no tree"
    assert str(found) == "claim of instances 'wf': the name db:27017 of MongoDB can not be resolved"


def test_a_name_that_does_not_exist_is_found_when_the_store_is_first_used() -> None:
    store = MongoStore(f"mongodb+srv://user:{PASSWORD}@kernel.invalid/", "kernel", ManualClock(), timeout_ms=500)

    with pytest.raises(StoreUnavailable, match=r"the name kernel\.invalid of MongoDB can not be resolved") as caught:
        store.prepare()

    assert PASSWORD not in str(caught.value)
