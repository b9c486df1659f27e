"""The version mark of a Definition: SHA-256 of its type, ordered step names and dependencies (group 24).

Every part has a length prefix, so that ("ab", "c") and ("a", "bc") differ; dependencies are explicit and sorted,
so that equal graphs have equal marks. Activities, timeouts, retries, resources and finalizers are not part of
it: they may change under live instances (fpr-excludes, fpr-activity-evolves).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

_DIGITS_SHOWN = 12


def fingerprint(type_: str, steps: Iterable[tuple[str, Sequence[str]]]) -> str:
    """64 hexadecimal digits for a workflow type and its (step name, dependencies) in order."""
    digest = hashlib.sha256()
    _feed(digest, type_)
    for name, depends_on in steps:
        _feed(digest, name)
        _feed(digest, str(len(depends_on)))
        for dependency in sorted(depends_on):
            _feed(digest, dependency)
    return digest.hexdigest()


def version_shown(definition_key: str) -> str:
    """A version as people read it, and as a worker tells of it: its type, and twelve digits of its fingerprint."""
    type_, _, digits = definition_key.partition("@")
    return f"{type_}@{digits[:_DIGITS_SHOWN]}"


def _feed(digest: hashlib._Hash, text: str) -> None:
    data = text.encode()
    digest.update(len(data).to_bytes(4, "big"))
    digest.update(data)
