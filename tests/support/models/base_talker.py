"""A small Qwen3-TTS Base checkpoint of random weights on disk: it clones voices, and speaks noise."""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from voxlane.engine.models.qwen3_tts.config import Qwen3TTSConfig
from voxlane.engine.models.qwen3_tts.encoder import read_weights
from voxlane.engine.models.qwen3_tts.encoder_config import EncoderConfig
from voxlane.engine.models.qwen3_tts.speaker import SpeakerEncoder

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from support import random_talkers

MAX_FRAMES = 16
"""Frames of an utterance, which never ends by itself: 1.3 s."""

SPEAKER = {
    "enc_dim": 64, "enc_channels": [16, 16, 16], "enc_kernel_sizes": [5, 3, 1], "enc_dilations": [1, 2, 1],
    "enc_attention_channels": 8, "enc_res2net_scale": 4, "enc_se_channels": 8,
}  # fmt: skip
ENCODER = {
    "codebook_dim": 8, "codebook_size": 256, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
    "num_filters": 2, "num_hidden_layers": 1, "num_key_value_heads": 2, "vector_quantization_hidden_dimension": 8,
}  # fmt: skip


class Noise:
    """Makes a tensor for every name that is asked for, and keeps it."""

    def __init__(self, prefix: str) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._prefix = prefix

    def floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor; its numbers depend on its name alone."""
        random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        values = 0.3 * torch.randn(shape, generator=random)
        found = self.tensors[f"{self._prefix}{name}"] = values.abs() + 0.5 if name.endswith("usage") else values
        return found

    def vector(self, name: str, size: int) -> Tensor:
        """Return a row."""
        return self.floats(name, (size,))


def write_base_talker(folder: Path) -> None:
    """Write a checkpoint without built-in voices."""
    random_talkers.write("tiny", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"tts_model_type": "base", "speaker_encoder_config": SPEAKER}
    config["talker_config"] |= {"spk_id": {}, "spk_is_dialect": {}}
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "max_new_tokens": MAX_FRAMES}))
    sizes = Qwen3TTSConfig.from_dict(config).speaker_encoder
    assert sizes is not None
    speaker = Noise("")
    SpeakerEncoder.read(speaker, sizes, "speaker_encoder.")  # type: ignore[arg-type]
    _add(folder, config, speaker.tensors)

    codec = folder / "speech_tokenizer"
    settings = json.loads((codec / "config.json").read_text()) | {"encoder_config": ENCODER}
    encoder = Noise("encoder.")
    read_weights(encoder, EncoderConfig.from_dict(settings))
    _add(codec, settings, encoder.tensors)


def _add(folder: Path, config: dict[str, object], tensors: dict[str, Tensor]) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "model.safetensors"
    save_file(load_file(file) | tensors, file, metadata={"format": "pt"})
