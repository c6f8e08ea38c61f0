"""The two ends of LFM2-Audio, loaded from its folder: what makes the backbone's rows of sound, and sound of its rows.

The backbone between them is not loaded here; its tensors are those whose names begin with BACKBONE.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from voxlane.engine.errors import TensorError
from voxlane.engine.models.lfm2_audio.config import Lfm2AudioConfig
from voxlane.engine.models.lfm2_audio.conformer import Conformer
from voxlane.engine.models.lfm2_audio.conformer_weights import ADAPTER, PREFIX, flat_points, spare_names
from voxlane.engine.models.lfm2_audio.depth_tensors import depth_tensors
from voxlane.engine.models.lfm2_audio.depthformer import Depthformer, FrameTable
from voxlane.engine.models.loading import Mode, TensorReader
from voxlane.engine.weights.tensors import WeightFile

BACKBONE = "lfm."
_DEPTH = ("audio_embedding.", "depth_embeddings.", "depth_linear.", "depthformer.")
_TRAINING = {"audio_loss_weights", "codebook_offsets"}  # numbers that follow from the configuration


@dataclass(frozen=True, slots=True)
class Lfm2AudioEnds:
    """What surrounds the backbone."""

    config: Lfm2AudioConfig
    encoder: Conformer
    depthformer: Depthformer
    frames: FrameTable
    parameters: int

    @classmethod
    def load(cls, weights: WeightFile, mode: Mode = "packed", device: str | torch.device = "cpu") -> Lfm2AudioEnds:
        """Read a checkpoint's ends, or raise ModelError with one line that names the config key or tensor at fault."""
        config = Lfm2AudioConfig.from_dict(weights.config)
        _check_names(weights.names())
        points = flat_points(weights)
        sound = {name: name for name in points.names() if name.startswith((PREFIX, ADAPTER))}
        reader = TensorReader(points, sound, mode, torch.device(device))
        depth = depth_tensors(weights, config)
        depth_reader = TensorReader(depth, {name: name for name in depth.names()}, mode, torch.device(device))
        ends = cls.read(config, reader, depth_reader, mode)
        reader.finish(ignored=spare_names(config.encoder))
        depth_reader.finish()
        return ends

    @classmethod
    def read(cls, config: Lfm2AudioConfig, sound: TensorReader, depth: TensorReader, mode: Mode) -> Lfm2AudioEnds:
        """Ask `sound`, over flat_points, and `depth`, over depth_tensors, for every tensor."""
        encoder = Conformer.read(sound, config.encoder, config.hidden_size)
        depthformer = Depthformer.read(depth, config, mode)
        frames = FrameTable.read(depth, config)
        parameters = sum(reader.parameters for reader in dict.fromkeys((sound, depth)))
        return cls(config, encoder, depthformer, frames, parameters)


def _check_names(names: list[str]) -> None:
    """Raise TensorError for a tensor that belongs to no part."""
    for name in names:
        if name not in _TRAINING and not name.startswith((BACKBONE, PREFIX, ADAPTER, *_DEPTH)):
            raise TensorError(f"tensor {name:.120} does not belong to this model")
