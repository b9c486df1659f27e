"""What the demo's speech service and its client say to each other: typed JSON bodies over HTTP.

Both sides decode strictly into these structs, so a body of another shape is refused with the path of the field
that is wrong. `POST /v1/tasks` with the header `Idempotency-Key` takes a SubmitRequest and answers a TaskState;
`GET /v1/tasks/{task_id}?detail=…` answers a TaskState; `GET /v1/stats` answers Stats. Anything but 200 and 201
carries a Problem.
"""

from __future__ import annotations

from typing import Literal

import msgspec

API_PREFIX = "/v1"
BODY_BYTES_MAX = 64 * 1024
KEY_CHARACTERS_MAX = 200

TaskStatus = Literal["queued", "running", "succeeded", "failed"]


class Segment(msgspec.Struct, frozen=True):
    """What was said between two pauses: words without punctuation, and seconds from the recording's start."""

    text: str
    start_s: float
    end_s: float


class AsrOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The caller's switches. `detail` also goes with every poll, so it must come from the caller's own snapshot.

    `detail="text"` leaves the timed segments out of the answer (asr-option-snapshot).
    """

    language: Literal["en-us"] = "en-us"
    detail: Literal["segments", "text"] = "segments"


class SubmitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`audio` is the absolute path of a WAVE file inside one of the service's folders."""

    audio: str
    options: AsrOptions = AsrOptions()


class Problem(msgspec.Struct, frozen=True):
    """Why a request was refused or a task failed: a stable word and one line."""

    code: str
    message: str


class TaskState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One task. `transcript` and `segments` are there only when succeeded, `problem` only when failed."""

    task_id: str
    status: TaskStatus
    audio_s: float
    transcript: str | None = None
    segments: tuple[Segment, ...] | None = None
    problem: Problem | None = None


class Stats(msgspec.Struct, frozen=True):
    """Counts since the data folder was made; they survive restarts and the removal of old tasks.

    `asr_submits` are tasks created, `asr_submit_calls` and `asr_poll_calls` requests that arrived (also those that
    were refused or hit an injected fault), `recogniser_starts` child processes, `recognitions` those that ended well.
    """

    asr_submits: int
    asr_submit_calls: int
    asr_poll_calls: int
    recogniser_starts: int
    recognitions: int
    queued: int
    running: int
    succeeded: int
    failed: int
