"""A publisher as a process of its own, to be killed: `python -m tests.engine.request_process FOLDER POINT`.

It reads one object id a line, requests it on the SQLite stores in FOLDER, and tells the outcome. POINT is `-`, or
`before:NAME` or `after:NAME`: there, at the write of that name, the process ends itself by SIGKILL (a kill hook).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from kernel.business_objects import BusinessObjects
from kernel.client import Client
from kernel.clock import SystemClock
from kernel.definition import Definition, Step
from kernel.engine.threads import ThreadRunner
from kernel.ids import RandomIds
from kernel.objects import Objects
from kernel.requests import Requests
from kernel.runtime import NoQueue
from kernel.store.conditional import Answer, Insert, InsertAnswer, Transition
from kernel.store.protocol import Store
from kernel.store.sqlite import SqliteStore

ARTICLES = Objects(name="articles", client_id="request_id", grace_ms=0)
TABLES = {ARTICLES.place: ARTICLES.table}
SUMMARY = Definition(type="summary", steps=[Step("only", lambda ctx: "done")])


class Killing:
    """A store at one of whose writes this process ends."""

    def __init__(self, inner: Store, point: str) -> None:
        self._inner = inner
        self._when, _, self._name = point.partition(":")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def insert(self, insert: Insert) -> InsertAnswer:
        self._maybe("before", insert.name)
        answer = self._inner.insert(insert)
        self._maybe("after", insert.name)
        return answer

    def apply(self, transition: Transition) -> Answer:
        self._maybe("before", transition.name)
        answer = self._inner.apply(transition)
        self._maybe("after", transition.name)
        return answer

    def _maybe(self, when: str, name: str) -> None:
        if (when, name) == (self._when, self._name):
            os.kill(os.getpid(), signal.SIGKILL)


def kernel_store(folder: Path) -> SqliteStore:
    store = SqliteStore(folder / "store.db", SystemClock(), durability="normal")
    store.prepare()
    return store


def object_store(folder: Path) -> SqliteStore:
    store = SqliteStore(folder / "objects.db", SystemClock(), durability="normal", tables=TABLES)
    store.prepare()
    return store


def client_of(store: Store) -> Client:
    clock = SystemClock()
    return Client(store, NoQueue(), clock, RandomIds(), ThreadRunner(clock).event(), input_bytes_max=2**18)


def requests_of(store: Store, objects: Store) -> Requests:
    return Requests(client_of(store), BusinessObjects(ARTICLES, objects, RandomIds()), SUMMARY.plan)


def main() -> None:
    folder, point = Path(sys.argv[1]), sys.argv[2]
    store: Any = Killing(kernel_store(folder), point)
    objects: Any = Killing(object_store(folder), point)
    requests = requests_of(store, objects)
    say("here")
    for line in sys.stdin:
        object_id = json.loads(line)
        answer = requests.request({"object_id": object_id}, object_id=object_id)
        say([object_id, answer.outcome, answer.created, answer.new_round])
    store.close()
    objects.close()


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
