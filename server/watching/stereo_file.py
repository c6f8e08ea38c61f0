"""A stereo WAV file that is valid at every moment: its header is updated with each batch of sound.

The left channel is the caller, the right one the assistant. Frames may be written in any order: a gap is silence. All
of this blocks, and belongs into a thread.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxlane.codecs.resample import Resampler
from voxlane.server.watching.heard_sound import KEPT_REPLIES, HeardCut, HeardPiece

RATE = 16_000
"""Frames a second: that of the microphone."""

HEADER_BYTES, FRAME_BYTES = 44, 4
MOST_BYTES = 0xFFFFFFFF - HEADER_BYTES
"""A WAV file counts its bytes in 32 bits: 18 hours."""

LEFT, RIGHT = 0, 1


def header(data_bytes: int) -> bytes:
    """Return the header of a stereo file of 16-bit samples."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 2, RATE, RATE * FRAME_BYTES, FRAME_BYTES, 16)
    return (
        struct.pack("<4sI4s", b"RIFF", HEADER_BYTES - 8 + data_bytes, b"WAVE")
        + form
        + struct.pack("<4sI", b"data", data_bytes)
    )


def repair(path: Path) -> bool:
    """Complete the header of a file that a crash left behind; return whether that was needed.

    Its time stays: the file is as old as its last sound.
    """
    facts = path.stat()
    repaired = _repair(path)
    if repaired:
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    return repaired


def _repair(path: Path) -> bool:
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size < HEADER_BYTES:
            file.truncate(0)
            file.seek(0)
            file.write(header(0))
            return True
        data_bytes = (size - HEADER_BYTES) // FRAME_BYTES * FRAME_BYTES
        file.seek(0)
        if file.read(HEADER_BYTES) == header(data_bytes) and size == HEADER_BYTES + data_bytes:
            return False
        file.truncate(HEADER_BYTES + data_bytes)
        file.seek(0)
        file.write(header(data_bytes))
        return True


class StereoFile:
    """One recording that is being written."""

    def __init__(self, path: Path, speak_rate: int) -> None:
        self._speak_rate = speak_rate
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._bytes = 0  # of sound
        self._ends = [0, 0]  # the frame behind the last one, by channel
        self._resampler: Resampler | None = None  # of the reply that was placed last
        self._epoch = 0
        self._spans: dict[int, list[tuple[int, int, int]]] = {}  # (sample, samples, frame) by epoch, oldest first
        self._write_header()

    def write(self, batch: list[HeardPiece | HeardCut]) -> None:
        """Write pieces of sound, then the header; raise OSError if that fails."""
        for piece in batch:
            if isinstance(piece, HeardCut):
                self._silence(piece)
            elif piece.epoch:
                self._write_reply(piece)
            else:
                samples = np.frombuffer(piece.pcm, "<i2")
                self._put(LEFT, self._frame(LEFT, piece), samples)
        self._write_header()

    def close(self) -> None:
        """Complete the file."""
        try:
            self._flush()
            self._write_header()
        finally:
            os.close(self._file)

    def _frame(self, channel: int, piece: HeardPiece) -> int:
        return self._ends[channel] if piece.joins else max(self._ends[channel], round(piece.at_s * RATE))

    def _write_reply(self, piece: HeardPiece) -> None:
        if piece.epoch != self._epoch or not piece.joins:
            self._flush()
            self._epoch, self._resampler = piece.epoch, Resampler(self._speak_rate, RATE)
        frame, samples = self._frame(RIGHT, piece), len(piece.pcm) // 2
        self._note_span(piece, samples, frame)
        assert self._resampler is not None
        sound = np.frombuffer(piece.pcm, "<i2").astype(np.float32) * piece.gain
        self._put(RIGHT, frame, _as_pcm16(self._resampler.push(sound)))

    def _flush(self) -> None:
        """Write what the resampler holds back of the last reply."""
        if self._resampler is not None:
            self._put(RIGHT, self._ends[RIGHT], _as_pcm16(self._resampler.flush()))
            self._resampler = None
            self._epoch = 0

    def _note_span(self, piece: HeardPiece, samples: int, frame: int) -> None:
        spans = self._spans.setdefault(piece.epoch, [])
        sample = spans[-1][0] + spans[-1][1] if spans else 0
        if spans and piece.joins:
            spans[-1] = (spans[-1][0], spans[-1][1] + samples, spans[-1][2])
        else:
            spans.append((sample, samples, frame))
        while len(self._spans) > KEPT_REPLIES:
            del self._spans[next(iter(self._spans))]

    def _silence(self, cut: HeardCut) -> None:
        """Silence what was placed of a reply behind the last sample that was heard."""
        if cut.epoch == self._epoch:
            self._flush()
        kept: list[tuple[int, int, int]] = []
        for sample, samples, frame in self._spans.get(cut.epoch, []):
            stays = min(samples, max(0, cut.samples - sample))
            first, last = (frame + -(-count * RATE // self._speak_rate) for count in (stays, samples))
            last = min(last, self._ends[RIGHT])
            if first < last:
                self._put(RIGHT, first, np.zeros(last - first, np.int16))
            if stays:
                kept.append((sample, stays, frame))
        self._spans[cut.epoch] = kept

    def _put(self, channel: int, frame: int, samples: NDArray[np.int16]) -> None:
        """Write samples into one channel; the other channel keeps what it has there."""
        if not len(samples):
            return
        at, size = frame * FRAME_BYTES, len(samples) * FRAME_BYTES
        if at + size > MOST_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        there = np.zeros((len(samples), 2), "<i2")
        known = os.pread(self._file, size, HEADER_BYTES + at)
        there.reshape(-1)[: len(known) // 2] = np.frombuffer(known[: len(known) // 2 * 2], "<i2")
        there[:, channel] = samples
        _write_all(self._file, there.tobytes(), HEADER_BYTES + at)
        self._bytes = max(self._bytes, at + size)
        self._ends[channel] = max(self._ends[channel], frame + len(samples))

    def _write_header(self) -> None:
        _write_all(self._file, header(self._bytes), 0)


def _as_pcm16(sound: NDArray[np.float32]) -> NDArray[np.int16]:
    return np.clip(np.rint(sound), -32768, 32767).astype("<i2")


def _write_all(file: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written
