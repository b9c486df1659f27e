"""Programs that a test starts and talks to, line by line in JSON; they end with the test, however it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]


class Program:
    """`python -m MODULE ARGUMENTS…` in a fresh interpreter: no fork of a process that has threads."""

    def __init__(self, module: str, *arguments: str, pass_fds: Sequence[int] = ()) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=tuple(pass_fds),
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, value: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        """The next line that the program said. Fails if it ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.process.args!r} ended without a word (exit {self.process.wait()})"
        return json.loads(line)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def finish(self) -> int:
        """Close its input and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=60)

    def rest(self) -> list[Any]:
        """What a program that ended had still said; a last line that was cut off is left out."""
        assert self.process.stdout is not None
        lines = self.process.stdout.read().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # what was not sent is of no interest to a program that is gone
