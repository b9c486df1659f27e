"""What a reader of a stream gets: events in the form of server-sent events (SSE), whatever carries them.

Only frames carry an id, because a browser sends the last one back as the place to go on from (A78): `reset`, the
terminal event and heartbeats have none. All data is JSON, in which line ends are escaped; the rendering cuts lines
nevertheless, so that no data can become a field of its own.
"""

from __future__ import annotations

import re

import msgspec

from kernel.errors import Refused
from kernel.frames import Frame, Terminal, shown
from kernel.stream_words import Position

FRAME, RESET, TERMINAL, HEARTBEAT, ERROR = "frame", "reset", "terminal", "heartbeat", "error"

_LINE_ENDS = re.compile(rb"\r\n|\r|\n")
_FIELD = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class StreamEvent(msgspec.Struct, frozen=True):
    """One event. `event`: frame, reset, terminal, heartbeat or error; `data`: one JSON text; `position`: of a frame."""

    event: str
    data: bytes = b""
    position: Position | None = None

    @property
    def frame(self) -> Frame:
        """The decoded data of a frame, terminal or error event."""
        return msgspec.json.decode(self.data, type=Frame)

    def sse(self) -> bytes:
        """The bytes for a text/event-stream; a heartbeat is a comment, which no client sees as an event. Raises Refused
        for an event name that could be more than a name."""
        if self.event == HEARTBEAT:
            return b": heartbeat\n\n"
        if _FIELD.fullmatch(self.event) is None:
            raise Refused(f"event: {self.event!r} is no name")
        lines = [b"event: " + self.event.encode()]
        if self.position is not None:
            lines.append(b"id: " + str(self.position).encode())
        lines += [b"data: " + line for line in _LINE_ENDS.split(self.data)]
        return b"\n".join(lines) + b"\n\n"


def frame_event(frame: Frame, position: Position) -> StreamEvent:
    """One frame of the way, with the id to go on from."""
    return StreamEvent(FRAME, _safe(shown(frame)), position)


def terminal_event(frame: Frame | Terminal) -> StreamEvent:
    """The last event."""
    return StreamEvent(TERMINAL, _safe(shown(frame)))


def reset_event(generation: int) -> StreamEvent:
    """Forget what was shown: frames begin again from the first."""
    return StreamEvent(RESET, _safe(shown(Frame(msg_type=RESET, data={"generation": generation}))))


def error_event(code: str, message: str) -> StreamEvent:
    """A record that can not be shown; the stream goes on behind it."""
    return StreamEvent(ERROR, _safe(shown(Frame(code=1, msg_type=ERROR, data={"code": code, "message": message}))))


def heartbeat_event() -> StreamEvent:
    """Nothing new, and somebody is still there (A82)."""
    return StreamEvent(HEARTBEAT)


def _safe(json: bytes) -> bytes:
    """`<` escaped: equal as JSON, and no markup wherever a page puts it."""
    return json.replace(b"<", b"\\u003c")
