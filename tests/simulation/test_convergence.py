"""After a minute of faults the ledger is what the Definitions say, whatever has happened (RELIABILITY §6.5)."""

from __future__ import annotations

import msgspec
import pytest

from kernel.definition import Step
from kernel.engine import outcomes
from kernel.records import StepRecord
from tests.simulation.convergence import differences

WORLDS, DEFINITIONS, INSTANCES = 40, 5, 50
"""200 random Definitions and 2,000 instances in all. Small worlds: a scan of the memory store reads all rows."""


@pytest.mark.req("flt-random", "core-inv-reach")
@pytest.mark.parametrize("seed", range(1, WORLDS + 1))
def test_the_ledger_is_what_the_definitions_say(seed: int) -> None:
    print(f"seed {seed}")
    assert differences(seed, DEFINITIONS, INSTANCES) == []


def test_a_retry_budget_that_deaths_eat_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = outcomes._error

    def planted(step: Step, record: StepRecord, error: BaseException, fraction: float) -> outcomes.Decision:
        return budget(step, msgspec.structs.replace(record, failures=max(0, record.attempt - 1)), error, fraction)

    monkeypatch.setattr(outcomes, "_error", planted)
    assert any(differences(seed, 2, 20) for seed in range(1, WORLDS + 1))
