"""SIGTERM and SIGHUP end a program that drives a tree (demo, bench) as Ctrl-C does: through every `finally`."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

_INTERRUPTED = 128 + signal.SIGINT
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """One of the two has come."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


def end_as_by_interrupt() -> None:
    """From here on each of them raises Terminated in the main thread, once. One that is ignored (nohup) stays so."""
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    # A terminal that closes sends SIGHUP twice, and the second must not cut off the cleaning up.
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise Terminated(number)


def exit_status_of(interrupt: BaseException | None) -> int:
    """What a program ends with that such a signal, or Ctrl-C, has ended: 128 and the signal's number."""
    return interrupt.exit_status if isinstance(interrupt, Terminated) else _INTERRUPTED
