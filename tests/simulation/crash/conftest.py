"""`pytest -m crash tests/simulation` ends with the list of what was played."""

from __future__ import annotations

import pytest

from tests.simulation.crash.cells import listing


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if "crash" in str(config.getoption("markexpr")):
        terminalreporter.section("crash matrix in simulation")
        for line in listing():
            terminalreporter.write_line(line)
