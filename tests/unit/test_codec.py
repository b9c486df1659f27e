"""The encoding of inputs, outputs and checkpoints: one version byte, typed decoding, errors with a field path."""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.codec import decode, encode
from kernel.errors import BadReturn, CheckpointError, KernelError, TooLarge, UnknownVersion

LIMIT = 1 << 20


class Task(msgspec.Struct, tag="task/1"):
    task_id: str
    polls: int = 0
    parts: list[int] = []


class Outer(msgspec.Struct):
    task: Task


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values)
@pytest.mark.req("dc-msgspec", "slp-checkpoint-roundtrip")
def test_plain_values_come_back_equal(value: Any) -> None:
    data = encode(value, "it", LIMIT)

    assert data[0] == 1
    assert decode(data, Any, "it") == value


@pytest.mark.req("dc-msgspec")
def test_golden_bytes_do_not_change() -> None:
    """What an older release has stored has to be read by a newer one."""
    assert encode({"a": [1, None, b"x"]}, "it", LIMIT) == bytes.fromhex("0181a16193 01c0c40178".replace(" ", ""))
    assert encode(Task("t-7", 2), "it", LIMIT) == bytes.fromhex(
        "0184a474797065a67461736b2f31a77461736b5f6964a3742d37a5706f6c6c7302a5706172747390"
    )


@pytest.mark.req("dc-msgspec", "dc-msgspec-types")
def test_structs_come_back_as_their_type() -> None:
    task = Task("t-7", 3, [1, 2])

    assert decode(encode(task, "it", LIMIT), Task, "it") == task
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert decode(encode(when, "it", LIMIT), datetime, "it") == when


@pytest.mark.parametrize(
    ("value", "type_", "path"),
    [
        ({"type": "task/1", "task_id": 7}, Task, "$.task_id"),
        ({"type": "task/1"}, Task, "task_id"),
        ({"type": "task/2", "task_id": "t"}, Task, "task/2"),
        ({"task": {"type": "task/1", "task_id": "t", "parts": [1, "x"]}}, Outer, "$.task.parts[1]"),
        ("text", int, "Expected `int`"),
        (None, Task, "Expected `object`"),
    ],
)
@pytest.mark.req("dc-msgspec-types")
@pytest.mark.case("A58")
def test_another_shape_is_an_error_that_names_the_field(value: Any, type_: Any, path: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        decode(encode(value, "it", LIMIT), type_, "checkpoint of step a")
    assert str(caught.value).startswith("checkpoint of step a: ")
    assert path in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\x00\xc0", b"\x02\xc0", b"\xff", b"{}", b"\x80"])
@pytest.mark.req("dc-msgspec")
def test_an_unknown_encoding_version_is_refused(data: bytes) -> None:
    with pytest.raises(UnknownVersion, match="it"):
        decode(data, Any, "it")


@given(st.binary(max_size=200))
@pytest.mark.req("dc-msgspec-types")
def test_any_bytes_are_a_value_or_a_kernel_error(data: bytes) -> None:
    for type_ in (Any, Task, dict[str, int]):
        try:
            decode(b"\x01" + data, type_, "it")
        except KernelError as error:
            assert isinstance(error, CheckpointError)
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 5_000,
        b"\x91" * 200_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xa3\xff\xfe\xfd",
        b"\xc0\xc0",
    ],
)
def test_hostile_bytes_are_refused_at_once(data: bytes) -> None:
    """Deep nesting, sizes that are not there, no UTF-8, trailing bytes."""
    with pytest.raises(CheckpointError):
        decode(b"\x01" + data, Any, "it")


class Colour(enum.Enum):
    RED = object()


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [object(), lambda: None, (n for n in ()), {1: object()}, {(1, 2, object()): 1}, 2**64, -(2**63) - 1,
     nested(100_000),     Colour.RED, "\ud800", type, ValueError("no")],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
@pytest.mark.req("stp-output-small", "rec-no-runtime-objects")
def test_what_can_not_be_encoded_is_refused_before_any_write(value: Any) -> None:
    with pytest.raises(BadReturn, match="output of step a"):
        encode(value, "output of step a", LIMIT)


@pytest.mark.req("stp-output-small")
@pytest.mark.case("A73")
def test_the_limit_counts_encoded_bytes_and_is_exact() -> None:
    size = len(encode(b"x" * 1_000, "it", LIMIT))

    assert encode(b"x" * 1_000, "it", size)
    with pytest.raises(TooLarge, match=rf"it: {size} bytes encoded, at most {size - 1}"):
        encode(b"x" * 1_000, "it", size - 1)
