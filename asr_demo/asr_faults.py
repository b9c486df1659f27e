"""Faults that the demo's speech service can be told to have, so that its callers can be tested against them.

They come from the constructor or from `asr_faults.json` in the service's data folder, which is read at every
request. How often a counted fault was used up is kept beside the tasks, so a restarted service goes on
counting where the killed one stopped; a file with other content starts afresh.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec

FILE_NAME = "asr_faults.json"
FILE_BYTES_MAX = 16 * 1024

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which faults to have. Numbers say how many requests still meet the fault; all off by default.

    `submit_errors`, `poll_errors`: answer 500, do nothing. `lost_replies`: take the submit, then close the
    connection without an answer. `hangs`: never answer a submit or poll, and do nothing. `forgets`: forget the polled
    task for ever. `always_running`: say so even of a finished task. `fail_reason`: tasks submitted now end failed
    with this reason. `min_delay_ms`: tasks submitted now end no earlier. `label` only tells two equal sets apart.
    """

    label: str = ""
    submit_errors: _Count = 0
    poll_errors: _Count = 0
    lost_replies: _Count = 0
    hangs: _Count = 0
    forgets: _Count = 0
    always_running: bool = False
    fail_reason: str = ""
    min_delay_ms: _Count = 0

    def fingerprint(self) -> str:
        """Names this set of faults: uses are counted per set."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


class BadFaults(Exception):
    """The faults file is no Faults object; the message names the field and the rule."""


class FaultSource:
    """The faults in force now: those of the file if there is one, else those that the constructor gave."""

    def __init__(self, folder: Path, given: Faults) -> None:
        self._path = folder / FILE_NAME
        self._given = given

    def now(self) -> Faults:
        try:
            with open(self._path, "rb") as file:
                text = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return self._given
        if len(text) > FILE_BYTES_MAX:
            raise BadFaults(f"{FILE_NAME}: more than {FILE_BYTES_MAX} bytes")
        try:
            return msgspec.json.decode(text, type=Faults)
        except msgspec.MsgspecError as error:
            raise BadFaults(f"{FILE_NAME}: {error}") from None


def write_faults(folder: Path, faults: Faults) -> None:
    """Put `faults` in force in the service whose data folder is `folder`; the file is never half written."""
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
        file.write(msgspec.json.encode(faults))
    os.replace(file.name, folder / FILE_NAME)
