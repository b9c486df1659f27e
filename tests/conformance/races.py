"""What racers fight for: the row they meet, what each of them tries, and whether it won.

Also a program, `python -m tests.conformance.races KIND PLACE DATABASE GUN`, that runs racers in a process of its own:
it reads one race a line, gets ready, waits for the starting gun, and tells who of its racers won.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from kernel import transitions as make
from kernel.records import Document
from kernel.store.conditional import Applied, Insert, Inserted, Transition
from kernel.store.protocol import Store
from kernel.transitions import Held
from tests.conformance.instances import (
    KEY,
    TOKEN,
    claimed,
    instance_document,
    read,
    step_document,
    wait_document,
)
from tests.support.stores import Address, store_at

Attempt = Callable[[Store, str, str], "Transition | Insert"]
LEASE_MS = 60_000


def _claim(store: Store, key: str, racer: str) -> Transition:
    return make.claim(
        Held(key, racer), worker_id=racer, worker="h", lease_ms=LEASE_MS, definition_keys=(KEY,), commit_id=racer
    )


def _take_over(store: Store, key: str, racer: str) -> Transition:
    more: dict[str, Any] = {"dead_token": TOKEN, "alone": False, "definition_keys": (KEY,)}
    return make.take_over(Held(key, racer), worker_id=racer, worker="h", lease_ms=LEASE_MS, commit_id=racer, **more)


def _replay(store: Store, key: str, racer: str) -> Transition:
    return make.replay_failed(read(store, key), input_=racer.encode(), priority=1, commit_id=racer)


def _activate(store: Store, key: str, racer: str) -> Transition:
    return make.activate_timer(read(store, key), 0, now_ms=store.now_ms(), commit_id=racer)


def _create(store: Store, key: str, racer: str) -> Insert:
    """Each racer has its own workflow_id for the one biz_key."""
    return Insert("create", "workflow_instances", f"{key}-{racer}", instance_document(f"{key}-{racer}", 0, biz_key=key))


def _waiting(now_ms: int) -> Document:
    wait = wait_document(0, now_ms - 5_000)
    step = step_document(0, "waiting", wait=wait)
    return {"status": "waiting", "steps": [step], "wait": wait}


ROWS: Mapping[str, Callable[[int], Document] | None] = MappingProxyType(
    {
        "claim": lambda now_ms: {},
        "take_over": lambda now_ms: claimed(),
        "replay": lambda now_ms: {"status": "failed", "steps": [step_document(0, "failed")]},
        "activate_timer": _waiting,
        "create": None,
    }
)
ATTEMPTS: Mapping[str, Attempt] = MappingProxyType(
    {
        "claim": _claim,
        "take_over": _take_over,
        "replay": _replay,
        "activate_timer": _activate,
        "create": _create,
    }
)


def set_up(store: Store, race: str, keys: list[str]) -> None:
    """Store a row under each key for the racers of `race`."""
    make_row = ROWS[race]
    if make_row is not None:
        documents = [instance_document(key, store.now_ms(), **make_row(store.now_ms())) for key in keys]
        store.insert_all([Insert("create", "workflow_instances", key["workflow_id"], key) for key in documents])


def run(store: Store, write: Transition | Insert) -> bool:
    """Whether this racer won."""
    answer = store.insert(write) if isinstance(write, Insert) else store.apply(write)
    return isinstance(answer, Applied | Inserted)


def winners(
    racers: list[str],
    prepare: Callable[[str], Callable[[], bool]],
    wait: Callable[[], object],
    when_ready: Callable[[], object],
) -> list[str]:
    """Let `racers` run, each in its own thread, when `wait` returns; the names of those whose attempt won. `when_ready`
    is called when all of them have prepared what they try."""
    won: list[str] = []
    ready = threading.Semaphore(0)

    def race_one(racer: str) -> None:
        attempt = prepare(racer)
        ready.release()
        wait()
        if attempt():
            won.append(racer)

    threads = [threading.Thread(target=race_one, args=(racer,)) for racer in racers]
    for thread in threads:
        thread.start()
    for _ in threads:
        ready.acquire()
    when_ready()
    for thread in threads:
        thread.join()
    return won


def start_together(
    store: Store,
    race: str,
    key: str,
    racers: list[str],
    wait: Callable[[], object],
    when_ready: Callable[[], object] = lambda: None,
) -> list[str]:
    """The winners of `race` for the row `key`, each racer with a write of its own."""
    return winners(racers, lambda racer: partial(run, store, ATTEMPTS[race](store, key, racer)), wait, when_ready)


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def serve(race: Callable[..., list[str]], gun: str) -> None:
    """One race for each line of the input, begun by a byte from the descriptor `gun`; who won, as a line."""
    say("here")
    for line in sys.stdin:
        name, key, racers = json.loads(line)
        say(race(name, key, racers, lambda: os.read(int(gun), 1), lambda: say("ready")))


def main() -> None:
    kind, place, database, gun = sys.argv[1:]
    store = store_at(Address(kind, place, database))
    store.now_ms()
    serve(partial(start_together, store), gun)
    store.close()


if __name__ == "__main__":
    main()
