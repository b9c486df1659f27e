"""What the driver raises, said in the kernel's words: no exception of pymongo and no part of the URI gets out.

A write counts as *not sent* only when no server could be selected: on a retry pymongo raises the first attempt's
error instead of the selection's, so this one is never hiding a write that went out. Whatever else breaks while a
write is under way is `OutcomeUnknown`, also where it may well not have been applied (DECISIONS 8): the writer
re-reads, and a needless re-read is cheap.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bson.errors import BSONError, InvalidBSON
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
)

from kernel.errors import (
    CorruptRecord,
    InvalidConfig,
    InvalidTransition,
    KernelError,
    OutcomeUnknown,
    StoreUnavailable,
    TooLarge,
)
from kernel.store.mongo_codec import unstorable

INVALID_URI = (
    "mongodb_uri: no valid MongoDB URI; it looks like mongodb://user:password@host:27017/?replicaSet=name, "
    "with special characters of user and password percent-encoded"
)

AUTHENTICATION_FAILED = frozenset({18, 8000})
UNAUTHORIZED = 13
DUPLICATE_KEY = 11000
# The command was interrupted, or its node stepped down or shut down, perhaps after the write took effect.
INTERRUPTED = frozenset({6, 7, 50, 64, 89, 91, 189, 262, 9001, 10107, 11600, 11601, 11602, 13388, 13435, 13436})
TOO_LARGE = frozenset({10334, 17419, 17420})
# The row holds something else than the transition's arithmetic needs: text that is incremented, a map that is no list.
WRONG_SHAPE = frozenset({2, 14, 28, 16554, 16702, 28664, 28724})


@contextmanager
def translated(what: str, hosts: str, *, writing: bool) -> Iterator[None]:
    """Run one call of the driver; `what` names it and its row in errors, `hosts` the servers."""
    try:
        yield
    except DocumentTooLarge:
        raise TooLarge(f"{what}: the row or the request is larger than MongoDB takes") from None
    except OperationFailure as error:
        raise refusal(what, hosts, error, writing=writing) from None
    except ConfigurationError as error:
        if is_unresolved(error):
            raise StoreUnavailable(f"{what}: the name {hosts} of MongoDB can not be resolved") from None
        # Its text may quote parts of the URI.
        raise InvalidConfig("mongodb_uri: the MongoDB driver refuses an option") from None
    except PyMongoError as error:
        raise _lost(what, hosts, error, writing=writing) from None
    except InvalidBSON:
        raise CorruptRecord(f"{what}: a stored row is no valid BSON") from None
    except (BSONError, OverflowError, UnicodeError, TypeError, RecursionError) as error:
        raise unstorable(what, error) from None


def is_unresolved(error: ConfigurationError) -> bool:
    """Whether the name service has not told the hosts of a mongodb+srv address. The driver calls that a wrong setting;
    it is an outage like any other, and must not end a tree whose child starts in it."""
    cause = error.__cause__
    return isinstance(cause, OSError) or type(cause).__module__.partition(".")[0] == "dns"


def _lost(what: str, hosts: str, error: PyMongoError, *, writing: bool) -> KernelError:
    if isinstance(error, ServerSelectionTimeoutError):
        return StoreUnavailable(f"{what}: MongoDB at {hosts} does not answer, or has no primary")
    reason = "timed out" if error.timeout else "connection lost"
    if writing:
        return OutcomeUnknown(f"{what}: {reason} while MongoDB at {hosts} was asked to write")
    if isinstance(error, ConnectionFailure):
        return StoreUnavailable(f"{what}: {reason} while reading from MongoDB at {hosts}")
    return StoreUnavailable(f"{what}: the MongoDB driver gave up ({type(error).__name__})")


def refusal(what: str, hosts: str, error: OperationFailure, *, writing: bool) -> KernelError:
    """What an error answer of the server means."""
    code = error.code
    if code in AUTHENTICATION_FAILED:
        return InvalidConfig(f"mongodb_uri: MongoDB at {hosts} refuses the user name or the password")
    if code == UNAUTHORIZED:
        return InvalidConfig(f"mongodb_uri: the user lacks the right to do this on MongoDB at {hosts} ({what})")
    if code == DUPLICATE_KEY:
        return InvalidTransition(
            f"{what}: another row has the same value in a unique index that the kernel did not make"
        )
    if code in TOO_LARGE:
        return TooLarge(f"{what}: the row would become larger than MongoDB takes")
    if writing and code in WRONG_SHAPE:
        return CorruptRecord(f"{what}: the row does not have the shape that the change needs ({named(error)})")
    unknown = (
        isinstance(error, WriteConcernError) or code in INTERRUPTED or error.has_error_label("RetryableWriteError")
    )
    if writing and unknown:
        return OutcomeUnknown(f"{what}: MongoDB at {hosts} does not confirm the write ({named(error)})")
    return StoreUnavailable(f"{what}: MongoDB at {hosts} refuses ({named(error)})")


def named(error: OperationFailure) -> str:
    """The server's error by code and name; its text may quote the row and is left out."""
    details = error.details or {}
    name = details.get("codeName") or type(error).__name__
    return f"{error.code} {name}"
