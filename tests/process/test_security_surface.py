"""The security table of RELIABILITY §8, row by row: which test proves it, and here what no other test does.

| row | tests |
| --- | --- |
| embedded servers | here: `…every_socket…`; test_security_neighbours (another user tries); test_start_stop |
| credentials | test_credentials (each error of a start, by command); test_security_secrets (a tree at work, without
  its servers, dying: Redis, both stores, page, metrics, logs, command lines; pieces and encodings); unit/test_config
  (modes of a file); test_log |
| serialisation | test_security_scans (AST); here: `…pickle_bombs_in_redis`; test_security_pickles (columns of every
  file); engine/test_hostile_bytes (fields of every store) |
| console, SSE | test_security_pages (markup, metrics); demo/test_page_http, test_page_browser |
| path traversal | here: `…names_of_things…`; unit/test_ids; test_run_dir (links); demo/test_page_http (static table) |
| Redis keys | lua_scripts/test_lane_contents, test_streams, test_permits (hostile ids, pairs that collide) |
| Lua | lua_scripts/test_script_static (`…no_script_is_built_from_input`), test_hostile_arguments |
| Mongo | conformance/test_hostile_content, test_mongo_store; unit/test_ids (`…could_be_a_path_or_an_operator…`) |
| SSE | unit/test_frames: `…no_text_of_an_activity_can_make_a_field_of_its_own` |
| limits | lua_scripts/test_hostile_arguments: `…tenants…`; the key check after every test on a Redis; test_page_http |
| run directory, pidfile, logs | test_security_neighbours, test_security_links; test_run_dir; here: `…planted_link…` |
| failpoints, debug | here: `…nothing_for_tests_can_be_switched_on…`; test_security_scans (what is read at all) |
| subprocess | test_security_scans (AST); house rule `shells` |
"""

from __future__ import annotations

import os
import re
import signal
import stat
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from kernel.coordination import Keys
from kernel.stream_words import StreamId
from lua import scripts
from tests.faults import permit_app
from tests.faults.downstream import downstream
from tests.faults.permit_app import Call
from tests.faults.rig import tree
from tests.process.test_cli import command
from tests.support.pickle_bombs import bombs
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
PATHS = (
    *("../../../../etc/passwd", "/etc/passwd", "..", ".", "%2e%2e%2f%2e%2e%2fescaped", "%252e%252e%252f", "a/../../b"),
    *(
        "..\\..\\b",
        "~root/.ssh",
        "file:///etc/passwd",
        "C:\\b",
        "$(touch escaped)",
        "`touch escaped`",
        "; touch escaped",
    ),
)


def private(path: Path) -> bool:
    """Whether nobody but the owner may do anything with it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return True  # a store's journal, which comes and goes
    return stat.S_IMODE(found.st_mode) & 0o077 == 0 and found.st_uid == os.geteuid()


@pytest.mark.fault
@pytest.mark.case("A85")
def test_every_socket_of_a_working_tree_is_on_the_loopback_or_private(tmp_path: Path) -> None:
    """The product's own roles at work, with the embedded server: by the kernel's tables of open sockets."""
    folder = tmp_path / "data"
    with tree(folder) as running:
        running.wait_running()
        family = {process.pid for process in running.family()}
        inet = [c for p in running.family() for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        unix = {Path(str(c.laddr)) for p in running.family() for c in p.net_connections("unix") if c.laddr}
        named = {path for path in unix if path.is_absolute() and path.exists()}

        assert {c.laddr.ip for c in inet} <= {"127.0.0.1", "::1"}
        assert named, f"no socket of {family} has a name"
        for path in named:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, path.parent
        assert not [path for path in unix if str(path).startswith("@")], "an abstract socket has no rights at all"
        files = [path for path in folder.rglob("*") if path.name != "stderr"]  # the rig's own
        assert [path for path in files if not private(path)] == []


@pytest.mark.fault
@pytest.mark.case("A84")
def test_pickle_bombs_in_redis_never_go_off_and_work_goes_on(tmp_path: Path) -> None:
    """In every key that a script of ours is given, as member, element, field or value, and said on every channel."""
    folder, canary = tmp_path / "data", tmp_path / "canary"
    app = "tests.faults.permit_app:app"
    with downstream(folder), tree(folder, app=app, permit_lease_s=1.5) as running:
        requests = [(f"before:{number}", Call()) for number in range(6)]
        running.finish(*[h.workflow_id for h in running.client.start_many(permit_app.LIMITED.plan, requests)])
        client = redis.Redis.from_url(running.session.redis_url)
        keys = Keys(running.config.namespace)
        stream = StreamId("object-1", "wf-1", "f1")
        names = {key for s in scripts() for key in keys.of(s, "orders", resource="limited", stream=stream)}
        plant(client, names | set(client.keys()), bombs(canary))
        for channel in (keys.wakeup_channel, keys.dispatch_channel, keys.stream_channel):
            for bomb in bombs(canary):
                client.publish(channel, bomb)

        requests = [(f"after:{number}", Call()) for number in range(20)]
        running.finish(*[h.workflow_id for h in running.client.start_many(permit_app.LIMITED.plan, requests)])
        client.close()

        assert not canary.exists()


def plant(client: Any, names: set[bytes], planted: list[bytes]) -> None:
    """The bombs beside what a key holds, or as all that it holds; where somebody makes a key of a wrong type, for a
    second only, since a resource whose places can not be read is waited for."""
    for name in names:
        match client.type(name):
            case b"zset":
                client.zadd(name, {bomb: number for number, bomb in enumerate(planted)})
            case b"list":
                client.rpush(name, *planted)
            case b"hash":
                client.hset(name, mapping={bomb: bomb for bomb in planted})
            case b"string":
                client.set(name, planted[0])
            case _:
                client.set(name, planted[1], px=1_000)


@pytest.mark.fault
@pytest.mark.case("A87")
def test_names_of_things_never_become_paths(tmp_path: Path, operate: Any) -> None:
    """Keys and tenants that look like paths and commands are worked on like others, the command line asks for them, and
    no file comes to be that was not there for others."""
    folder = tmp_path / "data"
    with downstream(folder), tree(folder, app="tests.faults.permit_app:app") as running:
        running.finish(running.client.start_or_resume(permit_app.FREE.plan, biz_key="plain", input=Call()).workflow_id)
        before = set(tmp_path.rglob("*"))
        requests = [(name, Call(tenant=name)) for name in PATHS]
        running.finish(*[h.workflow_id for h in running.client.start_many(permit_app.TENANT.plan, requests)])
        for name in PATHS:
            shown = operate("workflow", "show", name)
            assert "Traceback" not in shown.stderr, name
            assert "root:" not in shown.stdout, name
        made = set(tmp_path.rglob("*")) - before

    allowed = re.compile(r"(-wal|-shm|-journal|-lock|\.sock|\.sqlite|\.db|\.jsonl)$")
    assert [path for path in made if path.parent != folder or not allowed.search(path.name)] == []


@pytest.mark.parametrize("name", ["control.sock", "valkey.sock", "valkey.log"])
def test_nothing_is_written_through_a_planted_link_to_a_socket_or_log(
    supervise: Any, data_dir: Path, tmp_path: Path, name: str
) -> None:
    """Beside the lock and the run file (test_run_dir). Only we ourselves could plant it: the folder is closed."""
    target = tmp_path / "precious"
    target.write_text("content")
    data_dir.mkdir(mode=0o700)
    (data_dir / name).symlink_to(target)

    running = supervise(redis_url=None)
    wait_until(lambda: running.process.poll() is not None or running.status(), "started or refused", timeout=60)
    running.process.send_signal(signal.SIGTERM)
    running.wait_end()

    assert target.read_text() == "content"
    assert not target.is_symlink() and stat.S_ISREG(target.stat().st_mode)


@pytest.mark.parametrize("variable", ["KERNEL_FAILPOINTS", "KERNEL_FAILPOINT", "KERNEL_DEBUG", "KERNEL_CHAOS"])
def test_nothing_for_tests_can_be_switched_on_from_outside(tmp_path: Path, variable: str) -> None:
    """Tests hand their faults in as wrapped ports; the product reads no such setting, and says so."""
    setting = variable.removeprefix("KERNEL_").lower()
    (tmp_path / "kernel.toml").write_text(f'{setting} = "on"\n')
    by_environ = command("start", "--data-dir", str(tmp_path / "data"), environ={variable: "on"}, cwd=tmp_path)
    by_file = command(
        *("start", "--data-dir", str(tmp_path / "data"), "--config", str(tmp_path / "kernel.toml")), cwd=tmp_path
    )

    for refused in (by_environ, by_file):
        assert refused.returncode == 2, refused.stderr
        assert f"there is no setting '{setting}'" in refused.stderr
    assert not (tmp_path / "data").exists()
    product = [path for package in ("kernel", "lua", "supervisor", "fanout") for path in (ROOT / package).rglob("*.py")]
    assert [path for path in product if re.search(r"fail_?point", path.read_text(encoding="utf-8"), re.I)] == []
