"""The worker of a tree under chaos: the product's, on a store that lets a write be held on its way to it."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from kernel import runtime
from kernel.runtime import roles
from supervisor.boot import Program
from supervisor.roles import Roles
from tests.faults.arms import ArmedStore, Arms

PROGRAM = Program(Roles(worker="tests.chaos.roles:worker"))


class _Forgetful(dict[str, str]):
    """What each workflow's last write was: nobody asks here, and an hour has a hundred thousand workflows."""

    def __setitem__(self, key: str, value: str) -> None:
        pass


def worker(link: runtime.Link) -> int:
    opened = roles.open_store

    def open_store(*arguments: Any, **options: Any) -> Any:
        return ArmedStore(opened(*arguments, **options), Arms(link.data_dir), "worker", _Forgetful())

    with patch.object(roles, "open_store", open_store):
        return runtime.worker(link)
