"""Calls that belong to one owner or to nobody: clocks, randomness, the environment, code from data, connections."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.house_rules.checkout import Checkout, Finding, Source

PRODUCT = ("lua/", "kernel/", "supervisor/", "fanout/", "asr_demo/")
EVERYWHERE = (*PRODUCT, "bench/", "tests/")


class Ban(NamedTuple):
    """Names that only their owners may use. `module.*` is everything in it; owners and scope are path prefixes.

    `called` bans only the call: a name in an annotation opens no connection.
    """

    names: tuple[str, ...]
    remedy: str
    owners: tuple[str, ...] = ()
    scope: tuple[str, ...] = PRODUCT
    called: bool = False


BANS = (
    Ban(
        ("time.time", "time.time_ns", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today",
         "datetime.date.today"),
        "take a Clock (kernel/clock.py) and ask it",
        owners=("kernel/clock.py",),
    ),
    Ban(("time.sleep",), "wait for an event, a selector or the Runner's timer, so that a stop can end the wait"),
    Ban(
        ("time.sleep",),
        "wait for what can be seen: wait_until (tests/support/wait.py)",
        owners=("tests/support/",),
        scope=("tests/",),
    ),
    Ban(
        ("random.*", "secrets.*", "uuid.uuid1", "uuid.uuid4", "os.urandom"),
        "take an IdSource (kernel/ids.py) and ask it",
        owners=("kernel/ids.py",),
    ),
    Ban(
        ("os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv"),
        "take a Config (kernel/config.py)",
        owners=("kernel/config.py",),
    ),
    Ban(
        ("pickle.*", "marshal.*", "shelve.*", "dill.*", "cloudpickle.*", "yaml.load", "yaml.unsafe_load"),
        "decode with kernel.codec (typed, runs no code)",
        scope=EVERYWHERE,
    ),
    Ban(("eval", "exec"), "no code from data: a table of functions, or getattr on a known module", scope=EVERYWHERE),
    Ban(
        ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
        "subprocess.run with a list of arguments",
        scope=EVERYWHERE,
    ),
    Ban(("print",), "the kernel speaks through events and its return values", scope=("kernel/", "fanout/")),
    Ban(
        tuple(
            f"redis.{name}"
            for name in (
                "Redis", "StrictRedis", "RedisCluster", "Sentinel", "ConnectionPool", "BlockingConnectionPool",
                "Connection", "UnixDomainSocketConnection", "from_url", "Redis.from_url", "RedisCluster.from_url",
                "ConnectionPool.from_url", "asyncio.*", "cluster.*", "sentinel.*", "connection.*", "client.*",
            )
        ),
        "take the connection as an argument: clients without retries are made in one place, after the fork",
        owners=("kernel/coordination/endpoint.py",),
        called=True,
    ),
    Ban(
        ("pymongo.*",),
        "take the collection or the store as an argument",
        owners=("kernel/store/mongo",),
        called=True,
    ),
)  # fmt: skip


class Reference(NamedTuple):
    """A name as the reader knows it: `sleep` after `from time import sleep` is `time.sleep`."""

    node: ast.AST
    name: str
    called: bool


def references(source: Source) -> Iterator[Reference]:
    """Every use of an imported or built-in name, in full; `from x import y` counts where it stands."""
    aliases = _aliases(source)
    called = {id(node.func) for node in source.nodes if isinstance(node, ast.Call)}
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield Reference(node, f"{node.module}.{alias.name}", called=False)
        elif isinstance(node, ast.Attribute | ast.Name):
            name = _dotted(node, aliases)
            if name:
                yield Reference(node, name, id(node) in called)


def _aliases(source: Source) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        if node.id in aliases:
            return aliases[node.id]
        return node.id if node.id in {"eval", "exec", "print"} else None
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value, aliases)
        return f"{inner}.{node.attr}" if inner else None
    return None


def banned_calls(checkout: Checkout) -> Iterator[Finding]:
    """A banned name is used by its owners only."""
    for source in checkout.sources:
        bans = [ban for ban in BANS if source.path.startswith(ban.scope) and not source.path.startswith(ban.owners)]
        seen: set[tuple[int, str]] = set()
        for reference in references(source):
            for ban in bans:
                if not _matches(reference, ban):
                    continue
                where = (getattr(reference.node, "lineno", 1), reference.name)
                if where not in seen:
                    seen.add(where)
                    yield source.finding(reference.node, f"{reference.name} is used here", _whose(ban))


def _matches(reference: Reference, ban: Ban) -> bool:
    if ban.called and not reference.called:
        return False
    return any(
        reference.name.startswith(name[:-1]) if name.endswith(".*") else reference.name == name for name in ban.names
    )


def _whose(ban: Ban) -> str:
    return f"{ban.remedy} (only in {', '.join(ban.owners)})" if ban.owners else ban.remedy


def shells(checkout: Checkout) -> Iterator[Finding]:
    """No command line goes through a shell."""
    for source in checkout.sources:
        for node in source.nodes:
            if isinstance(node, ast.keyword) and node.arg == "shell" and not _is_false(node.value):
                yield source.finding(node, "shell= is set", "give the arguments as a list and leave shell out")


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
