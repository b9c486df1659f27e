"""`kernel-supervisor doctor`: one line for each thing that a tree needs, with a verdict and a remedy.

It reads only, and works with a tree running, with none, and where nothing was ever started. Exit status: 0 when no
check failed (a warning is no failure), 2 for wrong settings, 69 when a store can not be reached, 1 for any other
failure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

import click
import msgspec

from kernel.clock import SystemClock
from kernel.config import Config, Loaded, load
from kernel.errors import InvalidConfig, KernelError
from supervisor import ops_checks
from supervisor.ops_accepted import accepted_checks
from supervisor.ops_check import Check, Verdict, completed, refused
from supervisor.ops_shell import APP_UNKNOWN, EXIT_UNAVAILABLE, Given, say_json, shell_command, visible
from supervisor.ops_tree import Tree, look
from supervisor.redaction import Redactor

EXIT_USAGE = 2
_COLUMN = 16
_ORDER: tuple[Verdict, ...] = ("ok", "warn", "fail")


@click.command()
@shell_command
def doctor(data_dir: str | None, config_file: str | None, app: str | None, as_json: bool) -> None:
    """Look at everything that a tree needs, and say what is wrong and what to do. Changes nothing."""
    checks, redact, has_app = _begun({"data_dir": data_dir, "app": app}, config_file)
    given = Given(data_dir, config_file, app or (None if has_app else APP_UNKNOWN))
    shown: list[Check] = []
    for check in checks:
        shown.append(_clean(check, redact, given))
        if not as_json:
            _say(shown[-1])
    worst = max((check.verdict for check in shown), key=_ORDER.index)
    if as_json:
        rows = [{name: value for name, value in msgspec.to_builtins(c).items() if name != "unreachable"} for c in shown]
        say_json({"v": 1, "verdict": worst, "checks": rows})
    sys.exit(_exit_status(shown, worst))


def _exit_status(shown: list[Check], worst: Verdict) -> int:
    if worst != "fail":
        return 0
    if any(check.name == "config" and check.verdict == "fail" for check in shown):
        return EXIT_USAGE
    return EXIT_UNAVAILABLE if any(check.unreachable for check in shown) else 1


def _begun(flags: dict[str, str | None], config_file: str | None) -> tuple[Iterable[Check], Redactor, bool]:
    """The checks to come, what masks the passwords in them, and whether an application is set. Wrong settings are the
    only check then."""
    try:
        loaded = load(flags, file=config_file)
    except InvalidConfig as error:
        remedy = "correct it there; `kernel-supervisor config check` says when it is right"
        return [refused("config", error, remedy)], Redactor(), False
    return examined(loaded), Redactor.of(loaded.config), loaded.config.app is not None


def examined(loaded: Loaded) -> Iterator[Check]:
    """Every check, as it is made: what is quick comes first. One that fails by itself does not end the others."""
    config, clock = loaded.config, SystemClock()
    tree, unseen = _looked(config)
    groups: tuple[tuple[str, Callable[[], Iterable[Check]]], ...] = (
        ("config", lambda: [ops_checks.config_check(loaded)]),
        ("python", lambda: [ops_checks.python_check()]),
        ("files", lambda: [ops_checks.files_check(config)]),
        ("folder", lambda: [ops_checks.folder_check(config)]),
        ("tree", lambda: [unseen or ops_checks.tree_check(tree)]),
        ("app", lambda: [ops_checks.app_check(config)]),
        ("store", lambda: ops_checks.store_checks(config, tree, clock)),
        ("accepted", lambda: accepted_checks(config, tree)),
        ("observations", lambda: ops_checks.observation_checks(config, clock)),
        ("redis", lambda: ops_checks.redis_checks(config, tree, clock)),
    )
    for name, checks in groups:
        try:
            yield from checks()
        except KernelError as error:
            yield refused(name, error, "this is none of the known faults: look into the log of the tree")
        except OSError as error:
            yield _unreadable(name, error)


def _looked(config: Config) -> tuple[Tree, Check | None]:
    """One look at the tree, which other checks judge by as well; and the check that tells that it can not be seen."""
    try:
        return look(config), None
    except OSError as error:
        return Tree(folder=config.data_dir), _unreadable("tree", error)


def _unreadable(name: str, error: OSError) -> Check:
    return Check(name, "fail", f"{error.filename or name}: {error.strerror or error}", "see who may read it")


def _clean(check: Check, redact: Redactor, given: Given) -> Check:
    """No password, no control character: texts come from servers and from an application's own module."""
    remedy = None if check.remedy is None else visible(redact(completed(check.remedy, given)))
    return msgspec.structs.replace(check, text=visible(redact(check.text)), remedy=remedy)


def _say(check: Check) -> None:
    remedy = "" if check.remedy is None or check.verdict == "ok" else f" -> {check.remedy}"
    click.echo(f"{check.verdict:<5} {check.name:<{_COLUMN}} {check.text}{remedy}")
