"""An application: the Definitions that a process may run, and what they need from outside (spl-registries)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from kernel.config import Limit
from kernel.definition import Definition
from kernel.errors import InvalidDefinition, UnknownType
from kernel.ids import check_name


class Companion(msgspec.Struct, frozen=True):
    """A process that lives beside the workers: forked, watched and restarted like any child (INTERFACES).

    `role` is `module:function`; it is handed a listening socket, and the others learn its URL by `name`.
    """

    name: str
    role: str

    def __post_init__(self) -> None:
        check_name(self.name, "Companion.name")
        module, colon, function = self.role.partition(":")
        if not (module and colon and function):
            raise InvalidDefinition(f"companion {self.name!r}: role {self.role!r} is not of the form module:function")


class PortsRequest(msgspec.Struct, frozen=True):
    """What a `ports` factory may need: the data folder and the addresses of companions."""

    data_dir: str
    addresses: Mapping[str, str] = {}


class App:
    """Definitions and their surroundings. `ports` is called once per process, after the fork (dc-fork-safety)."""

    def __init__(
        self,
        *,
        definitions: Iterable[Definition] = (),
        limits: Mapping[str, Limit] | None = None,
        dispatch_sources: Sequence[Any] = (),
        ports: Callable[[PortsRequest], Any] | None = None,
        companions: Sequence[Companion] = (),
    ) -> None:
        self.definitions: dict[str, Definition] = {}
        for definition in definitions:
            if not isinstance(definition, Definition):
                raise InvalidDefinition(f"App.definitions: expected Definition values, got {type(definition).__name__}")
            if definition.type in self.definitions:
                raise InvalidDefinition(f"two definitions have the type {definition.type!r}")
            self.definitions[definition.type] = definition
        self.limits = dict(limits or {})
        for resource in self.limits:
            check_name(resource, "limits")
        self.dispatch_sources = tuple(dispatch_sources)
        self.ports = ports
        self.companions = tuple(companions)

    def definition(self, type_: str) -> Definition:
        """The Definition of `type_`. Raises UnknownType naming those that exist."""
        try:
            return self.definitions[type_]
        except KeyError:
            known = ", ".join(sorted(self.definitions)) or "none"
            raise UnknownType(f"workflow type {type_!r} is not registered here; registered: {known}") from None
