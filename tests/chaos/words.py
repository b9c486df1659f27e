"""What producers asked for and what they were told: the ledger of promises, beside the ledger of effects.

A word is `asked` before a call and `told` when its answer is there. A producer that is killed in between leaves an
`asked` alone: that call may have done its work or not, and nobody asks again unless the kind of call says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tests.faults.effects import boot_ms

WORDS, FRAMES = "words.jsonl", "frames.jsonl"


class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One word. `what`: start, signal, object, replay, supersede; `key` is what it was asked for (a biz_key, a
    signal_id, an object_id); `of` the workflow type, or whom a signal is for."""

    what: str
    key: str
    told: bool = False
    of: str = ""
    number: int = 0
    generation: int = 0
    note: str = ""
    """Told: the answer."""
    at_ms: int = 0


class Seen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event that a reader of a stream was given."""

    reader: str
    workflow_id: str
    event: str
    generation: int = 0
    offset: int = 0
    run: int = 0
    attempt: int = 0


class Writing:
    """One process's end of such a file: a batch of records is one append, there as soon as it was written."""

    def __init__(self, data_dir: Path, name: str = WORDS) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(data_dir / name, flags, 0o600)

    def write(self, records: Iterable[msgspec.Struct]) -> None:
        text = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        if text:
            os.write(self._fd, text)

    def asked(self, *words: Word) -> None:
        self.write(msgspec.structs.replace(word, at_ms=boot_ms()) for word in words)

    def told(self, *words: Word) -> None:
        self.write(msgspec.structs.replace(word, told=True, at_ms=boot_ms()) for word in words)
