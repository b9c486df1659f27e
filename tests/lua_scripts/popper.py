"""A process that pops single ids from the lanes of the tests and prints them: `python -m tests.lua_scripts.popper`.

Arguments: the socket of the server and how many pops. It says `ready`, waits for a line, then works.
"""

from __future__ import annotations

import sys

from kernel.clock import SystemClock
from kernel.coordination import Keys, Lanes, RedisEndpoint, ScriptRunner
from tests.support.redis_servers import NAMESPACE


def main() -> None:
    socket, pops = sys.argv[1], int(sys.argv[2])
    runner = ScriptRunner(RedisEndpoint(path=socket).connection, SystemClock(), call_timeout_s=10)
    lanes = Lanes(runner, Keys(NAMESPACE))
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(pops):
        for entry in lanes.pop(1).entries:
            print(entry.workflow_id)
    runner.close()


if __name__ == "__main__":
    main()
