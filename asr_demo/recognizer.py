"""PocketSphinx over one recording, in a process of its own.

The decoder holds the interpreter's lock for seconds, so it must not run in a process that has to answer anything.
`python -m asr_demo.recognizer WAV OUT` writes a Recognition as JSON to OUT, complete or not at all. With
`--parent PID` it never outlives that process, not even when that one is killed.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import signal
import sys
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from asr_demo.asr_protocol import Problem, Segment
from asr_demo.wav import SAMPLE_BYTES, SAMPLE_RATE, AudioRefused, open_wav

# The voice detector decides over 0.3 s, of which nine tenths must agree. Mode 2 of its four, from forgiving to strict,
# takes the noise after a last consonant for the pause that it is; stricter ones begin to cut into words.
DETECTOR_WINDOW_S = 0.3
DETECTOR_RATIO = 0.9
DETECTOR_MODE = 2
# Speech without a pause is cut here, so that the decoder's memory stays bounded.
UTTERANCE_MAX_S = 30.0
_PR_SET_PDEATHSIG = 1


class Recognition(msgspec.Struct, frozen=True):
    """What the child leaves behind: the words of the file with this hash, or why there are none."""

    sha256: str
    segments: tuple[Segment, ...] = ()
    problem: Problem | None = None


class Detector(Protocol):
    """The part of PocketSphinx' Endpointer that finds speech: one frame in, at most one frame of speech out."""

    frame_length: float
    in_speech: bool
    speech_start: float
    speech_end: float

    def process(self, frame: bytes) -> bytes | None: ...

    def end_stream(self, frame: bytes) -> bytes | None: ...


def missing() -> str | None:
    """Return one line that says what to install, None if nothing is missing."""
    if importlib.util.find_spec("pocketsphinx") is None:
        return "PocketSphinx is missing: install the extra with pip install 'workflow-kernel[demo]'"
    return None


def recognise(path: Path, sha256: str | None = None) -> Recognition:
    """Return what is said in the recording; with `sha256`, only if the file still has that content."""
    absent = missing()
    if absent is not None:
        return Recognition(sha256 or "", problem=Problem("recogniser_missing", absent))
    try:
        with open_wav(path) as (info, reader):
            if sha256 is not None and info.sha256 != sha256:
                return Recognition(
                    sha256, problem=Problem("recording_changed", "the file changed after it was submitted")
                )
            segments = tuple(_segments(reader.readframes))
    except AudioRefused as refused:
        return Recognition(sha256 or "", problem=Problem(refused.code, refused.message))
    if not segments:
        return Recognition(info.sha256, problem=Problem("no_speech", "no speech was found in the recording"))
    return Recognition(info.sha256, segments)


class ReadFrames(Protocol):
    def __call__(self, nframes: int, /) -> bytes: ...


def _segments(read_frames: ReadFrames) -> Iterator[Segment]:
    from pocketsphinx import Decoder, Endpointer  # here, because it is an extra and slow to load

    endpointer = Endpointer(DETECTOR_WINDOW_S, DETECTOR_RATIO, DETECTOR_MODE, SAMPLE_RATE)
    decoder = Decoder(samprate=SAMPLE_RATE, loglevel="FATAL")
    frame_samples = endpointer.frame_bytes // SAMPLE_BYTES
    frames = iter(lambda: read_frames(frame_samples), b"")
    for start_s, end_s, speech in utterances(frames, endpointer, UTTERANCE_MAX_S):
        decoder.start_utt()
        decoder.process_raw(speech, False, True)  # the whole utterance at once: its loudness is levelled as one
        decoder.end_utt()
        hypothesis = decoder.hyp()
        if hypothesis is not None and hypothesis.hypstr.strip():
            yield Segment(" ".join(hypothesis.hypstr.split()), round(start_s, 2), round(end_s, 2))


def utterances(frames: Iterable[bytes], detector: Detector, longest_s: float) -> Iterator[tuple[float, float, bytes]]:
    """Cut a stream of frames at its pauses: (start in s, end in s, samples) of each stretch of speech.

    A stretch longer than `longest_s` is cut at the quietest frame of its last third.
    """
    longest = max(3, int(longest_s / detector.frame_length))
    held: list[bytes] = []
    start_s = 0.0
    for piece in _speech(frames, detector):
        if not held:
            start_s = detector.speech_start
        held.append(piece)
        if not detector.in_speech:
            yield start_s, detector.speech_end, b"".join(held)
            held.clear()
        elif len(held) >= longest:
            cut = _quietest(held, len(held) * 2 // 3)
            cut_s = start_s + cut * detector.frame_length
            yield start_s, cut_s, b"".join(held[:cut])
            del held[:cut]
            start_s = cut_s


def _speech(frames: Iterable[bytes], detector: Detector) -> Iterator[bytes]:
    """The frames that are speech. One frame is held back: the detector must be told which one is the last."""
    last: bytes | None = None
    for frame in frames:
        if last is not None:
            speech = detector.process(last)
            if speech is not None:
                yield speech
        last = frame
    if last is not None:
        speech = detector.end_stream(last)
        if speech is not None:
            yield speech


def _quietest(pieces: list[bytes], first: int) -> int:
    return min(range(first, len(pieces)), key=lambda index: _loudness(pieces[index]))


def _loudness(piece: bytes) -> float:
    samples = array("h", piece)
    return sum(map(abs, samples)) / max(1, len(samples))


def die_with(parent: int) -> None:
    """Have the kernel of the system kill this process as soon as its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before the line above; then this process has another one by now.
    if os.getppid() != parent:
        os._exit(1)
    # Ctrl-C and a stop may reach the whole process group; the parent decides whether the recognition ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def write_whole(path: Path, recognition: Recognition) -> None:
    """Write the file so that it is never seen half done: a kill leaves the old state or the new one."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(recognition))
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def main(arguments: list[str] | None = None) -> int:
    """Exit 0 with words, 1 without (the file says why)."""
    parser = argparse.ArgumentParser(prog="python -m asr_demo.recognizer", description="Recognise one recording.")
    parser.add_argument("wav", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sha256", help="refuse a file with another content")
    parser.add_argument("--parent", type=int, help="end when the process with this pid ends")
    options = parser.parse_args(arguments)
    if options.parent is not None:
        die_with(options.parent)
    recognition = recognise(options.wav, options.sha256)
    write_whole(options.out, recognition)
    return 0 if recognition.problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
