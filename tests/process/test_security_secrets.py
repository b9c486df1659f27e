"""Passwords at rest and on show (RELIABILITY §8, credentials; A83): no six characters of one, in any form, are found.

`test_credentials` has each way in which a start can fail. Here a whole tree works, loses its servers and its right to
them, and dies, with a password for each; then everything is searched that it wrote, answered or let be seen.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pymongo
import pytest
import redis

from asr_demo.subscriptions import SUBSCRIPTIONS, SummaryInput
from asr_demo.summary import live_summary
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.runtime import open_objects
from supervisor.control_client import ControlClient
from supervisor.redaction import Redactor
from tests.demo.page_process import PageProcess
from tests.demo.page_reader import get
from tests.faults.rig import LIMIT_S, Tree, tree
from tests.process import secret_flows
from tests.process.test_credentials import command_lines
from tests.support.mongo_server import StandIn, stand_in
from tests.support.redis_servers import RedisServer
from tests.support.wait import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.case("A83")]

CANARY = "Qx7#vKp2/Zr9@Ww4:Jt5%Hn8"
PIECE = 6
ENCODED = quote(CANARY, safe="")
LOOKS = ("doctor", "workflow list", "workflow show {}", "workflow attempts {}", "workflow record {}")


def pieces(secret: str) -> set[str]:
    """Every six characters of it in a row: as it is, as URLs and forms have it, as a URL in a URL has it, as JSON has
    it. In lower case, because a parser of URLs takes part of a badly escaped one for a host."""
    forms = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret), quote(quote(secret, safe=""), safe="")}
    forms |= {json.dumps(form)[1:-1] for form in forms}
    return {form[at : at + PIECE].lower() for form in forms for at in range(len(form) - PIECE + 1)}


def leaks(places: dict[str, str]) -> list[str]:
    """Where a piece of the password stands, with its surroundings."""
    found = []
    for place, text in places.items():
        lowered = text.lower()
        for piece in pieces(CANARY):
            at = lowered.find(piece)
            if at >= 0:
                found.append(f"{place}: {text[max(0, at - 60) : at + 60]!r}")
    return found


@pytest.mark.parametrize("form", [CANARY, ENCODED, quote(ENCODED), f"'{CANARY[3:9]}'", ENCODED[4:10].upper()])
def test_what_searches_finds_each_form_and_piece(form: str) -> None:
    assert leaks({"somewhere": f"before {form} behind"})
    assert not leaks({"somewhere": "redis://***@host/0 said: no password here, none at all; %2Fpath%3Fdb%3D0"})


@pytest.mark.parametrize(
    "text",
    [
        "a-" * 30_000 + "secret",
        "x" * 60_000 + "://",
        "a-b_" * 15_000 + " key",
        "x://" * 15_000,
        "password" * 7_500 + "=",
    ],
)
def test_masking_a_long_line_takes_time_in_proportion_to_it(text: str) -> None:
    """The supervisor masks every line of every child, and watches nobody meanwhile: a blob in base64 is enough to make
    a pattern walk it once from each of its characters, which takes minutes."""
    began = time.process_time()

    assert len(Redactor([CANARY])(text)) <= len(text)
    assert time.process_time() - began < 5


@pytest.fixture
def guarded() -> Iterator[RedisServer]:
    server = RedisServer("valkey")
    with server.client() as client:
        let_in(client)
    yield server
    server.close()


def let_in(client: redis.Redis) -> None:
    client.acl_setuser("wk", enabled=True, passwords=[f"+{CANARY}"], keys=["*"], channels=["*"], commands=["+@all"])


@pytest.fixture
def mongo() -> Iterator[StandIn]:
    """A stand-in that wants the canary."""
    with stand_in() as server:
        with closing(pymongo.MongoClient(server.uri)) as client:
            roles = [{"role": "readWriteAnyDatabase", "db": "admin"}]
            client.admin.command("createUser", "wk", pwd=CANARY, roles=roles)
        server.stop()
        server.options = ("--auth",)
        server.start()
        yield server


@pytest.mark.timeout(300)  # a tree, its page, its servers and dozens of commands: a minute on a busy machine
@pytest.mark.parametrize("store", ["sqlite", "mongodb"])
def test_no_piece_of_a_password_is_kept_shown_or_served(
    tmp_path: Path, guarded: RedisServer, store: str, operate: Any, request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, operate, guarded, request.getfixturevalue("mongo") if store == "mongodb" else None)
    monkeypatch.setenv(secret_flows.URLS, ", ".join(scene.urls))
    with tree(scene.folder, app="tests.process.secret_flows:app", metrics=0, **scene.settings) as running:
        scene.work(running, "first")
        scene.wait_observed()
        with scene.page(running.config):
            scene.look(running, "at work", *LOOKS, "config show --origin", "status --json", "lanes", "limits list")
            scene.lose_redis(running)
            scene.look(running, "without Redis", "doctor")
            if scene.mongo is not None:
                scene.lose_mongo(running)
                scene.look(running, "without a store", "workflow list")
                scene.mongo.start()
            scene.work(running, "second")
        scene.die(running)
        scene.read_servers(running.config.mongodb_database)
    scene.read_files(tmp_path)

    assert leaks(scene.places) == []
    kinds = {place.partition(":")[0] for place in scene.places}
    assert {"page", "/metrics", "workflow show", "redis key", "file", "command line"} <= kinds
    seen = [place for place, text in scene.places.items() if "password were given" in text]
    assert {"workflow show", "mongodb" if scene.mongo else "file"} <= {place.partition(":")[0] for place in seen}


class Scene:
    """A tree with a password for each of its servers, and all that was seen of it: place → text."""

    def __init__(self, outside: Path, operate: Any, guarded: RedisServer, mongo: StandIn | None) -> None:
        self.folder = outside / "data"
        self.places: dict[str, str] = {}
        self.mongo = mongo
        self._operate = operate
        self._redis = guarded
        self._page: PageProcess | None = None
        self._failed = ""
        redis_url = f"unix://wk:{ENCODED}@{quote(str(guarded.socket))}"
        self.settings: dict[str, Any] = {"redis_url": redis_url}
        self.urls = [redis_url, f"redis://wk:{CANARY}@127.0.0.1:1/0"]
        if mongo is not None:
            uri = f"mongodb://wk:{ENCODED}@127.0.0.1:{mongo.port}/?directConnection=true&authSource=admin"
            self.urls.append(uri)
            self.settings |= {"mongodb_uri": uri, "lease_s": 24.0}  # of which a call may take a sixth

    def work(self, running: Tree, name: str) -> None:
        """Three workflows to their end: one completes, two fail with texts that quote the URLs."""
        ids = [
            running.client.start_or_resume(flow.plan, biz_key=f"{name}:{flow.type}", input=None).workflow_id
            for flow in (secret_flows.WORKS, secret_flows.QUOTES, secret_flows.BREAKS)
        ]
        wait_until(lambda: running.ended(ids), "all have ended", 90)
        assert [running.instance(workflow_id).status for workflow_id in ids] == ["completed", "failed", "failed"]
        self._failed = ids[1]

    def wait_observed(self) -> None:
        """Until the failure is in its snapshot, which is written beside the work: only then is it shown."""
        shown = partial(self._operate, "workflow", "show", self._failed, environ=self._environ())
        wait_until(lambda: "password were given" in shown().stdout, "the failure is shown", LIMIT_S)

    @contextmanager
    def page(self, config: Config) -> Iterator[None]:
        """The demo's page beside it, with a subscription in its table."""
        with closing(open_objects(config, self.folder, [SUBSCRIPTIONS], SystemClock())["subscriptions"]) as objects:
            objects.accept(
                "sub-1", type_=live_summary().type, biz_key="live_summary:demo:sub-1",
                input=SummaryInput("demo", "sub-1", "show"), priority=0, fields={"show_id": "show"},
            )  # fmt: skip
        with closing(PageProcess(config, "subscriptions")) as self._page:
            yield

    def look(self, running: Tree, when: str, *commands: str) -> None:
        """By the command line, the page, the metrics and the list of processes."""
        for words in commands:
            said = self._operate(*words.format(self._failed).split(), environ=self._environ())
            self.places[f"{words.removesuffix(' {}')}: {when}"] = said.stdout + said.stderr
        assert self._page is not None
        for path in ("/", "/live/sub-1", "/result/sub-1", "/stream/none")[: 4 if when == "at work" else 1]:
            self.places[f"page: {path}, {when}"] = get(self._page.port, path)[1]
        port = int(next(c["url"] for c in running.children("metrics")).rpartition(":")[2])
        self.places |= {f"{path}: {when}": get(port, path)[1] for path in ("/metrics", "/readyz", "/livez")}
        self.places |= {f"command line: {when}, {at}": text for at, text in enumerate(command_lines())}

    def _environ(self) -> dict[str, str]:
        names = ("redis_url", "mongodb_uri", "lease_s")
        environ = {f"KERNEL_{n.upper()}": str(self.settings[n]) for n in names if n in self.settings}
        return environ | {"KERNEL_APP": "tests.process.secret_flows:app"}

    def lose_redis(self, running: Tree) -> None:
        """Its right is taken, its connections are cut; and given back."""
        with self._redis.client() as client:
            client.acl_deluser("wk")
            wait_until(lambda: running.log("redis.denied"), "Redis does not let it in", LIMIT_S)
            let_in(client)

    def lose_mongo(self, running: Tree) -> None:
        assert self.mongo is not None
        before = len(log_of(running))
        self.mongo.kill()
        wait_until(lambda: "MongoDB at" in log_of(running)[before:], "the store is missed", 90)

    def die(self, running: Tree) -> None:
        """Stacks of every child are logged, and workers abort, as after a fault in native code."""
        with ControlClient(self.folder) as control:
            assert control.request("stacks")["children"] > 0
        wait_until(lambda: "Current thread" in log_of(running), "stacks", LIMIT_S)
        dying = running.pids()
        for pid in dying:
            os.kill(pid, signal.SIGABRT)
        running.wait_running(without=dying)

    def read_servers(self, database: str) -> None:
        """Every key and value of Redis, every document."""
        with self._redis.client() as client:
            for key in client.scan_iter():
                self.places[f"redis key: {key!r}"] = f"{key!r} {client.dump(key)!r} {_values(client, key)!r}"
            self.places["redis clients"] = repr(client.client_list())
        if self.mongo is not None:
            uri = self.settings["mongodb_uri"]
            with closing(pymongo.MongoClient(uri)) as driver:
                for name in driver[database].list_collection_names():
                    self.places[f"mongodb: {name}"] = "\n".join(map(repr, driver[database][name].find()))

    def read_files(self, folder: Path) -> None:
        files = (path for path in folder.rglob("*") if path.is_file())
        self.places |= {f"file: {path}": path.read_bytes().decode("latin-1") for path in files}


def log_of(running: Tree) -> str:
    return (running.folder / "stderr").read_text() + (running.folder / "log.jsonl").read_text()


def _values(client: redis.Redis, key: bytes) -> object:
    match client.type(key):
        case b"zset":
            return client.zrange(key, 0, -1)
        case b"hash":
            return client.hgetall(key)
        case b"list":
            return client.lrange(key, 0, -1)
        case b"set":
            return client.smembers(key)
        case _:
            return client.get(key)
