"""What the source text may not do (RELIABILITY §8: serialisation, subprocess, failpoints): read as syntax, not grepped.

The house rules ban calls by their names; here every way to the same thing is looked for: an import in any form or
under any name, a lookup by a string, an option of a library that pickles or runs a shell by itself. Each sample below
must be found, so that no scan can pass by seeing nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("kernel", "lua", "supervisor", "fanout", "asr_demo", "bench")
PICKLERS = {
    *("pickle", "_pickle", "cPickle", "marshal", "shelve", "dbm", "copyreg", "pickletools"),
    *("dill", "cloudpickle", "joblib", "jsonpickle", "yaml", "ruamel", "numpy", "pandas", "torch"),
}
"""They run code of whoever wrote the data, or are the usual door to something that does."""
QUEUES = {"multiprocessing.managers", "multiprocessing.connection", "multiprocessing.shared_memory", "xmlrpc", "code"}
"""They pickle by themselves for whoever connects, or run what he sends."""
PICKLING_NAMES = {"SocketHandler", "DatagramHandler", "QueueListener", "SimpleXMLRPCServer", "BaseManager", "Listener"}
RUNNERS = {"eval", "exec", "compile", "__import__", "execfile"}
SHELLS = {
    *("os.system", "os.popen", "os.spawnl", "os.spawnlp", "os.spawnv", "os.spawnvp", "os.execlp", "os.execvp"),
    *("subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell", "pty.spawn"),
    *("commands.getoutput", "loop.subprocess_shell"),
}
SWITCHES = ("fail_point", "failpoint", "fault_inject", "chaos_", "kill_hook", "crash_at")
"""Words of what tests need and the product must not hold: a test hands its faults in as wrapped ports."""


def serialisation(tree: ast.AST) -> Iterator[str]:
    """Pickle and its kin, and code from data."""
    for node in ast.walk(tree):
        for name in _imported(node):
            if name.split(".")[0] in PICKLERS or any(name == q or name.startswith(f"{q}.") for q in QUEUES):
                yield name
            if name.rpartition(".")[2] in PICKLING_NAMES:
                yield name
        match node:
            case ast.Name(id=name) if name in RUNNERS:
                yield name
            case ast.Attribute(attr=name) if name in PICKLING_NAMES or (
                name in RUNNERS - {"compile"} and _dotted(node.value) in ("builtins", "__builtins__")
            ):
                yield name
            case ast.Constant(value=str(text)) if text in PICKLERS:
                yield f"the name {text!r}"  # import_module("pickle"), getattr(sys.modules["pickle"], …)
            case ast.keyword(arg="allow_pickle"):
                yield "allow_pickle"


def shells(tree: ast.AST) -> Iterator[str]:
    """A command line that a shell reads, or a program that is looked for in PATH of whoever calls."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="shell", value=ast.Constant(value=False)):
                continue
            case ast.keyword(arg="shell"):
                yield "shell="
            case ast.Constant(value="shell"):
                yield "the name 'shell'"  # subprocess.run(words, **{"shell": True})
            case ast.Attribute() if _dotted(node) in SHELLS:
                yield _dotted(node)
            case ast.Attribute(attr="create_subprocess_shell" | "subprocess_shell"):
                yield node.attr
        for name in _imported(node):
            if name in SHELLS:
                yield name
        if isinstance(node, ast.List | ast.Tuple) and [getattr(e, "value", None) for e in node.elts[:2]] in SH_C:
            yield "sh -c"


SH_C = [[shell, "-c"] for shell in ("sh", "/bin/sh", "bash", "/bin/bash")]


def environment(tree: ast.AST) -> Iterator[str]:
    """The names of variables that are read: `environ.get("X")`, `environ["X"]`, `os.getenv("X")`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=of, attr="get" | "pop"), args=[ast.Constant(value=str(name)), *_]):
                if "environ" in _dotted(of):
                    yield name
            case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]) if _dotted(func).endswith("getenv"):
                yield name
            case ast.Subscript(value=of, slice=ast.Constant(value=str(name))) if "environ" in _dotted(of):
                yield name


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


@cache
def sources() -> list[tuple[str, ast.AST]]:
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    files += [path for path in (ROOT / ".ci").glob("*") if path.is_file() and path.read_bytes().startswith(PYTHON)]
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in files]


PYTHON = b"#!/usr/bin/env python"


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "import pickle as p", "from pickle import loads", "from _pickle import loads as l",
        "import importlib; importlib.import_module('pickle')", "__import__('os')", "import sys; sys.modules['marshal']",
        "import shelve", "import yaml", "eval('1')", "f = exec", "compile('1', '', 'eval')",
        "import builtins; builtins.eval('1')", "from multiprocessing.connection import Listener",
        "import multiprocessing.managers", "from logging.handlers import SocketHandler",
        "import logging.handlers; logging.handlers.DatagramHandler('h', 1)", "load(f, allow_pickle=True)",
        "import code; code.interact()",
    ],
)  # fmt: skip
def test_each_way_to_a_pickle_or_to_code_is_seen(text: str) -> None:
    assert list(serialisation(ast.parse(text)))
    assert not list(serialisation(ast.parse("import re; re.compile('x'); x.exec_module(m); import json, msgspec")))


@pytest.mark.case("A84")
def test_no_package_pickles_or_runs_data() -> None:
    found = {path: [*serialisation(tree)] for path, tree in sources()}

    assert {path: names for path, names in found.items() if names} == {}
    assert len(found) > 200, "all files were read"


@pytest.mark.parametrize(
    "text",
    [
        "run('ls', shell=True)", "run('ls', shell=flag)", "run(words, **{'shell': True})", "import os; os.system('ls')",
        "from os import popen", "import asyncio; asyncio.create_subprocess_shell('ls')", "run(['sh', '-c', text])",
        "loop.subprocess_shell(p, 'ls')", "import subprocess; subprocess.getoutput('ls')", "os.execvp(name, words)",
    ],
)  # fmt: skip
def test_each_way_to_a_shell_is_seen(text: str) -> None:
    assert list(shells(ast.parse(text)))
    assert not list(shells(ast.parse("run(['ls', '-c'], shell=False); os.execv('/bin/ls', ['ls'])")))


def test_no_package_starts_a_shell() -> None:
    found = {path: [*shells(tree)] for path, tree in sources()}

    assert {path: names for path, names in found.items() if names} == {}


READ = {
    *("PROMETHEUS_MULTIPROC_DIR", "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "XDG_RUNTIME_DIR"),
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "NO_COLOR", "TERM", "REDIS_URL"),
}
"""Beside the settings, whose names are the fields of Config, and which a start refuses when it does not know them."""


def test_no_variable_of_the_environment_turns_on_anything_for_tests() -> None:
    read = {name for _, tree in sources() for name in environment(tree)}
    words = {word for path, _ in sources() for word in SWITCHES if word in (ROOT / path).read_text().lower()}

    assert read <= READ, "say what it is for, and why no test hides behind it"
    assert read >= {"NOTIFY_SOCKET", "XDG_RUNTIME_DIR"}, "reads are seen at all"
    assert words == set()
