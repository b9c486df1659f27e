"""From checked settings to a running tree and back: the one path behind `start`, the session and the tests.

The order is the safety: signals are caught before anything exists that a signal could orphan; the data folder is taken
before anything is started in it, and let go when nothing runs in it any more.
"""

from __future__ import annotations

import sys

import msgspec

from kernel.config import Config, service_manager
from kernel.errors import InvalidConfig, KernelError
from supervisor import run_dir
from supervisor.exposing import lacking_packages
from supervisor.log_format import one_line
from supervisor.log_setup import TreeLog, open_log
from supervisor.os_signals import SignalPipe
from supervisor.redaction import Redactor
from supervisor.roles import Companion, Roles
from supervisor.service_manager import ServiceManager
from supervisor.tree import Outcome, Tree

EXIT_USAGE, EXIT_MISSING = 2, 78
_LAST_LINES_S = 1.0


class Program(msgspec.Struct, frozen=True):
    """What is to run besides the settings: the roles, and the companions if they are not asked of the application."""

    roles: Roles = Roles()
    companions: list[Companion] | None = None


def boot(config: Config, signals: SignalPipe, program: Program | None = None, *, lifeline_fd: int | None = None) -> int:
    """Run a tree until it ends; the exit status. What went wrong is one line on stderr."""
    try:
        outcome = _run(config, program or Program(), lifeline_fd, signals)
    except KernelError as error:
        outcome = Outcome(EXIT_USAGE if isinstance(error, InvalidConfig) else 1, str(error))
    if outcome.line is not None:
        say_error(outcome.line, Redactor.of(config))
    return outcome.code


def _run(config: Config, program: Program, lifeline_fd: int | None, signals: SignalPipe) -> Outcome:
    if not (program.companions or config.workers or config.dispatchers):
        raise InvalidConfig("workers, dispatchers: both are 0, there is nothing to run")
    lacking = None if config.metrics is None else lacking_packages()
    if lacking is not None:
        return Outcome(EXIT_MISSING, lacking)
    folder = run_dir.take(config.data_dir)
    outcome: Outcome | None = None
    try:
        tree_log = _opened_log(config)
        tree_log.install()
        tree = Tree(
            config,
            folder,
            tree_log,
            signals,
            roles=program.roles,
            companions=program.companions,
            lifeline_fd=lifeline_fd,
        )
        manager = service_manager() if lifeline_fd is None else None
        if manager is not None:
            tree.loop.call_in(0, ServiceManager(manager, tree.loop, tree.status).watch)
        outcome = tree.run()
    finally:
        folder.release(untouched=outcome is None or outcome.code not in (0, 1))
    tree.say_goodbye(outcome)
    tree_log.sink.finish(_LAST_LINES_S)
    return outcome


def _opened_log(config: Config) -> TreeLog:
    try:
        return open_log(config)
    except OSError as error:
        raise InvalidConfig(f"log_file: {config.log_file}: {error.strerror or error}") from None


def say_error(line: str, redact: Redactor | None = None) -> None:
    """One line on stderr, without secrets."""
    text = one_line(" ".join((redact or Redactor())(line).split()))
    try:
        sys.stderr.write(f"error: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # nobody listens
