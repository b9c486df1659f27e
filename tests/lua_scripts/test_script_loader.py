"""The loader: contracts, includes, stable text, and one clear error for each way to get a script file wrong."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lua

HEADER = """-- sample
--
-- version: 3
-- promise: Does a thing
--   over two lines.
-- KEYS: lane_0 lane_1
-- ARGV: count [burst weight] [now_ms]
--   count is explained here.
-- reply: a number
-- caller: nobody
"""


def write(folder: Path, text: str, **includes: str) -> Path:
    """A script folder with sample.lua and the given includes."""
    (folder / "include").mkdir(exist_ok=True)
    (folder / "sample.lua").write_text(text)
    for name, content in includes.items():
        (folder / "include" / f"{name}.lua").write_text(content)
    return folder


@pytest.mark.req("dc-lua-files")
def test_the_lane_scripts_are_there_by_name() -> None:
    names = {script.name for script in lua.scripts()}

    assert {"lane_pop", "lane_push", "lane_push_many", "lane_remove", "lane_stats"} <= names
    assert all(lua.get(name).text.startswith(f"-- {name} ") for name in names)


def test_a_contract_is_read_field_by_field(tmp_path: Path) -> None:
    (script,) = lua.load(write(tmp_path, HEADER + "return 1\n"))

    assert (script.name, script.version) == ("sample", 3)
    assert script.promise == "Does a thing over two lines."
    assert script.keys == ("lane_0", "lane_1")
    assert (script.args, script.optional, script.repeated) == (("count",), ("burst", "weight", "now_ms"), ())
    assert (script.reply, script.caller) == ("a number", "nobody")


def test_repeated_arguments_and_none_are_read(tmp_path: Path) -> None:
    header = HEADER.replace("lane_0 lane_1", "none").replace("count [burst weight] [now_ms]", "a (score id)...")

    (script,) = lua.load(write(tmp_path, header + "return 1\n"))

    assert (script.keys, script.args, script.optional, script.repeated) == ((), ("a",), (), ("score", "id"))


def test_the_text_is_the_code_under_one_line_with_name_and_version(tmp_path: Path) -> None:
    code = '--#include "include/one.lua"\n-- why\nlocal a = one() -- kept\n\n  return a\n'

    (script,) = lua.load(write(tmp_path, HEADER + code, one="-- what one is\nlocal function one() return 1 end\n"))

    assert script.text == "-- sample 3\nlocal function one() return 1 end\nlocal a = one() -- kept\n  return a\n"
    assert script.sha1 == hashlib.sha1(script.text.encode()).hexdigest()


def test_comments_do_not_change_the_sha1_but_code_includes_and_version_do(tmp_path: Path) -> None:
    def sha1(
        header: str = HEADER, code: str = "return one()\n", one: str = "local function one() return 1 end\n"
    ) -> str:
        return lua.load(write(tmp_path, f'{header}--#include "include/one.lua"\n{code}', one=one))[0].sha1

    first = sha1()

    assert sha1(header=HEADER.replace("a thing", "something else")) == first
    assert sha1(code="-- a remark\nreturn one()\n") == first
    others = {sha1(code="return one() + 1\n"), sha1(one="local function one() return 2 end\n")}
    others.add(sha1(header=HEADER.replace("version: 3", "version: 4")))
    assert len(others | {first}) == 4


def test_an_include_stands_once_however_often_it_is_named(tmp_path: Path) -> None:
    code = '--#include "include/one.lua"\n--#include "include/two.lua"\nreturn two()\n'
    two = '--#include "include/one.lua"\nlocal function two() return one() end\n'

    (script,) = lua.load(write(tmp_path, HEADER + code, one="local function one() return 1 end\n", two=two))

    assert script.text.count("local function one()") == 1
    assert script.text.index("function one()") < script.text.index("function two()")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("return 1\n", lua.HeaderError, "sample.lua:1: .*first line must be '-- sample'"),
        ("", lua.HeaderError, "sample.lua:1: "),
        (HEADER.replace("-- sample", "-- other"), lua.HeaderError, "sample.lua:1: "),
        (HEADER.replace("-- version: 3\n", ""), lua.HeaderError, "lacks version"),
        (HEADER.replace("-- KEYS: lane_0 lane_1\n", "-- KEYS:\n"), lua.HeaderError, "lacks KEYS"),
        (HEADER.replace("-- reply: a number\n-- caller: nobody\n", ""), lua.HeaderError, "lacks reply, caller"),
        (HEADER.replace("version: 3", "version: 0"), lua.HeaderError, "version: must be a whole number"),
        (HEADER.replace("version: 3", "version: 3.1"), lua.HeaderError, "version: must be a whole number"),
        (HEADER + "-- reply: again\n", lua.HeaderError, "sample.lua:11: reply is given twice"),
        (HEADER + "-- author: me\n", lua.HeaderError, "sample.lua:11: not a field of the contract: 'author: me'"),
        (HEADER.replace("lane_0 lane_1", "lane_0 lane_0"), lua.HeaderError, "KEYS: .*each once"),
        (HEADER.replace("lane_0 lane_1", "Lane-0"), lua.HeaderError, "KEYS: "),
        (HEADER.replace("[burst weight]", "[burst weight"), lua.HeaderError, "ARGV: can not be read from"),
        (HEADER.replace("[now_ms]", "(a)... (b)..."), lua.HeaderError, r"ARGV: can not be read from '\(b\)"),
        (HEADER.replace("[now_ms]", "[now_ms] late"), lua.HeaderError, "ARGV: can not be read from 'late'"),
        (HEADER.replace("[now_ms]", "[count]"), lua.HeaderError, "ARGV: .*each once"),
        (HEADER + '--#include "include/nowhere.lua"\n', lua.IncludeError, "sample.lua:11: there is no file include/no"),
        (HEADER + '--#include "../secret.lua"\n', lua.IncludeError, "sample.lua:11: an include reads"),
        (HEADER + '--#inlcude "include/one.lua"\n', lua.IncludeError, "sample.lua:11: an include reads"),
        (HEADER + '--#include "include/one.lua"\n', lua.IncludeCycle, "two.lua:1: .*one.lua -> include/two.lua -> "),
        (HEADER + "return 1 --[[ block ]]\n", lua.ScriptError, "sample.lua:11: long strings and block comments"),
        (HEADER + "local a = [[long]]\n", lua.ScriptError, "sample.lua:11: long strings and block comments"),
    ],
)
def test_a_broken_file_is_a_typed_error_with_file_and_rule(
    tmp_path: Path, text: str, error: type[lua.ScriptError], message: str
) -> None:
    folder = write(tmp_path, text, one='--#include "include/two.lua"\n', two='--#include "include/one.lua"\n')

    with pytest.raises(error, match=message) as caught:
        lua.load(folder)

    assert type(caught.value) is error
    assert caught.value.code.startswith("script_")
    assert "\n" not in str(caught.value)


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(lua.UnknownScript, match=r"no script is called 'lane_pup'; there are .*lane_pop, lane_push"):
        lua.get("lane_pup")


@pytest.mark.req("dc-lua-files")
def test_the_scripts_load_the_same_from_a_zipped_package(tmp_path: Path) -> None:
    package = Path(lua.__file__).parent
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in package.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                packed.write(path, Path("lua") / path.relative_to(package))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import lua; print(lua.__file__, *(s.sha1 for s in lua.scripts()))"
    )

    done = subprocess.run([sys.executable, "-I", "-c", code, str(archive)], capture_output=True, text=True, timeout=60)

    assert done.stderr == ""
    location, *sha1s = done.stdout.split()
    assert location.startswith(str(archive))
    assert sha1s == [script.sha1 for script in lua.scripts()]
