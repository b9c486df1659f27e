"""Pytest plugin: the whole run on five workers (pytest-xdist, `-n 5`), as `make test` does it.

The tests that start real processes mostly wait. They are four units of work, each of which one worker runs, test
after test; the fifth worker runs the rest, file by file, and gets help when a unit is done. A file is not divided, so
what a module's fixture made is made once. The units of real processes come first, because they take longest.

A worker has no terminal. What it would have said there it hands over when it ends, and `handed_over` gives it to the
plugins of the process that has one. This module does so for errors of usage and for the tests that were deselected.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

UNITS = (
    ("faults/test_a", "faults/test_b", "faults/test_c"),
    ("faults/",),
    ("process/",),
    ("bench_runs/", "chaos/", "demo/", "fanout_runs/"),
)
"""How the paths below tests/ begin whose tests start real processes, as they share a worker: about as long each. What
belongs to none before it belongs to the next."""
REAL_PROCESSES = tuple(sorted({begin.partition("/")[0] for unit in UNITS for begin in unit}))


def unit_of(nodeid: str) -> str:
    """The unit of work that a test belongs to: that of its folder, or its file."""
    file = nodeid.split("::", 1)[0]
    for unit in UNITS:
        if file.startswith(tuple(f"tests/{begin}" for begin in unit)):
            return " ".join(unit)
    return file


def _starts_processes(nodeid: str) -> bool:
    return nodeid.startswith(tuple(f"tests/{folder}/" for folder in REAL_PROCESSES))


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def hand_over(config: pytest.Config, name: str, value: Any) -> None:
    """In a worker: leave a value (of strings, numbers, lists and dicts) for the process that has the terminal."""
    if is_worker(config):
        config.workeroutput[name] = value  # type: ignore[attr-defined]


def handed_over(node: Any, name: str, default: Any) -> Any:
    """What the worker behind `node` left under that name; `default` if nothing, also because it died."""
    return getattr(node, "workeroutput", {}).get(name, default)


def _sendable(value: Any) -> Any:
    """`value` with every text in a form that can be sent: half of a surrogate pair, that a test printed, can not."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_sendable(key): _sendable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_sendable(part) for part in value)
    return value


class ByUnit(LoadScopeScheduling):  # type: ignore[misc]
    """A worker that has nearly nothing left to do gets the next unit."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # units in the order of the collection, not by their number of tests
    return ByUnit(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(config: pytest.Config) -> Generator[None, Any, Any]:
    data = yield
    return _sendable(data) if is_worker(config) else data


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    try:
        return (yield)
    except pytest.UsageError as error:
        hand_over(session.config, "usage_error", str(error))
        raise


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_worker(config):
        items.sort(key=lambda item: not _starts_processes(item.nodeid))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for config in {item.config for item in items}:
        if is_worker(config):
            before = config.workeroutput.get("deselected", [])  # type: ignore[attr-defined]
            hand_over(config, "deselected", before + [item.nodeid for item in items])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    usage_error = handed_over(node, "usage_error", None)
    if usage_error is not None:
        raise pytest.UsageError(usage_error)
    deselected = handed_over(node, "deselected", [])
    terminal = node.config.pluginmanager.get_plugin("terminalreporter")
    if deselected and terminal is not None:
        # Every worker collects, and deselects, the same. Plugins look at the attributes of what they find there.
        terminal.stats["deselected"] = [SimpleNamespace(nodeid=nodeid) for nodeid in deselected]
