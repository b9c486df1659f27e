"""The version lock: `lua/v1/versions.lock` holds name, version and sha1 of every script as released.

Workers of two releases run side by side against one Redis, so a script may not change under a version that is in
use (dc-lua-versioned). A changed text needs a raised version; then `python -m lua --lock` records it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources.abc import Traversable

from lua import Script, ScriptError

LOCK_FILE = "versions.lock"


class LockError(ScriptError):
    """The lock file is missing or unreadable."""

    code = "script_lock"


def read(folder: Traversable) -> dict[str, tuple[int, str]]:
    """name → (version, sha1) of the lock file in `folder`; empty when there is none. Raises LockError."""
    try:
        text = folder.joinpath(LOCK_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    locked: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if len(words) != 3 or not words[1].isdecimal():
            raise LockError(f"{LOCK_FILE}:{number}: expected name, version and sha1")
        locked[words[0]] = (int(words[1]), words[2])
    return locked


def written(scripts: Iterable[Script]) -> str:
    """The lock file that says what `scripts` are now."""
    return "".join(f"{script.name} {script.version} {script.sha1}\n" for script in scripts)


def unversioned(scripts: Iterable[Script], locked: dict[str, tuple[int, str]]) -> list[str]:
    """One line for each script whose text changed while its version did not rise: these may not be locked."""
    problems = []
    for script in scripts:
        version, sha1 = locked.get(script.name, (0, ""))
        if script.sha1 != sha1 and script.version <= version:
            problems.append(
                f"{script.name}: the text changed but the version is {script.version}, locked at {version}: "
                f"set 'version: {version + 1}' in its contract"
            )
    return problems


def stale(scripts: Iterable[Script], locked: dict[str, tuple[int, str]]) -> list[str]:
    """One line for each difference between the scripts and the lock file; empty when they agree."""
    current = {script.name: (script.version, script.sha1) for script in scripts}
    names = sorted(current.keys() | locked.keys())
    return [
        f"{name}: not as locked; run python -m lua --lock" for name in names if current.get(name) != locked.get(name)
    ]
