"""Children that end at once do not take their parent's connections with them (A30)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.mongo_server import MongoServer
from tests.support.redis_servers import RedisTarget

CHILDREN = 50


@pytest.mark.fault
@pytest.mark.timeout(300)  # the parent asks without a pause: a minute where others want the processors as well
@pytest.mark.case("A30")
@pytest.mark.req("dc-fork-safety")
def test_the_parent_asks_on_while_50_children_close_what_they_inherited(
    valkey: RedisTarget, mongo_server: MongoServer
) -> None:
    assert valkey.server is not None
    arguments = [str(valkey.server.socket), mongo_server.uri, str(CHILDREN)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.process.short_lived", *arguments], capture_output=True, text=True, timeout=280
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["errors"] == []
    assert len(report["statuses"]) == CHILDREN
    assert min(report["answers"].values()) >= 20
