"""`kernel-supervisor status`: ask, show, and say by the exit status whether all is running (dc-status)."""

from __future__ import annotations

import select
import sys
import time
from typing import Any, Literal, NamedTuple

import msgspec

from supervisor.control_client import ControlClient, NoSupervisor
from supervisor.status_view import as_text, is_all_running, with_usage

EXIT_RUNNING = 0
EXIT_NOT_RUNNING = 3
_CLEAR_SCREEN = "\x1b[H\x1b[2J"
_EVERY_S = 1.0
_LOOK_EVERY_S = 0.2
_ANSWER_S = 5.0

Wanted = Literal["ready", "stopped"]


class Silence(NamedTuple):
    """No supervisor (STOPPED), or one that does not answer (SILENT)."""

    state: Literal["STOPPED", "SILENT"]
    text: str


def show(data_dir: str, *, as_json: bool, watch: bool = False) -> int:
    """Print once, or every second until the tree ends or Ctrl-C; the exit status of the last look.

    On a terminal each look replaces the one before. Elsewhere looks follow each other, as one JSON object a line or
    with an empty line between them.
    """
    code, is_first = EXIT_NOT_RUNNING, True
    try:
        while True:
            code = _show_once(data_dir, as_json=as_json, head="" if not watch else _head(as_json, is_first))
            if not watch or _ended(data_dir):
                return code
            is_first = False
    except KeyboardInterrupt:
        return code


def wait_for(data_dir: str, wanted: Wanted, timeout_s: float | None, *, as_json: bool) -> int:
    """Wait until everything runs, or until no supervisor is there any more; then show how it is.

    0 when it came so within `timeout_s` (None: for ever). Otherwise 3 for `ready` and 1 for `stopped`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        remaining = None if deadline is None else deadline - time.monotonic()
        found = _asked(data_dir, _ANSWER_S if remaining is None else min(_ANSWER_S, max(remaining, 0.05)))
        if isinstance(found, Silence):
            reached = wanted == "stopped" and found.state == "STOPPED"
        else:
            reached = wanted == "ready" and is_all_running(found)
        if reached or (deadline is not None and time.monotonic() >= deadline):
            code = _show_once(data_dir, as_json=as_json)
            return 0 if reached else code if wanted == "ready" else 1
        select.poll().poll(_LOOK_EVERY_S * 1000)


def _head(as_json: bool, is_first: bool) -> str:
    if sys.stdout.isatty():
        return _CLEAR_SCREEN
    return "" if as_json or is_first else "\n"


def _ended(data_dir: str) -> bool:
    """Wait a second for the end of the tree: its control socket tells it."""
    try:
        with ControlClient(data_dir, timeout_s=_EVERY_S) as client:
            return client.is_gone_within(_EVERY_S)
    except NoSupervisor:
        return True
    except TimeoutError:
        return False  # it is there and does not answer: that was shown, and may pass


def _asked(data_dir: str, limit_s: float) -> dict[str, Any] | Silence:
    try:
        with ControlClient(data_dir, timeout_s=limit_s) as client:
            return client.request("status")
    except NoSupervisor as nobody:
        return Silence("STOPPED", str(nobody))
    except TimeoutError:
        return Silence("SILENT", f"the supervisor of {data_dir} does not answer")


def _show_once(data_dir: str, *, as_json: bool, head: str = "") -> int:
    found = _asked(data_dir, _ANSWER_S)
    if isinstance(found, Silence):
        _write(head, _line({"v": 1, "state": found.state, "children": []}) if as_json else f"{found.text}\n")
        return EXIT_NOT_RUNNING
    status = with_usage(found)
    status.pop("ok", None)
    _write(head, _line(status) if as_json else as_text(status) + "\n")
    return EXIT_RUNNING if is_all_running(status) else EXIT_NOT_RUNNING


def _write(head: str, text: str) -> None:
    sys.stdout.write(head + text)
    sys.stdout.flush()


def _line(status: dict[str, Any]) -> str:
    return msgspec.json.encode(status).decode() + "\n"
