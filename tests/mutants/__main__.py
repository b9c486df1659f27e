"""`python -m tests.mutants [NAME…]`: put each fault into a copy of the project and run the tests named for it.

A mutant is caught when a test fails for it: an error while the tests are collected proves nothing, nor does a test that
fails without the fault, so those named run once on the unchanged copy first. Ends with `mutants: K/N caught`; exit
status 1 when one was not caught, is out of date, or a named test fails by itself.

With `--chaos MINUTES` a run of `tests.chaos` takes the place of the named tests: M1 and M5 are found so in most runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant, OutOfDate, restore

ROOT = Path(__file__).parents[2]
_PARTS = ("lua", "kernel", "supervisor", "fanout", "asr_demo", "bench", "tests", ".ci")
_FAILED = 1
"""pytest's exit status when tests ran and some failed."""
_ONE_S = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    wanted = _parser().parse_args(arguments)
    unknown = sorted(set(wanted.names) - {mutant.name for mutant in MUTANTS})
    if unknown:
        print(f"there is no mutant {', '.join(unknown)}", file=sys.stderr)
        return 2
    chosen = [mutant for mutant in MUTANTS if not wanted.names or mutant.name in wanted.names]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [copied(Path(folder) / str(number)) for number in range(min(wanted.jobs, len(chosen)))]
        sound = wanted.chaos is not None or _passes(
            copies[0], sorted({test for mutant in chosen for test in mutant.tests})
        )
        if not sound:
            print("the named tests fail without any fault; nothing can be said of the mutants")
        caught = _caught(chosen, copies, wanted.chaos) if sound else 0
    print(f"mutants: {caught}/{len(chosen)} caught")
    return 0 if caught == len(chosen) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="M1 to M18; all when none is named")
    parser.add_argument("--jobs", type=int, default=2, choices=range(1, 9), help="copies at work at once (default 2)")
    parser.add_argument("--chaos", type=float, metavar="MINUTES", help="find them by runs of tests.chaos")
    return parser


def copied(to: Path) -> Path:
    """The project's files, without environments, caches and data."""
    for part in _PARTS:
        shutil.copytree(ROOT / part, to / part, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, to / path.name)
    return to


def _caught(chosen: Sequence[Mutant], copies: list[Path], chaos: float | None) -> int:
    free = list(copies)

    def tried(mutant: Mutant) -> bool:
        copy = free.pop()
        try:
            return _tried(mutant, copy, chaos)
        finally:
            free.append(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        return sum(pool.map(tried, chosen))


def _tried(mutant: Mutant, copy: Path, chaos: float | None) -> bool:
    try:
        before = mutant.apply(copy)
    except OutOfDate as error:
        print(f"{mutant.name:<4} OUT OF DATE  {error}", flush=True)
        return False
    try:
        status, said = _pytest(copy, mutant.tests) if chaos is None else _chaos(copy, chaos)
    finally:
        restore(before)
    last = said.splitlines()[-1]
    caught = status == _FAILED and (" failed" in last if chaos is None else last.startswith("chaos: seconds="))
    print(f"{mutant.name:<4} {'caught' if caught else 'NOT CAUGHT':<11}  {mutant.fault}", flush=True)
    if not caught:
        print(f"     exit status {status}: {said[-800:]}", flush=True)
    return caught


def _passes(copy: Path, tests: Sequence[str]) -> bool:
    status, said = _pytest(copy, tests)
    if status != 0:
        print(said[-3000:])
    return status == 0


def _pytest(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run `tests` in the copy; exit status and what was printed. A run that hangs counts as one without a verdict."""
    return _run(copy, ["pytest", "-q", "--tb=line", "-p", "no:cacheprovider", *tests], _ONE_S)


def _chaos(copy: Path, minutes: float) -> tuple[int, str]:
    """A run in the copy, as `_pytest`."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        words = ["tests.chaos", "--minutes", f"{minutes:g}", "--data-dir", f"{folder}/data"]
        return _run(copy, words, 60 * minutes + _ONE_S)


def _run(copy: Path, module: Sequence[str], limit_s: float) -> tuple[int, str]:
    words = [sys.executable, "-m", *module]
    # The copy goes before the installed project, also in the commands that the tests start.
    around = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(words, cwd=copy, env=around, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return -1, f"no end after {limit_s:g} s"
    return done.returncode, (done.stdout + done.stderr).strip() or "nothing was said"


if __name__ == "__main__":
    sys.exit(main())
