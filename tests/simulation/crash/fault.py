"""One fault at one certain call: the calls of all ports pass here, and those that an arm waits for are befallen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from kernel.errors import CoordinationUnavailable, OutcomeUnknown, StoreUnavailable
from kernel.store.conditional import Applied, Inserted, Removed
from tests.simulation.crash.copies import Copies
from tests.simulation.fibers import Dead
from tests.simulation.ports import Port, StorePort
from tests.simulation.processes import Process
from tests.simulation.roles import ApiProcess, EngineProcess

if TYPE_CHECKING:
    from tests.simulation.crash.stage import Stage

Point = Literal["a", "b", "c"]
"""a: the process ends before the call leaves; b: done, and the answer is lost on its way to a process that lives on;
c: the process ends when it has the answer."""
POINTS: tuple[Point, ...] = ("a", "b", "c")
Role = Literal["worker", "dispatcher", "api", ""]

TOLD_OF = frozenset({"get", "find", "scan"})
BESIDE = frozenset({"touch_definition", "first_definition", "renew", "declare_limit", "first_limit"})
"""Writes that no recovery consists of."""


class OutsideUnreachable(Exception):
    """What business code sees when an answer of the world outside is lost."""


class Call(NamedTuple):
    """One call of a port. `names`: those of its writes, or one such as `lanes.pop`, `find workflow_instances`;
    `keys`: the rows that it writes."""

    process: Process
    port: object
    names: frozenset[str]
    keys: frozenset[str]
    said: Any

    @property
    def role(self) -> Role:
        if isinstance(self.process, EngineProcess):
            return "dispatcher" if self.process.dispatches else "worker"
        return "api" if isinstance(self.process, ApiProcess) else ""

    @property
    def writes_rows(self) -> bool:
        return bool(self.keys)


class Fired(msgspec.Struct, frozen=True):
    """Where and when an arm has fired."""

    name: str
    process: Process
    at_ms: int
    what: str
    """The call as the trace shows it; one of many writes has ×."""


class Arm:
    """Waits for a call of that name, and lets `point` befall it. `times` None: every such call from then on, by the
    process that it met first. `silent_ms`: after it the store does not answer that process for so long. `effect`: what
    befalls it instead of `point`; "" is nothing, where a cell kills by itself."""

    def __init__(
        self,
        name: str,
        point: Point,
        by: Role,
        key: str,
        when: Callable[[Call], bool],
        times: int | None,
        silent_ms: int,
        effect: Point | Literal[""] | None = None,
    ) -> None:
        self.name = name
        self.point = point
        self.by = by
        self.key = key
        self.when = when
        self.times = times
        self.silent_ms = silent_ms
        self.effect = point if effect is None else effect
        self.fired: list[Fired] = []

    def waits_for(self, call: Call) -> bool:
        if self.times is not None and len(self.fired) >= self.times:
            return False
        if self.fired and call.process is not self.fired[0].process:
            return False
        met = self.name in call.names and self.by in ("", call.role) and (not self.key or self.key in call.keys)
        return met and self.when(call)


class Plant:
    """What `World.planted` is in a cell: the arms, and the account of what was done."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.arms: list[Arm] = []
        self.slow: dict[tuple[str, Role], int] = {}
        """(name, role) → ms: the next such call takes that long before it is made."""
        self.silent: dict[Process, int] = {}
        self.hits: Counter[str] = Counter()
        """How often each write has hit, by its name."""
        self.hits_of: Counter[tuple[Process, str]] = Counter()
        self.made_in: Counter[str] = Counter()
        self.stalker: Stalker | None = None
        self.copies = Copies(stage)

    def made(self, port: Port, process: Process, what: str, do: Callable[[], Any], said: Any) -> Any:
        """Make one call of a port, in the fiber that makes it."""
        call = Call(process, port, *_named(what, said), said)
        stage = self._stage
        slow_ms = max(self.slow.pop((name, call.role), 0) for name in call.names)
        if slow_ms:
            process.troubles.note("slow")
            stage.hub.sleep(slow_ms)
        if isinstance(port, StorePort) and stage.hub.now_ms < self.silent.get(process, 0):
            process.troubles.note("refused")
            raise StoreUnavailable("the store is silent for this process")
        if self.stalker is not None and (point := self.stalker.point_for(call)) is not None:
            return self._befall(call, do, point, "second")
        for arm in self.arms:
            if arm.waits_for(call):
                arm.fired.append(Fired(arm.name, process, stage.hub.now_ms, what))
                return self._befall(call, do, arm.effect, arm.name, arm.silent_ms)
        return self._done(call, do)

    def _befall(
        self, call: Call, do: Callable[[], Any], point: Point | Literal[""], name: str, silent_ms: int = 0
    ) -> Any:
        stage, process = self._stage, call.process
        stage.trace.add(stage.hub.now_ms, process.name, f"FAULT {point} at {name}")
        if not point:
            return self._done(call, do)
        if (befall := getattr(call.port, "befall", None)) is not None:
            return befall(point, do)
        if point != "a":
            self._done(call, do)
        if isinstance(call.port, StorePort) and call.writes_rows:
            self.copies.add(call.said, done=point != "a")
        if point != "b":
            stage.crash(process)
            raise Dead
        process.troubles.note("unknown")
        if name.startswith("permits."):
            stage.redis.permits.failed(process)
        if silent_ms:
            self.silent[process] = stage.hub.now_ms + silent_ms
        raise _lost(call)

    def _done(self, call: Call, do: Callable[[], Any]) -> Any:
        answer = do()
        if isinstance(call.port, StorePort) and call.writes_rows:
            answers = answer if isinstance(answer, list) else [answer]
            for write, one in zip(call.said, answers, strict=True):
                if isinstance(one, Applied | Inserted | Removed):
                    self.hits[write.name] += 1
                    self.hits_of[call.process, write.name] += 1
                    self.copies.written(write)
        self.made_in.update(call.names)
        return answer


class Stalker:
    """The second blow: who goes on with what the first one has left is hit at its `after`-th call from then on."""

    def __init__(self, victim: Process, after: int, point: Point) -> None:
        self._victim = victim
        self._after = after
        self._point = point
        self._prey: Process | None = None
        self.fired = False

    def point_for(self, call: Call) -> Point | None:
        if self.fired:
            return None
        if self._prey is None:
            dead = call.process is self._victim and self._victim.dead
            if dead or not call.writes_rows or call.names <= BESIDE:
                return None
            self._prey = call.process
        if call.process is not self._prey:
            return None
        self._after -= 1
        self.fired = self._after < 0
        return self._point if self.fired else None


def _named(what: str, said: Any) -> tuple[frozenset[str], frozenset[str]]:
    word = what.partition(" ")[0]
    if word in TOLD_OF:
        return frozenset({f"{word} {said}"}), frozenset()
    if isinstance(said, list | tuple) and said and hasattr(said[0], "name") and hasattr(said[0], "table"):
        rows = [write for write in said if hasattr(write, "key")] or said
        return frozenset(write.name for write in rows), frozenset(write.key for write in rows)
    return frozenset({word}), frozenset()


def _lost(call: Call) -> Exception:
    """What the caller sees of a call whose answer is lost."""
    if isinstance(call.port, StorePort):
        return OutcomeUnknown("planted") if call.writes_rows else StoreUnavailable("planted")
    error: Exception = getattr(call.port, "lost", CoordinationUnavailable)("planted")
    return error
