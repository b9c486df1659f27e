"""Metrics of a real tree, read over HTTP: exact through deaths, with all their names, and on the loopback alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from kernel import Client
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.observe.metric_names import METERS
from kernel.runtime import embedded_redis_url, open_client, open_objects
from supervisor.boot import Program
from tests.process.metered_flows import Job, metered, orders
from tests.process.scraper import Scraper
from tests.process.supervised import LIMIT_S, PATIENT_S, Supervised, program
from tests.support.wait import wait_until

REAL = Program()
APP = "tests.process.metered_flows:app"
PATIENCE = timedelta(seconds=LIMIT_S)


@pytest.fixture
def tree(supervise: Callable[..., Supervised]) -> Supervised:
    """One worker, one dispatcher, an embedded Redis."""
    tree = supervise(REAL, app=APP, metrics=0, redis_url=None, dispatch_scan_s=0.5, redis_budget_s=PATIENT_S)
    tree.wait_running()
    return tree


@pytest.fixture
def client(tree: Supervised, data_dir: Path) -> Iterator[Client]:
    config = Config(data_dir=str(data_dir), redis_budget_s=PATIENT_S)
    with open_client(config, data_dir, embedded_redis_url(data_dir)) as client:
        yield client


@pytest.mark.fault
@pytest.mark.req("obs-claims-visible")
def test_counts_are_exact_after_a_worker_was_killed(
    tree: Supervised, client: Client, data_dir: Path, tmp_path: Path
) -> None:
    """They are keyed by the slot: the successor counts on in its predecessor's files, and there are no more of them."""
    scraper = Scraper(tree)
    client.start_or_resume(metered.plan, biz_key="1", input=Job(1)).result(PATIENCE)
    scraper.wait_value("kernel_workflow_duration_seconds_count", 1)  # it is counted a moment after its commit
    gate = tmp_path / "gate"
    held = client.start_or_resume(metered.plan, biz_key="2", input=Job(2, str(gate)))
    wait_until(lambda: list(tmp_path.glob("gate.*")), "the activity runs", LIMIT_S)
    scraper.wait_value("kernel_claims_total", 3, outcome="claimed")  # by another thread than the activity's
    files = sorted(path.name for path in (data_dir / "metrics").iterdir())

    worker = tree.process_of("worker-0")
    worker.kill()
    tree.wait_replaced("worker-0", worker)
    gate.touch()
    held.result(PATIENCE)

    scraper.wait_value("kernel_workflow_duration_seconds_count", 2)
    scraper.wait_value("kernel_claims_total", 5, outcome="claimed")
    assert sorted(path.name for path in (data_dir / "metrics").iterdir()) == files
    assert scraper.value("kernel_workflows_started_total", type="metered") == 2
    assert scraper.value("kernel_workflows_finished_total", type="metered", status="completed") == 2
    assert scraper.value("kernel_workflow_duration_seconds_count", type="metered") == 2
    ends = {
        outcome: scraper.value("kernel_step_attempts_total", step="work", outcome=outcome)
        for outcome in ("completed", "lost", "failed")
    }
    assert ends == {"completed": 2, "lost": 1, "failed": 0}
    assert scraper.value("kernel_step_attempts_total", step="nap", outcome="suspended") == 2
    assert scraper.value("kernel_step_external_wait_seconds_count", step="nap") == 2
    assert scraper.value("kernel_takeovers_total") == 1
    assert scraper.value("kernel_permit_granted_total", resource="desk") == 3
    # Every claim that was taken is a write that hit, whichever of the two processes made it.
    claimed = sum(scraper.value("kernel_commit_seconds_count", op=op, outcome="hit") for op in CLAIMS)
    assert scraper.value("kernel_claims_total", outcome="claimed") == claimed == 5
    scraper.wait_value("kernel_process_restarts_total", 1, role="worker", cause="signal")


CLAIMS = ("claim", "claim_alone", "take_over", "claim_handed_over")


def test_every_name_is_there_and_no_other(tree: Supervised, client: Client) -> None:
    scraper = Scraper(tree)
    client.start_or_resume(metered.plan, biz_key="1", input=Job(1)).result(PATIENCE)
    kinds = {name: meter.kind for name, meter in METERS.items()}
    assert scraper.families() == kinds
    wait_until(lambda: scraper.value("kernel_workflows", status="completed") == 1, "snapshots are counted", LIMIT_S)
    wait_until(lambda: scraper.value("kernel_permit_limit", resource="desk") == 4, "limits are looked up", LIMIT_S)
    assert scraper.value("kernel_process_up", role="worker") == 1
    assert scraper.value("kernel_build_info") == 1
    assert scraper.value("kernel_store_up", store="truth") == scraper.value("kernel_store_up", store="redis") == 1
    assert scraper.value("kernel_lua_seconds_count", script="lane_pop") > 0
    assert scraper.value("kernel_lane_popped_total", lane="P1") >= 2


def test_accepted_work_is_counted_until_it_is_registered(tree: Supervised, data_dir: Path) -> None:
    """One intent can be registered; the other is of a type that nobody has, and stays."""
    scraper = Scraper(tree)
    (opened,) = open_objects(Config(), data_dir, (orders,), SystemClock()).values()
    with closing(opened):
        for object_id, type_ in (("known", metered.type), ("unknown", "nobodys")):
            opened.accept(object_id, type_=type_, biz_key=f"{object_id}:1", input={"number": 1}, priority=2)

    def registered() -> bool:
        return scraper.value("kernel_dispatch_confirmed_total") == 1

    wait_until(registered, "what can be registered is", LIMIT_S)
    wait_until(lambda: scraper.value("kernel_dispatch_pending", source="orders") == 1, "the other is left", LIMIT_S)
    wait_until(lambda: scraper.value("kernel_dispatch_oldest_age_seconds") > 0, "its age is known", LIMIT_S)


def test_nothing_listens_outside_the_loopback_and_foreign_names_are_refused(tree: Supervised) -> None:
    listening = {
        connection.laddr.ip
        for process in tree.family()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
    scraper = Scraper(tree)
    for path in ("/metrics", "/readyz", "/livez"):
        assert scraper.get(path, Host="evil.example")[0] == 403
        assert scraper.get(path, Host="localhost")[0] in (200, 503)
    assert scraper.get("/other")[0] == 404


def test_other_addresses_are_served_where_they_are_asked_for(supervise: Callable[..., Supervised]) -> None:
    """Then its names are the user's own."""
    tree = supervise(program(), metrics="0.0.0.0:0")
    tree.wait_running()
    scraper = Scraper(tree)
    assert scraper.url.startswith("http://0.0.0.0:")
    assert scraper.get("/metrics", Host="metrics.example")[0] == 200


def test_without_the_setting_nothing_is_served_counted_or_made(
    supervise: Callable[..., Supervised], data_dir: Path
) -> None:
    tree = supervise(REAL, app=APP)
    status = tree.wait_running()
    assert [child["name"] for child in status["children"]] == ["dispatcher-0", "worker-0"]
    assert not (data_dir / "metrics").exists()
    for name in ("dispatcher-0", "worker-0"):
        loaded = {Path(opened.path).parts for opened in tree.process_of(name).memory_maps()}
        assert not [parts for parts in loaded if "metrics" in parts]
