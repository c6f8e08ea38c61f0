"""An LFM2-Audio of random numbers with its codec, for checks and measurements without a file."""

from __future__ import annotations

import torch

from voxlane.engine.models.lfm2_audio.config import Lfm2AudioConfig
from voxlane.engine.models.lfm2_audio.ends import Lfm2AudioEnds
from voxlane.engine.models.lfm2_audio.mimi import MimiCodec
from voxlane.engine.models.lfm2_audio.mimi_config import MimiConfig
from voxlane.engine.models.lfm2_audio.mimi_weights import read_mimi
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.random_tensors import RandomTensors


def random_lfm2_audio(
    config: dict[str, object],
    mode: Mode,
    device: torch.device,
    *,
    drawn_on: str | torch.device = "cpu",
    context_tokens: int = 0,
) -> Lfm2Audio:
    """Return a model of a checkpoint's configuration."""
    reader = RandomTensors(mode, device, drawn_on)
    ends = Lfm2AudioEnds.read(Lfm2AudioConfig.from_dict(config), reader, reader, mode)
    return Lfm2Audio.read(ends, reader, mode, context_tokens)


def random_mimi(
    config: dict[str, object],
    groups: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    drawn_on: str | torch.device = "cpu",
) -> MimiCodec:
    """Return a codec of transformers' configuration."""
    sizes = MimiConfig.from_dict(config)
    return MimiCodec(sizes, groups, read_mimi(RandomTensors("float32", device, drawn_on), sizes, groups, dtype))
