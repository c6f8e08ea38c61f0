"""Log-mel spectrograms as Whisper was trained on them. It knows samples and frequencies, and no model."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

SAMPLE_RATE = 16_000
WINDOW = 400  # samples: 25 ms
HOP = 160  # samples: 10 ms
WINDOW_SECONDS = 30
WINDOW_SAMPLES = WINDOW_SECONDS * SAMPLE_RATE
FRAMES = WINDOW_SAMPLES // HOP

_FLOOR = 1e-10  # power below which everything is silence
_RANGE = 8.0  # factors of ten kept below the loudest place of the clip


def window_mels(windows: Tensor, bins: int) -> Tensor:
    """Return the spectrograms [clips, 3000, bins] of whole windows [clips, 480000] of 16 kHz sound, all at once."""
    padded = F.pad(windows[:, None], (WINDOW // 2, WINDOW // 2), mode="reflect")[:, 0]
    mel = log_powers(padded, bins)[:, :FRAMES]
    return scaled(mel, mel.amax(dim=(1, 2), keepdim=True))


def log_powers(pieces: Tensor, bins: int) -> Tensor:
    """Return the logarithms of mel powers [pieces, frames, bins] of pieces of sound [pieces, samples], unmirrored."""
    window, filters = _constants(bins, pieces.device)
    spectrum = torch.stft(pieces, WINDOW, HOP, window=window, center=False, return_complex=True)
    power = spectrum.real.square() + spectrum.imag.square()  # [pieces, 201, frames]
    return (power.transpose(1, 2) @ filters).clamp_(min=_FLOOR).log10_()


def scaled(mel: Tensor, loudest: Tensor) -> Tensor:
    """Return logarithms as models see them, nothing more than `_RANGE` below the loudest."""
    return torch.maximum(mel, loudest - _RANGE).add_(4.0).div_(4.0)


@functools.cache
def _constants(bins: int, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.hann_window(WINDOW, device=device), mel_filters(bins).T.contiguous().to(device)


def log_mel(samples: Tensor, bins: int) -> Tensor:
    """Return the spectrogram [3000, bins] of at most 30 s of 16 kHz sound, silence after its end.

    Frames that only see the silence are not computed: for a short turn that is most of them.
    """
    if samples.ndim != 1 or len(samples) > WINDOW_SAMPLES:
        raise ValueError(f"samples {tuple(samples.shape)}: one dimension of at most {WINDOW_SAMPLES} is needed")
    half = WINDOW // 2
    whole = len(samples) > WINDOW_SAMPLES - WINDOW
    heard = F.pad(samples.to(torch.float32), (0, WINDOW_SAMPLES - len(samples) if whole else WINDOW))
    # Both ends are mirrored; away from the end of the 30 s there is only silence to mirror.
    padded = F.pad(heard[None, None], (half, half), mode="reflect")[0, 0]
    window = torch.hann_window(WINDOW, device=samples.device)
    spectrum = torch.stft(padded, WINDOW, HOP, window=window, center=False, return_complex=True)[:, :FRAMES]
    power = spectrum.real.square() + spectrum.imag.square()  # [201, frames]
    mel = torch.full((FRAMES, bins), _FLOOR, device=samples.device)
    mel[: power.shape[1]] = (power.T @ mel_filters(bins).T.to(samples.device)).clamp_(min=_FLOOR)
    mel = mel.log10_()
    return mel.clamp_(min=float(mel.max()) - _RANGE).add_(4.0).div_(4.0)


@functools.cache
def mel_filters(bins: int, window: int = WINDOW, sample_rate: int = SAMPLE_RATE) -> Tensor:
    """Return the triangles [bins, window / 2 + 1] that sum a spectrum into mel bands of the same area (Slaney's)."""
    frequencies = torch.linspace(0, sample_rate / 2, window // 2 + 1, dtype=torch.float64)
    top = _to_mel(torch.tensor(sample_rate / 2, dtype=torch.float64))
    corners = _to_hertz(torch.linspace(0, float(top), bins + 2, dtype=torch.float64))
    rise = (frequencies - corners[:-2, None]) / (corners[1:-1] - corners[:-2])[:, None]
    fall = (corners[2:, None] - frequencies) / (corners[2:] - corners[1:-1])[:, None]
    triangles = torch.minimum(rise, fall).clamp(min=0)
    return (triangles * (2.0 / (corners[2:] - corners[:-2]))[:, None]).to(torch.float32)


# Slaney's scale: linear up to 1 kHz (15 mels), then 27 mels for every factor of 6.4.
_LINEAR_HERTZ, _BEND_HERTZ, _BEND_MEL = 200.0 / 3.0, 1000.0, 15.0
_STEP = torch.log(torch.tensor(6.4, dtype=torch.float64)) / 27.0


def _to_mel(hertz: Tensor) -> Tensor:
    bent = _BEND_MEL + torch.log(hertz.clamp(min=_BEND_HERTZ) / _BEND_HERTZ) / _STEP
    return torch.where(hertz < _BEND_HERTZ, hertz / _LINEAR_HERTZ, bent)


def _to_hertz(mel: Tensor) -> Tensor:
    bent = _BEND_HERTZ * torch.exp(_STEP * (mel - _BEND_MEL))
    return torch.where(mel < _BEND_MEL, mel * _LINEAR_HERTZ, bent)
