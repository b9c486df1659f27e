"""Where Redis is and how it is reached: the URL, taken apart without ever showing its password.

redis-py's own parser puts pieces of a badly escaped password into its error texts (RELIABILITY 2.10), so a URL is
taken apart here and neither the client nor an error sees it whole. Connections carry no retries: a command that
was sent twice ran twice (RELIABILITY 2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry

from kernel.errors import InvalidConfig

_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
_ESCAPE = "characters such as / # ? @ : and % in a user name or password must be percent-encoded"


class Link(Protocol):
    """One connection, as far as this package uses it; a redis-py Connection is one."""

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def can_read(self, timeout: float = 0) -> bool: ...

    def send_packed_command(self, command: Iterable[bytes], check_health: bool = True) -> None: ...

    def read_response(self) -> Any: ...


Connector = Callable[[float], Link]
"""Makes a connection that is not yet open; the argument is its time limit in seconds for connecting and reading."""


@dataclass(frozen=True, slots=True)
class RedisEndpoint:
    """One server: `path` for a unix socket, else `host` and `port`. The password never shows in its repr."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """The address for people, without user and password."""
        return f"unix:{self.path}" if self.path is not None else f"{self.host}:{self.port}"

    def connection(self, timeout_s: float) -> Link:
        """A fresh connection, not yet open, whose connecting and each of whose reads take `timeout_s` at most."""
        options: dict[str, Any] = {
            "db": self.db,
            "username": self.username,
            "password": self.password,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "driver_info": None,
            # RESP3 costs a greeting and would hand wakeups to a push handler instead of to their reader.
            "protocol": 2,
        }
        make: Any
        place: dict[str, Any]
        if self.path is not None:
            make, place = UnixDomainSocketConnection, {"path": self.path}
        elif self.tls:
            make, place = SSLConnection, {"host": self.host, "port": self.port, **dict(self.tls_options)}
        else:
            make, place = Connection, {"host": self.host, "port": self.port}
        return cast(Link, make(**place, **options))


def parse_redis_url(url: str) -> RedisEndpoint:
    """The endpoint of a redis://, rediss:// or unix:// URL. Raises InvalidConfig, which repeats no part of the URL.

    `redis://[user[:password]@]host[:port][/db]`, `unix://[user[:password]@]/path[?db=n]`; rediss takes
    ssl_ca_certs, ssl_certfile, ssl_keyfile and ssl_cert_reqs as well.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname
    except ValueError:
        raise InvalidConfig(f"redis_url: host and port can not be read; {_ESCAPE}") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise InvalidConfig("redis_url: must start with redis://, rediss:// or unix://")
    # An unescaped character cuts the URL at the wrong place and leaves the rest of the password behind it.
    if parts.fragment or "#" in url or any("@" in part for part in (parts.path, parts.query)):
        raise InvalidConfig(f"redis_url: has a # or a second @; {_ESCAPE}")
    options = _options(parts)
    credentials: dict[str, Any] = {
        "username": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
        "db": _db(parts, options),
    }
    if parts.scheme == "unix":
        if host or port is not None or not parts.path.startswith("/") or parts.path == "/":
            raise InvalidConfig("redis_url: unix:// needs an absolute path: unix:///path/to/socket")
        return RedisEndpoint(path=unquote(parts.path), **credentials)
    if not host:
        raise InvalidConfig("redis_url: names no host")
    tls = parts.scheme == "rediss"
    if not tls and any(name in _TLS_OPTIONS for name in options):
        raise InvalidConfig("redis_url: ssl options need rediss://")
    return RedisEndpoint(
        host=unquote(host),
        port=port if port is not None else 6379,
        tls=tls,
        tls_options=tuple((name, options[name]) for name in _TLS_OPTIONS if name in options),
        **credentials,
    )


def _options(parts: SplitResult) -> dict[str, str]:
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise InvalidConfig(f"redis_url: what follows the ? is not name=value; {_ESCAPE}") from None
    options = dict(pairs)
    known = ("db", *_TLS_OPTIONS)
    if len(options) != len(pairs) or any(name not in known for name in options):
        raise InvalidConfig(f"redis_url: after the ? only {', '.join(known)}, each once; {_ESCAPE}")
    return options


def _db(parts: SplitResult, options: dict[str, str]) -> int:
    path = "" if parts.scheme == "unix" else parts.path.removeprefix("/")
    if path and "db" in options:
        raise InvalidConfig("redis_url: the database stands both in the path and after the ?")
    text = path or options.get("db", "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise InvalidConfig(f"redis_url: the database must be a number; {_ESCAPE}")
    return int(text)
