"""The demo's speech service as a companion of the tree: served on the socket that the supervisor holds."""

from __future__ import annotations

import threading
from typing import Any

from asr_demo.asr_faults import Faults
from asr_demo.asr_service import serve


def asr(link: Any) -> int:
    """Serve until the supervisor orders the drain; `link` is the child's connection to it."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            serve(link.listener, link.data_dir, Faults(), stop, ready=link.ready)
        except BaseException as error:
            failed.append(error)
            stop.set()

    server = threading.Thread(target=run, name="asr")
    server.start()
    while not stop.is_set():
        order = link.next_order(1.0)
        if order is not None and order.kind in ("drain", "hasten"):
            stop.set()
        link.report({"loops": {"asr": 0.0 if server.is_alive() else 1e9}})
    server.join()
    if failed:
        link.failed(f"the speech service failed: {failed[0]}")
        return 1
    return 0
