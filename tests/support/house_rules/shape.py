"""The shape of files: their size, their names, no shared mutable state, no word of the demo inside the kernel."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from tests.support.house_rules.checkout import Checkout, Finding, Source

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
DOOR_LINES_MAX = 80  # kernel/__init__.py: a door, not a room

NAMES_WITHOUT_A_NOUN = {"util", "utils", "common", "helper", "helpers", "core", "misc"}
DEMO_WORDS = re.compile(r"asr|audio|transcri|pocketsphinx|flite|live_?summary", re.IGNORECASE)

_MUTABLE_NODES = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_MUTABLE_CALLS = {"list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict"}


def sizes(checkout: Checkout) -> Iterator[Finding]:
    """Files of the product have at most 400 lines, functions 60, the authors' door 80."""
    for source in checkout.product:
        limit = DOOR_LINES_MAX if source.path == "kernel/__init__.py" else FILE_LINES_MAX
        if len(source.lines) > limit:
            yield source.finding(limit + 1, f"the file has {len(source.lines)} lines ({limit})", "split it by noun")
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    problem = f"{node.name} has {lines} lines ({FUNCTION_LINES_MAX})"
                    yield source.finding(node, problem, "keep the branching here and move the leaves out")
    for path in checkout.paths("*.lua"):
        lines = len((checkout.root / path).read_text().splitlines())
        if lines > FILE_LINES_MAX:
            yield Finding(path, FILE_LINES_MAX + 1, f"the file has {lines} lines ({FILE_LINES_MAX})", "use an include")


def file_names(checkout: Checkout) -> Iterator[Finding]:
    """A file is named for its noun, and never as a module of the standard library."""
    for source in checkout.sources:
        for part in source.module.split("."):
            if part in NAMES_WITHOUT_A_NOUN:
                yield source.finding(1, f"{part!r} names no noun", "name the file for what its functions are about")
            if part in sys.stdlib_module_names and not part.startswith("__"):
                yield source.finding(1, f"{part!r} is a module of the standard library", "choose another word")


def class_level_state(checkout: Checkout) -> Iterator[Finding]:
    """No mutable value at class level: all instances would share it. (msgspec copies a Struct's empty default.)"""
    structs = _struct_names(checkout)
    for source in checkout.sources:
        for node in source.nodes:
            if not isinstance(node, ast.ClassDef):
                continue
            for statement in node.body:
                if _is_mutable(statement) and not (node.name in structs and _is_empty_default(statement)):
                    remedy = "a tuple, a frozenset, a MappingProxyType, or an attribute set in __init__"
                    yield source.finding(statement, f"class {node.name} holds a mutable value", remedy)


def _is_mutable(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.Call):
        function = value.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        return name in _MUTABLE_CALLS
    return isinstance(value, _MUTABLE_NODES)


def _is_empty_default(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.AnnAssign) or "ClassVar" in ast.unparse(statement.annotation):
        return False
    value = statement.value
    if isinstance(value, ast.Call):
        return not value.args and not value.keywords
    if isinstance(value, ast.List):
        return not value.elts
    return isinstance(value, ast.Dict) and not value.keys


def _struct_names(checkout: Checkout) -> set[str]:
    """Names of all classes that derive from msgspec.Struct, also through classes of ours."""
    bases = {
        node.name: {ast.unparse(base).rsplit(".", 1)[-1] for base in node.bases}
        for source in checkout.sources
        for node in source.nodes
        if isinstance(node, ast.ClassDef)
    }
    structs = {"Struct"}
    while True:
        more = {name for name, parents in bases.items() if parents & structs} - structs
        if not more:
            return structs
        structs |= more


DEMO_COMMAND = "asr_demo.live:main"
"""Where the command line finds `demo`: the one place that names it, as a string that is resolved when it is run."""


def demo_words(checkout: Checkout) -> Iterator[Finding]:
    """The kernel knows no noun of the demo: neither as a name nor in a text that it handles (docstrings may tell)."""
    for source in checkout.product:
        if source.package not in ("lua", "kernel", "supervisor", "fanout"):
            continue
        for node, word in _words(source):
            if DEMO_WORDS.search(word) and word != DEMO_COMMAND:
                remedy = "the kernel serves any type: move it to asr_demo, or name the general thing"
                yield source.finding(node, f"{word[:40]!r} is a word of the demo", remedy)


def _words(source: Source) -> Iterator[tuple[ast.AST, str]]:
    prose = {id(node.value) for node in source.nodes if isinstance(node, ast.Expr)}
    for node in source.nodes:
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word):
                yield node, word
            case ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word) | ast.ClassDef(name=word):
                yield node, word
            case ast.Constant(value=str(word)) if id(node) not in prose:
                yield node, word
