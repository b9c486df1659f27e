"""A program without the rights by which root passes over the modes of files: what is read-only is so for it as well."""

from __future__ import annotations

import sys

_LAUNCHER = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: gone with the exec, where there were any
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", *sys.argv[1:]])
"""


def rightless(module: str, *arguments: str) -> list[str]:
    """The command that runs `python -m module` so. It keeps its user: what belongs to that user stays in reach."""
    return [sys.executable, "-c", _LAUNCHER, module, *arguments]
