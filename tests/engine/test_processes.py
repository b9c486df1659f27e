"""What needs a process of its own: a publisher that loads no engine of activities, and the Runner of real workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements_index import CHECKOUT


def run(code: str, *arguments: str) -> str:
    """Run `code` in a fresh interpreter; what it prints."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code, *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


PUBLISHER = """
import sys
from pathlib import Path
from kernel import plan
from kernel.config import Config
from kernel.runtime import open_client

folder = Path(sys.argv[1])
client = open_client(Config(data_dir=str(folder)), folder, None)
handle = client.start_or_resume(plan("content_job", ["preprocess", ("compose", ["preprocess"])]), biz_key="job:1")
loaded = [name for name in sys.modules if name.startswith(("tests", "asr_demo", "fanout", "supervisor"))]
print(handle.status, handle.execution_activated, loaded)
"""


@pytest.mark.req("sor-plan-only", "spl-publisher-light", "fpr-on-create")
def test_a_publisher_needs_a_plan_and_loads_no_activity(tmp_path: Path) -> None:
    """A second process with the Definition then finds the instance under the same version."""
    assert run(PUBLISHER, str(tmp_path)) == "running True []"

    worker = """
import sys
from pathlib import Path
from kernel import Definition, Step
from kernel.config import Config
from kernel.runtime import open_client

definition = Definition(type="content_job", steps=[Step("preprocess", print), Step("compose", print)])
client = open_client(Config(data_dir=sys.argv[1]), Path(sys.argv[1]), None)
handle = client.start_or_resume(definition.plan, biz_key="job:1")
print(handle.branch, handle.instance.definition_fingerprint == definition.plan.fingerprint)
"""
    assert run(worker, str(tmp_path)) == "running True"


THREADS = """
import threading
from kernel.clock import SystemClock
from kernel.engine.threads import ThreadRunner

clock = SystemClock()
runner = ThreadRunner(clock)
names = []

def spawn_and_wait(body):
    done = threading.Event()
    def both():
        try:
            body()
        finally:
            done.set()
    runner.spawn("worker", both)
    assert done.wait(30)

for _ in range(50):
    spawn_and_wait(lambda: names.append(threading.get_ident()))
spawn_and_wait(lambda: (_ for _ in ()).throw(SystemExit(3)))
spawn_and_wait(lambda: names.append(threading.get_ident()))
gates = [threading.Event() for _ in range(4)]
inside = threading.Barrier(5)
for gate in gates:
    runner.spawn("beside", lambda gate=gate: (inside.wait(30), gate.wait(30)))
inside.wait(30)
[gate.set() for gate in gates]

fired = []
ended = threading.Event()
now = clock.boot_ms()
# All of them are set before the earliest is due, also where this process stands still in between.
runner.call_at(now + 2_100, lambda: fired.append("third"))
runner.call_at(now + 1_900, lambda: 1 / 0)
runner.call_at(now + 2_000, lambda: fired.append("second"))
canceled = runner.call_at(now + 1_950, lambda: fired.append("never"))
runner.call_at(now - 5, lambda: fired.append("first"))
canceled.cancel()
runner.call_at(now + 2_150, lambda: (fired.append(clock.boot_ms() - now), ended.set()))
assert ended.wait(30)
for k in range(3000):
    runner.call_at(now + 3_600_000 + k, lambda: None).cancel()
print(len(set(names)) < 10, len(names), fired[:3], 2_150 <= fired[3] < 30_000, len(runner._timers) < 2000)
"""


def test_the_runner_of_real_workers_reuses_threads_and_keeps_time() -> None:
    """A body or timer that raises costs neither its thread nor the timer thread; cancelled timers are forgotten."""
    assert run(THREADS) == "True 51 ['first', 'second', 'third'] True True"


ENGINE = """
import sys, threading
from datetime import timedelta
from pathlib import Path
from kernel import App, Definition, Sleep, Step
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.engine.settings import Settings
from kernel.engine.takeover import Worker
from kernel.runtime import Engine, NoQueue, open_client, open_store

config = Config(data_dir=sys.argv[1], durability="normal", lease_s=1.5, poll_s=0.05, scan_s=0.2)
folder, clock = Path(sys.argv[1]), SystemClock()

async def first(ctx):
    return 20

def second(ctx):
    return ctx.output("first") + 1 if ctx.resume else Sleep(timedelta(seconds=0.1))

definition = Definition(type="job", steps=[Step("first", first), Step("second", second)])
engine = Engine(App(definitions=[definition]), Settings.of(config), store=open_store(config, folder, clock),
                queue=NoQueue(), worker=Worker("w1", "here"))
loop = engine.worker_loop()
loop.start()
client = open_client(config, folder, None)
handle = client.start_or_resume(definition.plan, biz_key="k")
print(handle.result(timedelta(seconds=40)))
loop.drain()
assert loop.done.wait(30)
print(loop.status()["slots_busy"], loop.status()["claims"], loop.status()["redis"])
"""


@pytest.mark.req("core-roles-swappable")
def test_the_assembled_engine_runs_with_its_own_threads_on_sqlite_and_without_redis(tmp_path: Path) -> None:
    assert run(ENGINE, str(tmp_path)).splitlines() == ["21", "0 0 down"]
