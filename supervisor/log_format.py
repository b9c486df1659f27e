"""How one log record becomes one line: JSON for machines, text for a terminal (dc-logging).

JSON: `v`, `ts` (UTC, microseconds), `level`, `event`, `msg`, `role`, `slot`, `pid`, `worker_id`, then the context of
the work where there is one, `exc`, `seq` (per process, so that a gap is visible) and everything else under `x`.
Credentials are masked here, after everything has been put together.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from supervisor.events import UNNAMED
from supervisor.redaction import Redactor

VERSION = 1
PLACE = ("role", "slot", "pid", "worker_id")
CONTEXT = (
    "workflow_id",
    "type",
    "round",
    "step",
    "attempt",
    "lane",
    "claim",
    "resource",
    "elapsed_ms",
    "trace_id",
)
_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "event"}
_PLAIN_FORMATTER = logging.Formatter()
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u2028\u2029]")


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """What a caller gave as `extra`, without `event`."""
    return {name: value for name, value in record.__dict__.items() if name not in _PLAIN}


def json_ready(value: object) -> object:
    """For msgspec: what has no JSON form is shown as text."""
    return str(value)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, fields in a fixed order."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__()
        self._redact = redact
        self._encoder = msgspec.json.Encoder(enc_hook=json_ready)

    def format(self, record: logging.LogRecord) -> str:
        fields = line_fields(record)
        line = self._encoder.encode(fields).decode()
        if self._redact.suspects(line):
            line = self._encoder.encode(self._masked(fields)).decode()
        # JSON itself escapes what is below 0x20; the rest of what steers terminals stands inside strings only.
        return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", line)

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._redact(value)
        if isinstance(value, dict):
            # A key may tell what its value is: `password: x` is masked as one text would be.
            return {self._redact(str(key)): self._masked_pair(str(key), inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._masked(inner) for inner in value]
        return value if value is None or isinstance(value, bool | int | float) else self._redact(str(value))

    def _masked_pair(self, key: str, value: Any) -> Any:
        if isinstance(value, str):
            return self._redact(f"{key}={value}").removeprefix(f"{key}=")
        return self._masked(value)


class TextFormatter(logging.Formatter):
    """One line for people; the lines of a traceback follow, indented."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        fields = line_fields(record)
        name = fields["role"] if fields["slot"] is None else f"{fields['role']}-{fields['slot']}"
        shown = {key: fields[key] for key in CONTEXT if key in fields} | fields.get("x", {})
        event = one_line(str(shown.pop("logger", UNNAMED) if fields["event"] == UNNAMED else fields["event"]))
        parts = [fields["ts"][11:23], f"{fields['level']:<7}", f"{name:<13}", str(fields["pid"]), event]
        if fields["msg"] and fields["msg"] != fields["event"]:
            parts.append(one_line(fields["msg"]))
        parts += [f"{key}={one_line(str(value))}" for key, value in shown.items()]
        lines = [" ".join(parts), *("    " + one_line(line) for line in fields.get("exc", "").splitlines())]
        return self._redact("\n".join(lines))


def one_line(text: str) -> str:
    """Text without line ends and control characters: a log line can not be forged, a terminal not be steered."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text.replace("\n", "\\n").replace("\t", " "))


def line_fields(record: logging.LogRecord) -> dict[str, Any]:
    """All that a line says, in its order."""
    fields = dict(getattr(record, "fields", None) or {})
    line: dict[str, Any] = {
        "v": VERSION,
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "event": getattr(record, "event", UNNAMED),
        "msg": record.getMessage(),
        "role": getattr(record, "role", None),
        "slot": getattr(record, "slot", None),
        "pid": record.process,
        "worker_id": getattr(record, "worker_id", None),
    }
    line |= {name: fields.pop(name) for name in CONTEXT if name in fields}
    if record.exc_info and not record.exc_text:
        record.exc_text = _PLAIN_FORMATTER.formatException(record.exc_info)
    if record.exc_text:
        line["exc"] = record.exc_text
    line["seq"] = getattr(record, "seq", None)
    if fields:
        line["x"] = fields
    return line
