"""What holds for the text of every script: no globals, no foreign keys, no libraries that a server may lack.

Globals are read off the compiled bytecode (Lua 5.1, as in the servers), keys off the source, and both are checked
again on a real server, where MONITOR shows each command that a script ran.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import lupa.lua51
import pytest

import lua
from kernel.coordination import Keys, LaneEntry, LanePolicy, Lanes, scripts
from kernel.errors import CoordinationRejected
from tests.lua_scripts.raw import RawLanes
from tests.lua_scripts.sent_words import arguments_sent
from tests.support.redis_servers import RedisTarget

ALLOWED_GLOBALS = {"redis", "KEYS", "ARGV", "tonumber", "unpack", "table", "string", "math"}
ALLOWED_FIELDS = {
    "redis": {"call", "error_reply"},
    "table": {"concat"},
    "string": {"find", "format", "gmatch"},
    "math": {"ceil"},
}
GETGLOBAL, SETGLOBAL, CLOSURES = 5, 7, 0
every_script = pytest.mark.parametrize("script", lua.scripts(), ids=lambda script: script.name)


def globals_of(code: str) -> Iterator[tuple[str, str]]:
    """(`read` or `write`, name) for each access to a global, nested functions included, from the bytecode."""
    runtime = lupa.lua51.LuaRuntime(encoding=None)
    dump = runtime.eval(b"function(code) return string.dump(assert(loadstring(code))) end")(code.encode())
    yield from _Bytecode(dump).accesses()


class _Bytecode:
    """As much of a Lua 5.1 chunk as leads to its opcodes and constants."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 12
        self._size_t = data[8]

    def accesses(self) -> Iterator[tuple[str, str]]:
        self._text()
        self._at += 4 + 4 + 4
        code = [self._int() for _ in range(self._int())]
        constants = [self._constant() for _ in range(self._int())]
        for word in code:
            if word & 0x3F in (GETGLOBAL, SETGLOBAL):
                yield ("read" if word & 0x3F == GETGLOBAL else "write"), str(constants[word >> 14])
        for _ in range(self._int()):
            yield from self.accesses()
        lines = self._int()
        self._at += 4 * lines
        for _ in range(self._int()):
            self._text()
            self._at += 8
        for _ in range(self._int()):
            self._text()

    def _int(self) -> int:
        self._at += 4
        return int(struct.unpack_from("<I", self._data, self._at - 4)[0])

    def _text(self) -> str:
        size = int.from_bytes(self._data[self._at : self._at + self._size_t], "little")
        self._at += self._size_t + size
        return self._data[self._at - size : self._at - 1].decode() if size else ""

    def _constant(self) -> str | float | None:
        kind = self._data[self._at]
        self._at += 1
        if kind == 4:
            return self._text()
        self._at += {0: 0, 1: 1, 3: 8}[kind]
        return None


def test_the_scan_for_globals_finds_them_in_nested_functions() -> None:
    code = "local a = 'x' local function f() leaked = a return os.time() end return f, 1.5, true, nil"

    assert sorted(globals_of(code)) == [("read", "os"), ("write", "leaked")]


@every_script
@pytest.mark.case("A33")
def test_a_script_writes_no_global_and_reads_only_what_every_server_has(script: lua.Script) -> None:
    accesses = set(globals_of(script.text))

    assert {name for kind, name in accesses if kind == "write"} == set()
    assert {name for kind, name in accesses if kind == "read"} <= ALLOWED_GLOBALS
    for library, fields in ALLOWED_FIELDS.items():
        assert set(re.findall(rf"\b{library}\.([a-z_0-9]+)", script.text)) <= fields


@every_script
@pytest.mark.req("dc-lua-time")
@pytest.mark.case("A34")
def test_a_script_reads_the_time_once_at_most_and_only_if_its_contract_says_so(script: lua.Script) -> None:
    readings = script.text.count("'TIME'")

    assert readings == ("now_ms" in (*script.args, *script.optional))
    assert script.text.count("now_ms(") == 2 * readings, "one definition, one call, outside of any loop"
    assert not re.search(r"\b(while|for|repeat)\b[^\n]*now_ms\(", script.text)


@every_script
@pytest.mark.req("dc-lua-keys")
def test_every_command_names_its_key_by_the_contract(script: lua.Script) -> None:
    parameters = set(re.findall(r"function \w+\((key)\)", script.text))
    from_keys = set(re.findall(r"local (\w+) = (?:\w+ and )?KEYS\[", script.text)) | parameters
    commands = re.findall(r"\bcall\('([A-Z]+)'(?:, (\w+(?:\[[^\]]+\])?))?", script.text)

    assert len(commands) == len(re.findall(r"(?<!\.)\bcall\(|redis\.call\(", script.text)), "each command is a literal"
    for command, key in commands:
        if command not in ("TIME", "PUBLISH"):
            assert key.startswith("KEYS[") or key in from_keys, f"{command} {key}"
    literal = {int(index) for index in re.findall(r"KEYS\[(\d+)\]", script.text)}
    assert literal <= set(range(1, len(script.keys) + 1))


@pytest.mark.req("dc-lua-files")
def test_python_gives_each_argument_in_the_place_that_the_contract_names() -> None:
    entries = [LaneEntry("x", 2, 70), LaneEntry("y", 0, 71), LaneEntry("z", 2, 72)]
    keys, policy = Keys("tests"), LanePolicy((4, 3, 2, 1), 5)
    idle = [1, 1, -1]

    pop = arguments_sent(lua.get("lane_pop"), idle, lambda runner: Lanes(runner, keys, policy).pop(3))
    usual = arguments_sent(lua.get("lane_pop"), idle, lambda runner: Lanes(runner, keys).pop(3))
    push = arguments_sent(lua.get("lane_push"), 1, lambda runner: Lanes(runner, keys).push(entries[:1]))
    silent = arguments_sent(lua.get("lane_push"), 1, lambda runner: Lanes(runner, keys).push(entries[:1], wake=False))
    many = arguments_sent(lua.get("lane_push_many"), [3, 0, 0], lambda runner: Lanes(runner, keys).push(entries))

    weights = {"weight_0": b"4", "weight_1": b"3", "weight_2": b"2", "weight_3": b"1"}
    assert pop == {"count": b"3", "burst": b"5", **weights}
    assert usual == {"count": b"3"}
    assert push == {"wakeup_channel": keys.wakeup_channel, "lane": b"2", "score_ms": b"70", "workflow_id": b"x"}
    assert silent == push | {"wakeup_channel": b""}
    assert many == {
        "wakeup_channel": keys.wakeup_channel, "wakeup_ms": b"70",
        "entries_0": b"y\x1f71", "entries_1": b"", "entries_2": b"x\x1f70\x1fz\x1f72", "entries_3": b"",
    }  # fmt: skip


@every_script
def test_the_caller_that_a_contract_names_exists(script: lua.Script) -> None:
    module, class_name, method = script.caller.rsplit(".", 2)

    assert callable(getattr(getattr(importlib.import_module(module), class_name), method))


def test_no_script_is_built_from_input() -> None:
    """The text of EVAL and the sha1 of EVALSHA come from a Script as loaded, and from nowhere else."""
    tree = ast.parse(inspect.getsource(scripts))
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in ("text", "sha1")]
    evals = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in ("EVAL", "EVALSHA")]

    assert {ast.unparse(node) for node in uses} == {"script.text", "script.sha1"}
    assert len(uses) == len(evals) == 2
    package = Path(inspect.getfile(scripts)).parent
    for path in package.glob("*.py"):
        # Asking which scripts a server knows gives it none.
        words = re.findall(r'"(EVAL\w*|SCRIPT(?!", "EXISTS")|FCALL\w*|FUNCTION)"', path.read_text())
        assert words == (["EVALSHA", "EVAL"] if path.name == "scripts.py" else []), path.name


@pytest.mark.req("lane-atomic-lua", "lane-raise-moves", "dc-lua-keys", "dc-lua-time")
def test_each_operation_is_one_call_whose_commands_touch_only_its_own_keys(real_redis: RedisTarget) -> None:
    runner = real_redis.runner()
    ready = Lanes(runner, real_redis.keys)

    def each_operation() -> None:
        ready.push([LaneEntry("id", 3, 1)])
        ready.push([LaneEntry("id", 0, 1)])
        ready.push([LaneEntry("a", 1, 1), LaneEntry("b", 2, 1)])
        ready.pop(8)
        ready.pop(1)
        ready.remove(["a"])
        ready.stats()

    each_operation()
    own = {key.decode() for key in (*real_redis.keys.lanes, real_redis.keys.lane_state)}
    with real_redis.client.monitor() as monitor:
        each_operation()
        runner.command("PING")
        seen = list(_until_ping(monitor))

    assert [words[0] for words, inner in seen if not inner] == ["EVALSHA"] * 7
    assert [words[0] for words, inner in seen if inner].count("TIME") == 3
    touched = {words[1] for words, inner in seen if inner and words[0] not in ("TIME", "PUBLISH")}
    assert touched == own


def _until_ping(monitor: object) -> Iterator[tuple[list[str], bool]]:
    while True:
        entry = monitor.next_command()  # type: ignore[attr-defined]
        words = re.findall(r'[^\s"]+', entry["command"])
        words[0] = words[0].upper()
        if words[0] == "PING":
            return
        yield words, entry["client_type"] == "lua"


def test_a_script_that_left_a_global_behind_would_be_refused_by_a_real_server(real_redis: RedisTarget) -> None:
    """The counterpart of the scan: the servers say the same, so a typo can not pass there either."""
    runner = RawLanes(real_redis).runner

    with pytest.raises(CoordinationRejected):
        runner.command("EVAL", "leaked = 1 return leaked", 0)
    with pytest.raises(CoordinationRejected):
        runner.command("EVAL", "return mispelt", 0)
