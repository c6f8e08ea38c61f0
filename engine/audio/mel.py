"""Log-mel spectrograms as Whisper was trained on them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from voxlane.engine.audio.torchaudio_import import functional

SAMPLE_RATE = 16_000
WINDOW = 400  # samples: 25 ms
HOP = 160  # samples: 10 ms
WINDOW_SECONDS = 30
WINDOW_SAMPLES = WINDOW_SECONDS * SAMPLE_RATE
FRAMES = WINDOW_SAMPLES // HOP

_FLOOR = 1e-10  # smaller powers are raised to this
_RANGE = 8.0  # powers of ten kept below the loudest value of the clip


def window_mels(windows: Tensor, bins: int) -> Tensor:
    """Return the spectrograms [clips, 3000, bins] of whole windows [clips, 480000] of 16 kHz sound, in one batch."""
    padded = F.pad(windows[:, None], (WINDOW // 2, WINDOW // 2), mode="reflect")[:, 0]
    mel = log_powers(padded, bins)[:, :FRAMES]
    return scaled(mel, mel.amax(dim=(1, 2), keepdim=True))


def log_powers(pieces: Tensor, bins: int) -> Tensor:
    """Return log mel powers [pieces, frames, bins] of pieces of sound [pieces, samples], without padding."""
    window, filters = _constants(bins, pieces.device)
    spectrum = torch.stft(pieces, WINDOW, HOP, window=window, center=False, return_complex=True)
    power = spectrum.real.square() + spectrum.imag.square()  # [pieces, 201, frames]
    return (power.transpose(1, 2) @ filters).clamp_(min=_FLOOR).log10_()


def scaled(mel: Tensor, loudest: Tensor) -> Tensor:
    """Return log powers scaled for the models, with nothing more than `_RANGE` below the loudest."""
    return torch.maximum(mel, loudest - _RANGE).add_(4.0).div_(4.0)


@functools.cache
def _constants(bins: int, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.hann_window(WINDOW, device=device), mel_filters(bins).T.contiguous().to(device)


def log_mel(samples: Tensor, bins: int, frames: int = FRAMES) -> Tensor:
    """Return the spectrogram [frames, bins] of 16 kHz sound that fits into so many frames, padded with silence.

    Frames that see only padding are not computed: for a short turn that is most of them.
    """
    room = frames * HOP
    if samples.ndim != 1 or len(samples) > room:
        raise ValueError(f"samples {tuple(samples.shape)}: one dimension of at most {room} is needed")
    half = WINDOW // 2
    whole = len(samples) > room - WINDOW
    heard = F.pad(samples.to(torch.float32), (0, room - len(samples) if whole else WINDOW))
    # Both ends are mirrored. Unless the sound reaches the end of the window, only silence is mirrored there.
    padded = F.pad(heard[None, None], (half, half), mode="reflect")[0, 0]
    window = torch.hann_window(WINDOW, device=samples.device)
    spectrum = torch.stft(padded, WINDOW, HOP, window=window, center=False, return_complex=True)[:, :frames]
    power = spectrum.real.square() + spectrum.imag.square()  # [201, frames]
    mel = torch.full((frames, bins), _FLOOR, device=samples.device)
    mel[: power.shape[1]] = (power.T @ mel_filters(bins).T.to(samples.device)).clamp_(min=_FLOOR)
    mel = mel.log10_()
    return mel.clamp_(min=float(mel.max()) - _RANGE).add_(4.0).div_(4.0)


@functools.cache
def mel_filters(bins: int, window: int = WINDOW, sample_rate: int = SAMPLE_RATE) -> Tensor:
    """Return Slaney's filters [bins, window / 2 + 1]: triangles of equal area that sum a spectrum into mel bands."""
    with _LinspaceInDouble():
        filters: Tensor = functional.melscale_fbanks(
            window // 2 + 1, 0.0, sample_rate / 2, bins, sample_rate, norm="slaney", mel_scale="slaney"
        )
    banks: Tensor = filters.T.to(torch.float32).contiguous()
    return banks


class _LinspaceInDouble(TorchFunctionMode):
    """Makes `torch.linspace`, from which torchaudio computes its filters, return float64 in this thread.

    In float32, corner frequencies are rounded to 0.5 mHz and logarithms of mel powers come out wrong by up to 2e-4.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        return func(*args, **(given | {"dtype": torch.float64} if func is torch.linspace else given))
