"""Calling scripts: EVALSHA on held connections, once, within a time limit, with the kernel's own errors.

A call is sent at most once. A retried script runs twice, and one lost reply made two stream entries (RELIABILITY
2.1), so the connections have no retries and an unknown outcome is told as CoordinationUnavailable. Only NOSCRIPT
is answered by sending again, because it says that nothing ran.

A connection goes back to the shelf only after a reply was read to its end. Whatever else happens between sending
and reading (a timeout, a signal handler that raises, the end of the process) throws it away: otherwise the next
caller would read this caller's reply (A31).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from kernel.coordination.breaker import BootClock, CircuitBreaker
from kernel.coordination.endpoint import Connector, Link
from kernel.errors import (
    CoordinationDenied,
    CoordinationRejected,
    CoordinationUnavailable,
    KernelError,
    WrongProcess,
)
from lua import Script

CALL_TIMEOUT_S = 0.4
IDLE_CHECK_MS = 1_000
"""A connection unused for longer is looked at before it is trusted: the server may have closed it meanwhile."""

Word = bytes | str | int

_PASSING_WORDS = frozenset(
    [
        "LOADING",
        "BUSY",
        "OOM",
        "READONLY",
        "MISCONF",
        "NOREPLICAS",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "MOVED",
        "ASK",
        "UNKILLABLE",
        "UNBLOCKED",
    ]
)
_PASSING_TYPES = (OutOfMemoryError, ReadOnlyError)
_DENYING_WORDS = frozenset(["NOAUTH", "WRONGPASS", "NOPERM"])
_DENYING_TYPES = (AuthenticationError, AuthorizationError, NoPermissionError)
# What a script was not allowed to do, as Redis 7.0, its successors and Valkey say it; and a request that was too long
# for a client without a password.
_DENYING_TEXTS = re.compile(r"ACL failure in script|The user executing the script can't|: unauthenticated ")
# Redis 6.2 wraps the error of a failing call inside a script into a text of its own.
_WRAPPED = re.compile(r"Error running script .*@user_script: ?\d+: -?([A-Z]{2,}) ")


class BoundScript:
    """A script with its keys and the arguments that its calls begin with: what never changes is packed once.

    Packing is what a call costs a client most after the way to the server, so whoever calls often binds all it can.
    """

    __slots__ = ("_alone", "_bound", "_head", "_text", "_words", "name")

    def __init__(self, script: Script, keys: Sequence[bytes], first: Sequence[Word] = ()) -> None:
        if len(keys) != len(script.keys):
            raise ValueError(f"{script.name} takes {len(script.keys)} keys, got {len(keys)}")
        self.name = script.name
        self._words = 3 + len(keys) + len(first)
        self._bound = _packed((len(keys), *keys, *first))
        self._head = _packed(("EVALSHA", script.sha1)) + self._bound
        self._alone = b"*%d\r\n%b" % (self._words, self._head)
        self._text = script.text

    def by_sha(self, args: Sequence[Word]) -> bytes:
        """The request that calls the script by its sha1."""
        if not args:
            return self._alone
        return b"*%d\r\n%b%b" % (self._words + len(args), self._head, _packed(args))

    def by_text(self, args: Sequence[Word]) -> bytes:
        """The request that loads and calls it in one step, so that no flush can come between."""
        words = self._words + len(args)
        return b"*%d\r\n%b%b%b" % (words, _packed(("EVAL", self._text)), self._bound, _packed(args))


class Watch(Protocol):
    """Who times the calls of scripts, where somebody does. Its methods must neither raise nor take long."""

    def began(self) -> float: ...

    def ended(self, script: str, began: float, error: Exception | None) -> None: ...

    def sent_text(self, script: str) -> None:
        """The server did not know it."""
        ...


class ScriptRunner:
    """Runs scripts and plain commands against one server. Shared by all threads of the process that made it.

    Connections are opened by the first call and never by the constructor; another process than the maker gets
    WrongProcess at once, because two processes on one socket read each other's replies (A55). Raises
    CoordinationUnavailable when Redis does not answer, refuses for a passing reason, or is skipped by the breaker;
    CoordinationDenied, a kind of it, when Redis refuses the user, the password or a right; CoordinationRejected when a
    script or command was refused for what it was given.
    """

    def __init__(
        self,
        connector: Connector,
        clock: BootClock,
        *,
        breaker: CircuitBreaker | None = None,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._connector = connector
        self._clock = clock
        self.breaker = breaker if breaker is not None else CircuitBreaker(clock)
        self._call_timeout_s = call_timeout_s
        self._pid = os.getpid()
        # A list as a stack: append and pop are atomic, and the connection used last is the one most alive.
        self._shelf: list[tuple[Link, int]] = []
        self.watch: Watch | None = None

    def call(self, bound: BoundScript, *args: Word) -> Any:
        """Run a script once; by its sha1, or by its text when the server does not know it (dc-lua-evalsha)."""
        if self.watch is not None:
            return self._watched(self.watch, bound, args)
        return self._exchange(bound.name, bound.by_sha(args), lambda: bound.by_text(args))

    def _watched(self, watch: Watch, bound: BoundScript, args: Sequence[Word]) -> Any:
        def by_text() -> bytes:
            watch.sent_text(bound.name)
            return bound.by_text(args)

        began = watch.began()
        try:
            reply = self._exchange(bound.name, bound.by_sha(args), by_text)
        except Exception as error:
            watch.ended(bound.name, began, error)
            raise
        watch.ended(bound.name, began, None)
        return reply

    def command(self, *words: Word) -> Any:
        """Run one plain command once. The first word names it in errors."""
        return self._exchange(str(words[0]), packed_command(*words), None)

    def close(self) -> None:
        """Close the connections that no call is using. The runner stays usable."""
        self._check_process()
        while self._shelf:
            self._shelf.pop()[0].disconnect()

    def _exchange(self, what: str, request: bytes, with_text: Callable[[], bytes] | None) -> Any:
        self._check_process()
        if not self.breaker.admit():
            raise CoordinationUnavailable(f"{what}: Redis is skipped for a moment after repeated failures")
        link: Link | None = None
        try:
            link = self._open_link()
            try:
                reply = _ask(link, request)
            except NoScriptError:
                if with_text is None:
                    raise
                reply = _ask(link, with_text())
        except (RedisError, OSError, ValueError) as error:
            raise self._failure(what, link, error) from error
        except BaseException:
            self.breaker.abandoned()
            if link is not None:
                link.disconnect()
            raise
        self._shelf.append((link, self._clock.boot_ms()))
        self.breaker.succeeded()
        return reply

    def _open_link(self) -> Link:
        while True:
            try:
                link, used_ms = self._shelf.pop()
            except IndexError:
                return self._connector(self._call_timeout_s)
            if self._clock.boot_ms() - used_ms < IDLE_CHECK_MS or _is_quiet(link):
                return link
            link.disconnect()

    def _failure(self, what: str, link: Link | None, error: Exception) -> KernelError:
        """Settle connection and breaker after a failed call; returns the kernel's error for it."""
        if isinstance(error, ResponseError) and link is not None and not _ends_link(error):
            # The server spoke, so the connection is in step; a refusal of what was given proves it healthy, too.
            self._shelf.append((link, self._clock.boot_ms()))
        elif link is not None:
            # One dead connection means that its neighbours died with it: do not fail once for each.
            link.disconnect()
            self.close()
        found = kernel_error(what, error)
        if isinstance(found, CoordinationUnavailable):
            self.breaker.failed()
        else:
            self.breaker.succeeded()
        return found

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise WrongProcess(f"this Redis client was made by process {self._pid}; make one after the fork")


def packed_command(*words: Word) -> bytes:
    """One command in the protocol of Redis."""
    return b"*%d\r\n%b" % (len(words), _packed(words))


def kernel_error(what: str, error: Exception) -> KernelError:
    """What redis-py raised, as the kernel says it; `what` names the call. Only the first word of a text decides."""
    text = " ".join(str(error).split())[:200]
    word = getattr(error, "status_code", None) or text.partition(" ")[0]
    wrapped = _WRAPPED.search(text)
    if wrapped is not None:
        word = wrapped[1]
    if isinstance(error, _DENYING_TYPES) or word in _DENYING_WORDS or _DENYING_TEXTS.search(text):
        return CoordinationDenied(f"redis_url: Redis refuses this user or password for {what}: {text}")
    if not isinstance(error, ResponseError):
        return CoordinationUnavailable(f"{what}: {type(error).__name__}: {text}")
    if isinstance(error, _PASSING_TYPES) or word in _PASSING_WORDS or _ends_link(error):
        return CoordinationUnavailable(f"{what}: {word}: {text}")
    return CoordinationRejected(f"{what}: {text}")


def _ends_link(error: Exception) -> bool:
    """A protocol error, after which the server hangs up: it lets a client without a password say little."""
    return str(error).removeprefix("ERR ").startswith("Protocol error")


def _ask(link: Link, request: bytes) -> Any:
    link.send_packed_command((request,), check_health=False)
    return link.read_response()


def _is_quiet(link: Link) -> bool:
    """False for a connection that was closed by the server or holds bytes that nobody asked for."""
    try:
        return not link.can_read(0)
    except (RedisError, OSError):
        return False


def _packed(words: Sequence[Word]) -> bytes:
    parts = []
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)
