"""The bundled recording, read by the real service over HTTP."""

from __future__ import annotations

import hashlib
import re
from itertools import pairwise
from pathlib import Path

import asr_demo
from asr_demo.asr_client import Succeeded
from asr_demo.composer import summarize
from asr_demo.wav import check_wav
from tests.demo.sound import BUNDLED

WORD_ERROR_RATE_MAX = 0.15


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def spoken() -> str:
    return BUNDLED.with_suffix(".txt").read_text()


def word_error_rate(said: list[str], heard: list[str]) -> float:
    """Substituted, missing and added words, by the number of words that were said."""
    row = list(range(len(heard) + 1))
    for count, word in enumerate(said, 1):
        above, row = row, [count]
        for place, other in enumerate(heard, 1):
            row.append(min(above[place] + 1, row[-1] + 1, above[place - 1] + (word != other)))
    return row[-1] / len(said)


def test_the_measure_counts_each_kind_of_error() -> None:
    said = words("all of the steps must be done now")

    assert word_error_rate(said, said) == 0
    assert word_error_rate(said, words("all of the stops must be done now")) == 1 / 8
    assert word_error_rate(said, words("all the steps must be done now")) == 1 / 8
    assert word_error_rate(said, words("all of all the steps must be done now")) == 1 / 8
    assert word_error_rate(said, []) == 1


def test_the_recording_is_what_the_demo_promises() -> None:
    """30–45 s of 95–120 words, within the rules that hold for any recording."""
    info = check_wav(BUNDLED)

    assert 30 <= info.seconds <= 45
    assert 95 <= len(words(spoken())) <= 120
    assert info.sha256 == hashlib.sha256(BUNDLED.read_bytes()).hexdigest()
    assert info.sha256 in (BUNDLED.parent / "README.md").read_text()


def test_the_recogniser_reads_the_recording(transcription: Succeeded) -> None:
    assert word_error_rate(words(spoken()), words(transcription.transcript)) <= WORD_ERROR_RATE_MAX


def test_pauses_give_the_borders_of_sentences(transcription: Succeeded) -> None:
    """Each line of the text was spoken between two pauses, so each comes back as one segment, in order."""
    lines = spoken().splitlines()
    segments = transcription.segments

    assert len(segments) == len(lines)
    for line, segment in zip(lines, segments, strict=True):
        assert word_error_rate(words(line), words(segment.text)) <= 0.35, line
    assert all(one.end_s <= other.start_s for one, other in pairwise(segments))
    assert all(segment.start_s < segment.end_s <= transcription.audio_s for segment in segments)
    assert transcription.transcript == " ".join(segment.text for segment in segments)


def test_the_summary_is_made_of_what_was_said(transcription: Succeeded) -> None:
    summary = summarize([segment.text for segment in transcription.segments])
    sentences = re.findall(r"[^.]+\.", summary)

    assert 2 <= len(sentences) <= 3
    assert all(" ".join(words(sentence)) in transcription.transcript for sentence in sentences)
    assert {"job", "steps"} & set(words(summary))


def test_nothing_in_the_demo_reads_the_text() -> None:
    """A transcript that came from the text file would prove nothing."""
    sources = list(Path(asr_demo.__file__).parent.rglob("*.py"))

    assert sources
    assert [path.name for path in sources if ".txt" in path.read_text()] == []
