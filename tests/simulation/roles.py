"""The processes of a run, assembled as `kernel.runtime` assembles them; only what they reach the outside by differs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel.app import App
from kernel.business_objects import BusinessObjects
from kernel.client import Client
from kernel.coordination.ready_queue import LaneQueue
from kernel.dispatch import DueIntent
from kernel.engine.takeover import Worker
from kernel.limits import Limits
from kernel.requests import Requests
from kernel.runtime import Engine
from kernel.runtime.roles import _release
from kernel.streams import ClientStreams
from tests.simulation.jobs import JOBS
from tests.simulation.ports import CoordinationPort, StorePort, StreamsPort
from tests.simulation.processes import Process
from tests.simulation.reader import ReadingPort

if TYPE_CHECKING:
    from tests.simulation.world import World


class ToldOf:
    """Hears what a process tells. An observer that fails changes nothing (S13)."""

    def __init__(self, world: World) -> None:
        self._world = world

    def note(self, event: str, **fields: object) -> None:
        world = self._world
        who = (fields.get("workflow_id"), fields.get("step"))
        if event == "permit.refused":
            world.refused_permits.add(who)
        elif event == "permit.granted" and who in world.refused_permits:
            world.sometimes.add("permit denied then granted")
        elif event == "claim.mismatch":
            world.sometimes.add("fingerprint refused")
        if world.observer_fails:
            raise RuntimeError("the observer's store is down")


class EngineProcess(Process):
    """A worker, or with `dispatches` a dispatcher, that runs what `app` registers. Without `begins` its loop waits for
    somebody else to start it."""

    def __init__(
        self,
        world: World,
        name: str,
        rng: random.Random,
        app: App,
        *,
        dispatches: bool,
        worker_id: str = "",
        begins: bool = True,
    ) -> None:
        super().__init__(world, name, rng)
        self.app = app
        self.dispatches = dispatches
        self.worker_id = worker_id or self.ids.token()
        self.definition_keys = tuple(definition.plan.key for definition in app.definitions.values())
        store = StorePort(self, world.store)
        lanes: Any = CoordinationPort(self, world.redis.lanes, "lanes")
        permits: Any = CoordinationPort(self, world.redis.permits, "permits")
        index: Any = CoordinationPort(self, world.redis.index, "index")
        streams: Any = StreamsPort(self, world.redis.streams, "streams")
        self.objects = BusinessObjects(JOBS, StorePort(self, world.objects_store), self.ids)
        self.engine = Engine(
            app,
            world.settings,
            store=store,
            queue=LaneQueue(lanes, store.now_ms),
            worker=Worker(self.worker_id, f"sim/{name}"),
            clock=self.clock,
            ids=self.ids,
            runner=self,
            observer=world.observer_of(self),
            ports=self,
            on_stuck=lambda reason: world.recycle(self),
            sources=(self.objects,) if dispatches else (),
            candidates=index,
            limits=Limits(store, self.clock, app.limits),
            permits=(permits, permits),
            streams=(streams, world.stream_settings),
        )
        self.loop: Any = self.engine.dispatcher_loop() if dispatches else self.engine.worker_loop()
        self.listener: Callable[[], None] = self.loop.wake if dispatches else self.engine.scheduler.wake.set
        self._listeners = world.redis.index.listeners if dispatches else world.redis.queue.listeners
        self._listeners.append(self.listener)
        if begins:
            self.loop.start()

    def reap(self) -> None:
        if self.listener in self._listeners:
            self._listeners.remove(self.listener)
        super().reap()

    def told_of_death(self, notice: Notice) -> None:
        """The supervisor's order, carried out as `kernel.runtime.roles` does it."""
        link: Any = notice
        order: Any = notice
        self.spawn("order", lambda: _release(self.engine.services, self.loop, link, order))


class Notice:
    """An order and its link at once: that a worker is proved dead, repeated until somebody has acknowledged it."""

    kind = "owner_dead"
    notice_id = 1

    def __init__(self, worker_id: str, *, counted: bool) -> None:
        self.worker_id = worker_id
        self.cause = "death" if counted else "ordered"
        self.acknowledged = False

    def acknowledge(self, notice_id: int) -> None:
        self.acknowledged = True


class ApiProcess(Process):
    """A web process: it accepts requests, starts workflows, delivers signals and follows streams."""

    def __init__(self, world: World, name: str, rng: random.Random) -> None:
        super().__init__(world, name, rng)
        self.store = StorePort(self, world.store)
        lanes: Any = CoordinationPort(self, world.redis.lanes, "lanes")
        index: Any = CoordinationPort(self, world.redis.index, "index")
        streams: Any = ReadingPort(self, world.redis.streams, "streams")
        shown = ClientStreams(streams, runner=self, clock=self.clock, ids=self.ids, settings=world.stream_settings)
        queue = LaneQueue(lanes, self.store.now_ms)
        self.client = Client(
            *(self.store, queue, self.clock, self.ids, self.event()), input_bytes_max=2**18, streams=shown
        )
        self.objects = BusinessObjects(JOBS, StorePort(self, world.objects_store), self.ids)
        self.desk = Requests(
            self.client,
            self.objects,
            world.job.plan,
            announce=lambda source, object_id, due_ms: index.add(source, [DueIntent(object_id, due_ms)]),
            ids=self.ids,
        )
