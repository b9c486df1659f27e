"""`bench workflows` as a user runs it: in a folder of its own, with what it says, writes and leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 170
"""For one run, on a machine that does much beside it."""
BENCH = (sys.executable, "-m", "supervisor", "bench")


@dataclass(frozen=True)
class Run:
    """One run that has ended."""

    status: int
    stdout: str
    stderr: str
    report: dict[str, Any]
    left: list[str]
    """The names in its folder, but for the report."""

    @property
    def row(self) -> dict[str, Any]:
        (row,) = self.report["rows"]
        assert isinstance(row, dict)
        return row


def run_workflows(folder: Path, *options: str) -> Run:
    """Run it in `folder`, with `--json`. The tree it starts ends with it, even when this kills it: a lost lifeline."""
    file = folder / "report.json"
    ended = subprocess.run(
        [*BENCH, "workflows", "--json", file.name, *options],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    report = json.loads(file.read_text()) if file.is_file() else {}
    left = sorted(path.name for path in folder.iterdir() if path != file)
    return Run(ended.returncode, ended.stdout, ended.stderr, report, left)


def complaints(stderr: str) -> list[str]:
    """What a run says on stderr, but for this: the publisher of a busy machine ends before its observations are
    written, which costs them and nothing else (obs-no-affect)."""
    return [line for line in stderr.splitlines() if not line.startswith("observations ")]
