"""What a command prints, and what becomes of it when that can not be written: a full disk, a reader who has gone."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress

_STREAMS = ("stdout", "stderr")


class OutputLost(OSError):
    """What was printed could not be written. Its message is the line for people, empty where the reader has gone, who
    wants no more (`… | head`); it has no errno, by which click would take it for its own matter."""


class Output(io.TextIOWrapper):
    """A standard stream whose failures are told from those of other files.

    What its terminal can not show is written out: an id of others must not end the command.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        buffered, through, encoding = stream.line_buffering, stream.write_through, stream.encoding
        super().__init__(
            stream.detach(),
            encoding=encoding,
            errors="backslashreplace",
            line_buffering=buffered,
            write_through=through,
        )

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _lost(error) from None

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _lost(error) from None


def _lost(error: OSError) -> OutputLost:
    if error.errno == errno.EPIPE:
        return OutputLost("")
    return OutputLost(f"the output can not be written: {error.strerror or error}")


def guard_output() -> None:
    """From here on a standard stream that can not be written raises OutputLost."""
    for name in _STREAMS:
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper:  # a program that brings its own streams keeps them
            setattr(sys, name, Output(stream))


def drop_unwritable() -> None:
    """Let go of what can not be written. The interpreter would try again at its end, and complain."""
    for name in _STREAMS:
        stream = getattr(sys, name)
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
            with suppress(OSError):
                stream.flush()
