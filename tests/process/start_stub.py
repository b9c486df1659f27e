"""`python -m tests.process.start_stub SETTINGS PROGRAM`: what `kernel-supervisor start` does, with other roles.

SETTINGS is a JSON object of flags; the environment counts as it does for the real command.
"""

from __future__ import annotations

import json
import sys

import msgspec

from kernel.config import load
from supervisor.boot import Program, boot
from supervisor.os_signals import SignalPipe


def main() -> int:
    signals = SignalPipe()
    program = msgspec.json.decode(sys.argv[2], type=Program)
    return boot(load(json.loads(sys.argv[1])).config, signals, program)


if __name__ == "__main__":
    sys.exit(main())
