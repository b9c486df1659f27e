"""Nothing moves any more: what everybody was doing, written down while it is still so.

The dump is for people: instances that have not ended, one line each as `show` would tell them; every key of Redis with
its type and size; signals that are pending for somebody who waits, intents that are due; and the stacks of all
children, which write them into the tree's log when they are sent SIGUSR1 (faulthandler).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import redis

from kernel.records import Document
from tests.chaos.checker import ObjectFact, open_rows
from tests.faults.effects import boot_ms
from tests.support.wait import wait_until

SILENCE_S = 30.0
OUTERMOST = "in <module>"
"""The outermost frame of the main thread, whose stack faulthandler writes last: behind it nothing is missing."""
_ROWS_MAX, _KEYS_MAX, _TAIL_LINES = 40, 200, 60


class Detector:
    """Told again and again how much has happened so far, it says when that stood still for `silence_s`."""

    def __init__(self, silence_s: float = SILENCE_S, now_ms: Callable[[], int] = boot_ms) -> None:
        self._silence_ms = round(silence_s * 1000)
        self._now_ms = now_ms
        self._moved: object = None
        self._since_ms = now_ms()

    def begin_anew(self) -> None:
        """Until now nobody could move."""
        self._since_ms = self._now_ms()

    def stands_still(self, moved: object) -> bool:
        if moved != self._moved:
            self._moved, self._since_ms = moved, self._now_ms()
        return self._now_ms() - self._since_ms >= self._silence_ms


def dump(
    folder: Path,
    rows: Iterable[Document],
    inbox: Iterable[Document],
    objects: Iterable[ObjectFact],
    pids: Iterable[int],
    redis_url: str | None,
) -> str:
    """The text of the dump."""
    rows, inbox = list(rows), list(inbox)
    waiting = {row["workflow_id"] for row in rows if row["status"] == "waiting"}
    pending = [s for s in inbox if s["match_time"] is None and s["workflow_id"] in waiting]
    due = [fact for fact in objects if fact.intent not in ("dispatched", "refused")]
    sections = {
        "not ended": [_shown(row) for row in open_rows(rows, inbox)],
        "pending signals of those that wait": [
            f"{s['signal_id']} for {s['workflow_id']}: {s['signal_type']} {s['wait_key']} {s['generation']}"
            for s in pending
        ],
        "open intents": [f"{fact.object_id} {fact.status} {fact.round} {fact.intent}" for fact in due],
        "redis": list(_keys(redis_url)),
        "stacks": stacks(folder, pids),
        "log": _tail(folder / "log.jsonl", _TAIL_LINES),
    }
    lines = []
    for title, found in sections.items():
        most = len(found) if title in ("stacks", "log") else _KEYS_MAX if title == "redis" else _ROWS_MAX
        lines += [f"--- {title}: {len(found)}", *found[:most]]
        if len(found) > most:
            lines.append(f"… and {len(found) - most} more")
    return "\n".join(lines)


def _shown(row: Document) -> str:
    steps = " ".join(
        f"{step['name']}={step['status']}/{step.get('attempt', 0)}" + (f" {step['wait']}" if "wait" in step else "")
        for step in row["steps"]
    )
    fields = ("claimable_time", "worker", "claim_token", "deaths", "parked", "permit_wait", "deferred", "finalizer")
    rest = " ".join(f"{field}={row[field]}" for field in fields if row.get(field))
    head = f"{row['biz_key']} {row['workflow_id']} {row['status']} run {row['workflow_run']} revision {row['revision']}"
    return f"{head}: {steps} {rest}"


def _keys(url: str | None) -> Iterator[str]:
    sizes = {"string": "strlen", "list": "llen", "zset": "zcard", "set": "scard", "hash": "hlen"}
    if url is None:
        return
    try:
        with redis.Redis.from_url(url, socket_timeout=2.0, socket_connect_timeout=2.0) as client:
            for key in sorted(client.scan_iter(count=1000)):
                kind = client.type(key).decode()
                size = getattr(client, sizes[kind])(key) if kind in sizes else "?"
                yield f"{key.decode(errors='replace')} {kind} {size}"
    except (redis.RedisError, OSError) as error:
        yield f"does not answer: {error}"


def stacks(folder: Path, pids: Iterable[int], timeout: float = 15.0) -> list[str]:
    """What the children have written since they were asked. Who is stopped or hangs in the kernel writes nothing."""
    log, pids = folder / "log.jsonl", set(pids)
    if not log.exists():
        return []
    before = log.stat().st_size
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR1)
    seen = [-1]

    def whole() -> bool:
        """Everybody has come to the end, and nobody has written more since the last look."""
        told = _stack_lines(log, before)
        seen.append(len(told))
        return pids <= {pid for pid, text in told if text.endswith(OUTERMOST)} and seen[-1] == seen[-2]

    with suppress(AssertionError):
        wait_until(whole, "the stacks", timeout, every=0.2)
    return [f"{pid}: {text}" for pid, text in sorted(_stack_lines(log, before), key=lambda line: line[0])]


def _stack_lines(log: Path, begin: int) -> list[tuple[int, str]]:
    """(pid, text) of what children wrote to stderr behind that place of the log."""
    with open(log, "rb") as file:
        file.seek(begin)
        data = file.read()
    lines = [msgspec.json.decode(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    return [(line.get("pid", 0), line["msg"]) for line in lines if line["event"] == "child.stderr"]


def _tail(path: Path, lines: int) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
