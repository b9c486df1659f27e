"""A worker dies exactly before or after a call to the places: cells 22 to 25 of the crash matrix.

The lease of claims is long: what goes on does so because the death was proved. A place whose owner is in no row,
because its worker died between the grant and the claim that it was for, is free when its own lease ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernel.ids import workflow_id_for
from tests.faults import permit_app as apps
from tests.faults.arms import Arm
from tests.faults.downstream import downstream, most_at_once
from tests.faults.invariants import findings, orphans
from tests.faults.permit_app import AT_ONCE
from tests.faults.permit_roles import PROGRAM
from tests.faults.rig import tree
from tests.faults.test_permit_limits import PERMIT_LEASE_S, Site
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("crashes") / "data"
    app = "tests.faults.permit_app:app"
    with (
        downstream(folder) as service,
        tree(folder, PROGRAM, app=app, workers=2, lease_s=30, permit_lease_s=PERMIT_LEASE_S) as running,
    ):
        yield Site(running, service)


@pytest.mark.parametrize(
    ("call", "point"),
    [
        pytest.param("acquire", "before", marks=pytest.mark.crash("22", "before")),
        pytest.param("acquire", "lost", marks=pytest.mark.crash("22", "lost")),
        pytest.param("acquire", "after", marks=pytest.mark.crash("22", "after")),
        pytest.param("begin_step", "before", marks=[pytest.mark.crash("22"), pytest.mark.case("A18")]),
        pytest.param("defer_for_permit", "before", marks=pytest.mark.crash("23", "before")),
        pytest.param("defer_for_permit", "lost", marks=pytest.mark.crash("23", "lost")),
        pytest.param("defer_for_permit", "after", marks=pytest.mark.crash("23", "after")),
        pytest.param("deferred", "before", marks=pytest.mark.crash("23", "before")),
        pytest.param("claim_handed_over", "before", marks=pytest.mark.crash("23", "before")),
        pytest.param("claim_handed_over", "lost", marks=pytest.mark.crash("23", "lost")),
        pytest.param("claim_handed_over", "after", marks=pytest.mark.crash("23", "after")),
        pytest.param("free", "before", marks=pytest.mark.crash("25", "before")),
        pytest.param("free", "lost", marks=pytest.mark.crash("25", "lost")),
        pytest.param("free", "after", marks=pytest.mark.crash("25", "after")),
    ],
)
@pytest.mark.req("prm-expiry", "prm-new-claim-new-owner", "prm-refused", "s11")
def test_hurt_at_a_call_the_work_goes_on_and_no_place_is_lost(site: Site, call: str, point: str) -> None:
    """The sacrificed workflow is one of many that compete for the places. Each ends with one call or, where its worker
    died behind the call, two; then all places are free, and as many calls as the limit allows run again."""
    name = f"{call}-{point}"
    site.tree.wait_running()
    victim = f"{name}:9"
    site.tree.arms.arm(name, Arm(call=call, point=point, workflow_id=workflow_id_for(victim)))  # type: ignore[arg-type]
    site.gated().unlink(missing_ok=True)
    blockers = site.start_many(apps.LIMITED, f"{name}:blocker", AT_ONCE, gated=True)
    wait_until(lambda: len(site.service.running()) == AT_ONCE, "every place is in use")
    ids = [*blockers, *site.start_many(apps.LIMITED, name, 12, hold_s=0.05)]
    sacrificed = workflow_id_for(victim)
    wait_until(lambda: site.tree.arms.fired(name) or site.step(sacrificed).traffic_wait_count, "the victim was refused")

    site.gated().touch()
    site.tree.finish(*ids)
    wait_until(lambda: bool(site.tree.arms.fired(name)), "the arm was met")
    wait_until(lambda: site.resource("limited")["in_flight"] == 0, "every place is free")
    wait_until(lambda: not orphans(site.tree.rows()), "no claim is left")

    assert most_at_once(site.service.calls()) <= AT_ONCE
    attempts = {key: site.step(key).attempt for key in ids}
    assert set(attempts.values()) <= {1, 2}
    made = [made for made in site.service.calls() if made.workflow_id == sacrificed]
    assert len(made) <= attempts[sacrificed]
    rows = [site.tree.row(key) for key in ids]
    assert (
        findings(rows, [e for e in site.tree.effects.all() if e.workflow_id in ids], [r["biz_key"] for r in rows]) == []
    )


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("before", marks=pytest.mark.crash("24", "before")),
        pytest.param("lost", marks=pytest.mark.crash("24", "lost")),
        pytest.param("after", marks=pytest.mark.crash("24", "after")),
    ],
)
@pytest.mark.req("prm-lease", "prm-renew-script")
def test_hurt_at_a_renewal(tmp_path_factory: pytest.TempPathFactory, point: str) -> None:
    """An answer that is lost costs nothing: the next renewal is soon. A worker that dies there frees its places."""
    folder = tmp_path_factory.mktemp("renewal") / "data"
    app = "tests.faults.permit_app:app"
    with (
        downstream(folder) as service,
        tree(folder, PROGRAM, app=app, workers=2, lease_s=30, permit_lease_s=PERMIT_LEASE_S) as running,
    ):
        site = Site(running, service)
        running.arms.arm("renewal", Arm(call="permit_renew", point=point))  # type: ignore[arg-type]
        ids = site.start_many(apps.LIMITED, "renewed", 2 * AT_ONCE, gated=True)
        wait_until(lambda: bool(running.arms.fired("renewal")), "a renewal is hurt")
        wait_until(lambda: len(service.running()) == AT_ONCE, "every place is in use")
        site.gated().touch()
        running.finish(*ids)

        assert most_at_once(service.calls()) <= AT_ONCE
        assert {site.step(key).attempt for key in ids} <= {1, 2}
        wait_until(lambda: site.resource("limited")["in_flight"] == 0, "every place is free")
