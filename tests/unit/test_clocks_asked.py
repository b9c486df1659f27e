"""Whose clock decides (A89, A90): leases, due times, waits and permit windows are judged by the store's or by Redis',
never by that of the machine a worker or dispatcher runs on. So nothing between them may ask what time it is there.

That the store's clock is right although the host's is an hour off is in conformance/test_mongo_store; here every module
that decides is looked at, since one that asks the host is right on every machine whose clock happens to be.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECIDES = ("kernel/engine", "kernel/transitions", "kernel/coordination", "kernel/runtime", "fanout", "lua")
ALONE = ("client", "requests", "signals", "intents", "dispatch", "limits", "business_objects", "streams", "progress")
TELLS = {
    "kernel/runtime/examining.py": "the doctor compares both clocks, and says how far they are apart",
}
"""Modules that may know the host's wall clock, and why that decides nothing."""
HOST = {"wall_ms", "time", "time_ns", "now", "utcnow", "today", "fromtimestamp", "localtime", "gmtime", "ctime"}


def asked(text: str) -> set[str]:
    """The calls in `text` that ask the host for the time of day; `monotonic` and `boot_ms` are no time of day."""
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {call.attr for call in calls if isinstance(call, ast.Attribute) and call.attr in HOST}


@pytest.mark.parametrize("text", ["self._clock.wall_ms()", "time.time()", "datetime.now(UTC)", "date.today()"])
def test_each_way_to_ask_is_seen(text: str) -> None:
    assert asked(text)
    assert not asked("self._store.now_ms(); clock.boot_ms(); time.monotonic()")


@pytest.mark.case("A89", "A90")
@pytest.mark.req("slp-clock")
def test_no_module_that_decides_asks_the_host_what_time_it_is() -> None:
    paths = [path for folder in DECIDES for path in sorted((ROOT / folder).rglob("*.py"))]
    paths += [ROOT / "kernel" / f"{name}.py" for name in ALONE]
    found = {str(path.relative_to(ROOT)): asked(path.read_text(encoding="utf-8")) for path in paths}

    assert len(found) > 60
    assert {path for path, names in found.items() if names} == set(TELLS)
