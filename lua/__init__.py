"""The Lua scripts of the kernel and their loader. Imports the standard library only.

A script is one file `lua/v1/<name>.lua`. It opens with its contract, a block of comment lines:

    -- lane_pop                     the name, as the file says
    --
    -- version: 1                   raised with every change of the code (lua/v1/versions.lock holds it to that)
    -- promise: Takes up to ...     what it guarantees; indented lines go on
    -- KEYS: lane_0 lane_state      the keys in order, by the names that kernel.coordination.keys knows
    -- ARGV: count [now_ms]         the arguments in order; [a b] may be left out together, (a b)... repeats;
    --                              "none" where a script takes none, of keys as well
    -- reply: ...                   what comes back
    -- caller: ...                  who calls it

and pulls in shared functions by lines of the form `--#include "include/now_ms.lua"`, each file once. The text that
a server gets is the code without whole-line comments, under one line that names script and version: so a comment
may change freely, while any change of the code, or of an include, changes the sha1.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

LAYOUT_FOLDER = "v1"

_NONE = "none"
_FIELD = re.compile(r"(version|promise|KEYS|ARGV|reply|caller):\s*(.*)")
_REQUIRED = ("version", "promise", "KEYS", "ARGV", "reply", "caller")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_INCLUDE = re.compile(r'--#include\s+"(include/[a-z][a-z0-9_]*\.lua)"\s*')
_ARGUMENTS = re.compile(
    r"\s*(?:(?P<one>[a-z][a-z0-9_]*)|\[(?P<optional>[a-z0-9_ ]+)\]|\((?P<repeated>[a-z0-9_ ]+)\)\.\.\.)"
)


class ScriptError(Exception):
    """A script file that can not be used. The message names the file, the line where it has one, and the rule."""

    code = "script_error"


class HeaderError(ScriptError):
    """The contract at the top of a script is missing, incomplete or says something unreadable."""

    code = "script_header"


class IncludeError(ScriptError):
    """An include line that names no file, or is written in a form that the loader does not know."""

    code = "script_include"


class IncludeCycle(IncludeError):
    """Files that include each other in a circle."""

    code = "script_include_cycle"


class UnknownScript(ScriptError):
    """No script has that name."""

    code = "unknown_script"


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its contract, the text a server gets, and the sha1 by which it is called."""

    name: str
    version: int
    promise: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    """Arguments that every call gives."""
    optional: tuple[str, ...]
    """Arguments that may be left out, from the end."""
    repeated: tuple[str, ...]
    """A group of arguments that may come any number of times, last."""
    reply: str
    caller: str
    text: str
    sha1: str


@functools.cache
def scripts() -> tuple[Script, ...]:
    """All scripts of this release, sorted by name. Raises ScriptError when a file of the package is broken."""
    return load(resources.files(__name__).joinpath(LAYOUT_FOLDER))


def get(name: str) -> Script:
    """The script called `name`, or UnknownScript."""
    for script in scripts():
        if script.name == name:
            return script
    raise UnknownScript(f"no script is called {name!r}; there are {', '.join(s.name for s in scripts())}")


def load(folder: Traversable) -> tuple[Script, ...]:
    """Read every `*.lua` directly in `folder` (a path or a package resource), sorted by name."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".lua"))
    return tuple(_script(folder, name) for name in names)


def _script(folder: Traversable, file: str) -> Script:
    name = file.removesuffix(".lua")
    lines = folder.joinpath(file).read_text(encoding="utf-8").splitlines()
    fields = _header(lines, name, file)
    version = fields["version"][0]
    if re.fullmatch(r"[1-9][0-9]{0,5}", version) is None:
        raise HeaderError(f"{file}: version: must be a whole number from 1, is {version[:40]!r}")
    required, optional, repeated = _arguments(fields["ARGV"][0], file)
    code = "\n".join(_expanded(folder, file, lines, seen=[], inside=[]))
    text = f"-- {name} {version}\n{code}\n"
    return Script(
        name=name,
        version=int(version),
        promise=" ".join(fields["promise"]),
        keys=_names(fields["KEYS"][0], "KEYS", file),
        args=required,
        optional=optional,
        repeated=repeated,
        reply=" ".join(fields["reply"]),
        caller=" ".join(fields["caller"]),
        text=text,
        sha1=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(),
    )


def _header(lines: list[str], name: str, file: str) -> dict[str, list[str]]:
    """The fields of the contract, each as its lines: what stands after the name, then the indented ones."""
    if not lines or lines[0].strip() != f"-- {name}":
        raise HeaderError(f"{file}:1: a script opens with its contract; the first line must be '-- {name}'")
    fields: dict[str, list[str]] = {}
    current = None
    for number, line in enumerate(lines[1:], start=2):
        if not line.startswith("--") or line.startswith("--#"):
            break
        content = line[2:].strip()
        found = _FIELD.fullmatch(content)
        if found and line.startswith("-- ") and not line.startswith("--  "):
            current = found[1]
            if current in fields:
                raise HeaderError(f"{file}:{number}: {current} is given twice")
            fields[current] = [found[2]]
        elif content and current is not None and line.startswith("--   "):
            fields[current].append(content)
        elif content:
            raise HeaderError(f"{file}:{number}: not a field of the contract: {content[:40]!r}")
    missing = [field for field in _REQUIRED if not any(fields.get(field, ()))]
    if missing:
        raise HeaderError(f"{file}: the contract lacks {', '.join(missing)}")
    return fields


def _names(text: str, field: str, file: str) -> tuple[str, ...]:
    names = () if text == _NONE else tuple(text.split())
    bad = [name for name in names if _NAME.fullmatch(name) is None]
    if bad or len(set(names)) != len(names):
        raise HeaderError(f"{file}: {field}: names of a-z, 0-9 and _, each once; not {text!r}")
    return names


def _arguments(text: str, file: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The words of ARGV: required ones, then groups in [] that may be left out, then one group in ()... at most."""
    if text == _NONE:
        return (), (), ()
    groups: dict[str, list[str]] = {"one": [], "optional": [], "repeated": []}
    order = list(groups)
    at, stage = 0, 0
    while at < len(text):
        found = _ARGUMENTS.match(text, at)
        kind = found.lastgroup if found else None
        if found is None or kind is None or order.index(kind) < stage or groups["repeated"]:
            raise HeaderError(f"{file}: ARGV: can not be read from {text[at:].strip()!r}")
        stage = order.index(kind)
        groups[kind] += found[kind].split()
        at = found.end()
    required, optional, repeated = groups.values()
    _names(" ".join([*required, *optional, *repeated]), "ARGV", file)
    return tuple(required), tuple(optional), tuple(repeated)


def _expanded(folder: Traversable, file: str, lines: list[str], seen: list[str], inside: list[str]) -> Iterator[str]:
    """The code lines of `file`, each include in its place; what was included once is not repeated."""
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if stripped.startswith("--#"):
            yield from _included(folder, f"{file}:{number}", stripped, seen, [*inside, file])
        elif "[[" in line or "--[" in line:
            raise ScriptError(f"{file}:{number}: long strings and block comments are not used here")
        elif stripped and not stripped.startswith("--"):
            yield line.rstrip()


def _included(folder: Traversable, where: str, line: str, seen: list[str], inside: list[str]) -> Iterator[str]:
    found = _INCLUDE.fullmatch(line)
    if found is None:
        raise IncludeError(f'{where}: an include reads --#include "include/<name>.lua", not {line[:60]!r}')
    target = found[1]
    if target in inside:
        raise IncludeCycle(f"{where}: {' -> '.join([*inside, target])}")
    if target in seen:
        return
    seen.append(target)
    try:
        text = folder.joinpath(target).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise IncludeError(f"{where}: there is no file {target}") from None
    yield from _expanded(folder, target, text.splitlines(), seen, inside)
