"""Limits as the downstream sees them, by its own clock, while workers die and stand still and Redis is emptied (S11).

What it counted: calls in flight at any moment, and beginnings within some seconds. Between the start that Redis counted
and the moment at which the service reads the call lies the way there, which may take as long as it likes. Whoever is on
it holds a place: so many beginnings may be seen later than they were, and no more.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from kernel import Definition
from tests.faults import permit_app as apps
from tests.faults.downstream import Downstream, downstream, most_at_once, too_many_starts
from tests.faults.effects import boot_ms
from tests.faults.invariants import findings, orphans
from tests.faults.pausing import paused
from tests.faults.permit_app import AT_ONCE, STARTS, Call
from tests.faults.rig import LIMIT_S, Tree, kill, tree, wait_for
from tests.process.test_cli import command
from tests.support.wait import stays, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.req("dc-tests-fault")]

WINDOWS_S = range(1, 8)
PERMIT_LEASE_S = 6.0
"""Renewed at a third of it, so that a busy machine does not take a place away by itself."""


class Site:
    """A tree, and the service that its workers call."""

    def __init__(self, tree: Tree, service: Downstream) -> None:
        self.tree = tree
        self.service = service

    def start_many(self, definition: Definition, prefix: str, count: int, **fields: Any) -> list[str]:
        requests = [(f"{prefix}:{number}", Call(**fields)) for number in range(count)]
        return [handle.workflow_id for handle in self.tree.client.start_many(definition.plan, requests)]

    def step(self, workflow_id: str) -> Any:
        return self.tree.instance(workflow_id).steps[0]

    def set_limit(self, *words: str) -> None:
        done = command("limits", *words, "--data-dir", str(self.tree.folder))
        assert done.returncode == 0, done.stderr

    def resource(self, name: str) -> dict[str, Any]:
        shown = command("limits", "list", name, "--json", "--data-dir", str(self.tree.folder))
        (row,) = json.loads(shown.stdout)["resources"]
        return dict(row)

    def counter(self, name: str) -> int:
        return sum(child["counters"][name] for child in self.tree.children() if child.get("counters"))

    def gated(self) -> Path:
        return self.tree.folder / apps.GATE


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "data"
    # Whom a kill hits is chance here: the same workflow three times would be parked, and that is another promise.
    fields = {"app": "tests.faults.permit_app:app", "workers": 3, "slots": 8, "deaths_max": 0}
    with (
        downstream(folder) as service,
        tree(folder, lease_s=30.0, permit_lease_s=PERMIT_LEASE_S, **fields) as running,
    ):
        yield Site(running, service)
        wait_until(lambda: not orphans(running.rows()), "no claim is left")
        rows = running.rows()
        assert findings(rows, running.effects.all(), [row["biz_key"] for row in rows]) == []


@pytest.mark.req("s11", "prm-two-limits", "prm-global", "prm-vs-max-workers", "prm-window", "flt-slow-downstream")
def test_workers_are_killed_and_no_limit_is_passed(site: Site) -> None:
    """Kill -9 again and again: what a dead worker held is free once its death is proved, and no sooner."""
    ids = site.start_many(apps.BOTH, "killed", 80, hold_s=0.1)
    choose = random.Random(11)
    kills = 0
    while not site.tree.ended(ids):
        running = site.service.running()
        if running and kills < 12:
            kill(choose.choice(running).pid)
            kills += 1
        wait_for(boot_ms() + choose.randrange(100, 500))
    site.tree.finish(*ids)

    calls = site.service.calls()
    assert kills >= 5
    assert len(calls) >= 80
    assert most_at_once(calls) <= AT_ONCE
    assert too_many_starts(calls, STARTS, AT_ONCE) is None
    assert any(site.step(key).traffic_wait_ms > 0 for key in ids)


@pytest.mark.req("prm-release", "prm-expiry")
def test_the_places_of_a_killed_worker_are_free_at_once(site: Site) -> None:
    """By the proof of its death: with a lease of an hour for places, the next calls begin within seconds."""
    folder = site.tree.folder.parent / "hour"
    with (
        downstream(folder) as service,
        tree(folder, app="tests.faults.permit_app:app", workers=2, permit_lease_s=3600, lease_s=30) as running,
    ):
        other = Site(running, service)
        ids = other.start_many(apps.LIMITED, "held", 2 * AT_ONCE, gated=True)
        wait_until(lambda: len(service.running()) == AT_ONCE, "every place is in use")
        victims = {call.pid for call in service.running()}
        kill(*victims)
        wait_until(lambda: len([c for c in service.running() if c.pid not in victims]) == AT_ONCE, "others have begun")
        assert most_at_once(service.calls()) == AT_ONCE
        other.gated().touch()
        running.finish(*ids)


@pytest.mark.crash("24")
@pytest.mark.req("s11", "prm-lost-during-run", "obs-claims-visible", "prm-expiry")
def test_a_worker_stands_still_past_its_lease(site: Site) -> None:
    """Its calls go on and are no longer counted: beside them there are never more than the limit, and at most its slots
    of them. It says what it lost, and cuts no call."""
    ids = site.start_many(apps.LIMITED, "paused", 3 * AT_ONCE, gated=True)
    wait_until(lambda: len(site.service.running()) == AT_ONCE, "every place is in use")
    pid = site.service.running()[0].pid
    its = [call.workflow_id for call in site.service.running() if call.pid == pid]

    with paused(site.tree, [pid]):
        wait_until(
            lambda: len([c for c in site.service.running() if c.pid != pid]) == AT_ONCE, "its places went to others"
        )
    wait_until(lambda: site.counter("permit_lost") >= len(its), "it says that it lost its places")
    stays(lambda: len([c for c in site.service.running() if c.pid == pid]) >= len(its), "its calls go on", 0.5)
    site.gated().touch()
    site.tree.finish(*ids)

    others = [call for call in site.service.calls() if call.pid != pid]
    assert most_at_once(others) <= AT_ONCE
    assert most_at_once(site.service.calls()) <= AT_ONCE + site.tree.config.slots
    wait_until(lambda: len(site.tree.log("permit.lost")) >= len(its), "the log tells of each place that was lost")


@pytest.mark.bound("L10")
@pytest.mark.req("l10", "flt-redis-flush", "prm-lost-during-run")
def test_redis_is_emptied_under_running_calls(site: Site) -> None:
    """DECISIONS 9: at most the limit once more, until every owner has renewed; no call is cut and nobody waits long."""
    ids = site.start_many(apps.LIMITED, "wiped", 4 * AT_ONCE, gated=True)
    wait_until(lambda: len(site.service.running()) == AT_ONCE, "every place is in use")
    flush(site)
    wait_until(lambda: site.counter("permit_restored") >= AT_ONCE, "every owner has renewed")
    wait_until(lambda: site.resource("limited")["in_flight"] == len(site.service.running()), "nobody is on the way")
    after_ms = boot_ms()
    stays(lambda: all(call.start_ms <= after_ms for call in site.service.calls()), "nobody else begins", 1.0)
    most = most_at_once(site.service.calls())
    site.gated().touch()
    site.tree.finish(*ids)

    assert most <= 2 * AT_ONCE
    wait_until(lambda: site.resource("limited")["in_flight"] == 0, "every place is free")
    assert {site.step(key).attempt for key in ids} == {1}


@pytest.mark.bound("L10")
@pytest.mark.req("l10", "flt-redis-flush", "prm-no-retry-burn")
def test_redis_is_emptied_again_and_again_under_load(site: Site) -> None:
    """At most the limit once more for each time: who began before the last one has ended when the next one comes."""
    ids = site.start_many(apps.LIMITED, "flushed", 150, hold_s=0.05)
    choose, flushed_ms = random.Random(26), 0
    while not site.tree.ended(ids):
        if all(call.start_ms > flushed_ms for call in site.service.running()):
            flush(site)
            flushed_ms = boot_ms()
        wait_for(boot_ms() + choose.randrange(200, 900))
    site.tree.finish(*ids)

    assert most_at_once(site.service.calls()) <= 2 * AT_ONCE
    assert {site.step(key).attempt for key in ids} == {1}


def flush(site: Site) -> None:
    """FLUSHALL, by somebody else."""
    client = redis.Redis.from_url(site.tree.session.redis_url)
    client.flushall()
    client.close()


@pytest.mark.req("prm-fail-closed", "prm-fail-closed-unlimited", "core-declared-checks-only")
def test_redis_stands_still(site: Site) -> None:
    """Limited steps wait, said once; steps without a limit go on from the store; afterwards all is done."""
    (server,) = site.tree.children("valkey")
    os.kill(server["pid"], signal.SIGSTOP)
    try:
        limited = site.start_many(apps.LIMITED, "closed", 6)
        free = site.start_many(apps.FREE, "open", 6)
        plain = site.start_many(apps.PLAIN, "plain", 6)
        site.tree.finish(*free, *plain)
        wait_until(lambda: all(site.step(key).traffic_wait_count >= 2 for key in limited), "they ask again")
        rows = [site.tree.instance(key) for key in limited]
        assert site.service.calls("limited") == []
        assert {(row.status, row.steps[0].status, row.steps[0].attempt) for row in rows} == {("running", "pending", 0)}
        wait_until(lambda: site.tree.log("permit.unavailable"), "the log tells that no places are to be had")
    finally:
        os.kill(server["pid"], signal.SIGCONT)
    site.tree.finish(*limited)

    assert {site.step(key).attempt for key in limited} == {1}
    assert most_at_once(site.service.calls("limited")) <= AT_ONCE


@pytest.mark.req("prm-control-point", "prm-lower", "prm-raise", "prm-pause", "prm-config-each", "flt-slow-downstream")
def test_an_operator_slows_a_downstream_and_lets_it_go_on(site: Site) -> None:
    """8 → 1 → paused → 8 by the command line, under load: no restart, no call cut, no failure."""
    site.set_limit("set", "limited", "--max-concurrency", "8")
    ids = site.start_many(apps.LIMITED, "slowed", 300, hold_s=0.25)
    wait_until(lambda: len(site.service.running()) == 8, "8 in flight")

    site.set_limit("set", "limited", "--max-concurrency", "1")
    # Who got a place before may still be on its way to the service.
    wait_until(lambda: site.resource("limited")["in_flight"] <= 1 and len(site.service.running()) <= 1, "one in flight")
    lowered_ms = boot_ms()
    stays(lambda: len(site.service.running()) <= 1, "one in flight", 1.5, 0.01)
    wait_until(lambda: any(c.start_ms > lowered_ms for c in site.service.calls()), "it goes on, slowly")
    assert site.resource("limited")["waiting"] > 0

    site.set_limit("pause", "limited")
    wait_until(lambda: site.resource("limited")["in_flight"] == 0 and not site.service.running(), "none in flight")
    wait_for(boot_ms() + 1_100)  # what binds within a second binds now
    before = len(site.service.calls())
    stays(lambda: len(site.service.calls()) == before, "nobody begins", 1.0)

    site.set_limit("resume", "limited")
    site.set_limit("set", "limited", "--max-concurrency", "8")
    resumed_ms = boot_ms()
    site.tree.finish(*ids)

    raised = [call for call in site.service.calls() if call.start_ms > resumed_ms]
    assert most_at_once(raised) > 1
    assert most_at_once(site.service.calls()) <= 8
    steps = [site.step(key) for key in ids]
    assert {(step.attempt, step.failures) for step in steps} == {(1, 0)}
    assert max(step.traffic_wait_ms for step in steps) >= 2_500
    assert min(step.elapsed_ms for step in steps) >= 250


@pytest.mark.req("prm-tenant", "prm-tenant-fair")
def test_a_tenant_fills_its_own_places_only(site: Site) -> None:
    many = site.start_many(apps.TENANT, "many", 100, tenant="many", gated=True)
    wait_until(lambda: len(site.service.running()) == 2, "two of them run")
    one = site.start_many(apps.TENANT, "one", 1, tenant="one", gated=True)

    wait_until(lambda: one[0] in [call.workflow_id for call in site.service.running()], "the other tenant runs")

    def claimed() -> int:
        return sum("claim_token" in row and row["workflow_id"] in many for row in site.tree.rows())

    wait_until(lambda: claimed() <= 2 + 1, "two are claimed, and one that is being told to wait at most")
    site.gated().touch()
    site.tree.finish(*many, *one)

    assert most_at_once([call for call in site.service.calls() if call.workflow_id in many]) == 2


@pytest.mark.req("slp-frees", "asr-permit-poll", "prm-release")
def test_polls_take_permits_and_sleepers_hold_none(site: Site) -> None:
    ids = site.start_many(apps.POLLED, "polled", 30, nap_s=12.0)
    wait_until(lambda: all(site.tree.row(key)["status"] == "waiting" for key in ids), "all sleep at once", LIMIT_S)
    wait_until(lambda: site.resource("job")["in_flight"] == 0, "no place is held")
    assert len(site.service.calls("job")) == 30, "and none of them has woken up"
    site.tree.finish(*ids)

    calls = site.service.calls("job")
    assert len(calls) == 60, "submit and poll are a call each"
    assert most_at_once(calls) <= AT_ONCE
    assert psutil.pid_exists(site.tree.session.pid)
