"""One small run of the real command, shared by the tests that read it; and a real server for counting."""

from __future__ import annotations

import pytest

from tests.bench_runs.command import Run, run_workflows
from tests.support.redis_servers import own_redis, real_redis, redis_fleet, valkey

__all__ = ["own_redis", "real_redis", "redis_fleet", "valkey"]


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """60 workflows without faults."""
    folder = tmp_path_factory.mktemp("bench")
    return run_workflows(folder, "--count", "60", "--idle-samples", "20", "--durability", "normal", "--repeats", "1")
