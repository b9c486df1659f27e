"""Pytest plugin: the programs that tests start answer signals as from a terminal, however pytest itself was started.

`nohup` and `&` in a script let a process begin with SIGHUP or SIGINT ignored, and that is inherited by every program
that it starts. A handler that does nothing still ignores the signal here, but is not inherited: a program begins with
the default.
"""

from __future__ import annotations

import signal
from types import FrameType

INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def ignore(number: int, frame: FrameType | None) -> None:
    """As SIG_IGN, for this process alone."""


def pytest_configure() -> None:
    for number in INHERITED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, ignore)
