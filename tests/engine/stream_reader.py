"""A reader in a process of its own: `python -m tests.engine.stream_reader DATA_DIR REDIS_URL WORKFLOW_ID [LAST_ID]`.

Prints each event as one line of JSON, as it comes, until the terminal one.
"""

from __future__ import annotations

import json
import sys

from kernel.config import Config
from kernel.runtime import open_client


def main() -> None:
    data_dir, redis_url, workflow_id, *last = sys.argv[1:]
    with open_client(Config(namespace="tests", stream_check_s=1.0), data_dir, redis_url, prepare=False) as client:
        for event in client.follow(workflow_id, last[0] if last else None):
            place = None if event.position is None else str(event.position)
            print(json.dumps({"event": event.event, "id": place, "data": event.data.decode()}), flush=True)


if __name__ == "__main__":
    main()
