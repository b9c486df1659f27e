"""What `doctor` says of accepted work that is not registered yet, of the application that it was given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from kernel.config import Config
from kernel.dispatch import DispatchSource
from kernel.errors import KernelError
from kernel.runtime import load_app
from supervisor.ops_check import LATE_MS, Check, refused
from supervisor.ops_dispatch import is_any_declared, open_dispatch_sources
from supervisor.ops_shell import many, span_text
from supervisor.ops_tree import Tree

_PAGE = 1_000
_NAME = "accepted"


class Overdue(msgspec.Struct, frozen=True):
    """What a dispatcher could register now of one source, up to a page, and for how many ms the oldest of it."""

    count: int = 0
    oldest_ms: int = 0


def accepted_checks(config: Config, tree: Tree) -> Iterator[Check]:
    """Nothing without an application: nobody else knows where its objects are. A source may be the user's own code,
    whose faults end no diagnosis."""
    if config.app is None:
        return
    try:
        app = load_app(config.app)
    except KernelError:
        return  # the check `app` tells
    if not is_any_declared(app):
        yield Check(_NAME, "ok", f"{config.app} declares no business objects")
        return
    if config.mongodb_uri is None and not Path(config.data_dir).is_dir():
        yield Check(_NAME, "ok", "nothing was accepted here yet")
        return
    try:
        with ExitStack() as until:
            sources = open_dispatch_sources(config, app, until)
            yield from [_check(source.name, _overdue(source), tree, config) for source in sources]
    except KernelError as error:
        yield refused(_NAME, error, "what was accepted can not be looked at, nor registered")
        return
    except Exception as error:
        text = f"a dispatch source of {config.app} fails: {type(error).__name__}: {error}"
        yield Check(_NAME, "warn", text, "mend it: what was accepted there is not registered")
        return
    if not sources:
        yield Check(_NAME, "ok", "nothing was accepted here yet")


def _overdue(source: DispatchSource) -> Overdue:
    """By the source's clock; the next due come first."""
    now_ms = source.now_ms()
    due = [one.due_time for one in source.due(after=None, limit=_PAGE) if one.due_time <= now_ms]
    return Overdue(len(due), now_ms - min(due)) if due else Overdue()


def _check(source: str, overdue: Overdue, tree: Tree, config: Config) -> Check:
    """A short while without a dispatcher is no fault where other machines may have one."""
    name, nobody = f"{_NAME}.{source}", _nobody(tree, source)
    if not overdue.count:
        told = "" if nobody is None else f" ({nobody})"
        return Check(name, "ok", f"no accepted object waits for a dispatcher{told}")
    at_least = "at least " if overdue.count >= _PAGE else ""
    count = f"{at_least}{many(overdue.count, 'accepted object')}"
    text = f"{count} not registered, the oldest due for {span_text(overdue.oldest_ms)}"
    is_late = overdue.oldest_ms > LATE_MS
    if nobody is None:
        remedy = "`kernel-supervisor dispatch pending` tells each, and its last error"
        return Check(name, "warn" if is_late else "ok", text, remedy)
    remedy = "`kernel-supervisor start`"
    if tree.status is not None:
        remedy = "`kernel-supervisor stop`, then `kernel-supervisor start --dispatchers N`"
    is_told = is_late or config.mongodb_uri is None
    return Check(name, "warn" if is_told else "ok", f"{text}, and nobody to do it: {nobody}", remedy)


def _nobody(tree: Tree, source: str) -> str | None:
    """Why nobody here registers what that source has accepted; None when somebody does, or may."""
    if tree.is_silent:
        return None
    if tree.status is None:
        return "no tree runs"
    if not tree.dispatchers:
        return "the tree that runs here has no dispatcher"
    return None if tree.registers(source) else f"the tree that runs here does not know {source}"
