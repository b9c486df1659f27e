"""A real tree under test, seen from outside: its rows, its effects, its processes, its log.

The fast profile is that of RELIABILITY §3: lease 1.5 s, poll 0.2 s, scan 1 s, drain 3 s. Safety is asserted strictly.
How fast something is these tests do not say, because their machines are shared: they tell what went on by itself from
what had to wait for a lease that is much longer.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psutil

from kernel import Definition, Instance
from kernel.client import Client
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.records import Document, to_instance
from kernel.runtime import STORE_FILE, open_client, open_store
from kernel.store.protocol import Query, Store
from kernel.store.tables import INSTANCES
from supervisor.boot import Program
from supervisor.roles import Roles
from supervisor.session import Session, running
from tests.faults.apps import CURED, GATE, Job
from tests.faults.arms import Arms
from tests.faults.effects import Effect, Effects, boot_ms
from tests.faults.stalls import patient
from tests.support.wait import wait_until

LIMIT_S = 60.0
"""How long a test waits for what must happen at all."""
PROMPT_MS = 15_000
"""At once, on a machine that is busy with other things as well: by far less than the lease (30 s and more) that would
have to run out otherwise, in the tests that compare with it."""
ARMED = Program(Roles("tests.faults.roles:worker", "tests.faults.roles:dispatcher"))


def settings(folder: Path, **more: Any) -> Config:
    """The fast profile, and respawns that do not keep a test waiting."""
    fast: dict[str, Any] = {
        "app": "tests.faults.apps:app",
        "data_dir": str(folder),
        "workers": 2,
        "dispatchers": 1,
        "slots": 4,
        "lease_s": 1.5,
        "poll_s": 0.2,
        "scan_s": 1.0,
        "drain_s": 3.0,
        "durability": "normal",
        "restart_first_s": 0.05,
        "restart_max_s": 0.1,
        "log_file": str(folder / "log.jsonl"),
    }
    return Config(**(fast | more))


class Tree:
    """One running tree."""

    def __init__(self, session: Session, config: Config, client: Client, store: Store) -> None:
        self.session = session
        self.config = config
        self.folder = Path(config.data_dir)
        self.client = client
        self.store = store
        self.effects = Effects(self.folder)
        self.arms = Arms(self.folder)

    # --- workflows --------------------------------------------------------------------------------------

    def start(self, definition: Definition, key: str, number: int = 0, **times: float) -> str:
        """Start or resume; the workflow_id. `times`: hold_s, nap_s."""
        handle = self.client.start_or_resume(definition.plan, biz_key=key, input=Job(number, **times))
        return handle.workflow_id

    def start_many(self, definition: Definition, prefix: str, count: int, **times: float) -> list[str]:
        """`count` workflows, whose numbers are 0, 1, 2, …"""
        requests = [(f"{prefix}:{number}", Job(number, **times)) for number in range(count)]
        return [handle.workflow_id for handle in self.client.start_many(definition.plan, requests)]

    def row(self, workflow_id: str) -> Document:
        document = self.store.get(INSTANCES, workflow_id)
        assert document is not None, f"{workflow_id} does not exist"
        return document

    def instance(self, workflow_id: str) -> Instance:
        return to_instance(self.row(workflow_id))

    def rows(self) -> list[Document]:
        """All rows."""
        query = Query(INSTANCES, (), "created_time", ("workflow_id",), limit=100_000)
        return [self.row(workflow_id) for (workflow_id,) in self.store.scan(query)]

    def ended(self, workflow_ids: Iterable[str]) -> bool:
        """Whether all of them are terminal or parked."""
        return all(self.instance(workflow_id).ended for workflow_id in workflow_ids)

    def finish(self, *workflow_ids: str, timeout: float = LIMIT_S) -> None:
        """Wait until all of them have completed."""
        wait_until(lambda: self.ended(workflow_ids), f"the end of {len(workflow_ids)} workflows", timeout, every=0.05)
        found = {workflow_id: self.instance(workflow_id) for workflow_id in workflow_ids}
        wrong = {key: (row.status, row.parked, row.error) for key, row in found.items() if row.status != "completed"}
        assert not wrong, wrong

    def output(self, workflow_id: str) -> Any:
        return self.client.result(workflow_id, timedelta(0))

    def entered(self, workflow_id: str, step: str | None, times: int = 1, timeout: float = LIMIT_S) -> Effect:
        """Wait for the `times`-th entry of that step (None: of the finalizer)."""
        what = f"entry {times} of {step} of {workflow_id}"
        wait_until(lambda: len(self.effects.of(workflow_id, step)) >= times, what, timeout)
        return self.effects.of(workflow_id, step)[times - 1]

    def open_gate(self, *names: str) -> None:
        """What waits at these gates goes on, and nobody waits there again."""
        for name in names:
            (self.folder / GATE.format(name)).touch()

    def cure(self) -> None:
        """From now on poison is harmless."""
        (self.folder / CURED).touch()

    # --- processes --------------------------------------------------------------------------------------

    def children(self, role: str = "worker") -> list[dict[str, Any]]:
        return [child for child in self.session.status()["children"] if child["role"] == role]

    def pids(self, role: str = "worker") -> list[int]:
        return [child["pid"] for child in self.children(role) if child["pid"] is not None]

    def family(self) -> list[psutil.Process]:
        """The supervisor and everything below it."""
        supervisor = psutil.Process(self.session.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def holder(self, workflow_id: str) -> int:
        """The process that holds the claim."""
        return holder_of(self.row(workflow_id))

    def wait_running(self, without: Iterable[int] = (), timeout: float = LIMIT_S) -> None:
        """Wait until every place is taken by a ready child, none of them one of `without`."""
        gone = set(without)
        self.session.wait_until(
            lambda status: status["state"] == "RUNNING" and not gone & {child["pid"] for child in status["children"]},
            timeout,
        )

    def log(self, event: str) -> list[dict[str, Any]]:
        """Lines of the tree's log about that event."""
        return [line for line in self.lines() if line["event"] == event]

    def lines(self) -> list[dict[str, Any]]:
        """All lines of the tree's log; one that is not whole yet is left out."""
        text = (self.folder / "log.jsonl").read_text(errors="replace")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@contextmanager
def tree(folder: Path, program: Program | None = None, **more: Any) -> Iterator[Tree]:
    """A tree that runs inside the block; `more` are settings. Nothing of it is left after the block."""
    config = settings(folder, **more)
    folder.mkdir(mode=0o700, exist_ok=True)
    seen: list[psutil.Process] = []
    with open(folder / "stderr", "ab") as stderr:
        try:
            with running(config, program, stderr=stderr) as session, publisher(config, session.redis_url) as opened:
                seen = psutil.Process(session.pid).children(recursive=True)
                yield Tree(session, config, *opened)
        finally:
            end(seen)


@contextmanager
def publisher(config: Config, redis_url: str) -> Iterator[tuple[Client, Store]]:
    """A client, and a store of its own for looking at the rows; both are closed again. Their stores may take their
    time; Redis has what it has in the tree, because a start waits for it and does without."""
    calm = msgspec.structs.replace(patient(config), redis_budget_s=config.redis_budget_s)
    with (
        open_client(calm, config.data_dir, redis_url) as client,
        closing(open_store(calm, Path(config.data_dir), SystemClock(), prepare=False)) as store,
    ):
        yield client, store


def end(processes: Iterable[psutil.Process]) -> None:
    """Whatever a test stopped or left of these ends here."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def gone(processes: Iterable[psutil.Process]) -> bool:
    """Whether none of them does anything any more (an orphan's zombie belongs to init)."""
    return not [process for process in processes if is_alive(process)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def holder_of(row: Document) -> int:
    """The process number in a claimed row's owner name, `host/pid/place`."""
    return int(row["worker"].split("/")[1])


def kill(*pids: int) -> None:
    """SIGKILL; one that is gone already is no error."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for(at_ms: int) -> None:
    """Let time pass until that moment of the boot clock: for a fault whose moment is itself what is tested."""
    wait_until(lambda: boot_ms() >= at_ms, "the moment", LIMIT_S, every=0.001)


def store_file(folder: Path) -> Path:
    return folder / STORE_FILE
