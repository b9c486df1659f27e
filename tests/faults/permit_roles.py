"""Worker and dispatcher whose calls to the places may be hurt as well: acquire, deferred, permit_renew, free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

from kernel import runtime
from kernel.config import Limit
from kernel.errors import CoordinationUnavailable
from kernel.permit_words import Granted, Owner, Permit, Refused, Released, Renewal
from kernel.runtime import roles
from supervisor.boot import Program
from supervisor.roles import Roles
from tests.faults.arms import Arms, hurt
from tests.faults.crash_ports import armed_ports

PROGRAM = Program(Roles("tests.faults.permit_roles:worker", "tests.faults.permit_roles:dispatcher"))
T = TypeVar("T")


class ArmedPermits:
    """The places of a process that is there to be hurt. A call that names no workflow matches an arm without one."""

    def __init__(self, inner: Any, arms: Arms, role: str) -> None:
        self._inner = inner
        self._arms = arms
        self._role = role

    def acquire(self, resource: str, owner: Owner, limit: Limit, **terms: Any) -> Granted | Refused:
        return self._hurt("acquire", owner.workflow_id, lambda: self._inner.acquire(resource, owner, limit, **terms))

    def start(self, permit: Permit, limit: Limit) -> int:
        return int(self._inner.start(permit, limit))

    def deferred(self, resource: str, workflow_id: str, step: str, **terms: Any) -> bool:
        return self._hurt("deferred", workflow_id, lambda: self._inner.deferred(resource, workflow_id, step, **terms))

    def missing(self, resource: str, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        return list(self._inner.missing(resource, pairs))

    def leave(self, resource: str, pairs: Sequence[tuple[str, str]], limit: Limit) -> int:
        return int(self._inner.leave(resource, pairs, limit))

    def renew(self, permits: Sequence[Permit]) -> list[Renewal]:
        return self._hurt("permit_renew", permits[0].owner.workflow_id, lambda: self._inner.renew(permits))

    def release(self, resource: str, owners: Sequence[Owner], limit: Limit) -> Released:
        key = owners[0].workflow_id if owners else ""
        return self._hurt("free", key, lambda: self._inner.release(resource, owners, limit))

    def sweep(self, resource: str, limit: Limit) -> int:
        return int(self._inner.sweep(resource, limit))

    def _hurt(self, call: str, workflow_id: str, do: Callable[[], T]) -> T:
        gone = CoordinationUnavailable(f"{call}: no answer")
        return hurt(self._arms.met(self._role, call, workflow_id), do, gone, gone)


@contextmanager
def _armed(link: runtime.Link) -> Iterator[None]:
    real = roles.open_permits
    with armed_ports(link.data_dir, link.role) as arms:

        def open_permits(*arguments: Any) -> Any:
            opened = real(*arguments)
            return None if opened is None else (ArmedPermits(opened[0], arms, link.role), opened[1])

        with patch.object(roles, "open_permits", open_permits):
            yield


def worker(link: runtime.Link) -> int:
    with _armed(link):
        return runtime.worker(link)


def dispatcher(link: runtime.Link) -> int:
    with _armed(link):
        return runtime.dispatcher(link)
