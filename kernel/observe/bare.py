"""A record without what users put into it: what the side path may hold while a slow store keeps it waiting.

The queue is bounded by events. It is bounded in bytes because an event holds no output, checkpoint or list of past
errors. Of the input one thing is needed later, the business round that it serves: a long input is replaced by one that
says nothing else. Finding it takes about a microsecond for each KiB, so the writing thread does it as long as there is
room, and whoever notes an event only when there is none.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kernel.codec import CODEC_VERSION, encode
from kernel.dispatch import ROUND_FIELD, round_of
from kernel.errors import KernelError
from kernel.records import Instance, StepRecord

INPUT_BYTES_KEPT = 1024
"""A shorter input is kept as it is: looking into it costs more than its place."""


class _Round(msgspec.Struct, rename={"round": ROUND_FIELD}):
    """Of an input only the round is decoded; the rest is walked over."""

    round: Any = None


_round_decoder = msgspec.msgpack.Decoder(_Round)


def bare(instance: Instance, *, with_input: bool = False) -> Instance:
    """`instance` as the side path holds it. It has the same round, statuses, times, waits and last errors."""
    steps = instance.steps
    if any(step.checkpoint is not None or step.errors for step in steps):
        steps = tuple(map(_bare_step, steps))
    input_ = instance.input
    if not with_input and len(input_) > INPUT_BYTES_KEPT:
        input_ = _only_round(input_)
    return msgspec.structs.replace(instance, input=input_, outputs={}, steps=steps, commit_ids=())


def _bare_step(step: StepRecord) -> StepRecord:
    return msgspec.structs.replace(step, checkpoint=None, errors=())


def _only_round(data: bytes) -> bytes:
    """An input that serves the same round as `data`."""
    if data[0] != CODEC_VERSION or not _is_map(data[1]):
        return b""
    try:
        found = _round_decoder.decode(memoryview(data)[1:]).round
    except (msgspec.MsgspecError, RecursionError, ValueError):
        found = round_of(data)  # not all of its keys are names: the slow way knows
    try:
        kept = encode({ROUND_FIELD: found}, "round", INPUT_BYTES_KEPT)
    except KernelError:
        return b""
    return kept if round_of(kept) is not None else b""


def _is_map(first: int) -> bool:
    """Whether a msgpack value that begins with this byte is a map."""
    return 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)
