"""Spans of one worker or dispatcher: none, and nothing imported, unless the environment names a receiver."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kernel.clock import Clock
from kernel.config import traces_are_wanted
from kernel.engine.ports import Runner
from kernel.runtime.observer import Beside

log = logging.getLogger("kernel.runtime")


def open_tracing(clock: Clock, runner: Runner, process: str, limit_s: float) -> Sequence[Beside]:
    """The observer that makes spans, where OTEL_EXPORTER_OTLP_ENDPOINT is set; empty elsewhere. After the fork: its
    exporter has a thread. The end of `process` (`worker-0`) waits `limit_s` for the receiver at most. A missing extra
    is said once in the log and stops nothing: traces decide nothing."""
    if not traces_are_wanted():
        return ()
    try:
        from kernel.observe.spans import open_spans  # imports the packages of an extra
    except ImportError as error:
        log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but no spans are made: %s (the extra `otel`)", error)
        return ()
    return (open_spans(clock, runner, process, limit_s),)
