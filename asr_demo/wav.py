"""Which sound files the demo takes: PCM, 16-bit, mono, 16 kHz, WAVE, at most ten minutes.

A file is read in small pieces, so a wrong or hostile one costs neither memory nor more time than its permitted
size. Every refusal is one line that names the rule it breaks.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import wave
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

SAMPLE_RATE = 16_000
SAMPLE_BYTES = 2
MAX_SECONDS = 600
# The samples of ten minutes, and room for the other chunks that editors put beside them.
MAX_FILE_BYTES = MAX_SECONDS * SAMPLE_RATE * SAMPLE_BYTES + 1024 * 1024
_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """A recording that was checked from its first byte to its last. `sha256` is that of the whole file."""

    seconds: float
    sample_rate: int
    frames: int
    sha256: str


class AudioRefused(Exception):
    """The file is no recording that the demo takes. `code` is stable; `message` is one line."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def check_wav(path: Path) -> AudioInfo:
    """Return what `path` holds.

    Raises AudioRefused with one of these codes: `not_a_file`, `unreadable`, `empty_file`, `too_large`, `not_wave`,
    `compressed`, `not_mono`, `not_16_bit`, `wrong_rate`, `no_samples`, `too_long`, `truncated`.
    """
    with open_wav(path) as (info, _reader):
        return info


@contextmanager
def open_wav(path: Path) -> Iterator[tuple[AudioInfo, wave.Wave_read]]:
    """Check `path` and give its reader, set to the first sample, of the very file that was checked."""
    with _open_regular(path) as file:
        digest = _sha256(file)
        file.seek(0)
        reader = _reader(file)
        frames = _check_header(reader)
        _check_samples(reader, frames)
        reader.rewind()
        yield AudioInfo(frames / SAMPLE_RATE, SAMPLE_RATE, frames, digest), reader


def keep_wav(path: Path, folder: Path) -> Path:
    """Check `path` and return the path of a copy `<sha256>.wav` in `folder` (made with mode 0700 if missing).

    The ASR service reads only from folders that it knows; this brings a file from elsewhere into one. The copy
    appears under its name only when complete, so a crash in between leaves nothing that could be taken for it.
    """
    is_new = not folder.exists()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return _kept(path, folder)
    except AudioRefused:
        if is_new:
            with suppress(OSError):  # somebody else keeps something there by now
                folder.rmdir()
        raise


def _kept(path: Path, folder: Path) -> Path:
    with _open_regular(path) as source, tempfile.NamedTemporaryFile(dir=folder, suffix=".part") as copy:
        for piece in _pieces(source):
            copy.write(piece)
        copy.flush()
        # The copy is checked, not the original: that one may change between the check and the copying.
        kept = folder / f"{check_wav(Path(copy.name)).sha256}.wav"
        if not kept.exists():
            _link(copy.name, kept)
    return kept


def _link(name: str, kept: Path) -> None:
    try:
        os.link(name, kept)
    except FileExistsError:
        pass  # another process kept the same recording in this moment: the same bytes under the same name


@contextmanager
def _open_regular(path: Path) -> Iterator[BinaryIO]:
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to would otherwise wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise AudioRefused("not_a_file", "there is no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name is no path"
        raise AudioRefused("unreadable", f"the file can not be opened: {reason}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise AudioRefused("not_a_file", "this is a folder or a device, not a file")
        if status.st_size == 0:
            raise AudioRefused("empty_file", "the file is empty")
        if status.st_size > MAX_FILE_BYTES:
            raise AudioRefused("too_large", f"the file has {status.st_size} bytes; at most {MAX_FILE_BYTES} are taken")
        with os.fdopen(descriptor, "rb", buffering=_PIECE_BYTES, closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """The file's bytes; stops above the permitted size, for a file that grows while it is read."""
    total = 0
    while piece := file.read(_PIECE_BYTES):
        total += len(piece)
        if total > MAX_FILE_BYTES:
            raise AudioRefused("too_large", f"the file grew above {MAX_FILE_BYTES} bytes while it was read")
        yield piece


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(file):
        digest.update(piece)
    return digest.hexdigest()


def _reader(file: BinaryIO) -> wave.Wave_read:
    try:
        return wave.open(file, "rb")
    except EOFError:
        raise AudioRefused("not_wave", "the file ends before its WAVE header does") from None
    except wave.Error as error:
        text = str(error)
        if text.startswith("unknown format"):
            raise AudioRefused("compressed", f"only plain PCM samples are taken ({text})") from None
        raise AudioRefused("not_wave", f"this is no RIFF/WAVE file ({text})") from None
    except RuntimeError:  # a chunk inside the file says that it is longer than the file
        raise AudioRefused("not_wave", "the WAVE header contradicts itself") from None


def _check_header(reader: wave.Wave_read) -> int:
    """Return the number of frames that the header promises, if everything it says is within the rules."""
    channels, sample_bytes, rate, frames = reader.getparams()[:4]
    if channels != 1:
        raise AudioRefused("not_mono", f"the recording has {channels} channels; one (mono) is taken")
    if sample_bytes != SAMPLE_BYTES:
        raise AudioRefused("not_16_bit", f"the samples have {8 * sample_bytes} bits; 16 are taken")
    if rate != SAMPLE_RATE:
        raise AudioRefused("wrong_rate", f"the sample rate is {rate} Hz; {SAMPLE_RATE} is taken")
    if frames <= 0:
        raise AudioRefused("no_samples", "the recording holds no sample")
    if frames > MAX_SECONDS * SAMPLE_RATE:
        seconds = frames / SAMPLE_RATE
        raise AudioRefused("too_long", f"the recording is {seconds:.0f} s long; at most {MAX_SECONDS} s are taken")
    return frames


def _check_samples(reader: wave.Wave_read, promised: int) -> None:
    present = 0
    while piece := reader.readframes(_PIECE_BYTES // SAMPLE_BYTES):
        present += len(piece)
    if present != promised * SAMPLE_BYTES:
        held = present // SAMPLE_BYTES
        raise AudioRefused("truncated", f"the header promises {promised} samples and the file holds {held}")
