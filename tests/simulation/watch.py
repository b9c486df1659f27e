"""The eye on the durable store: every write is looked at when it is done, with the row before and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel.engine.matching import consumed
from kernel.records import Document, to_instance
from kernel.states import TERMINAL
from kernel.store.conditional import Answer, Applied, Duplicate, Equals, Insert, InsertAnswer, Transition
from kernel.store.tables import INSTANCES, LIMITS, SIGNALS
from tests.simulation.consistency import faults_of
from tests.simulation.holders import faults_of_freeing, faults_of_taking
from tests.simulation.intents import Intents
from tests.simulation.jobs import JOBS
from tests.simulation.lives import REPLAYS, Life
from tests.simulation.processes import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

TAKERS = ("claim", "claim_alone", "take_over", "claim_handed_over")
HOLDERS = (
    "begin_step", "unbegin", "complete_step", "retry_step", "skip_step", "fail_step", "yield_step", "defer_for_permit",
    "mark_stuck", "suspend_step", "activate_own", "enter_failing", "finish_completed", "finish_failed",
    "finish_canceled", "defer_finalizer", "release", "renew",
)  # fmt: skip
OTHERS = (
    "replay_failed", "fresh_run", "supersede", "raise_priority", "activate_timer", "activate_signal", "release_dead",
    "park", "park_dead", "unpark", "defer_for_fingerprint", "release_deferred",
)  # fmt: skip
"""Transitions without the token of a claim of their own (S3); `release_dead` and the parking name the dead one's."""
UNCLAIMING = ("supersede", "raise_priority", "release_dead", "park", "park_dead")
"""Those of them that may meet a row that is held."""
OUTCOMES = (
    "complete_step", "suspend_step", "yield_step", "retry_step", "skip_step", "fail_step", "finish_canceled", "unbegin",
)  # fmt: skip
FINALS = {"finish_completed": "success", "finish_failed": "failure", "defer_finalizer": ""}


class Watch:
    """Checks writes and keeps the lives of instances."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.intents = Intents(world)
        self.lives: dict[str, Life] = {}
        self._landed: set[str] = set()
        """The marks of all writes that were done."""
        self.open: set[str] = set()
        """The workflows that have not ended."""
        self._ended_ms: dict[str, int] = {}
        self._ends: dict[str, str] = {}
        """Which transition ended each wait."""
        self.sent_ms: dict[str, int] = {}
        """When each signal came into the inbox, and whether somebody waited for it then."""
        self.early: set[str] = set()

    # --- called with each write ------------------------------------------------------------------------------

    def inserted(self, process: Process, insert: Insert, answer: InsertAnswer) -> None:
        if insert.table == INSTANCES:
            if isinstance(answer, Duplicate):
                self._world.sometimes.add("duplicate-key branch")
            else:
                self.lives[insert.key] = Life(answer.document)
                self._consistent(insert.key, insert.name, answer.document)
        elif insert.table == SIGNALS and not isinstance(answer, Duplicate):
            self.sent_ms[insert.key] = self._world.hub.now_ms
            if not self._is_waited_for(answer.document):
                self.early.add(insert.key)

    def applied(self, process: Process, transition: Transition, before: Document | None, answer: Answer) -> None:
        if isinstance(answer, Applied):
            self._world.holds.written(transition.key, renewed=transition.name == "renew")
        if not isinstance(answer, Applied):
            if transition.table == INSTANCES:
                self._missed(transition, before)
            return
        assert before is not None
        after = answer.document
        if transition.table == JOBS.place:
            self.intents.applied(process, transition, before, after)
        elif transition.table == LIMITS:
            self._world.redis.permits.limited(transition.key, after)
        elif transition.table == SIGNALS:
            self._marked(transition, before)
        elif transition.table == INSTANCES:
            self._changed(process, transition, before, after)

    def _changed(self, process: Process, transition: Transition, before: Document, after: Document) -> None:
        if transition.commit_id is not None:
            if transition.commit_id in self._landed:
                self._world.violation("S3", f"{transition.name} of {transition.key} was done a second time")
            self._landed.add(transition.commit_id)
        for fault in self.lives[transition.key].changed(transition, before, after):
            self._world.violation("write", f"{transition.key} by {process.name}: {fault}")
        self._consistent(transition.key, transition.name, after)
        name = transition.name
        if name in TAKERS:
            self._taken(process, transition, before, after)
        elif name in HOLDERS:
            self._held(process, transition, before, after)
        elif name in OTHERS:
            self._other(transition, before, after)
        else:
            self._world.violation("write", f"{name} is in none of the lists of tests/simulation/watch.py")
        if name != "renew":
            self.lives[transition.key].moved_ms = self._world.hub.now_ms

    def _consistent(self, key: str, name: str, row: Document) -> None:
        (self.open.discard if row["status"] in TERMINAL else self.open.add)(key)
        for fault in faults_of(row, self._world.hub.now_ms):
            self._world.violation("S5", f"{key} after {name}: {fault}")

    # --- by kind ---------------------------------------------------------------------------------------------

    def _taken(self, process: Process, transition: Transition, before: Document, after: Document) -> None:
        world, key = self._world, transition.key
        if before["definition_key"] not in process.definition_keys:
            world.violation("S15", f"{process.name} took {key}, a {before['definition_key']}")
        for fault in faults_of_taking(world, process, transition, before, after):
            world.violation("S3", f"{transition.name} of {key} by {process.name}, {fault}")
        counted = transition.name == "take_over"
        if ("claim_token" in before) != counted or after["deaths"] != before["deaths"] + counted:
            world.violation(
                "S3", f"{transition.name} of {key}: held {before.get('claim_token')}, {after['deaths']} deaths"
            )
        troubles = process.troubles.count + world.jumps
        world.ledger.claims[after["claim_token"]] = (process, troubles)

    def _held(self, process: Process, transition: Transition, before: Document, after: Document) -> None:
        """Only by the process that holds the claim, and only under its present token (S3, S15)."""
        world, key, name = self._world, transition.key, transition.name
        named = [g.value for g in transition.guards if isinstance(g, Equals) and g.field == "claim_token"]
        holder = world.ledger.claims.get(before.get("claim_token", ""), (None, 0))[0]
        if holder is not process:
            world.violation("S3", f"{name} of {key} by {process.name}, held by {holder and holder.name}")
        elif named and named != [before.get("claim_token")]:
            world.violation("S3", f"{name} of {key} by {process.name} under another claim of its own")
        token = before.get("claim_token", "")
        if name == "activate_own":
            self._timed(transition, before, after)
        if name == "begin_step":
            self._begun(transition, before, after)
        if name == "finish_canceled":
            self._ended_ms[key] = world.hub.now_ms  # the other steps of its wave come to nothing
        if name in OUTCOMES:
            for old, new in zip(before["steps"], after["steps"], strict=True):
                if old["status"] == "running" and new["status"] != "running":
                    world.ledger.settle(key, old["name"], token, name)
        elif name in FINALS:
            for what in (FINALS[name],) if FINALS[name] else ("success", "failure"):
                world.ledger.settle(key, what, token, name)

    def _begun(self, transition: Transition, before: Document, after: Document) -> None:
        """A step is entered: not before the back-off of its last failure is over (stp-retry-durable)."""
        world = self._world
        for old, new in zip(before["steps"], after["steps"], strict=True):
            if old["attempt"] == new["attempt"]:
                continue
            if new.get("takeovers", 0) > old.get("takeovers", 0):
                world.sometimes.add("takeover of a running step")
            early_ms = old.get("due_time", 0) - world.hub.now_ms - world.profile.estimate_ms
            if early_ms > 0 and "failed_time" in old and "traffic_since_time" not in old:
                world.violation("retry", f"{transition.key}: {new['name']} is begun {early_ms} ms before its time")

    def _other(self, transition: Transition, before: Document, after: Document) -> None:
        world, name = self._world, transition.name
        if "claim_token" in before and name not in UNCLAIMING:
            world.violation("S3", f"{name} of {transition.key}, which is held by {before['worker']}")
        if name in ("activate_timer", "activate_signal"):
            self._timed(transition, before, after)
        elif name in ("park", "park_dead", "release_dead"):
            for fault in faults_of_freeing(world, transition, before, after):
                world.violation("S3", f"{name} of {transition.key}: {fault}")
            if "parked" in after:
                world.sometimes.add("poison parked")
        elif name == "unpark":
            if "parked" not in before:
                world.violation("S3", f"unpark of {transition.key}, which is not parked")
            world.sometimes.add("parked and put back")
        elif name == "raise_priority" and after["business_priority"] >= before["business_priority"]:
            world.violation("M15", f"{transition.key}: {before['business_priority']} is not raised")
        elif name == "defer_for_fingerprint" and ("parked" in before or before["claimable_time"] > world.hub.now_ms):
            world.violation("S15", f"{transition.key} is deferred, and nobody waits for it")
        elif name == "release_deferred" and "deferred" not in before:
            world.violation("S15", f"{transition.key} is released, and nobody has deferred it")
        elif name == "fresh_run":
            world.sometimes.add("started afresh under another plan")
        elif name == "supersede":
            self._ended_ms[transition.key] = world.hub.now_ms
        elif name == "replay_failed":
            kept = {step["name"]: step for step in before["steps"] if step["status"] in ("completed", "skipped")}
            if {name: before["outputs"].get(name) for name in kept} != {
                name: after["outputs"].get(name) for name in kept
            }:
                world.violation("S4", f"{transition.key}: the replay changed outputs of completed steps")

    def _timed(self, transition: Transition, before: Document, after: Document) -> None:
        """A wait ends: once, not before its time, and by a signal only of exactly its identity (S9, S10)."""
        world, life = self._world, self.lives[transition.key]
        for old, new in zip(before["steps"], after["steps"], strict=True):
            wait = old.get("wait")
            if wait is None or new.get("wait") is not None:
                continue
            resume = new.get("resume", {})
            signal_id = resume.get("signal_id")
            for fault in life.activated(wait["wait_id"], signal_id):
                world.violation("S9", f"{transition.key}: {fault}")
            self._ends[wait["wait_id"]] = transition.name
            kind = "signal" if signal_id is not None else {"timer": "timer", "signal": "poll"}[wait["kind"]]
            if resume.get("kind") != kind:
                world.violation("S9", f"{transition.key}: a wait ended by {kind} says {resume}")
            waited_ms = new.get("external_wait_ms", 0) - old.get("external_wait_ms", 0)
            most_ms = world.hub.now_ms - wait["since_time"] + 2 * world.profile.estimate_ms
            if signal_id is None:
                poll_ms = wait.get("poll_time")
                most_ms = max(0, (poll_ms or 0) - wait["since_time"])
                if poll_ms is None or poll_ms > world.hub.now_ms:
                    world.violation("S10", f"{transition.key}: {wait['wait_id']} was due at {poll_ms}")
            else:
                self._signaled(transition.key, wait, signal_id)
            if not 0 <= waited_ms <= most_ms or (signal_id is None and waited_ms != most_ms):
                world.violation("S10", f"{transition.key}: waited {waited_ms} ms of {most_ms} that its wait lasted")

    def _signaled(self, key: str, wait: dict[str, Any], signal_id: str) -> None:
        world = self._world
        row = world.store.get(SIGNALS, signal_id)
        if row is None:
            world.violation("S9", f"{key}: woken by {signal_id}, which is not in the inbox")
            return
        fields = ("signal_type", "wait_key", "generation")
        if row["workflow_id"] != key or any(row[field] != wait[field] for field in fields):
            world.violation("S9", f"{key}: {signal_id} is {[row[f] for f in fields]}, it waits for {wait}")
        if signal_id in self.early:
            world.sometimes.add("signal before wait")

    def _marked(self, transition: Transition, before: Document) -> None:
        """A signal is marked once, and only when its workflow proves that it was woken by it (sig-proof)."""
        row = self._world.row(before["workflow_id"])
        if before["status"] != "pending":
            self._world.violation("S9", f"{transition.key} is marked twice")
        elif row is None or not consumed(to_instance(row), transition.key):
            self._world.violation("S9", f"{transition.key} is marked, and {before['workflow_id']} does not prove it")

    # --- misses ----------------------------------------------------------------------------------------------

    def _missed(self, transition: Transition, before: Document | None) -> None:
        world, name = self._world, transition.name
        if before is None:
            return
        if name in HOLDERS:
            named = [g.value for g in transition.guards if isinstance(g, Equals) and g.field == "claim_token"]
            if named and named != [before.get("claim_token")]:
                world.sometimes.add("stale commit rejected")
        elif name in REPLAYS:
            world.sometimes.add("replay race lost")
        elif name in ("activate_timer", "activate_signal"):
            waits = [g.value for g in transition.guards if isinstance(g, Equals) and g.field.endswith("wait_id")]
            other = self._ends.get(str(waits[0])) if waits else None
            if other is not None and other != name:
                world.sometimes.add("signal and timer racing")
        elif name in TAKERS:
            keys = [g.values for g in transition.guards if getattr(g, "field", "") == "definition_key"]
            if keys and before["definition_key"] not in keys[0]:
                world.sometimes.add("fingerprint refused")

    def resolved(self, unknown: set[tuple[str, str]], key: str, document: Document | None) -> None:
        """A process reads a row of whose write it does not know."""
        for pair in [pair for pair in unknown if pair[0] == key]:
            unknown.discard(pair)
            landed = document is not None and pair[1] in document.get("commit_ids", ())
            self._world.sometimes.add(f"unknown write resolved as {'applied' if landed else 'not applied'}")

    # --- for other checkers ----------------------------------------------------------------------------------

    def was_canceled(self, workflow_id: str, since_ms: int) -> bool:
        """Whether somebody superseded it, or a step canceled it, at that time or later."""
        return self._ended_ms.get(workflow_id, -1) >= since_ms

    def _is_waited_for(self, signal: Document) -> bool:
        row = self._world.store.get(INSTANCES, signal["workflow_id"])
        return row is not None and any(
            all(step.get("wait", {}).get(field) == signal[field] for field in ("signal_type", "wait_key", "generation"))
            for step in row["steps"]
        )
