"""One line of `doctor`: what was looked at, how it is, and what to do about it."""

from __future__ import annotations

import re
import shlex
from typing import Literal

import msgspec

from kernel.errors import CoordinationDenied, KernelError, Unavailable

Verdict = Literal["ok", "warn", "fail"]

LATE_MS = 60_000
"""Twice the period of the scan for what hints have lost: whatever is due for longer has found nobody."""
_COMMAND = re.compile(r"`kernel-supervisor ([^`]+)`")
_WITH_APP = ("start", "dispatch pending", "workflow replay")


class Check(msgspec.Struct, frozen=True):
    """One line. Commands in a remedy stand between backticks: whoever shows it completes them (`Asked.completed`)."""

    name: str
    verdict: Verdict
    text: str
    remedy: str | None = None
    unreachable: bool = False
    """A store did not answer."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed behind `doctor`. What it found with these options is mended with the same ones."""

    data_dir: str | None = None
    config_file: str | None = None
    app: str | None = None
    has_app: bool = False
    """Environment or file name an application, so that no command needs the option."""

    def completed(self, remedy: str) -> str:
        """The remedy with each command as it can be typed now."""
        return _COMMAND.sub(lambda found: self._command(found[1]), remedy)

    def _command(self, words: str) -> str:
        options: list[str] = []
        if words.startswith(_WITH_APP) and (self.app is not None or not self.has_app):
            options += ["--app", self.app or "MODULE:ATTRIBUTE"]
        if self.data_dir is not None and not words.startswith("config "):
            options += ["--data-dir", self.data_dir]
        if self.config_file is not None:
            options += ["--config", self.config_file]
        return " ".join(["kernel-supervisor", words, *map(shlex.quote, options)])


def refused(name: str, error: KernelError, remedy: str) -> Check:
    """A check that ended by an error of the kernel's."""
    away = isinstance(error, Unavailable) and not isinstance(error, CoordinationDenied)
    return Check(name, "fail", f"{error} [{error.code}]", remedy, away)
