"""The demo's speech step stands behind a limit: some users wait for it, and none fails because of it (e2e-permit)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.demo.test_audience_run import run

pytestmark = [pytest.mark.fault, pytest.mark.timeout(240)]
USERS = 12


@pytest.mark.req("e2e-permit", "e2e-subscribers", "prm-traffic-ms")
def test_users_wait_for_the_speech_service_and_all_are_served(clip: Path, tmp_path: Path) -> None:
    with run(tmp_path, clip, "--subscribers", str(USERS)) as ran:
        rows = [ran.left.summary(name) for name in ran.left.subscriptions()]

        assert len(rows) == USERS
        assert {row.status for row in rows} == {"completed"}
        waits = {row.biz_key: [step.traffic_wait_ms for step in row.steps] for row in rows}
        assert any(sum(wait) > 0 for wait in waits.values()), "4 at once and 2 starts a second"
        assert {step.failures for row in rows for step in row.steps} == {0}
        assert all(step.traffic_since_time is None for row in rows for step in row.steps)
        assert all(row.permit_wait is None for row in rows)
