"""What a figure was measured on: without it a figure says nothing (dc-bench-repeatable)."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import psutil

_GIT_LIMIT_S = 5.0


def commit() -> str:
    """The commit of this checkout, with `+` when files differ from it; `none` outside a checkout or before its first
    commit."""
    head = _git("rev-parse", "--verify", "--quiet", "HEAD")
    if not head:
        return "none"
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    folder = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_GIT_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def machine() -> str:
    """System, processor, how many of it and how much memory, in one line."""
    memory_gib = psutil.virtual_memory().total / 2**30
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{platform.system()} {platform.release()} {platform.machine()}, {cpus} × {_processor()}, {memory_gib:.0f} GiB"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def load_average() -> float:
    """How many processes wanted to run in the last minute: above the number of processors a rate is too low."""
    return round(os.getloadavg()[0], 2)


def python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


def file_system(folder: Path) -> str:
    """The kind of file system under `folder`: on `tmpfs` a durable commit costs nothing and proves nothing."""
    mounts = [m for m in psutil.disk_partitions(all=True) if folder.is_relative_to(m.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else "unknown"
