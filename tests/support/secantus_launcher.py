"""The program `secantusd-py`: SecantusDB 0.7.0b3 with four repairs, started by tests.support.mongo_server.

    python -m tests.support.secantus_launcher --port 0 --storage-path DIR [--auth] …

SecantusDB stands in for MongoDB where no mongod is to be had. It is GPL-2: a tool of the tests, in a process of its
own, that the product never imports. Where it differs from MongoDB in a way that would falsify or starve our tests it is
repaired here, and `tests/conformance/test_mongo_stand_in.py` has a canary for each repair:

1. `$$NOW` is seeded with a time zone while stored dates are read without one, and the two compare as equal, so a
   live lease looks expired. It is seeded like a stored date: UTC without a zone, whole milliseconds.
2. The records of retryable writes are all walked on every write. They are dropped from the front, 2,000 are kept.
3. A filter with any `$` operator at its top (`$expr`, and the `$and` of every findAndModify) scans the collection.
   Its plain clauses hold too, so they may choose the index; the caller matches the whole filter afterwards.
4. A repeated write is recognised only when it is equal to the last byte, but a driver that keeps a deadline sends it
   with the time that is left (`maxTimeMS`), and it would be applied twice. That field is left out of the comparison;
   MongoDB compares the session's number alone.

The first line on stdout tells the port. The server ends when its standard input does: it can not outlive the tests.
"""

from __future__ import annotations

import os
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from secantus import cli, commands, transactions
from secantus.server import SecantusDBServer
from secantus.storage import Storage

RETRYABLE_RECORDS_KEPT = 2_000


def repair_now() -> None:
    """Repair 1."""
    original = commands._resolve_let_vars

    def resolve(let: Any) -> dict[str, Any]:
        now = datetime.now(UTC).replace(tzinfo=None)
        return {**original(let), "NOW": now.replace(microsecond=now.microsecond // 1000 * 1000)}

    commands._resolve_let_vars = resolve


def repair_retryable_records() -> None:
    """Repair 2."""

    def prune(registry: Any) -> None:
        records = registry._retryable  # in order of age
        oldest_kept = registry._time() - transactions._RETRYABLE_RECORD_LIFETIME_SECONDS
        while records:
            key, (_, recorded_at, _) = next(iter(records.items()))
            if len(records) <= RETRYABLE_RECORDS_KEPT and recorded_at >= oldest_kept:
                return
            del records[key]

    transactions.TransactionRegistry._prune_retryable_locked = prune  # type: ignore[method-assign]


def repair_narrowing() -> None:
    """Repair 3."""
    candidates, lookup = Storage._candidates_iter, Storage._try_index_lookup

    def plain(wanted: dict[str, Any] | None) -> dict[str, Any] | None:
        rest = {field: clause for field, clause in (wanted or {}).items() if not field.startswith("$")}
        return rest or wanted

    def candidates_narrowed(storage: Any, db: str, coll: str, wanted: dict[str, Any] | None) -> Any:
        return candidates(storage, db, coll, plain(wanted))

    def lookup_narrowed(storage: Any, db: str, coll: str, wanted: dict[str, Any], **options: Any) -> Any:
        return lookup(storage, db, coll, plain(wanted) or {}, **options)

    Storage._candidates_iter = candidates_narrowed  # type: ignore[method-assign]
    Storage._try_index_lookup = lookup_narrowed  # type: ignore[method-assign]


def repair_repetition() -> None:
    """Repair 4."""
    commands._RETRY_IDENTITY_IGNORED |= {"maxTimeMS"}


def tell_port() -> None:
    """Say on stdout where the server listens, as soon as it does."""
    start = SecantusDBServer.start

    def started(server: SecantusDBServer) -> None:
        start(server)
        print(server.port, flush=True)

    SecantusDBServer.start = started  # type: ignore[method-assign]


def end_with_standard_input() -> None:
    """End this process when the tests' end of the pipe is gone, however they ended."""

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def main() -> int:
    """Run the server with `sys.argv`."""
    name = Path("/proc/self/comm")
    if name.exists():
        name.write_text("secantusd-py")
    repair_now()
    repair_retryable_records()
    repair_narrowing()
    repair_repetition()
    tell_port()
    end_with_standard_input()
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
