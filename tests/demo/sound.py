"""Recordings for tests: cut from the bundled one, or made with headers that say what a test needs."""

from __future__ import annotations

import struct
import wave
from pathlib import Path

from asr_demo.asr_service import BUNDLED_AUDIO

BUNDLED = BUNDLED_AUDIO / "architecture_night.wav"
FIRST_SENTENCE = "good evening and welcome to the architecture night talk"
FIRST_SENTENCE_S = 4.0  # the sentence and the pause after it


def cut(path: Path, seconds: float, start_s: float = 0.0) -> Path:
    """Write `seconds` of the bundled recording to `path`."""
    with wave.open(str(BUNDLED)) as whole, wave.open(str(path), "wb") as part:
        whole.setpos(round(start_s * whole.getframerate()))
        part.setparams(whole.getparams())
        part.writeframes(whole.readframes(round(seconds * whole.getframerate())))
    return path


def silence(path: Path, seconds: float) -> Path:
    path.write_bytes(wave_file(bytes(2 * round(16_000 * seconds))))
    return path


def wave_file(
    samples: bytes,
    *,
    channels: int = 1,
    rate: int = 16_000,
    bits: int = 16,
    tag: int = 1,
    promised: int | None = None,
) -> bytes:
    """A WAVE file with these samples and a header that may say anything; `promised` are bytes of samples."""
    block = channels * bits // 8
    length = len(samples) if promised is None else promised
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * block, block, bits)
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", length) + samples
    return b"RIFF" + struct.pack("<I", len(chunks) - len(samples) + length) + chunks
