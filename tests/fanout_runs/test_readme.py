"""The example of fanout/README.md, as it stands there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from fanout import Outcome, Tally
from kernel import App
from tests.engine.flows import seconds
from tests.support.engine_rig import SteppedRig
from tests.support.requirements_index import CHECKOUT


class Ports:
    """The author's business data."""

    def __init__(self, count: int) -> None:
        self.rows = [{"number": number, "biz_key": f"fan:{number}"} for number in range(1, count + 1)]
        self.ended: set[str] = set()

    def subscriptions(self, show: str, after: int, limit: int) -> list[dict[str, Any]]:
        return [row for row in self.rows if int(str(row["number"])) > after][:limit]

    def record(self, show: str) -> str:
        self.ended.add(show)
        return show

    def has_ended(self, show: str) -> bool:
        return show in self.ended


@pytest.mark.req("fan-two-uses")
def test_the_readmes_example_runs(durable_rig: SteppedRig, tmp_path: Path) -> None:
    text = (CHECKOUT / "fanout" / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    file = tmp_path / "shows.py"
    file.write_text(example, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("shows_of_the_readme", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app: App = module.app

    durable_rig.worker(*app.definitions.values(), ports=Ports(1_200))
    follower, recorder = app.definition("follow_show"), app.definition("record_show")
    ids = [durable_rig.start(follower, f"fan:{number}", {"show": "s1"}) for number in range(1, 21)]
    durable_rig.run(lambda: all(durable_rig.status(key) == "waiting" for key in ids), "all wait")
    durable_rig.finish(durable_rig.start(recorder, "s1", {"show": "s1"}), *ids, limit_ms=60_000)

    (row,) = [candidate for candidate in durable_rig.queue.pushed if candidate.lane == 2][:1]
    durable_rig.finish(row.workflow_id)
    outcome = durable_rig.client.result(row.workflow_id, seconds(0), Outcome)
    assert outcome.tally == Tally(pages=3, told=20, woken=20, unknown=1_180)
    assert durable_rig.output(ids[0]) == "the summary of s1"
