"""An application: the Definitions that a process may run, and what they need from outside (spl-registries)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from kernel.business_objects import BusinessObjects
from kernel.config import Limit
from kernel.definition import Definition, Plan
from kernel.dispatch import DispatchSource
from kernel.errors import InvalidDefinition, UnknownType
from kernel.ids import check_name
from kernel.objects import Objects

PORT_MAX = 65_535


class Companion(msgspec.Struct, frozen=True):
    """A process that lives beside the workers: forked, watched and restarted like any child (INTERFACES).

    `role` is `module:function`; it is handed a listening socket on the loopback, at `port` or, for 0, at any free one.
    The others learn its URL by `name`. Raises InvalidName and InvalidDefinition.

    `stop` says when it is told to end. `after_workers`: activities may need it while they drain. `with_workers`: it
    only serves people, so it drains beside the workers within the same grace time, and neither waits for the other
    (shd-concurrent-callbacks).
    """

    name: str
    role: str
    port: int = 0
    stop: Literal["after_workers", "with_workers"] = "after_workers"

    def __post_init__(self) -> None:
        check_name(self.name, "Companion.name")
        module, colon, function = self.role.partition(":")
        if not (module and colon and function):
            raise InvalidDefinition(f"companion {self.name!r}: role {self.role!r} is not of the form module:function")
        if not 0 <= self.port <= PORT_MAX:
            raise InvalidDefinition(f"companion {self.name!r}: port {self.port} is not 0–{PORT_MAX}")
        if self.stop not in ("after_workers", "with_workers"):
            raise InvalidDefinition(f"companion {self.name!r}: stop {self.stop!r} is not after_workers or with_workers")


class PortsRequest(msgspec.Struct, frozen=True):
    """What a `ports` factory may need: the data folder, the addresses of companions, and the App's business objects by
    name, opened in this very process."""

    data_dir: str
    addresses: Mapping[str, str] = {}
    objects: Mapping[str, BusinessObjects] = {}


MakeSource = Callable[[PortsRequest], DispatchSource]
"""A dispatch source of the application's own: called once per dispatcher process, after the fork."""


class App:
    """Definitions and their surroundings. `ports` is called once per process, after the fork (dc-fork-safety).

    `dispatch_sources` are declarations of business objects, or functions that open a source of the application's own
    (kernel.dispatch.DispatchSource). `plans` are those that publishers of this application start by: where one is of
    another version than the Definition of its type, the App is refused (fpr-plan-definition-match).
    """

    def __init__(
        self,
        *,
        definitions: Iterable[Definition] = (),
        limits: Mapping[str, Limit] | None = None,
        dispatch_sources: Sequence[Objects | MakeSource] = (),
        ports: Callable[[PortsRequest], Any] | None = None,
        companions: Sequence[Companion] = (),
        plans: Iterable[Plan] = (),
    ) -> None:
        self.definitions: dict[str, Definition] = {}
        for definition in definitions:
            if not isinstance(definition, Definition):
                raise InvalidDefinition(f"App.definitions: expected Definition values, got {type(definition).__name__}")
            if definition.type in self.definitions:
                raise InvalidDefinition(f"two definitions have the type {definition.type!r}")
            self.definitions[definition.type] = definition
        self.limits = {resource: _checked(resource, limit) for resource, limit in (limits or {}).items()}
        self.objects: tuple[Objects, ...] = ()
        self.source_makers: tuple[MakeSource, ...] = ()
        for source in dispatch_sources:
            self._add_source(source)
        self.ports = ports
        self.companions = tuple(companions)
        for plan in plans:
            self._check_plan(plan)

    def _check_plan(self, plan: Plan) -> None:
        """A publisher's Plan and the worker's Definition of one type are one version (fpr-plan-definition-match)."""
        definition = self.definitions.get(plan.type)
        if definition is not None and definition.plan.fingerprint != plan.fingerprint:
            ours, theirs = ([(s.name, *s.depends_on) for s in p.steps] for p in (definition.plan, plan))
            raise InvalidDefinition(
                f"the Plan of {plan.type!r} has the fingerprint {plan.fingerprint}, the Definition "
                f"{definition.plan.fingerprint}: steps {theirs} are not {ours}"
            )

    def _add_source(self, source: Objects | MakeSource) -> None:
        if isinstance(source, Objects):
            for other in self.objects:
                if other.name == source.name:
                    raise InvalidDefinition(f"two dispatch sources have the name {source.name!r}")
                if (other.place.lower(), other.database) == (source.place.lower(), source.database):
                    raise InvalidDefinition(f"two dispatch sources share the collection {source.place!r}")
            self.objects += (source,)
        elif callable(source) and not isinstance(source, type):
            self.source_makers += (source,)
        else:
            raise InvalidDefinition(
                f"App.dispatch_sources: expected Objects, or a function that opens a source, got {_kind(source)}"
            )

    def definition(self, type_: str) -> Definition:
        """The Definition of `type_`. Raises UnknownType naming those that exist."""
        try:
            return self.definitions[type_]
        except KeyError:
            known = ", ".join(sorted(self.definitions)) or "none"
            raise UnknownType(f"workflow type {type_!r} is not registered here; registered: {known}") from None


def _checked(resource: str, limit: Limit) -> Limit:
    """The limit, if settings could say the same: msgspec checks what it reads, and not what a program constructs."""
    check_name(resource, "limits")
    if not isinstance(limit, Limit):
        raise InvalidDefinition(f"App.limits: {resource}: expected a Limit, got {_kind(limit)}")
    try:
        return msgspec.convert(msgspec.structs.asdict(limit), Limit)
    except msgspec.ValidationError as error:
        raise InvalidDefinition(f"App.limits: {resource}: {error}") from None


def _kind(value: object) -> str:
    return value.__name__ if isinstance(value, type) else type(value).__name__
