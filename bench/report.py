"""The report of a bench as a file: what was measured, on what, and how it compares to an earlier one (INTERFACES)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench import machine

VERSION = 1
_OLDER = {"repeats": 1, "redis": "embedded", "store": "embedded"}
"""What a report without these settings was made with."""
Rows = list[dict[str, Any]]


class BadReport(ValueError):
    """A file that is no report of this bench."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One report. `violations` counts the broken promises that `findings` tells."""

    v: int
    bench: str
    commit: str
    machine: str
    python: str
    server: str
    settings: dict[str, Any]
    rows: list[dict[str, Any]]
    shares: dict[str, float]
    violations: int
    findings: list[str] = []


def made(
    bench: str,
    *,
    server: str,
    settings: dict[str, Any],
    rows: list[dict[str, Any]],
    shares: dict[str, float],
    findings: list[str],
) -> Report:
    """A report about this checkout on this machine."""
    return Report(
        v=VERSION,
        bench=bench,
        commit=machine.commit(),
        machine=machine.machine(),
        python=machine.python(),
        server=server,
        settings=settings,
        rows=rows,
        shares=shares,
        violations=len(findings),
        findings=findings,
    )


def check_place(path: Path) -> None:
    """Raise OSError before anything is measured if a report could not be written to `path`."""
    if path.is_dir():
        raise IsADirectoryError(21, os.strerror(21), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(2, os.strerror(2), str(path.parent))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(13, os.strerror(13), str(path))


def write(report: Report, path: Path) -> None:
    """Write it whole or not at all: a file that exists is replaced at the end."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read(path: Path, bench: str) -> Report:
    """An earlier report. Raises BadReport with one line."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        raise BadReport(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise BadReport(f"{path} is no report of a bench: {error}") from None
    if report.v != VERSION:
        raise BadReport(f"{path} has version {report.v}, this program knows {VERSION}")
    if report.bench != bench:
        raise BadReport(f"{path} is a report of bench {report.bench}, not of {bench}")
    return report


def compared(before: Report, now: Report) -> list[str]:
    """What changed, row by row: each number that both have and that differs, and what else was not the same.

    Rows of scripts are those of the same operation and depth, and each line names it; others stand in one order.
    """
    lines = [
        f"{name}: {old} → {new}"
        for name in ("commit", "machine", "python", "server")
        if (old := getattr(before, name)) != (new := getattr(now, name))
    ]
    lines += [
        f"settings.{name}: {old} → {value}"
        for name, value in now.settings.items()
        if (old := before.settings.get(name, _OLDER.get(name))) != value
    ]
    for of, old_row, new_row in _pairs(before.rows, now.rows):
        lines += [
            of + _change(name, old_row[name], value)
            for name, value in new_row.items()
            if name in old_row and old_row[name] != value
        ]
    return lines


def _pairs(before: Rows, now: Rows) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Rows that tell of the same, and what to call them."""
    if not all("op" in row for row in now):
        yield from (("", old, new) for old, new in zip(before, now, strict=False))
        return
    known = {_operation(row): row for row in before}
    for row in now:
        if (name := _operation(row)) in known:
            yield f"{name}: ", known[name], row


def _operation(row: dict[str, Any]) -> str:
    op = f"{row.get('op')}({row['n']})" if row.get("n") else f"{row.get('op')}"
    return f"{op} at {row['depth']:,}" if row.get("depth") else op


def _change(name: str, old: Any, new: Any) -> str:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
    share = f" ({(new - old) / old:+.1%})" if numbers and old else ""
    return f"{name}: {old} → {new}{share}"
