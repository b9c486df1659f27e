"""A canary password through `start`, `status`, `doctor` and every error on the way to a store: nobody can read it.

The real roles run here, with the real drivers: theirs are the texts that leak (RELIABILITY 2.10, A83).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from tests.process.test_cli import COMMAND, command
from tests.support.redis_servers import RedisServer
from tests.support.wait import wait_until

CANARY = "cAn4ry/w0rd#x@y%z"
FORMS = (CANARY, quote(CANARY, safe=""), quote(CANARY), "cAn4ry", "w0rd")
"""As it is, as a URL has it, and the pieces into which a URL parser cuts one that was not escaped."""
ENCODED = quote(CANARY, safe="")
PROGRAM = """
from kernel import App, Definition, Step
app = App(definitions=[Definition(type="t", steps=[Step("only", lambda ctx: None)])])
"""


class Run:
    """One `start` with secrets in its environment, and all that it and its neighbours let be seen."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.seen: list[str] = []
        (folder / "flows.py").write_text(PROGRAM)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("KERNEL_")}
        self.environ = environ | {"KERNEL_LEASE_S": "0.6", "KERNEL_POLL_S": "0.2", "KERNEL_WORKERS": "1"}
        with open(folder / "out", "wb") as out:
            self.process = subprocess.Popen(
                [COMMAND, "start", "--app", "flows:app", "--data-dir", str(self.data), "--log-level", "debug"],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env=clean | self.environ,
            )

    def out(self) -> str:
        return (self.folder / "out").read_text(errors="replace")

    def ask(self, *commands: str) -> None:
        """Look at it by `doctor`, `config show` and `commands`, and at every command line of this machine."""
        for words in ("doctor", *commands):
            found = command(*words.split(), "--data-dir", str(self.data), cwd=self.folder, environ=self.environ)
            self.seen += [found.stdout, found.stderr]
        settings = command("config", "show", "--origin", cwd=self.folder, environ=self.environ)
        self.seen += [settings.stdout, settings.stderr, *command_lines()]

    def end(self) -> int:
        """Drain it, or take its end as it came."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def leaks(self) -> list[str]:
        """Lines in which a form of the password stands, in anything seen or left behind."""
        files = [path.read_text(errors="replace") for path in self.folder.rglob("*") if path.is_file()]
        lines = [line for text in (*self.seen, *files) for line in text.splitlines()]
        return [line for line in lines if re.search("|".join(map(re.escape, FORMS)), line)]


def command_lines() -> Iterator[str]:
    for process in psutil.process_iter():
        try:
            yield " ".join(process.cmdline())
        except psutil.Error:
            continue  # it ended meanwhile


@pytest.fixture
def start(tmp_path: Path):
    runs: list[Run] = []

    def started(**environ: str) -> Run:
        runs.append(Run(tmp_path, **environ))
        return runs[-1]

    yield started
    for run in runs:
        run.end()


@pytest.fixture
def locked() -> Iterator[RedisServer]:
    """A server that wants the canary as its password."""
    server = RedisServer("valkey")
    try:
        with server.client() as client:
            client.acl_setuser(
                "wk", enabled=True, passwords=[f"+{CANARY}"], keys=["*"], channels=["*"], commands=["+@all"]
            )
        yield server
    finally:
        server.close()


@pytest.mark.fault
@pytest.mark.case("A83")
@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("MONGODB_URI", f"mongodb://root:{ENCODED}@no-such-host.invalid:27017/"),
        ("MONGODB_URI", f"mongodb://root:{ENCODED}@127.0.0.1:1/"),
        ("MONGODB_URI", f"mongodb://root:{ENCODED}@127.0.0.1:port/"),
        ("MONGODB_URI", f"mongodb://root:{CANARY}@127.0.0.1:1/"),
        ("MONGODB_URI", f"mongodb://root:{ENCODED}@127.0.0.1:1/?replicaset=a&authMechanism=none"),
        ("KERNEL_OBSERVE_MONGODB_URI", f"mongodb://root:{CANARY}@127.0.0.1:port/"),
        ("REDIS_URL", f"redis://:{CANARY}@127.0.0.1:1/0"),
        ("REDIS_URL", f"redis://:{ENCODED}@127.0.0.1:port/0"),
        ("REDIS_URL", f"http://:{ENCODED}@127.0.0.1:1/0"),
    ],
)
def test_a_start_that_fails_shows_no_password(start, variable, url) -> None:
    run = start(**{variable: url})

    code = run.process.wait(120)
    run.ask()

    assert code in (2, 69), run.out()
    assert run.out().splitlines()[-1].startswith("error: ")
    assert run.leaks() == []


@pytest.mark.fault
@pytest.mark.case("A83")
def test_a_wrong_password_shows_neither_itself_nor_the_user(start, locked) -> None:
    run = start(REDIS_URL=f"unix://wk:wrong-{ENCODED}@{quote(str(locked.socket))}")

    code = run.process.wait(120)
    run.ask()

    assert code == 2, run.out()
    assert run.leaks() == []


@pytest.mark.fault
@pytest.mark.case("A83")
@pytest.mark.parametrize("host", ["no-such-host.invalid:6379", "127.0.0.1:1"])
def test_a_tree_that_works_without_its_redis_shows_no_password(start, host) -> None:
    run = start(REDIS_URL=f"redis://wk:{ENCODED}@{host}/0")
    assert command("status", "--wait", "ready", "--timeout", "60", "--data-dir", str(run.data)).returncode == 0
    wait_until(lambda: "redis.down" in run.out(), "it is told that Redis is away")

    run.ask("status --json", "workflow show wf-1", "limits list")

    assert run.end() == 0
    assert run.leaks() == []


@pytest.mark.fault
@pytest.mark.case("A83")
def test_a_connection_that_is_lost_and_a_right_that_is_taken_show_no_password(start, locked) -> None:
    run = start(REDIS_URL=f"unix://wk:{ENCODED}@{quote(str(locked.socket))}")
    assert command("status", "--wait", "ready", "--timeout", "60", "--data-dir", str(run.data)).returncode == 0
    run.ask()
    with locked.client() as client:
        client.acl_deluser("wk")  # its connections are cut, and it is let in no more
    wait_until(lambda: "redis.denied" in run.out(), "it is told that Redis does not let it in")
    run.ask("status", "lanes")
    locked.kill()
    run.ask()

    assert run.end() == 0
    assert run.leaks() == []
