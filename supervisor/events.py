"""The closed list of what is logged about the tree, and the one way to say it; the engine's are in kernel.observe.

A line of the log has its event from one of the two lists, or `log` where the record named none: its logger then stands
under `x`. An event without a place that emits it, and one that is emitted and not listed, fail a test.
"""

from __future__ import annotations

import logging

log = logging.getLogger("supervisor")

UNNAMED = "log"

TREE_EVENTS: dict[str, int] = {
    "supervisor.started": logging.INFO,
    "supervisor.ready": logging.INFO,
    "supervisor.no_reload": logging.WARNING,
    "supervisor.fault": logging.ERROR,
    "supervisor.ended": logging.INFO,
    "child.started": logging.INFO,
    "child.ready": logging.INFO,
    "child.recycled": logging.INFO,
    "child.stderr": logging.WARNING,
    "child.failed": logging.ERROR,
    "child.killed": logging.WARNING,
    "child.exited": logging.WARNING,
    "child.backoff": logging.INFO,
    "child.fork_failed": logging.ERROR,
    "child.fatal": logging.ERROR,
    "child.unkillable": logging.ERROR,
    "drain.begin": logging.INFO,
    "drain.end": logging.INFO,
    "owner.released": logging.DEBUG,
    "guardian.failed": logging.ERROR,
    "guardian.ended": logging.WARNING,
    "link.refused": logging.WARNING,
    "log.dropped": logging.WARNING,
    "log.reopen_failed": logging.ERROR,
}
"""Event name → level."""


def tell(event: str, text: str, *, level: int | None = None, exc_info: bool = False, **facts: object) -> None:
    """Log one event of the list, at its own level or at another; `facts` stand beside the text."""
    log.log(TREE_EVENTS[event] if level is None else level, text, exc_info=exc_info, extra={"event": event, **facts})
