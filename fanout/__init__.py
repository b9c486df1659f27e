"""Durable fan-out: one event told to many waiting workflows, page by page, by an ordinary workflow; see README.md."""

from fanout.event import FanOutEvent, fan_out_key, signal_id_for
from fanout.pages import CURSOR_BYTES_MAX, PAGE_SIZE_MAX, Cursor, Page, ReadPage, Subscriber
from fanout.progress import Outcome, Progress, Sample, Tally
from fanout.workflow import make_fan_out, start_fan_out

__all__ = [
    "CURSOR_BYTES_MAX",
    "PAGE_SIZE_MAX",
    "Cursor",
    "FanOutEvent",
    "Outcome",
    "Page",
    "Progress",
    "ReadPage",
    "Sample",
    "Subscriber",
    "Tally",
    "fan_out_key",
    "make_fan_out",
    "signal_id_for",
    "start_fan_out",
]
