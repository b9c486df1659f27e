"""`python -m lua`: list the scripts, show one as the server gets it, or record their versions.

Written for developers of the scripts; the operator's view is `kernel-supervisor lua list`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import lua
from lua import lock


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 refused."""
    parser = argparse.ArgumentParser(prog="python -m lua", description=__doc__)
    parser.add_argument("--lock", action="store_true", help="rewrite versions.lock; refused for an unraised version")
    parser.add_argument("--show", metavar="NAME", help="print the text that a server gets")
    parser.add_argument("--folder", type=Path, default=Path(lua.__file__).parent / lua.LAYOUT_FOLDER)
    options = parser.parse_args(arguments)
    try:
        scripts = lua.load(options.folder)
        locked = lock.read(options.folder)
    except lua.ScriptError as error:
        print(error, file=sys.stderr)
        return 1
    if options.show is not None:
        return _show(scripts, options.show)
    if options.lock:
        return _lock(scripts, locked, options.folder)
    for script in scripts:
        print(f"{script.name} {script.version} {script.sha1}")
    problems = lock.unversioned(scripts, locked) or lock.stale(scripts, locked)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _show(scripts: Sequence[lua.Script], name: str) -> int:
    for script in scripts:
        if script.name == name:
            sys.stdout.write(script.text)
            return 0
    print(f"no script is called {name!r}", file=sys.stderr)
    return 1


def _lock(scripts: Sequence[lua.Script], locked: dict[str, tuple[int, str]], folder: Path) -> int:
    problems = lock.unversioned(scripts, locked)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return 1
    (folder / lock.LOCK_FILE).write_text(lock.written(scripts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
