"""Log-mel spectrograms as NeMo's speech encoders were trained on them, while the sound still arrives.

Sound is pre-emphasised; each frame of 25 ms becomes the logarithms of its mel powers; at the end every band is scaled
to mean 0 and deviation 1 over the clip. A frame depends on 25 ms of sound and is computed as soon as that is there.
The scaling depends on the whole clip, so `NemoMel.finish` does it, and nothing after it can be computed earlier.

Frames are computed in blocks of BLOCK, the last one filled up with zeros. So a frame's bits do not depend on how the
sound was cut into pieces.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.audio.mel import HOP, SAMPLE_RATE, WINDOW, mel_filters

FFT = 512
BLOCK = 8
"""Frames that are computed together: one row of the encoder, 80 ms."""

_EMPHASIS = 0.97
_GUARD = 2.0**-24  # added to powers
_LEAST_DEVIATION = 1e-5  # added to a band's deviation
_BLOCK_SAMPLES = BLOCK * HOP
_REACH = _BLOCK_SAMPLES - HOP + WINDOW  # samples that a block's frames see


class NemoMel:
    """The spectrogram of one clip, as its samples arrive."""

    def __init__(self, bins: int = 128) -> None:
        self._bins = bins
        self._samples = 0
        self._last = torch.zeros(1)  # the last sample, for the emphasis of the next
        # Emphasised samples that unfinished frames see. The first frame's middle is the first sample.
        self._waiting = torch.zeros(WINDOW // 2)
        self._blocks: list[Tensor] = []

    @property
    def samples(self) -> int:
        """Return how many samples have arrived."""
        return self._samples

    def append(self, samples: Tensor) -> None:
        """Take the next samples [n] of 16 kHz sound, and compute the frames that are complete with them."""
        if samples.ndim != 1:
            raise ValueError(f"samples {tuple(samples.shape)}: one dimension is needed")
        if not len(samples):
            return
        heard = torch.cat((self._last, samples.to("cpu", torch.float32)))
        self._last, self._samples = heard[-1:], self._samples + len(samples)
        self._waiting = torch.cat((self._waiting, heard[1:] - _EMPHASIS * heard[:-1]))
        begin = 0
        while begin + _REACH <= len(self._waiting):
            self._blocks.append(_log_powers(self._waiting[begin : begin + _REACH], self._bins))
            begin += _BLOCK_SAMPLES
        self._waiting = self._waiting[begin:]

    @property
    def complete(self) -> int:
        """Return how many frames are computed, whatever follows."""
        return len(self._blocks) * BLOCK

    def scaled(self, begin: int, end: int) -> Tensor:
        """Return complete frames from `begin` up to `end`, scaled over the clip up to `end`."""
        if not 0 <= begin < end <= self.complete:
            raise ValueError(f"frames {begin} to {end} of {self.complete}")
        return _scaled(torch.cat(self._blocks[: -(-end // BLOCK)])[:end])[begin:]

    def finish(self) -> Tensor:
        """Return the scaled spectrogram [frames(samples), bins] of the clip so far; more samples may follow.

        Its last row is zero: NeMo pads the last frame's place so, and LFM2-Audio's encoder was given that row too.
        """
        whole = self._samples // HOP
        rows = torch.zeros(whole + 1, self._bins)
        known = torch.cat([*self._blocks, *self._rest(whole)])[:whole] if whole else rows[:0]
        if whole:
            rows[:whole] = _scaled(known)
        return rows

    def _rest(self, whole: int) -> list[Tensor]:
        """Return the frames that no complete block has; beyond the end there is silence."""
        missing = whole - len(self._blocks) * BLOCK
        blocks, waiting = [], self._waiting
        for begin in range(0, missing * HOP, _BLOCK_SAMPLES):
            piece = waiting[begin : begin + _REACH]
            blocks.append(_log_powers(F.pad(piece, (0, _REACH - len(piece))), self._bins))
        return blocks


def nemo_mel(samples: Tensor, bins: int = 128) -> Tensor:
    """Return the scaled spectrogram [frames(samples), bins] of a whole clip [samples] of 16 kHz sound."""
    clip = NemoMel(bins)
    clip.append(samples)
    return clip.finish()


def frames(samples: int) -> int:
    """Return how many rows the spectrogram of so many samples has, the last one zero."""
    return samples // HOP + 1


def _scaled(rows: Tensor) -> Tensor:
    """Return rows [frames, bins] with every band scaled to mean 0 and deviation 1."""
    mean = rows.mean(dim=0)
    spread = (rows - mean).square_().sum(dim=0) / max(1, len(rows) - 1)
    return (rows - mean) / (spread.sqrt() + _LEAST_DEVIATION)


def _log_powers(piece: Tensor, bins: int) -> Tensor:
    """Return the log mel powers [BLOCK, bins] of the frames in a piece [_REACH] of emphasised sound."""
    window, filters = _constants(bins)
    spectrum = torch.fft.rfft(piece.unfold(0, WINDOW, HOP) * window, n=FFT)
    power = spectrum.real.square() + spectrum.imag.square()  # [BLOCK, FFT / 2 + 1]
    mel: Tensor = power @ filters
    return mel.add_(_GUARD).log_()


@functools.cache
def _constants(bins: int) -> tuple[Tensor, Tensor]:
    filters = mel_filters(bins, FFT, SAMPLE_RATE).T.contiguous()
    return torch.hann_window(WINDOW, periodic=False), filters
