"""What tests promise: real keys, a visible check, nothing skipped; and that no work is left for later."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from tests.support.house_rules.checkout import Checkout, Finding, Source
from tests.support.requirements_index import read_requirements

# The specification names its invariants, liveness rules, detection bounds and resolutions by letter and number.
_LETTERED = re.compile(r"[asldb]-?\d+")
_KEY = re.compile(r"[a-z][a-z0-9-]*")
_CASE = re.compile(r"A(0[1-9]|[1-8]\d|90)")
_BOUND = re.compile(r"L([1-9]|1[0-2])|[a-z0-9 ]+")
_BOUNDS = tuple(f"L{number}" for number in range(1, 13))
_CHECK = re.compile(r"raises|warns|assert|expect|check|wait_until|stays|verify|must")
# Written in two halves so that this file does not find itself.
_LEFT_FOR_LATER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b|NotImplemented" r"Error")
_NOT_RUN = re.compile(r"pytest\.(sk" r"ip|xf" r"ail|import" r"orskip)|mark\.(sk" r"ip|xf" r"ail)")


def requirement_marks(checkout: Checkout) -> Iterator[Finding]:
    """`req` names keys of the specification, as plain text; without the list at hand only their form is checked."""
    known = read_requirements()
    for source in checkout.proofs:
        yield from _marks(source, "req", known, _KEY, "a key of REQUIREMENTS.md")


def case_marks(checkout: Checkout) -> Iterator[Finding]:
    """`case` names public fault cases, A01 to A90."""
    for source in checkout.proofs:
        yield from _marks(source, "case", (), _CASE, "a case from A01 to A90")


def bound_marks(checkout: Checkout) -> Iterator[Finding]:
    """`bound` names bounds of the specification, L1 to L12, or says in small letters what else is measured."""
    for source in checkout.proofs:
        yield from _marks(source, "bound", (), _BOUND, "a bound from L1 to L12")


def bounds_measured(checkout: Checkout) -> Iterator[Finding]:
    """Each bound is measured: by a test that bears its mark, alone or through its file, and takes a `figure`."""
    measured = {bound for source in checkout.proofs for bound in _measured_in(source)}
    for bound in _BOUNDS:
        if bound not in measured:
            yield Finding("tests", 1, f"no test measures {bound}", f"mark one bound({bound!r}) that takes a figure")


def _measured_in(source: Source) -> Iterator[str]:
    of_file = [node.value for node in source.tree.body if isinstance(node, ast.Assign) and _is_pytestmark(node)]
    for node in source.nodes:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test"):
            continue
        if "figure" not in {argument.arg for argument in node.args.args}:
            continue
        for mark in (inner for place in (*of_file, *node.decorator_list) for inner in ast.walk(place)):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("mark.bound"):
                yield from (str(word.value) for word in mark.args if isinstance(word, ast.Constant))


def _is_pytestmark(assignment: ast.Assign) -> bool:
    return ast.unparse(assignment.targets[0]) == "pytestmark"


def _marks(source: Source, mark: str, known: Collection[str], form: re.Pattern[str], what: str) -> Iterator[Finding]:
    for node in source.nodes:
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith(f"mark.{mark}")):
            continue
        if not node.args:
            yield source.finding(node, f"{mark}() names nothing", f"name {what}")
        for argument in node.args:
            key = argument.value if isinstance(argument, ast.Constant) else None
            if not isinstance(key, str):
                yield source.finding(argument, f"{mark}(…) holds no plain text", f"write {what} between quotes")
            elif not form.fullmatch(key) or (known and key not in known and not _LETTERED.fullmatch(key)):
                yield source.finding(argument, f"{mark}({key!r}) names nothing that exists", f"name {what}")


def tests_check(checkout: Checkout) -> Iterator[Finding]:
    """A test asserts, or calls something whose name says that it checks."""
    for source in checkout.proofs:
        for node in source.nodes:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test"):
                continue
            if not any(_checks(inner) for inner in ast.walk(node)):
                yield source.finding(node, f"{node.name} checks nothing visible", "assert what it promises")


def _checks(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return bool(_CHECK.search(ast.unparse(node.func)))
    return isinstance(node, ast.Assert)


def nothing_left_out(checkout: Checkout) -> Iterator[Finding]:
    """No note of work to be done, no test that is skipped or may fail."""
    for source in checkout.sources:
        for number, line in enumerate(source.lines, 1):
            if found := _LEFT_FOR_LATER.search(line):
                yield source.finding(number, f"{found[0]} is left here", "do it now or open an issue")
            if source.in_tests and (found := _NOT_RUN.search(line)):
                yield source.finding(number, f"{found[0]} leaves a test out", "make it run, or mark what it needs")
