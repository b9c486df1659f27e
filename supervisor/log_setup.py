"""The logs of all processes in one place: multiprocessing-logging without its queue (DECISIONS 28, dc-logging).

The library's handler hands records to a `multiprocessing.Queue`. A writer killed at the wrong moment takes the lock of
that queue with it, or leaves half a record in its pipe, and logging stops for all processes. `TreeLogHandler` keeps the
handler and replaces the queue: each child has its own AF_UNIX SOCK_SEQPACKET socket. A record is one message, delivered
whole or not at all; there is no lock, no thread and nothing buffered in the child, so what was logged before a SIGKILL
is kept. Records travel as JSON, never pickled.

A supervisor that does not read (stopped, or stuck on its disk) holds up a writer once for 0.5 s; then records are
dropped and counted until it reads again.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections import Counter
from itertools import count
from typing import Any, NamedTuple

import msgspec
from multiprocessing_logging import MultiProcessingHandler

from kernel.config import Config
from supervisor.events import UNNAMED
from supervisor.log_format import JsonFormatter, TextFormatter, extra_fields, json_ready
from supervisor.log_sink import LogSink
from supervisor.redaction import Redactor

RECORD_BYTES_MAX = 60_000
SEND_LIMIT_S = 0.5
_RETRY_S = 0.01
_CUT_CHARACTERS = 4_500  # two such texts, each character escaped to six bytes, stay under the limit
_CUT_MARK = " … [truncated]"


class WireRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One log record on its way from a child to the supervisor."""

    v: int
    created: float
    level: int
    name: str
    msg: str
    pid: int
    seq: int
    event: str | None = None
    exc: str | None = None
    fields: dict[str, Any] = {}
    dropped: int = 0
    """Records that this process could not send so far."""


class RecordSocket:
    """What the handler takes for its queue: sends each record at once, as one message."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)
        self._encoder = msgspec.json.Encoder(enc_hook=json_ready)
        self._seq = count(1)
        self._stalled = False
        self.dropped = 0

    def put_nowait(self, record: logging.LogRecord) -> None:
        if self._send(self._encoded(record)):
            self._stalled = False
        else:
            self._stalled = True
            self.dropped += 1

    def qsize(self) -> int:
        return 0

    def close(self) -> None:
        self._socket.close()

    def join_thread(self) -> None:
        """There is none."""

    def _send(self, data: bytes) -> bool:
        deadline = time.monotonic() + SEND_LIMIT_S
        while True:
            try:
                self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                return True
            except BlockingIOError:
                remaining = deadline - time.monotonic()
                if self._stalled or remaining <= 0:
                    return False
                # Not the whole rest: poll waits for three quarters of room, a send needs room for one record.
                self._writable.poll(min(remaining, _RETRY_S) * 1000)
            except OSError:
                return False  # the supervisor is gone

    def _encoded(self, record: logging.LogRecord) -> bytes:
        wire = WireRecord(
            v=1,
            created=record.created,
            level=record.levelno,
            name=record.name,
            msg=str(record.msg),
            pid=os.getpid(),
            seq=next(self._seq),
            event=getattr(record, "event", None),
            exc=record.exc_text or None,
            fields=extra_fields(record),
            dropped=self.dropped,
        )
        try:
            data = self._encoder.encode(wire)
        except (OverflowError, ValueError, TypeError, RecursionError, msgspec.MsgspecError):
            wire = _as_text(wire)
            data = self._encoder.encode(wire)
        return data if len(data) <= RECORD_BYTES_MAX else self._encoder.encode(_cut(wire))


def _as_text(wire: WireRecord) -> WireRecord:
    """A record with a value that has no JSON form (a huge number, a cycle, half a surrogate pair) is sent as text."""
    fields = {_plain(str(key)): _plain(str(value)) for key, value in wire.fields.items()}
    exc = None if wire.exc is None else _plain(wire.exc)
    return msgspec.structs.replace(wire, msg=_plain(wire.msg), exc=exc, fields=fields)


def _plain(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _cut(wire: WireRecord) -> WireRecord:
    """A record above the limit keeps the heads of its texts and loses its fields."""
    exc = None if wire.exc is None else wire.exc[:_CUT_CHARACTERS] + _CUT_MARK
    msg = wire.msg if len(wire.msg) <= _CUT_CHARACTERS else wire.msg[:_CUT_CHARACTERS] + _CUT_MARK
    return msgspec.structs.replace(wire, msg=msg, exc=exc, fields={"truncated": True})


class _NoThread:
    """In the place of the library's receiving thread: the supervisor's own loop reads."""

    def join(self, timeout: float | None = None) -> None:
        """Nothing to wait for."""


class TreeLogHandler(MultiProcessingHandler):  # type: ignore[misc]
    """In the supervisor: writes through. In a child, after `attach`: sends to the supervisor."""

    def __init__(self, sub_handler: logging.Handler) -> None:
        # The library's own __init__ makes the queue and starts the thread: everything else that it sets is set here.
        logging.Handler.__init__(self)
        self.sub_handler = sub_handler
        self.setLevel(sub_handler.level)
        self.setFormatter(sub_handler.formatter)
        self.filters = sub_handler.filters
        self.queue: RecordSocket | None = None
        self._is_closed = False
        self._receive_thread = _NoThread()

    def attach(self, sock: socket.socket) -> None:
        """First thing in a child: from now on records go to `sock`, and the supervisor's sink is let alone."""
        self.queue = RecordSocket(sock)
        self.sub_handler = logging.NullHandler()

    def _send(self, record: logging.LogRecord) -> None:
        if self.queue is None:
            self.sub_handler.handle(record)
        else:
            self.queue.put_nowait(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """A record that can not be shown is counted as lost; logging never raises into the work."""
        if self.queue is not None:
            self.queue.dropped += 1


class SinkHandler(logging.Handler):
    """Formats a record and gives the line to the sink. Runs in the supervisor only."""

    def __init__(self, sink: LogSink, formatter: logging.Formatter) -> None:
        super().__init__()
        self.sink = sink
        self.setFormatter(formatter)
        self._seq = count(1)
        self.records: Counter[str] = Counter()
        """So many of each level so far, of the whole tree."""

    def emit(self, record: logging.LogRecord) -> None:
        self.records[record.levelname.lower()] += 1
        if not hasattr(record, "role"):
            fields = extra_fields(record)
            if not hasattr(record, "event"):
                record.event, fields["logger"] = UNNAMED, record.name
            record.fields = fields
            record.role, record.slot, record.worker_id = "supervisor", None, None
            record.seq = next(self._seq)
        try:
            self.sink.write(self.format(record))
        except Exception:
            self.sink.dropped += 1


class TreeLog:
    """The supervisor's end of logging: where lines go, and how many were lost on the way."""

    def __init__(self, sink: LogSink, handler: SinkHandler, level: int, redact: Redactor) -> None:
        self.sink = sink
        self.redact = redact
        self.handler = handler
        self.tree_handler = TreeLogHandler(handler)
        self.level = level
        self.lost_in_children = 0

    def install(self) -> None:
        """Make this the only handler of the root logger."""
        root = logging.getLogger()
        for other in list(root.handlers):
            root.removeHandler(other)
        root.addHandler(self.tree_handler)
        root.setLevel(self.level)
        logging.captureWarnings(True)

    def show(self, record: logging.LogRecord) -> None:
        """Write one record of a child."""
        self.handler.handle(record)


def open_log(config: Config) -> TreeLog:
    """The log of a tree with these settings: `log_file`, else stderr. Raises OSError."""
    sink = LogSink(2) if config.log_file is None else LogSink.to_file(config.log_file)
    redact = Redactor.of(config)
    as_text = config.log_format == "text" or (config.log_format == "auto" and sink.is_terminal)
    formatter: logging.Formatter = TextFormatter(redact) if as_text else JsonFormatter(redact)
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    return TreeLog(sink, SinkHandler(sink, formatter), level, redact)


class LogPlace(NamedTuple):
    """Who speaks."""

    role: str
    slot: int
    worker_id: str


class RecordReader:
    """Reads what one child logs and puts its place in the tree to each record."""

    def __init__(self, sock: socket.socket, log: TreeLog, role: str, slot: int, worker_id: str) -> None:
        self._socket = sock
        self._log = log
        self._place = LogPlace(role, slot, worker_id)
        self._decoder = msgspec.json.Decoder(WireRecord)
        self._lost: dict[int, int] = {}

    def read(self, limit: int) -> bool:
        """Take at most `limit` records; False when there are no more for now. Raises EOFError at the end."""
        for _ in range(limit):
            try:
                data = self._socket.recv(RECORD_BYTES_MAX + 1024, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                raise EOFError from None
            if not data:
                raise EOFError
            self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        try:
            wire = self._decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError):
            self._log.lost_in_children += 1
            return
        newly_lost = wire.dropped - self._lost.get(wire.pid, 0)
        if newly_lost > 0:
            self._lost[wire.pid] = wire.dropped
            self._log.lost_in_children += newly_lost
            self._show(logging.WARNING, "log.dropped", f"{newly_lost} records could not be sent in time", wire)
        fields = wire.fields if wire.event else wire.fields | {"logger": wire.name}
        self._show(wire.level, wire.event or UNNAMED, wire.msg, wire, exc=wire.exc, fields=fields)

    def _show(self, level: int, event: str, msg: str, wire: WireRecord, **more: Any) -> None:
        record = placed(self._place, level, event, msg, pid=wire.pid, seq=wire.seq, **more)
        record.created = wire.created
        self._log.show(record)

    def line(self, text: str, pid: int) -> None:
        """Show one line that the child, or its interpreter in its last moment, wrote to stdout or stderr."""
        self._log.show(placed(self._place, logging.WARNING, "child.stderr", text, pid=pid))


def placed(
    place: LogPlace,
    level: int,
    event: str,
    msg: str,
    *,
    pid: int,
    seq: int | None = None,
    exc: str | None = None,
    fields: dict[str, Any] | None = None,
) -> logging.LogRecord:
    """A record of another process, with its place in the tree."""
    record = logging.LogRecord(event, level, "", 0, msg, None, None)
    record.event = event
    record.role, record.slot, record.worker_id = place
    record.process, record.seq, record.fields = pid, seq, fields or {}
    record.exc_text = exc
    return record
