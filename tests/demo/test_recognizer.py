"""The recogniser's process, and where it cuts the sound."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_demo import recognizer
from asr_demo.recognizer import Recognition, utterances
from asr_demo.wav import check_wav
from tests.demo.sound import BUNDLED, FIRST_SENTENCE, FIRST_SENTENCE_S, cut, silence

FRAME_S = 0.03
LOUD = array("h", [9_000] * 480).tobytes()
SOFT = array("h", [400] * 480).tobytes()
QUIET = array("h", [1] * 480).tobytes()


class LoudnessDetector:
    """The detector's contract in its plainest form: a frame above a threshold is speech, decided at once."""

    frame_length = FRAME_S

    def __init__(self) -> None:
        self.in_speech = False
        self.speech_start = 0.0
        self.speech_end = 0.0
        self._frames = 0

    def process(self, frame: bytes) -> bytes | None:
        now = self._frames * FRAME_S
        self._frames += 1
        speaks = max(array("h", frame)) > 100
        if speaks and not self.in_speech:
            self.speech_start = now
        ends = self.in_speech and not speaks
        if ends:
            self.speech_end = now
        self.in_speech = speaks
        return frame if speaks or ends else None

    def end_stream(self, frame: bytes) -> bytes | None:
        speech = self.process(frame)
        if self.in_speech:
            self.in_speech = False
            self.speech_end = self._frames * FRAME_S
        return speech


def cuts(frames: list[bytes], longest_s: float = 30.0) -> list[tuple[float, float, bytes]]:
    found = utterances(frames, LoudnessDetector(), longest_s)
    return [(round(start, 2), round(end, 2), speech) for start, end, speech in found]


def recognise(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "asr_demo.recognizer", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def left_in(path: Path) -> Recognition:
    return msgspec.json.decode(path.read_bytes(), type=Recognition)


def problem_in(path: Path) -> str:
    problem = left_in(path).problem
    assert problem is not None
    return problem.code


def test_speech_is_cut_at_its_pauses() -> None:
    frames = [QUIET] * 2 + [LOUD] * 3 + [QUIET] * 4 + [LOUD] * 2 + [QUIET]

    assert [(start, end) for start, end, _ in cuts(frames)] == [(0.06, 0.15), (0.27, 0.33)]


@pytest.mark.parametrize("last", [LOUD, LOUD[:500]], ids=["whole frame", "part of a frame"])
def test_speech_up_to_the_last_sample_is_not_lost(last: bytes) -> None:
    """Without a pause at the end nothing but the end of the stream closes the last utterance."""
    assert cuts([QUIET, LOUD, LOUD, last]) == [(0.03, 0.12, LOUD + LOUD + last)]
    assert cuts([last]) == [(0.0, 0.03, last)]
    assert cuts([]) == []


def test_speech_without_a_pause_is_cut_where_it_is_quietest() -> None:
    frames = [LOUD] * 20
    frames[8] = SOFT

    found = cuts(frames, longest_s=10 * FRAME_S)

    assert [(start, end) for start, end, _ in found] == [(0.0, 0.24), (0.24, 0.42), (0.42, 0.6)]


@given(st.lists(st.sampled_from([LOUD, SOFT, QUIET]), max_size=120), st.integers(3, 12))
def test_no_sample_of_speech_is_lost_or_doubled_and_none_is_too_long(frames: list[bytes], longest: int) -> None:
    found = cuts(frames, longest_s=(longest + 0.5) * FRAME_S)
    speech = b"".join(samples for _, _, samples in found)

    assert [frame for frame in as_frames(speech) if frame != QUIET] == [frame for frame in frames if frame != QUIET]
    assert all(len(samples) <= longest * len(LOUD) for _, _, samples in found)
    assert all(one[1] <= other[0] + 0.01 for one, other in pairwise(found))


def as_frames(samples: bytes) -> list[bytes]:
    return [samples[place : place + len(LOUD)] for place in range(0, len(samples), len(LOUD))]


def test_the_program_writes_what_was_said(tmp_path: Path) -> None:
    audio = cut(tmp_path / "sentence.wav", FIRST_SENTENCE_S)
    sha256 = check_wav(audio).sha256

    done = recognise(audio, tmp_path / "out.json", "--sha256", sha256, "--parent", os.getpid())

    found = left_in(tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert (found.sha256, found.problem) == (sha256, None)
    assert [segment.text for segment in found.segments] == [FIRST_SENTENCE]
    assert 0 <= found.segments[0].start_s < found.segments[0].end_s <= FIRST_SENTENCE_S
    assert sorted(os.listdir(tmp_path)) == ["out.json", "sentence.wav"]


def test_words_cut_off_by_the_end_of_the_file_are_heard(tmp_path: Path) -> None:
    """Three seconds are a whole number of the detector's frames: no shorter frame tells it that the end has come."""
    found = recognizer.recognise(cut(tmp_path / "cut.wav", 3.0))

    assert [segment.text.split()[:6] for segment in found.segments] == [FIRST_SENTENCE.split()[:6]]


def test_a_result_is_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the very last step the name shows what it showed before."""
    out = tmp_path / "out.json"
    recognizer.write_whole(out, Recognition("before"))
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))

    with pytest.raises(KeyboardInterrupt):
        recognizer.write_whole(out, Recognition("after"))

    assert left_in(out).sha256 == "before"


def test_silence_is_told_as_such(tmp_path: Path) -> None:
    done = recognise(silence(tmp_path / "silence.wav", 2.0), tmp_path / "out.json")

    assert done.returncode == 1
    assert problem_in(tmp_path / "out.json") == "no_speech"


def test_a_recording_that_changed_after_the_submit_is_not_recognised(tmp_path: Path) -> None:
    done = recognise(BUNDLED, tmp_path / "out.json", "--sha256", "0" * 64)

    assert done.returncode == 1
    assert problem_in(tmp_path / "out.json") == "recording_changed"


def test_a_bad_recording_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    done = recognise(tmp_path / "missing.wav", tmp_path / "out.json")

    assert (done.returncode, done.stderr) == (1, "")
    assert problem_in(tmp_path / "out.json") == "not_a_file"


def test_a_child_whose_parent_is_gone_does_nothing(tmp_path: Path) -> None:
    """The parent may die before the child could ask to be killed with it."""
    done = recognise(BUNDLED, tmp_path / "out.json", "--parent", 1)

    assert done.returncode == 1
    assert os.listdir(tmp_path) == []


def test_a_missing_extra_is_one_line_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert recognizer.missing() is None
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    problem = recognizer.recognise(BUNDLED).problem

    assert problem is not None
    assert problem.code == "recogniser_missing"
    assert "pip install 'workflow-kernel[demo]'" in problem.message
