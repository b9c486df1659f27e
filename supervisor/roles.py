"""Roles: which function a child runs, named by a string and resolved after the fork (INTERFACES, dc-fork-safety)."""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from kernel.config import Config
from kernel.errors import InvalidConfig, KernelError, SchemaMismatch, Unavailable
from supervisor import child_output
from supervisor.child import ChildLink, Place
from supervisor.events import tell
from supervisor.forking import close_all_but, unblock_signals
from supervisor.log_setup import TreeLogHandler

EXIT_FAILED = 1
EXIT_CONFIG = 2
"""A role that ends so before it was ready has a configuration that no restart will mend: the tree gives up at once."""
EXIT_UNAVAILABLE = 69
"""A role that ends so found no durable store: no fault of its own, and it is forked again for ever."""


class Roles(msgspec.Struct, frozen=True):
    """The strings behind the names; another set is for tests and for applications that bring their own."""

    worker: str = "kernel.runtime:worker"
    dispatcher: str = "kernel.runtime:dispatcher"
    probe: str | None = "kernel.runtime:probe"
    releaser: str | None = "kernel.runtime:releaser"


class Companion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process of the application that the tree runs beside the workers, on a loopback socket of its own."""

    name: str
    role: str
    port: int = 0
    """0: any free one."""
    host: str = "127.0.0.1"
    stop: Literal["after_workers", "with_workers"] = "after_workers"


class ChildSetup(msgspec.Struct, frozen=True):
    """All that a forked child needs to become its role."""

    function: str
    place: Place
    config: Config
    link: socket.socket
    records: socket.socket
    output_fd: int
    listener: socket.socket | None
    log_handler: TreeLogHandler


def resolve(name: str) -> Callable[..., Any]:
    """The function behind `package.module:attribute`. Raises InvalidConfig with one line."""
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InvalidConfig(f"{name}: there is no module {error.name!r}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidConfig(f"{name}: {module_name} has no attribute {part!r}")
        found = getattr(found, part)
    if not callable(found):
        raise InvalidConfig(f"{name}: is not a function")
    return found  # type: ignore[no-any-return]


def run_child(setup: ChildSetup) -> int:
    """Become the role. Runs in the child, first thing after the fork; the order of the steps matters.

    Descriptors first, so that nothing of the parent is held open by a slow import; the output before anything that
    may speak; the log before anything that may log; the handlers before signals are unblocked.
    """
    keep = {setup.link.fileno(), setup.records.fileno(), setup.output_fd}
    if setup.listener is not None:
        keep.add(setup.listener.fileno())
    child_output.redirect(setup.output_fd)
    os.close(setup.output_fd)
    close_all_but(keep - {setup.output_fd})
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1, 2, all_threads=True)
    setup.log_handler.attach(setup.records)
    link = ChildLink(setup.link, setup.place, setup.config, setup.listener)
    link.catch_signals()
    unblock_signals()
    return _run_role(setup.function, link)


def _run_role(function: str, link: ChildLink) -> int:
    try:
        status = resolve(function)(link)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        link.failed(str(error.code))
        return EXIT_FAILED
    except (InvalidConfig, SchemaMismatch) as error:
        link.failed(one_sentence(error))
        return EXIT_CONFIG
    except Unavailable as error:
        link.failed(one_sentence(error))
        return EXIT_UNAVAILABLE
    except BaseException as error:
        link.failed(one_sentence(error))
        # A wrong application is the user's one line; its traceback is for who asks for it.
        level = logging.DEBUG if link.role == "probe" else logging.ERROR
        tell("child.failed", "the role ended by an error", level=level, exc_info=True)
        return EXIT_FAILED
    return status if isinstance(status, int) else 0


def one_sentence(error: BaseException) -> str:
    """An error in one line: our own speak for themselves, others with their class."""
    text = " ".join(str(error).split())
    return text if isinstance(error, KernelError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
