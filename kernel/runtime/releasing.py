"""Acting on a proof of death: the claims of an owner that was reaped are released (DECISIONS 27).

While a tree runs, a dispatcher or a worker does it beside its work. Of a tree that ends the last of them may have to be
killed, and then nobody is left: the supervisor forks a releaser, a process that does this and nothing else. It asks no
embedded Redis, which ends with the tree; in one that others use it frees the places that the dead held.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Protocol

from kernel.clock import SystemClock
from kernel.config import Limit
from kernel.coordination.ready_queue import LaneQueue
from kernel.engine.ports import ReadyQueue
from kernel.engine.settings import Settings
from kernel.engine.takeover import Worker
from kernel.engine.threads import ThreadRunner
from kernel.errors import KernelError
from kernel.limits import Limits
from kernel.permit_words import Released
from kernel.runtime.assembly import Engine, NoPermits
from kernel.runtime.link import Link, Order
from kernel.runtime.observer import Observing, open_observer
from kernel.runtime.opening import NoQueue, load_app, open_lanes, open_permits, open_store

log = logging.getLogger("kernel.runtime")


class EndedPlaces(NoPermits):
    """The places of an embedded Redis: they end with it, and so nobody has to free them."""

    def release(self, resource: str, owners: object, limit: Limit) -> Released:
        return Released(0, 0)


class Releases(Protocol):
    """What can release the claims of an owner."""

    def release_owner(self, worker_id: str, *, counted: bool) -> list[str]: ...


def releaser(link: Link) -> int:
    """The role. It ends by order, which comes when nothing is left to release or the time is over."""
    engine, seen = _opened(link)
    link.ready()
    release_told(engine.sweeps, link)
    seen.drain()
    return 0


def release_told(owners: Releases, link: Link) -> None:
    """Release what the supervisor tells, until it orders anything else."""
    while True:
        order = link.next_order(None)
        if order is not None and order.kind != "owner_dead":
            return
        if order is not None:
            released(owners, link, order)


def released(owners: Releases, link: Link, order: Order) -> bool:
    """Free that owner's claims and say so. False without the store: the supervisor will repeat the notice."""
    try:
        freed = owners.release_owner(order.worker_id, counted=order.cause == "death")
    except KernelError as error:
        log.warning("the claims of a dead worker could not be released yet: %s", error)
        return False
    if freed:
        log.info("released %d claims of a worker that is proved dead", len(freed))
    link.acknowledge(order.notice_id)
    return True


def _opened(link: Link) -> tuple[Engine, Observing]:
    """An engine that claims nothing. Raises StoreUnavailable."""
    config, clock = link.config, SystemClock()
    app, runner = load_app(config.app), ThreadRunner(clock)
    store = open_store(config, link.data_dir, clock)
    lanes = open_lanes(config, config.redis_url, clock)
    queue: ReadyQueue = NoQueue() if lanes is None else LaneQueue(lanes[0], store.now_ms)
    places = open_permits(config, config.redis_url, clock)
    seen = open_observer(config, link.data_dir, clock, runner, store.now_ms)
    engine = Engine(
        app,
        Settings.of(config),
        store=store,
        queue=queue,
        worker=Worker(link.worker_id, f"{socket.gethostname()}/{os.getpid()}/{link.role}"),
        clock=clock,
        runner=runner,
        observer=seen.observer,
        limits=Limits(store, clock, app.limits, config.limits),
        permits=(EndedPlaces(), EndedPlaces()) if places is None else (places[0], places[0]),
    )
    return engine, seen
