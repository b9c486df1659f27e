"""Which files the demo takes for recordings, and what it says about the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_demo.wav import MAX_FILE_BYTES, AudioInfo, AudioRefused, check_wav, keep_wav
from tests.demo.sound import BUNDLED, cut, wave_file

SECOND = bytes(32_000)
ELEVEN_MINUTES = 11 * 60 * 32_000

BAD_FILES = {
    "empty_file": b"",
    "not_wave": b"Good evening and welcome to the architecture night talk.\n" * 20,
    "compressed": wave_file(SECOND, tag=17, bits=4),
    "not_mono": wave_file(SECOND, channels=2),
    "not_16_bit": wave_file(SECOND, bits=8),
    "wrong_rate": wave_file(SECOND, rate=8_000),
    "no_samples": wave_file(b""),
    "too_long": wave_file(SECOND, promised=ELEVEN_MINUTES),
    "truncated": wave_file(SECOND, promised=64_000),
}


@pytest.mark.parametrize("code", BAD_FILES)
def test_a_wrong_file_is_refused_by_its_rule_in_one_line(code: str, tmp_path: Path) -> None:
    path = tmp_path / "recording.wav"
    path.write_bytes(BAD_FILES[code])

    with pytest.raises(AudioRefused) as refused:
        check_wav(path)

    assert refused.value.code == code
    assert len(refused.value.message.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (wave_file(SECOND, bits=24), "not_16_bit"),
        (wave_file(SECOND, rate=44_100), "wrong_rate"),
        (wave_file(SECOND, tag=3, bits=32), "compressed"),
        (wave_file(SECOND)[:30], "not_wave"),
        (wave_file(SECOND)[:-1], "truncated"),
        (b"RIFX" + wave_file(SECOND)[4:], "not_wave"),
        (b"RIFF", "not_wave"),
    ],
    ids=["24 bit", "44.1 kHz", "float", "half a header", "one byte short", "RIFX", "four bytes"],
)
def test_near_misses_are_refused_too(text: bytes, code: str, tmp_path: Path) -> None:
    path = tmp_path / "recording.wav"
    path.write_bytes(text)

    with pytest.raises(AudioRefused) as refused:
        check_wav(path)

    assert refused.value.code == code


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    """A FIFO without a writer would block an ordinary open for ever."""
    fifo = tmp_path / "fifo.wav"
    os.mkfifo(fifo)

    for path in (tmp_path / "missing.wav", tmp_path, fifo, Path("/dev/zero"), BUNDLED / "below"):
        with pytest.raises(AudioRefused) as refused:
            check_wav(path)
        assert refused.value.code == "not_a_file"
    for path in (tmp_path / "nul\0.wav", tmp_path / ("long" * 100)):
        with pytest.raises(AudioRefused) as refused:
            check_wav(path)
        assert refused.value.code == "unreadable"


def test_a_file_above_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.wav"
    with open(path, "wb") as file:
        file.write(wave_file(SECOND))
        file.truncate(MAX_FILE_BYTES + 1)

    with pytest.raises(AudioRefused) as refused:
        check_wav(path)

    assert refused.value.code == "too_large"
    assert f"has {MAX_FILE_BYTES + 1} bytes" in refused.value.message


def test_a_recording_of_exactly_ten_minutes_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "ten.wav"
    path.write_bytes(wave_file(bytes(600 * 32_000)))

    assert check_wav(path).seconds == 600
    path.write_bytes(wave_file(bytes(600 * 32_000 + 2)))
    with pytest.raises(AudioRefused) as refused:
        check_wav(path)
    assert refused.value.code == "too_long"


@settings(max_examples=150, deadline=None)
@given(start=st.integers(0, 60), noise=st.binary(max_size=12), length=st.integers(0, 400))
def test_damaged_files_are_refused_or_read_but_never_break_the_check(
    start: int, noise: bytes, length: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = wave_file(bytes(range(256)) * 2)
    path = tmp_path_factory.getbasetemp() / "damaged.wav"
    path.write_bytes((whole[:start] + noise + whole[start + len(noise) :])[: len(whole) - length])

    try:
        info = check_wav(path)
    except AudioRefused as refused:
        assert refused.code
        assert len(refused.message.splitlines()) == 1
    else:
        assert isinstance(info, AudioInfo)
        assert 0 < info.seconds <= 600


def test_a_kept_recording_has_its_content_for_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    original = cut(tmp_path / "mine.wav", 1.0)

    kept = keep_wav(original, folder)

    assert kept == folder / f"{check_wav(original).sha256}.wav"
    assert kept.read_bytes() == original.read_bytes()
    assert keep_wav(original, folder) == kept
    assert [path.name for path in folder.iterdir()] == [kept.name]


def test_a_refused_recording_is_not_kept(tmp_path: Path) -> None:
    original = tmp_path / "mine.wav"
    original.write_bytes(wave_file(SECOND, channels=2))

    with pytest.raises(AudioRefused) as refused:
        keep_wav(original, tmp_path / "kept")

    assert refused.value.code == "not_mono"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.wav"]
    (tmp_path / "kept").mkdir()
    with pytest.raises(AudioRefused):
        keep_wav(original, tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir()) == []
