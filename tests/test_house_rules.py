"""Every house rule holds in this checkout, and every rule finds the sample that breaks it.

The rules and their tables lie in tests/support/house_rules/; a finding names file, line and remedy.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.house_rules import calls, imports, layout, promises, shape
from tests.support.house_rules.checkout import PACKAGES, Checkout, Finding, Rule
from tests.support.requirements_index import CHECKOUT

RULES: tuple[Rule, ...] = (
    imports.import_direction,
    imports.late_imports,
    imports.observation_readers,
    calls.banned_calls,
    calls.shells,
    shape.sizes,
    shape.file_names,
    shape.class_level_state,
    shape.demo_words,
    promises.requirement_marks,
    promises.case_marks,
    promises.bound_marks,
    promises.bounds_measured,
    promises.tests_check,
    promises.nothing_left_out,
    layout.rust_sources,
)

# (rule, file, text, words of the finding): each text breaks the rule at least once.
BREAKS: tuple[tuple[Rule, str, str, str], ...] = (
    (imports.import_direction, "lua/loader.py", "import msgspec", "lua.loader may not import msgspec"),
    (imports.import_direction, "lua/loader.py", "from kernel import errors", "lua.loader may not import kernel"),
    (imports.import_direction, "kernel/records.py", "import kernel.engine.claim", "may not import kernel.engine.claim"),
    (imports.import_direction, "kernel/transitions/claim.py", "import redis", "may not import redis"),
    (imports.import_direction, "kernel/store/conditional.py", "import kernel.store.protocol", "kernel.store.protocol"),
    (imports.import_direction, "kernel/store/__init__.py", "from . import sqlite", "kernel.store.sqlite"),
    (imports.import_direction, "kernel/store/protocol.py", "import pymongo", "may not import pymongo"),
    (imports.import_direction, "kernel/store/memory.py", "import sqlite3", "may not import sqlite3"),
    (imports.import_direction, "kernel/store/sqlite_lock.py", "import kernel.store.mongo", "kernel.store.mongo"),
    (imports.import_direction, "kernel/store/mongo.py", "import redis", "may not import redis"),
    (imports.import_direction, "kernel/coordination/lanes.py", "import kernel.store.protocol", "kernel.store.protocol"),
    (imports.import_direction, "kernel/coordination/lanes.py", "import pymongo", "may not import pymongo"),
    (imports.import_direction, "kernel/observe/events.py", "import kernel.engine", "may not import kernel.engine"),
    (imports.import_direction, "kernel/engine/claim.py", "import kernel.store.mongo", "kernel.store.mongo"),
    (imports.import_direction, "kernel/engine/claim.py", "from kernel.store import sqlite", "kernel.store.sqlite"),
    (imports.import_direction, "kernel/engine/claim.py", "from ..store import memory", "kernel.store.memory"),
    (imports.import_direction, "kernel/engine/claim.py", "import redis.asyncio", "may not import redis"),
    (imports.import_direction, "kernel/engine/claim.py", "import bson", "may not import bson"),
    (
        imports.import_direction,
        "kernel/engine/claim.py",
        "from kernel import App",
        "kernel.engine.claim may not import",
    ),
    (imports.import_direction, "kernel/client.py", "import kernel.runtime", "may not import kernel.runtime"),
    (imports.import_direction, "kernel/client.py", "import supervisor.tree", "may not import supervisor.tree"),
    (imports.import_direction, "kernel/runtime.py", "import fanout", "may not import fanout"),
    (imports.import_direction, "kernel/runtime.py", "import asr_demo.app", "may not import asr_demo.app"),
    (imports.import_direction, "kernel/testing.py", "import bench", "may not import bench"),
    (imports.import_direction, "fanout/workflow.py", "import kernel.runtime", "may not import kernel.runtime"),
    (imports.import_direction, "supervisor/tree.py", "import kernel.runtime", "may not import kernel.runtime"),
    (imports.import_direction, "supervisor/tree.py", "from kernel import App", "may not import kernel"),
    (imports.import_direction, "supervisor/tree.py", "import supervisor.ops", "may not import supervisor.ops"),
    (imports.import_direction, "supervisor/embedded.py", "import redis", "may not import redis"),
    (imports.import_direction, "supervisor/cli.py", "import supervisor.ops", "may not import supervisor.ops"),
    (imports.import_direction, "supervisor/cli.py", "import asr_demo", "may not import asr_demo"),
    (imports.import_direction, "supervisor/ops/show.py", "import kernel.store.sqlite", "kernel.store.sqlite"),
    (imports.import_direction, "asr_demo/app.py", "import kernel.engine", "may not import kernel.engine"),
    (imports.import_direction, "bench/lanes.py", "import tests.support.wait", "may not import tests.support.wait"),
    (imports.late_imports, "kernel/client.py", "def f():\n    import kernel.ids", "without a reason"),
    (imports.late_imports, "kernel/client.py", "def f():\n    from kernel import ids  # noqa: X", "without a reason"),
    (imports.observation_readers, "kernel/client.py", "import kernel.observe.reading", "reads observations by"),
    (imports.observation_readers, "asr_demo/app.py", "import kernel.runtime.observing", "reads observations by"),
    (imports.observation_readers, "kernel/runtime/roles.py", "import kernel.observe.repair", "reads observations by"),
    (imports.observation_readers, "kernel/engine/loop.py", "import kernel.store.projection", "keeps rows by"),
    (calls.banned_calls, "kernel/engine/loop.py", "import time as t\nt.time()", "time.time is used here"),
    (calls.banned_calls, "kernel/ids.py", "from time import time_ns", "time.time_ns is used here"),
    (calls.banned_calls, "supervisor/tree.py", "from time import sleep", "wait for an event"),
    (calls.banned_calls, "tests/unit/test_x.py", "from time import sleep\nsleep(1)", "wait_until"),
    (calls.banned_calls, "fanout/pages.py", "import datetime as d\nd.datetime.now()", "datetime.datetime.now"),
    (calls.banned_calls, "asr_demo/app.py", "from datetime import datetime\ndatetime.utcnow()", "datetime.datetime.ut"),
    (calls.banned_calls, "kernel/codec.py", "import uuid\nuuid.uuid4()", "uuid.uuid4 is used here"),
    (calls.banned_calls, "kernel/codec.py", "import random\nrandom.shuffle([])", "random.shuffle is used here"),
    (calls.banned_calls, "kernel/clock.py", "import os\nos.environ['A']", "os.environ is used here"),
    (calls.banned_calls, "kernel/engine/loop.py", "from os import getenv", "os.getenv is used here"),
    (calls.banned_calls, "tests/unit/test_x.py", "import pickle\npickle.loads(b'')", "pickle.loads is used here"),
    (calls.banned_calls, "bench/lanes.py", "import marshal\nmarshal.dumps(1)", "marshal.dumps is used here"),
    (calls.banned_calls, "kernel/codec.py", "import shelve\nshelve.open('x')", "shelve.open is used here"),
    (calls.banned_calls, "kernel/codec.py", "import yaml\nyaml.load('')", "yaml.load is used here"),
    (calls.banned_calls, "supervisor/roles.py", "eval('1')", "eval is used here"),
    (calls.banned_calls, "bench/lanes.py", "exec('1')", "exec is used here"),
    (calls.banned_calls, "tests/unit/test_x.py", "import os\nos.system('ls')", "os.system is used here"),
    (calls.banned_calls, "kernel/engine/loop.py", "print('x')", "print is used here"),
    (calls.banned_calls, "kernel/coordination/lanes.py", "import redis\nredis.Redis()", "redis.Redis is used here"),
    (calls.banned_calls, "kernel/runtime.py", "from redis import Redis\nRedis.from_url('')", "Redis.from_url is used"),
    (calls.banned_calls, "kernel/runtime.py", "import redis.asyncio\nredis.asyncio.Redis()", "redis.asyncio.Redis is"),
    (calls.banned_calls, "kernel/runtime.py", "from pymongo import MongoClient\nMongoClient()", "MongoClient is used"),
    (calls.shells, "tests/unit/test_x.py", "import subprocess\nsubprocess.run('ls', shell=True)", "shell= is set"),
    (shape.sizes, "kernel/codec.py", "x = 1\n" * 401, "401 lines (400)"),
    (shape.sizes, "kernel/__init__.py", "x = 1\n" * 81, "81 lines (80)"),
    (shape.sizes, "kernel/codec.py", "def f():\n" + "    x = 1\n" * 60, "f has 61 lines (60)"),
    (shape.file_names, "kernel/utils.py", "", "'utils' names no noun"),
    (shape.file_names, "tests/support/helpers/wait.py", "", "'helpers' names no noun"),
    (shape.file_names, "supervisor/signal.py", "", "'signal' is a module of the standard library"),
    (shape.class_level_state, "supervisor/tree.py", "class A:\n    WORKERS = {}", "class A holds a mutable value"),
    (shape.class_level_state, "kernel/client.py", "class A:\n    x: list[int] = []", "class A holds a mutable value"),
    (shape.class_level_state, "kernel/client.py", "class A(Struct):\n    x: ClassVar[list] = []", "class A holds"),
    (shape.class_level_state, "kernel/client.py", "class A(Struct):\n    x: list = [1]", "class A holds"),
    (shape.class_level_state, "kernel/client.py", "class A(Struct):\n    x = deque()", "class A holds a mutable value"),
    (shape.demo_words, "kernel/engine/loop.py", "if kind == 'asr_task': pass", "'asr_task' is a word of the demo"),
    (shape.demo_words, "fanout/pages.py", "def transcribe(): pass", "'transcribe' is a word of the demo"),
    (shape.demo_words, "lua/loader.py", "job.audio_url", "'audio_url' is a word of the demo"),
    (
        promises.requirement_marks,
        "tests/unit/test_x.py",
        "@pytest.mark.req('No_Key')\ndef f(): 1",
        "nothing that exists",
    ),
    (promises.requirement_marks, "tests/unit/test_x.py", "@pytest.mark.req(KEY)\ndef f(): 1", "holds no plain text"),
    (promises.requirement_marks, "tests/unit/test_x.py", "@pytest.mark.req()\ndef f(): 1", "names nothing"),
    (promises.case_marks, "tests/unit/test_x.py", "@pytest.mark.case('A91')\ndef f(): 1", "nothing that exists"),
    (promises.bound_marks, "tests/unit/test_x.py", "@pytest.mark.bound('L13')\ndef f(): 1", "nothing that exists"),
    (promises.bounds_measured, "tests/x.py", "@mark.bound('L1')\ndef test_a(figure): 1", "no test measures L2"),
    (promises.bounds_measured, "tests/x.py", "@mark.bound('L1')\ndef test_a(): 1", "no test measures L1"),
    (promises.tests_check, "tests/unit/test_x.py", "def test_a():\n    x = 1", "test_a checks nothing visible"),
    (promises.nothing_left_out, "kernel/codec.py", "# TO" + "DO: later", "is left here"),
    (promises.nothing_left_out, "kernel/codec.py", "raise NotImplemented" + "Error", "is left here"),
    (promises.nothing_left_out, "tests/unit/test_x.py", "@pytest.mark.sk" + "ip\ndef f(): 1", "leaves a test out"),
    (layout.rust_sources, "kernel/fast.rs", "fn main() {}", "is Rust"),
    (layout.rust_sources, "kernel/Cargo.toml", "[package]", "is Rust"),
)

# (rule, file, text): what the rule must let pass.
KEEPS: tuple[tuple[Rule, str, str], ...] = (
    (imports.import_direction, "kernel/transitions/claim.py", "from kernel.store.conditional import Guard"),
    (imports.import_direction, "kernel/store/mongo_indexes.py", "import pymongo, bson, msgspec, kernel.ids"),
    (imports.import_direction, "kernel/store/sqlite.py", "import sqlite3\nfrom kernel.store import sqlite_lock"),
    (
        imports.import_direction,
        "kernel/engine/claim.py",
        "from kernel.store.protocol import Store\nimport kernel.errors",
    ),
    (imports.import_direction, "kernel/runtime.py", "import kernel.store.mongo, kernel.coordination.lanes"),
    (imports.import_direction, "fanout/workflow.py", "from kernel import Definition"),
    (imports.import_direction, "supervisor/tree.py", "import psutil, kernel.config, supervisor.child"),
    (imports.import_direction, "supervisor/cli.py", "def f():\n    import supervisor.ops"),
    (imports.import_direction, "asr_demo/app.py", "import kernel, kernel.runtime, fanout.pages"),
    (imports.late_imports, "supervisor/cli.py", "def f():\n    import supervisor.ops  # loads the drivers"),
    (imports.observation_readers, "supervisor/ops_list.py", "import kernel.runtime.observing, kernel.observe.reading"),
    (imports.observation_readers, "kernel/runtime/observer.py", "import kernel.store.sqlite_projection"),
    (imports.late_imports, "asr_demo/app.py", "def f():\n    import rich"),
    (calls.banned_calls, "kernel/clock.py", "import time\ntime.time()"),
    (calls.banned_calls, "kernel/ids.py", "import secrets\nsecrets.token_hex(16)"),
    (calls.banned_calls, "tests/support/wait.py", "import time as t\nt.sleep(1)"),
    (calls.banned_calls, "kernel/engine/loop.py", "import time\ntime.monotonic()\nredis.eval('x')"),
    (calls.banned_calls, "kernel/coordination/endpoint.py", "import redis\nredis.Redis()"),
    (calls.banned_calls, "kernel/coordination/lanes.py", "import redis\ndef f(r: redis.Redis): pass"),
    (calls.shells, "bench/lanes.py", "import subprocess\nsubprocess.run(['ls'], shell=False)"),
    (shape.sizes, "kernel/codec.py", "def f():\n" + "    x = 1\n" * 59),
    (shape.sizes, "tests/unit/test_x.py", "x = 1\n" * 401),
    (shape.file_names, "kernel/signals.py", ""),
    (shape.class_level_state, "kernel/records.py", "class A(Struct): pass\nclass B(A):\n    x: list[int] = []"),
    (shape.class_level_state, "kernel/records.py", "class A:\n    x = (1, 2)\n    y = MappingProxyType({})"),
    (shape.demo_words, "kernel/engine/loop.py", "'''Say transcribe_audio in prose.'''\nclass Task: pass"),
    (shape.demo_words, "asr_demo/app.py", "def transcribe(): pass"),
    (promises.requirement_marks, "tests/unit/test_x.py", "@pytest.mark.req('dc-layout', 'b-40')\ndef f(): 1"),
    (promises.case_marks, "tests/unit/test_x.py", "@pytest.mark.case('A01', 'A90')\ndef f(): 1"),
    (promises.bound_marks, "tests/unit/test_x.py", "@pytest.mark.bound('L12', 'idle worker')\ndef f(): 1"),
    (promises.tests_check, "tests/unit/test_x.py", "def test_a():\n    wait_until(f, 'it')"),
)


@pytest.fixture(scope="module")
def this() -> Checkout:
    return Checkout(CHECKOUT)


def sample(root: Path, path: str, text: str) -> Checkout:
    """A checkout in `root` that holds one file, and the stores so that `from … import` finds modules."""
    for file, content in (
        ("kernel/store/sqlite.py", ""),
        ("kernel/store/sqlite_lock.py", ""),
        ("kernel/store/memory.py", ""),
        (path, dedent(text)),
    ):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(content)
    return Checkout(root)


def listed(findings: Iterable[Finding]) -> str:
    return "\n".join(map(str, sorted(findings)))


def name_of(value: object) -> str | None:
    return getattr(value, "__name__", None)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_this_checkout_keeps_the_rule(rule: Rule, this: Checkout) -> None:
    problems = listed(rule(this))
    assert not problems, f"\n{problems}"


@pytest.mark.parametrize(("rule", "path", "text", "words"), BREAKS, ids=name_of)
def test_the_rule_finds_what_breaks_it(rule: Rule, path: str, text: str, words: str, tmp_path: Path) -> None:
    assert words in listed(rule(sample(tmp_path, path, text)))


@pytest.mark.parametrize(("rule", "path", "text"), KEEPS, ids=name_of)
def test_the_rule_lets_pass_what_is_meant(rule: Rule, path: str, text: str, tmp_path: Path) -> None:
    assert listed(rule(sample(tmp_path, path, text))) == ""


def test_every_rule_has_a_sample_that_breaks_it() -> None:
    assert {rule for rule, *_ in BREAKS} == set(RULES)


def test_a_finding_names_file_line_and_remedy(tmp_path: Path) -> None:
    checkout = sample(tmp_path, "kernel/engine/claim.py", '"""Claim."""\n\nimport redis\n')

    (finding,) = imports.import_direction(checkout)

    assert (finding.path, finding.line) == ("kernel/engine/claim.py", 3)
    assert "hands it in" in finding.remedy


@pytest.mark.req("obs-not-audit")
def test_nothing_but_the_operators_views_imports_what_reads_observations(this: Checkout) -> None:
    assert listed(imports.observation_readers(this)) == ""


@pytest.mark.req("dc-layout")
def test_the_top_level_holds_exactly_the_ordered_folders(this: Checkout) -> None:
    assert listed(layout.top_level(this)) == ""


def test_another_folder_at_the_top_level_is_found_and_a_missing_one_too(tmp_path: Path) -> None:
    for folder in (*PACKAGES, ".hidden", "docs", "build"):
        (tmp_path / folder).mkdir()

    found = listed(layout.top_level(Checkout(tmp_path)))

    assert "docs:1: is not part" in found
    assert "tests:1: is missing" in found
    assert ".hidden" not in found
    assert "build" not in found


@pytest.mark.req("dc-packages")
def test_the_project_needs_the_agreed_packages_and_no_other(this: Checkout) -> None:
    assert listed(layout.dependencies(this)) == ""


def test_a_dependency_more_and_one_less_are_found(tmp_path: Path, this: Checkout) -> None:
    text = (CHECKOUT / "pyproject.toml").read_text()
    changed = text.replace('"redis>=', '"aioredis>=').replace('"pytest>=', '"nose>=')
    assert changed.count("aioredis") == changed.count("nose") == 1
    (tmp_path / "pyproject.toml").write_text(changed)

    found = listed(layout.dependencies(Checkout(tmp_path)))

    assert "aioredis is no agreed dependency" in found
    assert "the dependency redis is missing" in found
    assert "pytest is missing from the extra `dev`" in found


@pytest.mark.req("dc-rust-free")
def test_nothing_that_runs_was_made_by_the_rust_compiler(this: Checkout) -> None:
    """Source tree, dependencies, and what the demo adds; developers' tools (ruff, mypy) may be."""
    assert listed(layout.rust_sources(this)) == ""
    assert layout.rust_libraries(layout.installed_closure([*layout.RUNTIME, "pocketsphinx", "rich"])) == []


def test_a_library_made_by_the_rust_compiler_is_found() -> None:
    """ruff is one, so the search for traces sees what it should."""
    assert layout.rust_libraries(["ruff"])


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_that_python_imports_lies_in_this_checkout(package: str) -> None:
    """`supervisor`, `kernel`, `fanout` and `bench` are also names of distributions on PyPI."""
    assert importlib.import_module(package).__file__ == str(CHECKOUT / package / "__init__.py")
