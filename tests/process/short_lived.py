"""A parent with open connections that forks children which end at once: `python -m … REDIS_SOCKET MONGO_URI COUNT`.

Two threads ask Redis and MongoDB without a pause while it forks. A third of the children end by
`os._exit`; the others close what they inherited and end as an interpreter does, with all its finalizers.
Prints how many answers the parent got, and every error.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import warnings
from contextlib import suppress

from kernel.clock import SystemClock
from kernel.coordination import RedisEndpoint, ScriptRunner
from kernel.errors import WrongProcess
from kernel.ids import RandomIds
from kernel.store.mongo import MongoStore
from kernel.store.tables import INSTANCES


def main() -> None:
    socket, uri, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    runner = ScriptRunner(RedisEndpoint(path=socket).connection, SystemClock(), call_timeout_s=30)
    store = MongoStore(uri, f"kernel_test_{RandomIds().token()[:16]}", SystemClock(), timeout_ms=30_000)
    stop = threading.Event()
    answers = {"redis": 0, "mongo": 0}
    errors: list[str] = []

    def asks(name: str, ask: object) -> None:
        while not stop.is_set():
            try:
                ask()  # type: ignore[operator]
                answers[name] += 1
            except Exception as error:
                errors.append(f"{name}: {error!r}")

    def ping() -> None:
        assert runner.command("PING") in (b"PONG", "PONG")

    def read() -> None:
        assert store.get(INSTANCES, "nobody") is None

    ping()
    read()
    threads = [threading.Thread(target=asks, args=entry) for entry in (("redis", ping), ("mongo", read))]
    for thread in threads:
        thread.start()
    statuses = [born(number, runner, store) for number in range(count)]
    before = dict(answers)
    while min(answers[name] - before[name] for name in answers) < 20 and not errors:
        stop.wait(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    runner.close()
    store.close()
    print(json.dumps({"answers": answers, "errors": errors, "statuses": statuses}))


def born(number: int, runner: ScriptRunner, store: MongoStore) -> int:
    """Fork one and wait for its end; its exit status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that threads run is the point here
        pid = os.fork()
    if pid == 0:
        signal.alarm(5)  # a child may find a lock that a thread of its parent held: its own trouble, not the parent's
        if number % 3 == 0:
            os._exit(0)
        with suppress(WrongProcess):
            runner.close()
        with suppress(WrongProcess):
            store.close()
        del runner, store
        gc.collect()
        raise SystemExit(0)
    return os.waitpid(pid, 0)[1]


if __name__ == "__main__":
    main()
