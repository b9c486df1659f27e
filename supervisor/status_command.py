"""`kernel-supervisor status`: ask, show, and say by the exit status whether all is running."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from supervisor.control_client import ControlClient, NoSupervisor
from supervisor.status_view import as_text, is_all_running, with_usage

EXIT_RUNNING = 0
EXIT_NOT_RUNNING = 3
_CLEAR_SCREEN = "\x1b[H\x1b[2J"
_EVERY_S = 1.0


def show(data_dir: str, *, as_json: bool, watch: bool) -> int:
    """Print once, or every second; the exit status of the last look."""
    while True:
        code = _show_once(data_dir, as_json=as_json, clear=watch and sys.stdout.isatty())
        if not watch or _ended(data_dir):
            return code


def _ended(data_dir: str) -> bool:
    """Wait a second for the end of the tree: its control socket tells it."""
    try:
        with ControlClient(data_dir, timeout_s=_EVERY_S) as client:
            return client.is_closed_within(_EVERY_S)
    except NoSupervisor:
        return True


def _show_once(data_dir: str, *, as_json: bool, clear: bool) -> int:
    try:
        with ControlClient(data_dir) as client:
            status = with_usage(client.request("status"))
    except NoSupervisor as nobody:
        return _show_nobody(str(nobody), "STOPPED", as_json)
    except TimeoutError:
        return _show_nobody(f"the supervisor of {data_dir} does not answer", "SILENT", as_json)
    status.pop("ok", None)
    text = _line(status) if as_json else as_text(status) + "\n"
    sys.stdout.write((_CLEAR_SCREEN if clear else "") + text)
    sys.stdout.flush()
    return EXIT_RUNNING if is_all_running(status) else EXIT_NOT_RUNNING


def _show_nobody(text: str, state: str, as_json: bool) -> int:
    sys.stdout.write(_line({"v": 1, "state": state, "children": []}) if as_json else f"{text}\n")
    sys.stdout.flush()
    return EXIT_NOT_RUNNING


def _line(status: dict[str, Any]) -> str:
    return msgspec.json.encode(status).decode() + "\n"
