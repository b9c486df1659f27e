"""When a busy worker keeps its slots free for a suspect, and when it goes on with its work instead."""

from __future__ import annotations

import pytest

from kernel.engine.guest_room import GuestRoom
from kernel.engine.takeover import Suspect

SCAN_MS = 100
SUSPECT, OTHER = Suspect("wf-suspect", 1), Suspect("wf-other", 1)


def guest_room(fraction: float = 0.0) -> GuestRoom:
    return GuestRoom(SCAN_MS, lambda: fraction)


def kept_ms(room: GuestRoom, until_ms: int) -> list[int]:
    """The milliseconds of a worker that meets the suspect all the time, never becomes empty, and takes nothing."""
    kept: list[int] = []
    for now_ms in range(until_ms):
        room.expect(SUSPECT, now_ms)
        if room.is_in_vain(now_ms):
            room.give_up(now_ms)
        if room.is_kept(now_ms):
            kept.append(now_ms)
    return kept


def in_vain(room: GuestRoom, met_ms: int) -> int:
    """Expect a suspect from `met_ms` on and give it up; when that was."""
    room.expect(SUSPECT, met_ms)
    assert room.guest == SUSPECT
    now_ms = next(ms for ms in range(met_ms, met_ms + 100 * SCAN_MS) if room.is_in_vain(ms))
    room.give_up(now_ms)
    return now_ms


def test_a_worker_that_expects_nobody_takes_whatever_comes() -> None:
    room = guest_room()

    assert (room.guest, room.is_kept(10**12), room.is_in_vain(10**12)) == (None, False, False)


def test_for_one_scan_period_the_suspect_is_left_to_others() -> None:
    room = guest_room()
    room.expect(SUSPECT, 1_000)

    assert room.guest == SUSPECT
    assert [room.is_kept(ms) for ms in (1_000, 1_000 + SCAN_MS - 1, 1_000 + SCAN_MS)] == [False, False, True]


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_room_is_kept_for_four_scan_periods_and_then_was_in_vain(fraction: float) -> None:
    room = guest_room(fraction)
    room.expect(SUSPECT, 1_000)
    last_ms = 1_000 + 5 * SCAN_MS

    assert [room.is_in_vain(ms) for ms in (1_000, last_ms - 1, last_ms)] == [False, False, True]
    assert all(room.is_kept(ms) for ms in range(1_000 + SCAN_MS, last_ms + 1)), "until it is given up"

    room.give_up(last_ms)

    assert (room.guest, room.is_kept(last_ms), room.is_in_vain(last_ms)) == (None, False, False)


@pytest.mark.parametrize(("fraction", "scans"), [(0.0, 4), (1.0, 8)])
def test_after_a_vain_try_a_worker_works_for_at_least_as_long(fraction: float, scans: int) -> None:
    """Up to twice as long, by chance, so that the workers of a tree do not make room all at once again."""
    room = guest_room(fraction)
    given_up_ms = in_vain(room, 1_000)
    works_until_ms = given_up_ms + scans * SCAN_MS

    for now_ms in range(given_up_ms, works_until_ms):
        room.expect(SUSPECT, now_ms)
        assert (room.guest, room.is_kept(now_ms)) == (None, False)
    room.expect(SUSPECT, works_until_ms)

    assert room.guest == SUSPECT
    assert not room.is_kept(works_until_ms + SCAN_MS - 1)
    assert room.is_kept(works_until_ms + SCAN_MS)


def test_each_try_in_vain_makes_the_next_one_twice_as_long() -> None:
    room, met_ms, tries = guest_room(), 0, []
    for _ in range(4):
        given_up_ms = in_vain(room, met_ms)
        tries.append((given_up_ms - met_ms) // SCAN_MS - 1)
        room.expect(SUSPECT, given_up_ms + tries[-1] * SCAN_MS - 1)
        assert room.guest is None, "it works for as long as it made room"
        met_ms = given_up_ms + tries[-1] * SCAN_MS

    assert tries == [4, 8, 16, 32]


def test_who_was_received_brings_the_first_length_back() -> None:
    room = guest_room()
    again_ms = in_vain(room, in_vain(room, 0) + 4 * SCAN_MS) + 8 * SCAN_MS
    room.expect(SUSPECT, again_ms)

    room.forget()

    assert (room.guest, room.is_kept(again_ms + 50 * SCAN_MS)) == (None, False)
    room.expect(OTHER, again_ms)
    assert room.guest == OTHER
    assert [room.is_in_vain(again_ms + 5 * SCAN_MS - late) for late in (1, 0)] == [False, True]


def test_a_second_suspect_met_meanwhile_changes_nothing() -> None:
    """Neither who is expected nor since when: else two suspects would keep each other waiting for ever."""
    room = guest_room()
    room.expect(SUSPECT, 0)
    for now_ms in range(1, 5 * SCAN_MS):
        room.expect(OTHER, now_ms)
        assert room.guest == SUSPECT

    assert [room.is_kept(ms) for ms in (SCAN_MS - 1, SCAN_MS)] == [False, True]
    assert [room.is_in_vain(ms) for ms in (5 * SCAN_MS - 1, 5 * SCAN_MS)] == [False, True]


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_a_worker_that_is_never_empty_works_for_more_than_half_of_the_time(fraction: float) -> None:
    """Whenever it begins to make room again, most of the time until then was the work's (L11)."""
    kept = kept_ms(guest_room(fraction), 200 * SCAN_MS)
    before = [(number, ms) for number, ms in enumerate(kept) if number == 0 or kept[number - 1] != ms - 1]

    assert len(before) >= 3, "it tries again and again"
    assert all(number < ms / 2 for number, ms in before)
