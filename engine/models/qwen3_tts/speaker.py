"""The speaker encoder of Qwen3-TTS's base models: an ECAPA-TDNN from a clip's mel spectrogram to one embedding.

A clip is encoded once and its embedding kept, so plain torch is fast enough.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.audio.mel import mel_filters
from voxlane.engine.models.loading import TensorReader
from voxlane.engine.models.qwen3_tts.config import MEL_BINS, SAMPLE_RATE, SpeakerEncoderConfig

WINDOW = 1024  # samples: 43 ms
HOP = 256  # samples: 11 ms

_SMALLEST_POWER = 1e-9
_QUIETEST = 1e-5  # magnitudes in a mel band are at least this
_SMALLEST_VARIANCE = 1e-12


def log_mel(samples: Tensor) -> Tensor:
    """Return the spectrogram [bins, frames] of a clip at 24 kHz: logarithms of magnitudes, not of powers."""
    margin = (WINDOW - HOP) // 2
    padded = F.pad(samples.to(torch.float32)[None, None], (margin, margin), mode="reflect")[0, 0]
    window, filters = _constants(samples.device)
    spectrum = torch.stft(padded, WINDOW, HOP, window=window, center=False, return_complex=True)
    magnitude = (spectrum.real.square() + spectrum.imag.square() + _SMALLEST_POWER).sqrt()
    return (filters @ magnitude).clamp(min=_QUIETEST).log()


@functools.cache
def _constants(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.hann_window(WINDOW, device=device), mel_filters(MEL_BINS, WINDOW, SAMPLE_RATE).to(device)


class SpeakerEncoder:
    """A loaded encoder. Its weights are float32 in every mode: 9 million of them, used once a voice."""

    def __init__(self, config: SpeakerEncoderConfig, weights: dict[str, tuple[Tensor, Tensor]]) -> None:
        self._config = config
        self._weights = weights
        widest = max(dilation * (kernel - 1) for dilation, kernel in zip(config.dilations, config.kernels, strict=True))
        self.min_samples = max(WINDOW, HOP * (widest + 1))  # mirrored ends must lie within the clip

    @classmethod
    def read(cls, reader: TensorReader, config: SpeakerEncoderConfig, prefix: str) -> SpeakerEncoder:
        """Read the encoder's tensors, whose names begin with `prefix`."""
        weights: dict[str, tuple[Tensor, Tensor]] = {}

        def take(name: str, inputs: int, outputs: int, kernel: int = 1) -> None:
            weight = reader.floats(f"{prefix}{name}.weight", (outputs, inputs, kernel))
            weights[name] = weight, reader.vector(f"{prefix}{name}.bias", outputs)

        width, last = config.channels[0], config.channels[-1]
        part = width // config.res2net_scale
        take("blocks.0.conv", MEL_BINS, width, config.kernels[0])
        for index in range(1, len(config.channels) - 1):
            take(f"blocks.{index}.tdnn1.conv", width, width)
            for inner in range(config.res2net_scale - 1):
                take(f"blocks.{index}.res2net_block.blocks.{inner}.conv", part, part, config.kernels[index])
            take(f"blocks.{index}.tdnn2.conv", width, width)
            take(f"blocks.{index}.se_block.conv1", width, config.squeeze_channels)
            take(f"blocks.{index}.se_block.conv2", config.squeeze_channels, width)
        take("mfa.conv", last, last, config.kernels[-1])
        take("asp.tdnn.conv", 3 * last, config.attention_channels)
        take("asp.conv", config.attention_channels, last)
        take("fc", 2 * last, config.size)
        return cls(config, weights)

    def on_host(self) -> SpeakerEncoder:
        """Return the encoder with its weights on the CPU."""
        weights = {name: (weight.cpu(), bias.cpu()) for name, (weight, bias) in self._weights.items()}
        return SpeakerEncoder(self._config, weights)

    def embed(self, samples: Tensor) -> Tensor:
        """Return the embedding [size] float32 of a clip at 24 kHz, samples within -1 and 1; ValueError if too short."""
        if samples.ndim != 1 or len(samples) < self.min_samples:
            raise ValueError(f"samples {tuple(samples.shape)}: one dimension of at least {self.min_samples} is needed")
        config = self._config
        x = self._conv("blocks.0.conv", log_mel(samples)[None], config.dilations[0]).relu()
        layers: list[Tensor] = []
        for index in range(1, len(config.channels) - 1):
            x = self._layer(f"blocks.{index}.", x, config.dilations[index])
            layers.append(x)
        x = self._conv("mfa.conv", torch.cat(layers, dim=1), config.dilations[-1]).relu()
        return self._conv("fc", self._pool(x)[:, :, None])[0, :, 0]

    def _layer(self, name: str, x: Tensor, dilation: int) -> Tensor:
        """Convolve parts of the channels, each with the output of the part before added; then weigh all channels."""
        inner = self._conv(f"{name}tdnn1.conv", x).relu()
        first, *parts = inner.chunk(self._config.res2net_scale, dim=1)
        found = [first]
        for index, part in enumerate(parts):
            heard = part + found[-1] if index else part
            found.append(self._conv(f"{name}res2net_block.blocks.{index}.conv", heard, dilation).relu())
        inner = self._conv(f"{name}tdnn2.conv", torch.cat(found, dim=1)).relu()
        squeezed = self._conv(f"{name}se_block.conv1", inner.mean(dim=2, keepdim=True)).relu()
        return inner * self._conv(f"{name}se_block.conv2", squeezed).sigmoid() + x

    def _pool(self, x: Tensor) -> Tensor:
        """Return mean and deviation [1, 2 * channels] over time, weighed by an attention over the unweighed ones."""
        even = torch.full_like(x[:, :1], 1.0 / x.shape[2])
        context = [statistic[:, :, None].expand_as(x) for statistic in _statistics(x, even)]
        scores = self._conv("asp.tdnn.conv", torch.cat([x, *context], dim=1)).relu().tanh()
        return torch.cat(_statistics(x, self._conv("asp.conv", scores).softmax(dim=2)), dim=1)

    def _conv(self, name: str, x: Tensor, dilation: int = 1) -> Tensor:
        """Return a convolution as long as `x` [1, channels, frames], mirrored beyond its ends."""
        weight, bias = self._weights[name]
        margin = dilation * (weight.shape[2] - 1)
        if margin:
            x = F.pad(x, (margin // 2, margin - margin // 2), mode="reflect")
        return F.conv1d(x, weight, bias, dilation=dilation)


def _statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    mean = (weights * x).sum(dim=2)
    variance = (weights * (x - mean[:, :, None]).square()).sum(dim=2)
    return mean, variance.clamp(min=_SMALLEST_VARIANCE).sqrt()
