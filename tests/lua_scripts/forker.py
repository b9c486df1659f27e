"""A process that forks with an open client and says how both sides fare: `python -m tests.lua_scripts.forker`.

Arguments: `runner` or `listener`, and the socket of the server. It is a program because the tests' own process has
threads, and a process that forks must have one. It says a word before the fork, the child's exit status after it, and
a last word once the parent has used the client again, each after a line of input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable

from kernel.clock import SystemClock
from kernel.coordination import Keys, Lanes, RedisEndpoint, ScriptRunner, WakeupListener
from kernel.errors import WrongProcess
from tests.support.redis_servers import NAMESPACE

REFUSED = 42
"""The exit status of a child to whom the client raised WrongProcess."""


def in_child(use: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            use()
        except WrongProcess:
            outcome = REFUSED
        finally:
            os._exit(outcome)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def say(word: object) -> None:
    print(json.dumps(word), flush=True)
    sys.stdin.readline()


def client(what: str, endpoint: RedisEndpoint) -> Callable[[], object]:
    """A client that is in use, or ready for it; calling the answer uses it."""
    keys = Keys(NAMESPACE)
    if what == "runner":
        lanes = Lanes(ScriptRunner(endpoint.connection, SystemClock(), call_timeout_s=10), keys)
        lanes.pop(1)
        return lambda: lanes.pop(1)
    stop = threading.Event()
    stop.set()
    channel = keys.wakeup_channel
    listener = WakeupListener(endpoint.connection, channel, lambda due_ms: None, SystemClock(), lambda: 0.5)
    return lambda: listener.run(stop)


def main() -> None:
    use = client(sys.argv[1], RedisEndpoint(path=sys.argv[2]))
    say("ready")
    say(in_child(use))
    use()
    say("served")


if __name__ == "__main__":
    main()
