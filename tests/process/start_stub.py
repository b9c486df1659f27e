"""`python -m tests.process.start_stub SETTINGS PROGRAM`: what `kernel-supervisor start` does, with other roles.

SETTINGS is a JSON object of flags; the environment counts as it does for the real command. What ends last has longer
than the 1.5 s of a real tree: a companion that stands still meanwhile on a busy machine would be killed, and the tree
end with status 1.
"""

from __future__ import annotations

import json
import sys

import msgspec

from kernel.config import load
from supervisor import shutdown
from supervisor.boot import Program, boot
from supervisor.os_signals import SignalPipe


def main() -> int:
    signals = SignalPipe()
    shutdown.REST_LIMIT_MS = 20_000
    program = msgspec.json.decode(sys.argv[2], type=Program)
    return boot(load(json.loads(sys.argv[1])).config, signals, program)


if __name__ == "__main__":
    sys.exit(main())
