"""What can be written, found by looking at the kernel: each of it is in a cell, or is exempted here with its reason.

Two lists are made by introspection: the methods of every port, and the name of every write that the source text makes.
A method or a write that is new is in neither of the tables below, and a test says so.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import fanout
import kernel
from kernel import dispatch, flows, stream_writer, streams, transitions
from kernel.engine import ports
from kernel.runtime import link
from kernel.store import projection, protocol

PORT_MODULES: tuple[ModuleType, ...] = (ports, protocol, projection, stream_writer, streams, link, dispatch, flows)
"""Where the ports of the kernel are declared: all Protocols of these modules."""

CALLS: dict[str, tuple[str, ...]] = {
    "ReadyQueue.push": ("lanes.push", "lanes.wakeup"),
    "ReadyQueue.pop": ("lanes.pop",),
    "Permits.acquire": ("permits.acquire",),
    "Permits.start": ("permits.start",),
    "Permits.renew": ("permits.renew",),
    "Permits.release": ("permits.release",),
    "Permits.sweep": ("permits.sweep",),
    "Permits.leave": ("permits.leave",),
    "Permits.deferred": ("permits.deferred",),
    "DispatchCandidates.add": ("index.add",),
    "DispatchCandidates.take": ("index.take",),
    "DispatchCandidates.hold_scan": ("index.hold_scan",),
    "DispatchCandidates.free_scan": ("index.free_scan",),
    "Store.insert": ("create",),
    "Store.insert_all": ("receive_signal",),
    "Store.apply": ("complete_step",),
    "Store.apply_all": ("claim", "renew", "activate_timer"),
    "Store.remove_all": ("forget_matched", "forget_pending"),
    "Store.find": ("find workflow_instances",),
    "Store.scan": ("scan workflow_signals by pending_time", "scan workflow_signals by workflow_id"),
    "ProjectionStore.keep_all": ("observe.keep_all",),
    "StreamPort.append": ("streams.append",),
    "StreamPort.reset": ("streams.reset",),
    "StreamPort.finish": ("streams.finish",),
    "Link.ready": ("link.ready",),
    "Link.next_order": ("link.next_order",),
    "Link.acknowledge": ("link.acknowledge",),
    "DispatchSource.due": ("scan jobs by workflow_dispatch.due_time",),
    "DispatchSource.claim": ("claim_dispatch",),
    "DispatchSource.renew": ("renew_dispatch",),
    "DispatchSource.confirm": ("confirm_dispatch",),
    "DispatchSource.release": ("release_dispatch",),
    "DispatchSource.refuse": ("refuse_dispatch",),
    "Flows.deliver_signals": ("receive_signal",),
    "Flows.start_or_resume": ("create",),
}
"""Method of a port → the calls of the matrix by which it is met."""

INSIDE = "inside of the process: it dies with it, and nobody else can see how far it came"
READS = "only reads: whoever dies in it has changed nothing, and whoever hears no answer asks again"

EXEMPT_METHODS: dict[str, str] = {
    **dict.fromkeys(("Event.set", "Event.clear", "Event.is_set", "Event.wait", "Timer.cancel"), INSIDE),
    **dict.fromkeys(("Runner.spawn", "Runner.event", "Runner.call_at"), INSIDE),
    "Observer.note": "never part of the path (S13); what becomes of it is written by ProjectionStore.keep_all",
    "Store.prepare": "before a process takes part; tests/conformance races it",
    "Store.now_ms": READS,
    "Permits.missing": READS,
    "Store.get": READS,
    "Store.close": INSIDE,
    "Store.remove": "one by one it is the same write as in remove_all; the kernel makes no such call",
    "ProjectionStore.rows": READS,
    "ProjectionStore.totals": READS,
    "StreamPort.read": READS,
    "StreamPort.generation": READS,
    "News.register": INSIDE,
    "Link.report": "tells of counters; the next one, a second later, says it again",
    "Link.ask_recycle": "the worker drains by itself in any case; its supervisor counts the end as a death then",
    "Link.failed": "last words for people, before an end that the supervisor sees by itself",
    "DispatchSource.now_ms": READS,
    "DispatchSource.read": READS,
}

EXEMPT_WRITES: dict[str, str] = {
    "set_limit": "an operator's own command, repeated by him: the same values again",
    "unset_limit": "an operator's own command, repeated by him: what is cleared stays so",
    "first_limit": "the empty row before set_limit or declare_limit: whoever comes next makes it",
    "declare_limit": "for display: each process goes by what it declares itself",
    "withdraw_dispatch": "the owner's own command, repeated by him; a holder's writes miss after it as after new_round",
    "forget_snapshot": "retention of the side path: the next turn, a minute later, removes what is left",
    "forget_attempt": "retention of the side path: attempts go before the snapshot by which they are found again",
}

_MAKERS = ("Transition", "Insert", "Remove", "transition", "_held")


def methods(modules: Iterable[ModuleType] = PORT_MODULES) -> list[str]:
    """`Protocol.method` of every port, but for those that a base has declared."""
    found: list[str] = []
    for module in modules:
        for name, one in vars(module).items():
            if inspect.isclass(one) and one.__module__ == module.__name__ and getattr(one, "_is_protocol", False):
                found.extend(f"{name}.{method}" for method, what in vars(one).items() if _is_method(method, what))
    return sorted(found)


def _is_method(name: str, what: Any) -> bool:
    return inspect.isfunction(what) and not name.startswith("_")


def writes(sources: Iterable[Path] | None = None) -> list[str]:
    """The name of every write that the kernel's text makes, and of every public constructor of `kernel.transitions`."""
    found = {name for name in transitions.__all__ if inspect.isfunction(getattr(transitions, name))}
    for path in sources or _sources():
        found.update(_named_in(ast.parse(path.read_text(encoding="utf-8"))))
    return sorted(found)


def _sources() -> Iterator[Path]:
    for package in (kernel, fanout):
        assert package.__file__ is not None
        yield from sorted(Path(package.__file__).parent.rglob("*.py"))


def _named_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _MAKERS and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def uncovered_methods(
    found: Iterable[str], covered: frozenset[str], calls: Mapping[str, tuple[str, ...]] = CALLS
) -> list[str]:
    """Methods that are neither exempted nor met by a call at which some scene plants its fault."""
    return [
        name for name in found if name not in EXEMPT_METHODS and not (name in calls and covered.issuperset(calls[name]))
    ]


def uncovered_writes(found: Iterable[str], covered: frozenset[str]) -> list[str]:
    """Writes that are neither exempted nor in a cell."""
    return [name for name in found if name not in EXEMPT_WRITES and name not in covered]
