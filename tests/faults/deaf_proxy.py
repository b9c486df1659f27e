"""A proxy before Redis that loses what is published, and nothing else: scripts and their replies pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lua_scripts.proxy import Proxy

_MESSAGE = b"$7\r\nmessage\r\n"


class DeafProxy(Proxy):
    """While `deaf`, a published message never reaches its subscriber."""

    def __init__(self, upstream: Path) -> None:
        self.deaf = False
        self.lost = 0
        super().__init__(upstream)

    @property
    def url(self) -> str:
        return f"unix://{self.endpoint.path}"

    def _reply(self, data: bytes) -> bytes:
        if self.deaf and _MESSAGE in data:
            self.lost += data.count(_MESSAGE)
            return b""
        return super()._reply(data)


@contextmanager
def deaf_proxy(upstream: Path) -> Iterator[DeafProxy]:
    proxy = DeafProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
