"""Five bytes that claim four thousand million items (A77): an error at once, and no memory is set aside for them."""

from __future__ import annotations

import resource
from typing import Any

import msgspec
import pytest

from kernel import codec
from kernel.errors import CheckpointError, CorruptRecord, KernelError, UnknownRecordType
from kernel.frames import decode as decode_frame

HEADERS = {
    "array32": b"\xdd\xff\xff\xff\xff", "map32": b"\xdf\xff\xff\xff\xff", "str32": b"\xdb\xff\xff\xff\xff",
    "bin32": b"\xc6\xff\xff\xff\xff", "ext32": b"\xc9\xff\xff\xff\xff\x01",
}  # fmt: skip
ROOM_KB = 64 * 1024


class Held(msgspec.Struct):
    """Containers of each kind, typed."""

    items: list[int] = []
    names: dict[str, int] = {}
    text: str = ""
    raw: bytes = b""


@pytest.fixture
def little_memory() -> int:
    """The most memory that the process has had so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.case("A77")
@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("type_", [Any, Held, list[int], dict[str, int], str, bytes])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_stored_value_that_claims_more_than_it_holds(little_memory: int, header: str, type_: Any, depth: int) -> None:
    """Checkpoint, input and output are read by one decoder; behind other content as well."""
    data = bytes([codec.CODEC_VERSION]) + b"\x91" * depth + HEADERS[header]
    inside = bytes([codec.CODEC_VERSION]) + b"\x84\xa5items" + HEADERS[header]
    for stored in (data, inside, data + b"\x01" * 100):
        with pytest.raises(CheckpointError) as caught:
            codec.decode(stored, type_, "checkpoint of step a")
        assert isinstance(caught.value, KernelError) and len(str(caught.value)) < 500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - little_memory < ROOM_KB


@pytest.mark.case("A77")
@pytest.mark.parametrize("header", HEADERS)
def test_a_record_of_a_stream_that_claims_more_than_it_holds(little_memory: int, header: str) -> None:
    for kind in range(0x10, 0x18):
        for prefix in (b"", b"\x91", b"\x92\xa1x", b"\x93\x01\x01"):
            record = bytes([kind]) + prefix + HEADERS[header]
            try:
                decode_frame(record)
            except (CorruptRecord, UnknownRecordType) as error:
                assert len(str(error)) < 300
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - little_memory < ROOM_KB
