"""Identities: how tokens are made, and which strings are accepted as names, ids and keys.

A token is 128 random bits. It is never a counter and never read back from Redis, so that an emptied or
restored Redis can not issue one twice (id-token-quality). A workflow_id is derived from its biz_key, so that
a subscriber can be addressed before its instance exists (DECISIONS detail 21).
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import secrets
from functools import lru_cache
from typing import Protocol

from kernel.errors import InvalidId, InvalidName

NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,63}")
ID_CHARACTERS_MAX = 200


class IdSource(Protocol):
    """Where fresh tokens and random numbers come from: handed in, so that a simulator can replay them."""

    def token(self) -> str:
        """A value that was never issued before: 32 hexadecimal digits."""
        ...

    def fraction(self) -> float:
        """A number in [0, 1), for jitter."""
        ...


class RandomIds:
    """Tokens from the operating system's generator; jitter from an ordinary one."""

    def __init__(self) -> None:
        self._jitter = random.Random(secrets.randbits(64))

    def token(self) -> str:
        return os.urandom(16).hex()

    def fraction(self) -> float:
        return self._jitter.random()


class SeededIds:
    """Reproducible tokens for tests and for the simulator."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def fraction(self) -> float:
        return self._random.random()


def workflow_id_for(biz_key: str) -> str:
    """The workflow_id of the one instance that `biz_key` will ever have: `wf-` and 32 hex digits of SHA-256."""
    return "wf-" + hashlib.sha256(biz_key.encode()).hexdigest()[:32]


@lru_cache(maxsize=4_096)  # one commit asks for that of the same run some ten times: rows, logs, spans
def trace_id_for(workflow_id: str, workflow_run: int) -> str:
    """The trace of one run, as 32 hex digits (W3C): derived, so that every worker that continues the run has the same
    one, and the rows and the log lines of all of them lead to each other (stp-trace)."""
    return hashlib.sha256(f"{workflow_id}\0{workflow_run}".encode()).hexdigest()[:32]


def check_name(value: object, field: str) -> str:
    """Return `value` if it is a valid name, else raise InvalidName naming `field` (DECISIONS 25)."""
    if not isinstance(value, str) or NAME_PATTERN.fullmatch(value) is None:
        raise InvalidName(f"{field}: {_shown(value)} is no name: a lower-case letter, then a–z, 0–9 and _, at most 64")
    return value


def check_id(value: object, field: str) -> str:
    """Return `value` if it may be an id or key: 1–200 printable characters, not only blanks (DECISIONS 25)."""
    if not isinstance(value, str):
        raise InvalidId(f"{field}: expected text, got {type(value).__name__}")
    if not value or len(value) > ID_CHARACTERS_MAX:
        raise InvalidId(f"{field}: must have 1–{ID_CHARACTERS_MAX} characters, has {len(value)}")
    if not value.isprintable() or value.isspace():
        raise InvalidId(f"{field}: {_shown(value)} holds control or unprintable characters, or only blanks")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidId(f"{field}: {_shown(value)} is no valid Unicode text") from None
    return value


def check_resource(value: object, field: str) -> str:
    """Return `value` if it names a resource: a name, or `name:key` for one of many alike, as `tenant_work:acme`.

    Raises InvalidName for what stands before the colon and InvalidId for what follows it.
    """
    name, colon, key = value.partition(":") if isinstance(value, str) else (value, "", "")
    check_name(name, field)
    if colon:
        check_id(key, f"{field}, behind the colon")
    return f"{name}{colon}{key}"


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "…"
