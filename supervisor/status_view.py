"""`status` for people and machines: what the supervisor says, and what the operating system knows (dc-status)."""

from __future__ import annotations

import select
from collections.abc import Mapping
from typing import Any

import psutil

_CPU_SAMPLE_MS = 100
_HEADINGS = ("CHILD", "PID", "STATE", "CPU", "RSS", "UPTIME", "RESTARTS", "CLAIMS", "LAST EXIT", "LOOPS")


def with_usage(status: dict[str, Any]) -> dict[str, Any]:
    """Add `cpu_percent` (over 0.1 s) and `rss_bytes` to each child; None where the process can not be read."""
    children = status["children"]
    processes = [_process(child["pid"]) for child in children]
    for process in processes:
        _cpu_percent(process)
    select.poll().poll(_CPU_SAMPLE_MS)
    for child, process in zip(children, processes, strict=True):
        child["cpu_percent"] = _cpu_percent(process)
        child["rss_bytes"] = _rss_bytes(process)
    return status


def _process(pid: int | None) -> psutil.Process | None:
    try:
        return None if pid is None else psutil.Process(pid)
    except psutil.Error:
        return None


def _cpu_percent(process: psutil.Process | None) -> float | None:
    try:
        return None if process is None else float(process.cpu_percent())
    except psutil.Error:
        return None  # it ended meanwhile, or is a zombie about to be reaped


def _rss_bytes(process: psutil.Process | None) -> int | None:
    try:
        return None if process is None else int(process.memory_info().rss)
    except psutil.Error:
        return None


def is_all_running(status: Mapping[str, Any]) -> bool:
    """The verdict behind the exit status: every child runs, speaks, and reaches the durable store. A missing Redis
    costs time only and is no reason to call the tree down; it is shown."""
    return status["state"] == "RUNNING" and all(
        child["state"] == "RUNNING" and not child["silent"] and child.get("x_store") != "down"
        for child in status["children"]
    )


def _out_of_reach(status: Mapping[str, Any]) -> list[str]:
    """One line for each store that some child does not reach."""
    lines = []
    for store, word in (("x_store", "durable store"), ("x_redis", "redis")):
        names = [child["name"] for child in status["children"] if child.get(store) == "down"]
        if names:
            lines.append(f"{word} out of reach for {', '.join(names)}")
    return lines


def as_text(status: Mapping[str, Any]) -> str:
    """A table for a terminal."""
    head = f"supervisor {status['pid']}  {status['state']}  up {_duration(status['uptime_s'])}  {status['data_dir']}"
    if status["app"]:
        head += f"  {status['app']}"
    rows = [_HEADINGS, *(_row(child) for child in status["children"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notes = [f"failure: {status['failure']}"] if status["failure"] else []
    notes += _out_of_reach(status)
    lost = status["log"]["lost_in_children"] + status["log"]["lost_at_sink"]
    notes += [f"log records lost: {lost}"] if lost else []
    return "\n".join([head, *lines, *notes])


def _row(child: Mapping[str, Any]) -> tuple[str, ...]:
    last = child["last_exit"]
    return (
        child["name"],
        _shown(child["pid"]),
        child["state"] + (" silent" if child["silent"] else ""),
        "-" if child.get("cpu_percent") is None else f"{child['cpu_percent']:.0f}%",
        "-" if child.get("rss_bytes") is None else f"{child['rss_bytes'] / 1024 / 1024:.0f} MB",
        "-" if child["uptime_s"] is None else _duration(child["uptime_s"]),
        str(child["restarts"]),
        _shown(child["claims"]),
        "-" if last is None else last["text"] + (f": {last['words']}" if last["words"] else ""),
        " ".join(f"{name} {_duration(age)}" for name, age in child["loops"].items()) or "-",
    )


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f}s"
    minutes = int(seconds // 60)
    return f"{minutes}m" if minutes < 120 else f"{minutes // 60}h{minutes % 60:02d}m"
