"""A program that races for business objects: `python -m tests.conformance.object_racers KIND PLACE DATABASE GUN`.

It reads one race a line, gets ready, waits for the starting gun, and tells which of its racers won.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from kernel.clock import SystemClock
from kernel.dispatch import Intent
from kernel.store.protocol import Store
from tests.conformance.articles import HOUR_MS, TABLES, Articles
from tests.conformance.races import serve, winners
from tests.support.stores import Address


def opened(address: Address) -> Store:
    """The user's tables at `address`, on the clock of this machine. The caller closes it."""
    if address.kind == "sqlite":
        from kernel.store.sqlite import SqliteStore

        return SqliteStore(address.place, SystemClock(), durability="normal", tables=TABLES)
    from kernel.store.mongo import MongoStore

    return MongoStore(address.place, address.database, SystemClock(), timeout_ms=10_000, tables=TABLES)


def _seen(articles: Articles, key: str) -> Intent:
    found = articles.read(key)
    assert found is not None
    return found


def _retry(articles: Articles, key: str) -> Callable[[str], bool]:
    previous = _seen(articles, key).fencing_token
    return lambda racer: articles.next(key, previous) is not None


def _take(articles: Articles, key: str) -> Callable[[str], bool]:
    seen = _seen(articles, key)
    return lambda racer: articles.claim(key, seen, racer, HOUR_MS) is not None


def _late(articles: Articles, key: str) -> Callable[[str], bool]:
    """One racer opens the next round, the others write results of the old one."""
    old = _seen(articles, key).fencing_token

    def run(racer: str) -> bool:
        if racer == "racer-0":
            return articles.next(key, old) is not None
        articles.update(key, old, {"result.text": f"late of {racer}"})
        return False

    return run


RACES: Mapping[str, Callable[[Articles, str], Callable[[str], bool]]] = MappingProxyType(
    {"retry": _retry, "take": _take, "late": _late}
)


def start_together(
    articles: Articles,
    race: str,
    key: str,
    racers: list[str],
    wait: Callable[[], object],
    when_ready: Callable[[], object] = lambda: None,
) -> list[str]:
    """The winners of `race` for the object `key`."""
    return winners(racers, lambda racer: partial(RACES[race](articles, key), racer), wait, when_ready)


def main() -> None:
    kind, place, database, gun = sys.argv[1:]
    store = opened(Address(kind, place, database))
    articles = Articles(store)
    articles.now_ms()
    serve(partial(start_together, articles), gun)
    store.close()


if __name__ == "__main__":
    main()
