"""What looks like a credential in a text of others is masked before it is kept or shown (A83, RELIABILITY §8).

It needs no list of secrets: the user part of a URL, up to the last `@` (so that an unescaped `/` or `#` in a password
hides nothing); `password=…` and its kin; an `Authorization` header. An activity's error is such a text: it stands in
the row, in every view of it and in the log. Each pattern takes time linear in the text: whoever can make an error or
a log line of a hundred kilobytes could otherwise hold up the supervisor for minutes.
"""

from __future__ import annotations

import re

MASK = "***"
SIGNS = ("://", "passw", "secret", "pwd", "key", "authorization")
"""What each pattern needs to match at all, in lower case."""

_WORD = re.compile(r"[^\s\"'<>]+")
# No run of name characters before the word: that would be walked once from each of its characters.
_ASSIGNMENT = re.compile(
    r"(?i)((?:password|passwd|secret|api[_\-]?key|access[_\-]?key|\bpwd)[\"']?\s{0,8}[=:]\s{0,8})"
    r"(\"[^\"]*\"|'[^']*'|[^\s,;&\"'})\]]+)"
)
_AUTHORIZATION = re.compile(r"(?i)(authorization[\"']?\s{0,8}[=:]\s{0,8}(?:[a-z]{1,32}\s{1,8})?)[^\s\"',;]+")


def suspicious(text: str) -> bool:
    """Whether `text` may hold a credential at all: cheap, so that most texts cost nothing more."""
    lowered = text.lower()
    return any(sign in lowered for sign in SIGNS)


def without_credentials(text: str) -> str:
    """`text` with every credential that a pattern knows replaced by `***`."""
    if not suspicious(text):
        return text
    if "://" in text and "@" in text:
        text = _WORD.sub(_without_user, text)
    text = _ASSIGNMENT.sub(rf"\1{MASK}", text)
    return _AUTHORIZATION.sub(rf"\1{MASK}", text)


def assigned(text: str) -> list[str]:
    """The values of `password=…` and its kin in `text`."""
    return [match.group(2) for match in _ASSIGNMENT.finditer(text)]


def _without_user(word: re.Match[str]) -> str:
    before, separator, rest = word[0].partition("://")
    _, at, host = rest.rpartition("@")
    return f"{before}{separator}{MASK}@{host}" if separator and at else word[0]
