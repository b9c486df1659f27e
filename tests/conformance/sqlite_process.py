"""Programs that use a SQLite store from a process of their own: `python -m tests.conformance.sqlite_process VERB …`.

write PATH DURABILITY NAME LOG     insert and count for ever; each answered write is noted in the file LOG
share PATH DURABILITY NAME         count own row until the input ends, then tell how often and the longest wait
hold PATH                          take the lock file and fork a child that outlives this process
fork PATH                          use an opened store in a forked child, and go on in the parent
small PATH                         write while the system allows files no larger than the log is now
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from types import MappingProxyType

from kernel.errors import KernelError
from kernel.store.conditional import Add, Applied, Insert, Inserted, PutNow, Transition
from kernel.store.protocol import Query
from kernel.store.sqlite import SqliteStore
from kernel.store.tables import INSTANCES
from tests.conformance.instances import instance_document
from tests.conformance.races import say
from tests.support.stores import Address, store_at


def opened(path: str, durability: str = "normal") -> SqliteStore:
    store = store_at(Address("sqlite", path), durability)
    assert isinstance(store, SqliteStore)
    return store


def count_up(key: str) -> Transition:
    return Transition("count", INSTANCES, key, (), (Add("retry_count", 1), PutNow("claim_time")))


def create(key: str) -> Insert:
    return Insert("create", INSTANCES, key, instance_document(key, 1_000_000))


def write(path: str, durability: str, name: str, log: str) -> None:
    store = opened(path, durability)
    notes = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    assert isinstance(store.insert(create(name)), Inserted)
    say("here")
    number = 0
    while True:
        number += 1
        assert isinstance(store.insert(create(f"{name}-{number}")), Inserted)
        assert isinstance(store.apply(count_up(name)), Applied)
        os.write(notes, b"%d\n" % number)


def share(path: str, durability: str, name: str) -> None:
    store = opened(path, durability)
    store.insert(create(name))
    say("here")
    sys.stdin.readline()
    count, longest_s = 0, 0.0
    while not select.select([sys.stdin], [], [], 0)[0]:
        started = time.monotonic()
        assert isinstance(store.apply(count_up(name)), Applied)
        longest_s = max(longest_s, time.monotonic() - started)
        count += 1
    store.close()
    say([count, longest_s])


def hold(path: str) -> None:
    store = opened(path)
    store.now_ms()
    assert store._lock.try_acquire()
    child = os.fork()
    if child == 0:
        signal.pause()
    say(child)
    signal.pause()


def fork(path: str) -> None:
    store = opened(path)
    store.insert(create("before"))
    store.get(INSTANCES, "before")
    pipe = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(pipe[1], ",".join(tried(store)).encode())
        # As an ordinary interpreter ends, with everything that it still holds collected.
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    told = os.read(pipe[0], 10_000).decode().split(",")
    after = isinstance(store.apply(count_up("before")), Applied) and store.get(INSTANCES, "before") is not None
    store.close()
    say([told, os.waitstatus_to_exitcode(status), after])


def tried(store: SqliteStore) -> list[str]:
    """The code of what each verb raises here."""
    verbs: tuple[Callable[[], object], ...] = (
        store.prepare,
        store.now_ms,
        lambda: store.insert(create("child")),
        lambda: store.insert_all([create("child")]),
        lambda: store.apply(count_up("before")),
        lambda: store.apply_all([count_up("before")]),
        lambda: store.get(INSTANCES, "before"),
        lambda: store.find(INSTANCES, "biz_key", "biz:before"),
        lambda: store.scan(Query(INSTANCES, (), "workflow_id", ("workflow_id",), 1)),
        store.checkpoint,
    )
    codes = []
    for verb in verbs:
        try:
            verb()
            codes.append("none")
        except KernelError as error:
            codes.append(error.code)
    store.close()
    return codes


def small(path: str) -> None:
    store = opened(path, "full")
    store.insert(create("row"))
    size = os.stat(f"{path}-wal").st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
    try:
        store.apply(count_up("row"))
        code = "none"
    except KernelError as error:
        code = error.code
    seen = store.get(INSTANCES, "row")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    answer = store.apply(count_up("row"))
    store.close()
    assert seen is not None
    say([code, seen["retry_count"], answer.document["retry_count"] if isinstance(answer, Applied) else None])


VERBS = MappingProxyType({"write": write, "share": share, "hold": hold, "fork": fork, "small": small})

if __name__ == "__main__":
    VERBS[sys.argv[1]](*sys.argv[2:])
