"""What the speech service decides about a request, apart from HTTP: the answer, or the injected fault.

Order of a submit: count it, meet the faults, read the body, look for the key, and only then look at the recording;
so the same key gives the same task also after the file was moved away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec

from asr_demo.asr_faults import BadFaults, Faults, FaultSource
from asr_demo.asr_protocol import KEY_CHARACTERS_MAX, AsrOptions, Problem, Stats, SubmitRequest, TaskState
from asr_demo.asr_tasks import KeyConflict, NewTask, QueueFull, TaskTable
from asr_demo.wav import AudioRefused, check_wav

QUEUE_MAX = 1000


Answered = tuple[HTTPStatus, TaskState]


class Reply(NamedTuple):
    """An HTTP status and the body that goes with it."""

    status: HTTPStatus
    body: TaskState | Stats | Problem


class Silence(Exception):
    """Injected: this request is never answered."""


class LostReply(Exception):
    """Injected: the request took effect and its connection is closed without an answer."""


class RequestRefused(Exception):
    """The request breaks a rule, or the service can not take it now."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.reply = Reply(status, Problem(code, message))


class AsrApi:
    """`roots` are the folders that recordings may lie in; `on_new_task` is called after each task created."""

    def __init__(
        self, table: TaskTable, faults: FaultSource, roots: Sequence[Path], on_new_task: Callable[[], None]
    ) -> None:
        self._table = table
        self._faults = faults
        self._roots = tuple(root.resolve() for root in roots)
        self._on_new_task = on_new_task

    def submit(self, idempotency_key: str | None, body: bytes) -> Reply:
        """201 for a new task, 200 for one that this key already has. Raises RequestRefused, Silence, LostReply."""
        self._table.count("asr_submit_calls")
        faults = self._meet_faults("submit_errors")
        key = _checked_key(idempotency_key)
        try:
            request = msgspec.json.decode(body, type=SubmitRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "bad_body", f"body: {error}") from None
        request_sha256 = hashlib.sha256(msgspec.json.encode(request)).hexdigest()
        try:
            known = self._table.submitted(key, request_sha256)
            if known is not None:
                reply = Reply(*self._task(HTTPStatus.OK, known))
            else:
                reply = self._create(key, request_sha256, request, faults)
        except KeyConflict:
            message = "Idempotency-Key: this key belongs to a task that was submitted with another body"
            raise RequestRefused(HTTPStatus.CONFLICT, "key_conflict", message) from None
        if self._table.use_fault(faults.fingerprint(), "lost_replies", faults.lost_replies):
            raise LostReply
        return reply

    def poll(self, task_id: str, query: str) -> Reply:
        """200 with the task. `query` may hold `detail`, as AsrOptions names it. Raises RequestRefused, Silence."""
        self._table.count("asr_poll_calls")
        faults = self._meet_faults("poll_errors")
        try:
            options = msgspec.convert(dict(parse_qsl(query, max_num_fields=8)), AsrOptions)
        except ValueError as error:
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "bad_query", f"query: {error}") from None
        if self._table.state(task_id) is not None and self._table.use_fault(
            faults.fingerprint(), "forgets", faults.forgets
        ):
            self._table.forget(task_id)
        status, body = self._task(HTTPStatus.OK, task_id)
        if faults.always_running and body.status in ("succeeded", "failed"):
            return Reply(status, TaskState(body.task_id, "running", body.audio_s))
        if options.detail == "text":
            body = msgspec.structs.replace(body, segments=None)
        return Reply(status, body)

    def stats(self) -> Reply:
        return Reply(HTTPStatus.OK, self._table.stats())

    def _create(self, key: str, request_sha256: str, request: SubmitRequest, faults: Faults) -> Reply:
        path = self._allowed_path(request.audio)
        try:
            info = check_wav(path)
        except AudioRefused as refused:
            message = f"audio: {refused.message}"
            raise RequestRefused(HTTPStatus.UNPROCESSABLE_ENTITY, refused.code, message) from None
        task = NewTask(
            key, request_sha256, str(path), info.sha256, info.seconds, faults.min_delay_ms, faults.fail_reason
        )
        try:
            task_id, created = self._table.submit(task, QUEUE_MAX)
        except QueueFull:
            message = f"{QUEUE_MAX} tasks are waiting already; try again later"
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "queue_full", message) from None
        self._on_new_task()
        return Reply(*self._task(HTTPStatus.CREATED if created else HTTPStatus.OK, task_id))

    def _task(self, status: HTTPStatus, task_id: str) -> Answered:
        state = self._table.state(task_id)
        if state is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "task_unknown", "there is no task with this id")
        return status, state

    def _meet_faults(self, errors: str) -> Faults:
        try:
            faults = self._faults.now()
        except BadFaults as error:
            raise RequestRefused(HTTPStatus.INTERNAL_SERVER_ERROR, "bad_faults", str(error)) from None
        fingerprint = faults.fingerprint()
        if self._table.use_fault(fingerprint, "hangs", faults.hangs):
            raise Silence
        if self._table.use_fault(fingerprint, errors, getattr(faults, errors)):
            raise RequestRefused(HTTPStatus.INTERNAL_SERVER_ERROR, "injected", f"injected fault: {errors}")
        return faults

    def _allowed_path(self, audio: str) -> Path:
        """Return where the file really lies, links followed, if that is inside a permitted folder."""
        try:
            path = Path(audio)
            # A relative path would mean whatever folder the service happens to run in.
            if path.is_absolute():
                resolved = path.resolve()
                if any(resolved.is_relative_to(root) for root in self._roots):
                    return resolved
        except (OSError, ValueError, RuntimeError):  # NUL, too long, a loop of links
            pass
        message = "audio: must be an absolute path inside a folder that this service reads"
        raise RequestRefused(HTTPStatus.UNPROCESSABLE_ENTITY, "audio_outside", message)


def _checked_key(key: str | None) -> str:
    if key is None or not 1 <= len(key) <= KEY_CHARACTERS_MAX or not key.isprintable() or key.isspace():
        message = f"Idempotency-Key: a header with 1–{KEY_CHARACTERS_MAX} printable characters is needed"
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "bad_key", message)
    return key
