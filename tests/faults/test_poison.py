"""A step that ends its process, whoever enters it: after three deaths it is put aside, and nobody else suffers.

The lease of the shared tree is 30 s: all of this happens by proof of death.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel import Definition, Parked
from tests.faults import apps
from tests.faults.invariants import findings, orphans
from tests.faults.rig import LIMIT_S, PROMPT_MS, Tree, is_alive, tree
from tests.support.wait import stays, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault"), pytest.mark.case("A21")]

OTHERS = 30


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with tree(tmp_path_factory.mktemp("poisoned") / "data", lease_s=30.0) as running:
        yield running


def deaths(poisoned: Tree) -> list[str]:
    return [line["msg"] for line in poisoned.log("child.exited") if line["x"]["cause"] == "death"]


@pytest.mark.bound("L11")
def test_parked_after_three_deaths_beside_thirty_others_and_brought_back(poisoned: Tree) -> None:
    others = poisoned.start_many(apps.TEN, "other", OTHERS, hold_s=0.03)
    poison = poisoned.start(apps.POISON, "poison", 1)
    supervisor = poisoned.family()[0]

    wait_until(lambda: poisoned.instance(poison).parked, "it is parked", LIMIT_S)
    poisoned.finish(*others)

    row = poisoned.instance(poison)
    assert row.parked is not None and "3 workers died in step b" in row.parked.reason
    assert (row.status, row.claim_token, row.claimable_time, row.deaths) == ("running", None, None, 3)
    assert poisoned.effects.counts(poison) == {"a": 1, "b": 3}
    third = poisoned.effects.of(poison, "b")[2]
    assert row.parked.since_time - third.wall_ms <= PROMPT_MS, "the lease was not waited for"
    assert len({effect.pid for effect in poisoned.effects.of(poison, "b")}) == 3
    wait_until(lambda: len(deaths(poisoned)) >= 3, "all is logged")
    assert len(deaths(poisoned)) == 3
    assert [poisoned.output(key) for key in others] == [number + 9 for number in range(OTHERS)]
    extra = sum(len(poisoned.effects.of(key)) for key in others) - 10 * OTHERS
    assert extra <= 2 * (poisoned.config.slots - 1), "the third death met nobody: a suspect runs alone"
    assert is_alive(supervisor)
    poisoned.wait_running()
    with pytest.raises(Parked, match="3 workers died"):
        poisoned.output(poison)
    stays(lambda: poisoned.instance(poison) == row, "it is left alone", seconds=1.2 * poisoned.config.scan_s)

    poisoned.cure()
    assert poisoned.client.unpark(poison)
    poisoned.finish(poison)
    assert poisoned.output(poison) == 3
    assert poisoned.effects.counts(poison) == {"a": 1, "b": 4, "c": 1}
    (poisoned.folder / apps.CURED).unlink()


@pytest.mark.req("fin-failing-first")
def test_where_its_definition_says_so_it_fails(poisoned: Tree) -> None:
    poisoned.wait_running()
    workflow_id = poisoned.start(apps.POISON_FAILS, "fails", 1)

    wait_until(lambda: poisoned.ended([workflow_id]), "the end", LIMIT_S)

    row = poisoned.instance(workflow_id)
    assert (row.status, row.parked) == ("failed", None)
    assert row.error is not None
    assert (row.error.code, "3 workers died in step b" in row.error.message) == ("parked", True)
    assert poisoned.effects.counts(workflow_id) == {"a": 1, "b": 3}


@pytest.mark.req("dc-restart-child")
@pytest.mark.parametrize("definition", [apps.POISON, apps.POISON_PREPARE], ids=lambda definition: definition.type)
def test_much_poison_in_a_young_tree_does_not_end_it(tmp_path: Path, definition: Definition) -> None:
    """One worker, not proved by anything, dies again and again of the first thing that it does, be it a step or the
    `prepare` before all steps: it has started well each time, and the tree is there for whatever comes next."""
    with tree(tmp_path / "data", workers=1, lease_s=30.0) as young:
        poison = young.start_many(definition, "much", 4)
        wait_until(lambda: young.ended(poison), "all are put aside", LIMIT_S)

        # A death counts for all that were held then: two together, the third each alone.
        assert all(young.instance(key).deaths == 3 and young.effects.counts(key).get("b", 0) <= 3 for key in poison)
        wait_until(lambda: len(deaths(young)) > young.config.restart_give_up, "all is logged")
        assert len(deaths(young)) <= 3 * len(poison)
        young.wait_running()
        others = young.start_many(apps.STEADY, "afterwards", 4)
        young.finish(*others)
        wait_until(lambda: not orphans(young.rows()), "no claim is left")
        assert findings(young.rows(), young.effects.all(), [f"much:{number}" for number in range(4)]) == []
