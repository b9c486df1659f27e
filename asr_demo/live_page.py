"""The web page of a demo run, as its driver sees it: what it needs, where it is, and how long it stays."""

from __future__ import annotations

import errno
import os
import socket
import threading
from importlib.util import find_spec

import msgspec

from asr_demo.flow import PAGE
from asr_demo.page_orders import PageOrders
from asr_demo.screen import PlainScreen
from kernel.config import Config
from supervisor.listening import AGAIN_MS, TRIES
from supervisor.session import Session, SessionFailed

PORT = 8321
LOOPBACK = "127.0.0.1"
_PACKAGES = ("sse_starlette", "starlette", "uvicorn")


def missing_extra() -> str | None:
    """One line for what is not installed; None when all is there."""
    if all(find_spec(package) is not None for package in _PACKAGES):
        return None
    return "--web needs the extra `web`: pip install 'workflow-kernel[web]'"


def taken_port(port: int) -> str | None:
    """One line for a port that the page can not have; None when it can. Looked at before anything is started, and for
    as long as children of a killed run may hold it."""
    pause = threading.Event()
    for attempt in range(1, TRIES + 1):
        try:
            socket.create_server((LOOPBACK, port)).close()
            return None
        except OSError as error:
            if error.errno != errno.EADDRINUSE or attempt == TRIES:
                return f"--web {port}: {os.strerror(error.errno or errno.EADDRNOTAVAIL)}"
        pause.wait(AGAIN_MS / 1000)
    return None


def page_url(session: Session) -> str:
    """Where the page is. Raises NoSupervisor, SessionFailed."""
    for child in session.status()["children"]:
        if child["role"] == PAGE and child["url"]:
            return str(child["url"])
    raise SessionFailed("the tree has no web process")


def announce(session: Session, orders: PageOrders, path: str, screen: PlainScreen) -> None:
    """Say where the page is, if there is one."""
    if orders.port is not None:
        screen.say(f"page: {page_url(session)}{path}")


def stay(session: Session, orders: PageOrders, screen: PlainScreen) -> None:
    """Keep serving until Ctrl-C, if that was asked for; the end of the wait is no interruption of the run."""
    if not orders.stay:
        return
    screen.say(f"the page stays at {page_url(session)} until Ctrl-C")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        screen.say("the page has ended")


def kept_port(config: Config, session: Session) -> Config:
    """`config` for another tree beside the same readers: a port that was any free one stays what it is."""
    app = config.app or ""
    if not app.endswith("_page_0"):
        return config
    number = page_url(session).rpartition(":")[2]
    return msgspec.structs.replace(config, app=f"{app.removesuffix('0')}{number}")
