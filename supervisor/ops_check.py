"""One line of `doctor`: what was looked at, how it is, and what to do about it."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from kernel.errors import CoordinationDenied, KernelError, Unavailable
from supervisor.ops_shell import Given

Verdict = Literal["ok", "warn", "fail"]

LATE_MS = 60_000
"""Twice the period of the scan for what hints have lost: whatever is due for longer has found nobody."""
_COMMAND = re.compile(r"`kernel-supervisor ([^`]+)`")
_WITH_APP = ("start", "dispatch pending", "workflow replay")


class Check(msgspec.Struct, frozen=True):
    """One line. Commands in a remedy stand between backticks: whoever shows it completes them (`completed`)."""

    name: str
    verdict: Verdict
    text: str
    remedy: str | None = None
    unreachable: bool = False
    """A store did not answer."""


def completed(remedy: str, given: Given) -> str:
    """The remedy with each command as it can be typed now: what was found with some options is mended with the same."""
    return _COMMAND.sub(lambda found: _command(found[1], given), remedy)


def _command(words: str, given: Given) -> str:
    if words.startswith("config "):
        given = given._replace(data_dir=None)  # it has no such option
    return given.line(words, app=words.startswith(_WITH_APP))


def refused(name: str, error: KernelError, remedy: str) -> Check:
    """A check that ended by an error of the kernel's."""
    away = isinstance(error, Unavailable) and not isinstance(error, CoordinationDenied)
    return Check(name, "fail", f"{error} [{error.code}]", remedy, away)
