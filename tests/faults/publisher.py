"""A publisher of its own process, on ports that may be hurt: it starts one workflow and says what it was told.

python -m tests.faults.publisher DATA_DIR REDIS_URL TYPE BIZ_KEY NUMBER PRIORITY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kernel import runtime
from kernel.config import Config
from tests.faults.apps import Job, app
from tests.faults.arms import armed_ports


def main(data_dir: str, redis_url: str, type_: str, biz_key: str, number: str, priority: str) -> None:
    folder = Path(data_dir)
    with armed_ports(folder, "publisher"):
        client = runtime.open_client(Config(data_dir=data_dir, durability="normal"), folder, redis_url)
        plan = app.definition(type_).plan
        handle = client.start_or_resume(plan, biz_key=biz_key, input=Job(number=int(number)), priority=priority)
    print(json.dumps({"workflow_id": handle.workflow_id, "branch": handle.branch}))


if __name__ == "__main__":
    main(*sys.argv[1:])
