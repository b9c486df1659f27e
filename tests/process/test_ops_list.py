"""`kernel-supervisor workflow list` as operators meet it: on nothing, on ten thousand, and when a store is away."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import msgspec
import pytest

from kernel.clock import SystemClock
from kernel.records import ErrorRecord
from kernel.runtime.observer import OBSERVE_FILE
from kernel.store.sqlite import SqliteStore
from kernel.store.sqlite_projection import SqliteProjection
from tests.support.snapshots import keep, snapshot, step_view

Operate = Callable[..., CompletedProcess[str]]
MANY = 10_000
BROKEN = ErrorRecord(code="step_timeout", type="StepTimeout", message="slow")


def now_ms() -> int:
    return SystemClock().wall_ms()


def answer(result: CompletedProcess[str]) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def keys(result: CompletedProcess[str]) -> list[str]:
    return [row["biz_key"] for row in answer(result)["workflows"]]


def test_an_empty_system_answers_and_makes_no_store(operate: Operate, data_dir: Path) -> None:
    data_dir.mkdir()

    said = operate("workflow", "list")

    assert (said.returncode, said.stdout, said.stderr) == (0, "", "no workflow is known that fits\n")
    assert answer(operate("workflow", "list", "--json")) == {"v": 1, "workflows": [], "next": None}
    assert answer(operate("workflow", "list", "--count", "--json")) == {"v": 1, "counts": [], "total": 0}
    assert list(data_dir.iterdir()) == []


def test_a_prepared_store_without_rows_answers_the_same(operate: Operate, observed: SqliteProjection) -> None:
    assert answer(operate("workflow", "list", "--json")) == {"v": 1, "workflows": [], "next": None}
    assert operate("workflow", "list", "--count").stderr == "no workflow is known that fits\n"


@pytest.mark.req("ops-find")
def test_a_row_says_where_it_stands_and_what_it_waits_for(operate: Operate, observed: SqliteProjection) -> None:
    at_ms = now_ms()
    one = snapshot(
        "order:7", created_time=at_ms - 600_500, waiting="permit", waiting_on="printer", waiting_since=at_ms - 5_000,
        waiting_until=at_ms + 3_600_000, current_step="print", business_priority=0, error_code="step_timeout",
    )  # fmt: skip
    keep(observed, one)

    head, row = operate("workflow", "list").stdout.splitlines()

    assert head.split() == ["WORKFLOW", "TYPE", "STATUS", "LANE", "STEP", "AGE", "WAITS", "FOR", "ERROR", "BIZ", "KEY"]
    cells = re.split(r"  +", row)
    assert cells[:6] == [one.workflow_id, "parcel", "running", "P0", "print", "10 min"]
    assert cells[6].startswith("permit printer, until ")
    assert cells[7:] == ["step_timeout", "order:7"]


def test_of_what_has_ended_the_age_is_how_long_it_took(operate: Operate, observed: SqliteProjection) -> None:
    at_ms = now_ms()
    keep(
        observed,
        snapshot(
            "k", created_time=at_ms - 600_000, status="completed", waiting=None, waiting_since=None,
            finish_time=at_ms - 595_000, current_step=None,
        ),
    )  # fmt: skip

    _, row = operate("workflow", "list").stdout.splitlines()

    assert re.split(r"  +", row)[4:7] == ["-", "took 5.0 s", "-"]


@pytest.mark.req("ops-where-stuck")
def test_what_the_worker_of_a_killed_tree_held_is_due(
    operate: Operate, observed: SqliteProjection, durable: SqliteStore
) -> None:
    """No tree runs here, and its process does not: nobody will ever tell so by an event."""
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    at_ms, who = now_ms(), f"{socket.gethostname()}/{dead.pid}/worker-0"
    held = snapshot(
        "k", created_time=at_ms - 60_000, claim_token="t", claim_time=at_ms - 60_000, worker_id="w", worker=who,
        waiting="step", waiting_on="pack", waiting_since=at_ms - 60_000, lease_until=at_ms - 48_000,
        steps=(step_view("pack", "running", attempt=1, worker_id="w", ready_time=at_ms - 60_000),),
    )  # fmt: skip
    keep(observed, held)

    _, row = operate("workflow", "list").stdout.splitlines()
    shown = operate("workflow", "show", "k").stdout

    assert re.split(r"  +", row)[6] == "worker (due)"
    assert shown.startswith("due: no worker has taken it yet for pack, since ")
    assert f"when the lease of {who}, which does not run any more, ran out as last seen; no supervisor runs" in shown
    assert answer(operate("workflow", "show", "k", "--json"))["now"]["waiting"] == "worker"
    alive = msgspec.structs.replace(held, worker=f"{socket.gethostname()}/{os.getpid()}/worker-0", revision=2)
    keep(observed, msgspec.structs.replace(alive, claim_time=at_ms))
    assert "it is renewed unseen, or " in operate("workflow", "show", "k").stdout
    keep(observed, msgspec.structs.replace(held, worker="elsewhere/1/worker-0", revision=3))
    assert "it is renewed unseen, or elsewhere/1/worker-0 is dead" in operate("workflow", "show", "k").stdout


FILTERS: tuple[tuple[tuple[str, ...], set[str]], ...] = (
    ((), {"a", "b", "c", "d"}),
    (("--type", "parcel"), {"a", "b", "c"}),
    (("--status", "failed"), {"c"}),
    (("--status", "failed", "--status", "waiting"), {"b", "c"}),
    (("--waiting", "signal"), {"b"}),
    (("--waiting", "signal", "--on", "paid"), {"b"}),
    (("--on", "other"), set()),
    (("--step", "ship"), {"b"}),
    (("--lane", "P3"), {"d"}),
    (("--lane", "compensation"), {"d"}),
    (("--lane", "3"), {"d"}),
    (("--older-than", "30m"), {"a", "d"}),
    (("--since", "30m"), {"b", "c"}),
    (("--since", "3h", "--older-than", "90m"), {"a"}),
    (("--error", "step_timeout"), {"c"}),
    (("--type", "parcel", "--status", "failed", "--error", "panic"), set()),
)


@pytest.mark.req("ops-find", "ops-aggregate", "obs-snapshot-use")
@pytest.mark.parametrize(("filters", "expected"), FILTERS)
def test_filters_hold_together(
    operate: Operate, observed: SqliteProjection, filters: tuple[str, ...], expected: set[str]
) -> None:
    at_ms, hour = now_ms(), 3_600_000
    keep(
        observed,
        snapshot("a", created_time=at_ms - 2 * hour),
        snapshot(
            "b", created_time=at_ms - 60_000, status="waiting", waiting="signal", waiting_on="paid",
            current_step="ship",
        ),
        snapshot(
            "c", created_time=at_ms - 1_000, status="failed", waiting=None, waiting_since=None, current_step=None,
            error=BROKEN, error_code="step_timeout",
        ),
        snapshot("d", created_time=at_ms - 24 * hour, type="letter", business_priority=3),
    )  # fmt: skip

    assert set(keys(operate("workflow", "list", "--json", *filters))) == expected
    total = answer(operate("workflow", "list", "--count", "--json", *filters))["total"]
    assert total == len(expected)


@pytest.mark.req("ops-aggregate")
def test_counts_are_by_type_status_and_what_is_waited_for_with_the_oldest(
    operate: Operate, observed: SqliteProjection
) -> None:
    at_ms = now_ms()
    for number in range(5):
        keep(observed, snapshot(f"w{number}", created_time=at_ms, waiting_since=at_ms - 1_000 * number))
    keep(observed, snapshot("s", created_time=at_ms, status="waiting", waiting="signal", waiting_on="paid"))

    found = answer(operate("workflow", "list", "--count", "--json"))

    assert found["counts"][0] == {
        "type": "parcel", "status": "running", "waiting": "worker", "waiting_on": None, "n": 5,
        "oldest_waiting_since": at_ms - 4_000,
    }  # fmt: skip
    assert [(row["waiting"], row["waiting_on"], row["n"]) for row in found["counts"]] == [
        ("worker", None, 5),
        ("signal", "paid", 1),
    ]
    lines = operate("workflow", "list", "--count").stdout.splitlines()
    assert lines[0].split() == ["COUNT", "TYPE", "STATUS", "WAITING", "ON", "OLDEST", "WAIT"]
    assert lines[1].split()[:5] == ["5", "parcel", "running", "worker", "-"]
    assert operate("workflow", "list", "--by", "lane").stdout.splitlines()[1].split()[:2] == ["6", "1"]


@pytest.mark.req("ops-aggregate")
@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (("--status", "failed"), {0: 1, 1: 1, 2: 1}),  # failures
        (("--status", "failed", "--since", "30m"), {1: 1, 2: 1}),
        (("--status", "failed", "--since", "3h", "--older-than", "90m"), {0: 1}),
        (("--status", "failed", "--type", "letter"), {2: 1}),
        (("--status", "failed", "--step", "ship"), {1: 1, 2: 1}),
        (("--waiting", "signal"), {3: 2}),  # waits
        (("--waiting", "signal", "--since", "30m"), {3: 1}),
        (("--waiting", "worker"), {0: 1, 3: 1}),  # what the queue has not given to anybody yet
        (("--waiting", "worker", "--lane", "compensation", "--type", "letter"), {3: 1}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_failures_waits_and_the_queue_are_counted_by_business_source_within_type_step_and_time(
    operate: Operate, observed: SqliteProjection, about: tuple[str, ...], expected: dict[int, int]
) -> None:
    """Where work comes from is its lane: a user who watches, a user's order, what follows on its own, a scan."""
    at_ms, hour = now_ms(), 3_600_000
    failed = {"status": "failed", "waiting": None, "waiting_since": None, "error": BROKEN, "error_code": "step_timeout"}
    waits = {"status": "waiting", "waiting": "signal", "waiting_on": "paid"}
    keep(
        observed,
        snapshot("f0", created_time=at_ms - 2 * hour, business_priority=0, current_step="pack", **failed),
        snapshot("f1", created_time=at_ms - 60_000, business_priority=1, current_step="ship", **failed),
        snapshot("f2", created_time=at_ms, business_priority=2, current_step="ship", type="letter", **failed),
        snapshot("s1", created_time=at_ms - 2 * hour, business_priority=3, **waits),
        snapshot("s2", created_time=at_ms - 60_000, business_priority=3, **waits),
        snapshot("w0", created_time=at_ms, business_priority=0),
        snapshot("w3", created_time=at_ms, business_priority=3, type="letter"),
    )

    found = answer(operate("workflow", "list", "--json", "--by", "lane", *about))

    assert {row["business_priority"]: row["n"] for row in found["counts"]} == expected


@pytest.mark.req("ops-find")
def test_ten_thousand_come_page_by_page_each_once_and_what_is_new_meanwhile_disturbs_nothing(
    operate: Operate, observed: SqliteProjection
) -> None:
    at_ms = now_ms()
    for start in range(0, MANY, 1_000):
        keep(observed, *(snapshot(f"job:{n}", created_time=at_ms - n) for n in range(start, start + 1_000)))
    page = answer(operate("workflow", "list", "--json", "--limit", "100", "--older-than", "0s"))
    seen = [row["biz_key"] for row in page["workflows"]]
    keep(observed, snapshot("late", created_time=at_ms + 60_000))
    pages = 1
    while page["next"] is not None:
        page = answer(
            operate("workflow", "list", "--json", "--limit", "100", "--older-than", "0s", "--after", page["next"])
        )
        seen += [row["biz_key"] for row in page["workflows"]]
        pages += 1
        if pages == 3:  # the rest in one go would take as many calls again
            break

    assert seen == [f"job:{n}" for n in range(300)]
    assert answer(operate("workflow", "list", "--count", "--json"))["total"] == MANY + 1
    told = operate("workflow", "list", "--limit", "2")
    assert len(told.stdout.splitlines()) == 3 and told.stderr.startswith("more: --after ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--status", "stuck"), "'stuck' is not one of"),
        (("--waiting", "godot"), "'godot' is not one of"),
        (("--type", "No Type"), "--type: 'No Type' is no name"),
        (("--type", "a\x1b[2J"), r"--type: 'a\x1b[2J' is no name"),
        (("--step", "\x07"), r"--step: '\x07' is no name"),
        (("--on", "\x1b"), r"--on: '\x1b' is no name"),
        (("--lane", "P4"), "'P4' is no lane"),
        (("--lane", "P0\x1b[2J"), r"'P0\\x1b[2J' is no lane"),
        (("--older-than", "ten"), "'ten' is no duration"),
        (("--older-than", "1h2m"), "'1h2m' is no duration"),
        (("--since", "-5m"), "'-5m' is no duration"),
        (("--limit", "0"), "0 is not in the range"),
        (("--limit", "101"), "101 is not in the range"),
        (("--limit", "many"), "'many' is no whole number"),
        (("--after", "no token"), "no page token of this list"),
        (("--after", "1.x"), "no page token of this list"),
        (("--after", "9" * 400 + ".x"), "no page token of this list"),
        (("--count", "--after", "1.x"), "--count counts everything"),
        (("--by", "worker"), "'worker' is not one of"),
    ],
)
def test_a_bad_question_is_one_line(
    operate: Operate, observed: SqliteProjection, arguments: tuple[str, ...], says: str
) -> None:
    done = operate("workflow", "list", *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and says in done.stderr and done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr and "\x07" not in done.stderr


def test_a_token_that_was_changed_or_belongs_to_another_question_is_refused(
    operate: Operate, observed: SqliteProjection
) -> None:
    at_ms = now_ms()
    keep(observed, *(snapshot(f"job:{n}", created_time=at_ms - n) for n in range(5)))
    token = answer(operate("workflow", "list", "--json", "--limit", "2"))["next"]
    moment, _, rest = token.partition(".")
    swapped = rest[:-1] + ("A" if rest[-1] != "A" else "B")
    shifted = f"{int(moment) + 1}.{rest}"

    assert keys(operate("workflow", "list", "--json", "--limit", "2", "--after", token)) == ["job:2", "job:3"]
    for arguments in (
        ("--after", f"{moment}.{swapped}"),
        ("--after", token, "--type", "parcel"),
    ):
        assert operate("workflow", "list", *arguments).returncode == 2
    page = answer(operate("workflow", "list", "--json", "--limit", "2", "--older-than", "0s"))["next"]
    for arguments in (("--older-than", "0s", "--after", shifted), ("--older-than", "1s", "--after", page)):
        done = operate("workflow", "list", "--limit", "2", *arguments)
        assert (done.returncode, "no page token of this list" in done.stderr) == (2, True)


def test_hostile_text_is_shown_and_not_obeyed(operate: Operate, observed: SqliteProjection) -> None:
    """No kernel writes such a row: a hand, or a fault, does."""
    evil = snapshot("job\x1b]0;owned\x07\u202ekey", created_time=now_ms(), waiting="signal", waiting_on="\x9b31m")
    keep(observed, evil)

    text, as_json = operate("workflow", "list").stdout, operate("workflow", "list", "--json").stdout

    for said in (text, as_json):
        assert not set(said) & set("\x1b\x07\x9b\u202e")
    assert r"job\x1b]0;owned\x07\u202ekey" in text and r"signal \x9b31m" in text
    assert json.loads(as_json)["workflows"][0]["biz_key"] == evil.biz_key


def test_ids_are_never_cut(operate: Operate, observed: SqliteProjection) -> None:
    keep(observed, snapshot("k" * 200, created_time=now_ms()))

    assert operate("workflow", "list").stdout.splitlines()[1].endswith("k" * 200)


def test_a_store_that_is_away_is_one_line_and_exit_69(operate: Operate, data_dir: Path) -> None:
    nowhere = operate("workflow", "list")
    data_dir.mkdir()
    (data_dir / OBSERVE_FILE).write_bytes(b"no database at all" * 100)
    broken = operate("workflow", "list", "--json")
    silent = operate("workflow", "list", environ={"MONGODB_URI": "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=300"})

    for done in (nowhere, broken, silent):
        assert (done.returncode, done.stdout) == (69, ""), done.stderr
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "there is no data folder" in nowhere.stderr


def test_redis_is_not_needed(operate: Operate, observed: SqliteProjection, tmp_path: Path) -> None:
    keep(observed, snapshot("a", created_time=now_ms()))

    assert keys(operate("workflow", "list", "--json", environ={"REDIS_URL": f"unix://{tmp_path}/nobody"})) == ["a"]


def test_a_snapshot_of_a_newer_layout_is_listed_by_its_columns(operate: Operate, observed: SqliteProjection) -> None:
    keep(observed, msgspec.structs.replace(snapshot("new", created_time=now_ms()), v=99))

    assert keys(operate("workflow", "list", "--json")) == ["new"]
