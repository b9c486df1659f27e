"""What an activity may return instead of an output, and what is refused when it is made (group 19)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kernel.directives import Sleep, WaitForSignal, Yield, interval_ms
from kernel.errors import KernelError, Refused


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (timedelta(0), 0),
        (timedelta(seconds=-9), 0),
        (timedelta(microseconds=400), 0),
        (timedelta(microseconds=600), 1),
        (timedelta(seconds=1.5), 1_500),
        (timedelta(days=3_660), 316_224_000_000),
    ],
)
@pytest.mark.req("slp-sleep-bounds")
def test_an_interval_is_whole_milliseconds_and_never_negative(interval: timedelta, expected: int) -> None:
    assert interval_ms(interval) == expected
    assert interval_ms(Sleep(interval).interval) == expected


@pytest.mark.parametrize("interval", [5, 1.5, None, "1s", timedelta(days=3_661), timedelta.max])
def test_an_interval_that_is_none_is_refused(interval: Any) -> None:
    with pytest.raises(Refused, match=r"Sleep\.interval"):
        Sleep(interval)
    if interval is not None:
        with pytest.raises(Refused, match=r"WaitForSignal\.poll_fallback"):
            WaitForSignal("answer", "key", poll_fallback=interval)


@pytest.mark.parametrize(
    "arguments",
    [
        {"signal_type": "a.b"},
        {"signal_type": ""},
        {"wait_key": ""},
        {"wait_key": "a\0b"},
        {"generation": -1},
        {"generation": 2**53},
        {"generation": True},
        {"generation": "1"},
    ],
)
def test_a_wait_whose_identity_can_not_be_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(KernelError, match=f"WaitForSignal.{next(iter(arguments))}"):
        WaitForSignal(**({"signal_type": "answer", "wait_key": "key-1"} | arguments))


@pytest.mark.req("slp-directive")
def test_directives_are_values_and_no_errors() -> None:
    for directive in (
        Sleep(timedelta(1), {"a": 1}),
        WaitForSignal("answer", "k", checkpoint={"a": 1}),
        Yield({"a": 1}),
    ):
        assert not isinstance(directive, BaseException)
        assert directive.checkpoint == {"a": 1}
        with pytest.raises(AttributeError):
            directive.checkpoint = None  # type: ignore[misc]
