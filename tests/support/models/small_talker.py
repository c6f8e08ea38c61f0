"""A small random checkpoint of Qwen3-TTS as a folder: talker, codec, vocabulary. It speaks noise in the real format."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from support import random_talkers

QUIET = 0.02
"""Scale that keeps the random codec's samples between -1 and 1."""


def write_talker(folder: Path, *, max_frames: int = 400, end: float = 0.0) -> Path:
    """Write a checkpoint and return its path; the larger `end`, the sooner an utterance ends by itself."""
    random_talkers.write("tiny", folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"max_new_tokens": max_frames}))
    codec = folder / "speech_tokenizer" / "model.safetensors"
    sound = load_file(codec)
    last = max((name for name in sound if name.endswith(".conv.weight") and sound[name].shape[0] == 1), key=len)
    for name in (last, last.replace("weight", "bias")):
        sound[name] *= QUIET
    save_file(sound, codec, metadata={"format": "pt"})
    if end:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        head = tensors["talker.codec_head.weight"]
        place = json.loads((folder / "config.json").read_text())["talker_config"]["codec_eos_token_id"]
        head[place] = (
            end * torch.randn(head.shape[1], generator=torch.Generator().manual_seed(5)) * head.shape[1] ** -0.5
        )
        save_file(tensors, file, metadata={"format": "pt"})
    return folder
