"""Passwords never appear in a line that leaves this process: one place masks them, the formatter (A83).

Two nets, each for what the other misses: whatever looks like a credential (kernel.credentials); and the literal secrets
of the configuration, raw, percent-decoded, and in the pieces into which a URL parser cuts an unescaped one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus, unquote

import msgspec

from kernel.config import SECRETS, Config
from kernel.credentials import MASK, assigned, suspicious, without_credentials

_PIECE_CHARACTERS_MIN = 4


class Redactor:
    """Masks credentials in text."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        longest_first = sorted({text for secret in secrets for text in _forms(secret)}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._signs = {*longest_first, *(msgspec.json.encode(text).decode()[1:-1] for text in longest_first)}

    @classmethod
    def of(cls, config: Config) -> Redactor:
        """Knows the passwords inside the secret settings."""
        urls = (getattr(config, name) for name in SECRETS)
        return cls(password for url in urls if url is not None for password in _passwords(str(url)))

    def suspects(self, text: str) -> bool:
        """Whether `text`, plain or as JSON, may hold a credential: cheap, so that most lines cost nothing more."""
        return suspicious(text) or any(sign in text for sign in self._signs)

    def __call__(self, text: str) -> str:
        if not self.suspects(text):
            return text
        if self._known is not None:
            text = self._known.sub(MASK, text)
        return without_credentials(text)


def _passwords(url: str) -> Iterable[str]:
    """What may be the password of a URL: after the first colon of the user part; and of the query."""
    rest = url.partition("://")[2] or url
    user_info, at, _ = rest.rpartition("@")
    if at:
        yield user_info.partition(":")[2] or user_info
    yield from assigned(url.partition("?")[2])


def _forms(secret: str) -> Iterable[str]:
    """A secret as it may be seen: as written, decoded, encoded, and cut where a URL parser cuts."""
    decoded = unquote(secret)
    yield from (text for text in (secret, decoded, quote(decoded, safe=""), quote_plus(decoded)) if text)
    for text in (secret, decoded):
        yield from (piece for piece in re.split(r"[/#?@:]", text) if len(piece) >= _PIECE_CHARACTERS_MIN)
