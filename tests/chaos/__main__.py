"""`python -m tests.chaos --minutes M --seed S`: hurt a real tree for M minutes; exit 1 when a promise was broken."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.chaos.run import Order, run
from tests.faults.effects import boot_ms
from tests.support import bytecode

FINDINGS_SHOWN = 50


class _Ended(BaseException):
    """This process was told to end: whatever it has started ends on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP leave the block, once: a second one does not disturb the way out, which is bounded.
    Nobody outlives even a SIGKILL of this process: all that it starts hangs on a pipe from it."""

    def leave(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise _Ended(number)

    before = {each: signal.signal(each, leave) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(arguments: list[str] | None = None) -> int:
    """See the README of this folder."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=3.0, help="how long blows fall")
    parser.add_argument("--seed", type=int, help="which blows; printed when it is drawn")
    parser.add_argument("--data-dir", type=Path, help="a folder that is not there yet, and stays")
    parser.add_argument("--rate", type=float, default=12.0, help="workflows that are started a second")
    parser.add_argument("--listeners", type=int, default=60, help="who waits for each story's end")
    parser.add_argument("--soak", action="store_true", help="few blows; memory and descriptors are watched")
    given = parser.parse_args(arguments)
    bytecode.keep()  # else each child that follows a dead one would compile the project anew
    seed = boot_ms() % 1_000_000 if given.seed is None else given.seed
    folder = given.data_dir or Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {seed}, data folder {folder}", flush=True)
    order = Order(folder.absolute(), seed, given.minutes * 60, given.rate, given.listeners, given.soak)
    try:
        with _ended_by_signals():
            verdict = run(order)
    except _Ended as ended:
        print(f"chaos: ended by signal {ended.number}; kept: {folder}")
        return 128 + ended.number
    for note in verdict.notes:
        print(note)
    if verdict.dump:
        (folder / "dump.txt").write_text(verdict.dump)
        print(verdict.dump)
    for finding in verdict.found[:FINDINGS_SHOWN]:
        print(finding)
    if not verdict.is_good:
        print(f"kept: {folder}; again: python -m tests.chaos --minutes {given.minutes:g} --seed {seed}")
    elif given.data_dir is None:
        shutil.rmtree(folder)
    print(verdict.line)
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
