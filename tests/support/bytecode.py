"""Pytest plugin, and for programs of their own: what one has compiled, the next one finds compiled.

The tests start programs by the hundred. Where PYTHONDONTWRITEBYTECODE is set, as in many containers, each of them
would compile the whole project anew, for longer than everything else that its start takes.
"""

from __future__ import annotations

import os


def keep() -> None:
    """For the programs that this one starts."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure() -> None:
    keep()
