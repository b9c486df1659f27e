"""Pytest plugin: a run that leaves processes behind fails, names them, and ends them.

Found are the descendants of this process, and those that lost their way to it because a parent in between died: a
program carries the tag of this run in its environment, a fork that started no program still holds a pipe that only
this process opened. Neither can be mistaken for a process of another run beside this one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest

from tests.support.wait import wait_until
from tests.support.workers import hand_over, handed_over

TAG_VARIABLE = "TEST_RUN_TAG"
_KERNEL = 2
GRACE_S = 10.0  # time for the last children to end by themselves after the last fixture was torn down
EXEC_S = 1.0  # an exec takes less: in its midst a process has neither the old descriptors nor the new environment


class Leftovers:
    """The processes of one run of pytest."""

    def __init__(self) -> None:
        self.me = psutil.Process()
        self.tag = secrets.token_hex(8)
        self._pipe = os.pipe()
        self._pipe_name = os.readlink(f"/proc/self/fd/{self._pipe[0]}")

    def close(self) -> None:
        for end in self._pipe:
            os.close(end)

    def inherited_tags(self) -> str:
        """The value for TAG_VARIABLE: the tags of the runs around this one, and its own."""
        return " ".join([*os.environ.get(TAG_VARIABLE, "").split(), self.tag])

    def alive(self) -> list[psutil.Process]:
        """Every process of this run that still does something (a zombie does not)."""
        children = self.me.children(recursive=True)
        others = [process for process in psutil.process_iter() if process not in children]
        bare = [process for process in others if _is_bare(process)]
        with suppress(AssertionError):  # some programs have no environment, and keep it so
            wait_until(lambda: not any(map(_is_bare, bare)), "the end of each exec", EXEC_S)
        strays = [process for process in others if self._strayed(process)]
        return [process for process in [*children, *strays] if _is_running(process)]

    def _strayed(self, process: psutil.Process) -> bool:
        if process == self.me:
            return False
        try:
            return self.tag in process.environ().get(TAG_VARIABLE, "").split() or self._holds_pipe(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            return False

    def _holds_pipe(self, process: psutil.Process) -> bool:
        with os.scandir(f"/proc/{process.pid}/fd") as descriptors:
            return any(_target(descriptor.path) == self._pipe_name for descriptor in descriptors)


def _is_bare(process: psutil.Process) -> bool:
    """Whether it shows no environment. Threads of the kernel have none."""
    try:
        return _KERNEL not in (process.pid, process.ppid()) and not process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return False


def _target(descriptor: str) -> str | None:
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:
        return None  # closed since it was listed


def _is_running(process: psutil.Process) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        # Started by the standard library, once, and ended by it together with this process.
        return not any("multiprocessing.resource_tracker" in part for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _described(processes: list[psutil.Process]) -> Iterator[str]:
    for process in processes:
        try:
            yield f"  pid {process.pid} (parent {process.ppid()}): {' '.join(process.cmdline()) or process.name()}"
        except psutil.NoSuchProcess:
            yield f"  pid {process.pid} (ended meanwhile)"


_LEFTOVERS = pytest.StashKey[Leftovers]()
_OF_WORKERS = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    leftovers = config.stash[_LEFTOVERS] = Leftovers()
    config.stash[_OF_WORKERS] = []
    os.environ[TAG_VARIABLE] = leftovers.inherited_tags()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker looks for its own and can name them when they are gone; it has nobody to tell but us."""
    node.config.stash[_OF_WORKERS] += handed_over(node, "leftovers", [])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    leftovers = session.config.stash[_LEFTOVERS]
    if os.getpid() != leftovers.me.pid:
        return  # a forked child that fell through to here must not end its siblings
    found = [*session.config.stash[_OF_WORKERS], *_ended(leftovers)]
    if found:
        hand_over(session.config, "leftovers", found)
        _report(session, "\n".join(["processes of this run outlived it (each test ends what it starts):", *found]))


def _ended(leftovers: Leftovers) -> list[str]:
    """End what is left, and describe it."""
    _, alive = psutil.wait_procs(leftovers.alive(), timeout=GRACE_S)
    leftovers.close()
    alive = [process for process in alive if _is_running(process)]
    described = list(_described(alive))
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return described


def _report(session: pytest.Session, text: str) -> None:
    """Make the run fail, with `text` among the errors and the error counted in pytest's closing line."""
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        report = pytest.TestReport(
            nodeid="the whole run", location=("", None, "the whole run"), keywords={}, outcome="failed",
            longrepr=text, when="teardown",
        )  # fmt: skip
        terminal.stats.setdefault("error", []).append(report)
