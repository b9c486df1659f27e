"""A process whose threads call one resource, for test_permit_concurrency: `python -m … SOCKET THREADS CALLS LIMIT`.

Between grant and release each call counts itself with INCR and DECR, which know nothing of permits. Prints the most
calls that were ever counted at once, and how many there were.
"""

from __future__ import annotations

import os
import sys
import threading

from kernel.clock import SystemClock
from kernel.config import Limit
from kernel.coordination import Granted, Keys, Owner, Permits, RedisEndpoint, ScriptRunner
from tests.support.redis_servers import NAMESPACE

COUNTER = "independent"


def main() -> None:
    socket, threads, calls, at_once = sys.argv[1], *map(int, sys.argv[2:5])
    runner = ScriptRunner(RedisEndpoint(path=socket).connection, SystemClock(), call_timeout_s=30)
    permits = Permits(runner, Keys(NAMESPACE), lease_ms=60_000, wait_ms=1_000)
    limit = Limit(max_concurrency=at_once)
    seen: list[int] = []

    def work(name: int) -> None:
        done = 0
        while done < calls:
            owner = Owner(f"wf-{os.getpid()}-{name}", "print", "token")
            if isinstance(permits.acquire("printer", owner, limit, lane=name % 4, request=done), Granted):
                seen.append(runner.command("INCR", COUNTER))
                runner.command("DECR", COUNTER)
                permits.release("printer", [owner], limit)
                done += 1

    print("ready", flush=True)
    sys.stdin.readline()
    working = [threading.Thread(target=work, args=(name,)) for name in range(threads)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    runner.close()
    print(max(seen), len(seen), flush=True)


if __name__ == "__main__":
    main()
