"""The 12 Hz codec's encoder against the package qwen-tts: the same codes for clips of any length."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from qwen_tts_peer import QwenTtsPeer
from safetensors.torch import load_file, save_file

from voxlane.engine.errors import ModelConfigError, TensorError
from voxlane.engine.models.qwen3_tts.encoder import PIECE_FRAMES, Qwen3TTSEncoder
from voxlane.engine.models.qwen3_tts.encoder_config import EncoderConfig
from voxlane.engine.weights.safetensors import SafetensorsDirectory

TOLERANCE = 2e-5
"""Of vectors of the size of 5, in float32: ten times what was measured."""

PLAIN: dict[str, Any] = {
    # The proportions of the published checkpoint: heads wider than the hidden size, more books than are used.
    "codebook_dim": 8, "codebook_size": 32, "head_dim": 12, "hidden_size": 16, "intermediate_size": 20,
    "num_attention_heads": 2, "num_filters": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "num_quantizers": 7,
    "sliding_window": 5, "upsample_groups": 16, "upsampling_ratios": [4, 3, 2],
    "vector_quantization_hidden_dimension": 8,
}  # fmt: skip
OTHER: dict[str, Any] = {
    **PLAIN, "attention_bias": True, "codebook_dim": 16, "compress": 3, "dilation_growth_rate": 3, "head_dim": 6,
    "kernel_size": 5, "last_kernel_size": 1, "norm_eps": 1e-3, "num_attention_heads": 4, "num_filters": 6,
    "num_residual_layers": 2, "residual_kernel_size": 2, "rope_theta": 500.0, "upsampling_ratios": [5, 1],
    "use_conv_shortcut": True, "vector_quantization_hidden_dimension": 16,
}  # fmt: skip
FRAME = {"plain": 48, "other": 10}
LENGTHS = {"plain": [1, 47, 48, 49, 48 * PIECE_FRAMES + 1, 4111], "other": [3, 10, 10 * PIECE_FRAMES, 997]}


@pytest.fixture(scope="module")
def checkpoints(qwen_tts_peer: QwenTtsPeer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the checkpoints that the package wrote, and what it heard."""
    folder = tmp_path_factory.mktemp("encoders")
    plan = {
        "plain": {"encoder_config": PLAIN, "groups": 5, "lengths": LENGTHS["plain"]},
        "other": {"encoder_config": OTHER, "groups": 7, "lengths": LENGTHS["other"]},
    }
    qwen_tts_peer.run("qwen_tts_peer_encoder.py", folder, json.dumps(plan))
    return folder


@pytest.mark.parametrize("name", ["plain", "other"])
def test_codes_are_the_packages_for_clips_of_any_length(checkpoints: Path, name: str) -> None:
    encoder = Qwen3TTSEncoder.load(SafetensorsDirectory(checkpoints / name))
    assert encoder.frame_samples == FRAME[name]
    expected = load_file(checkpoints / name / "expected.safetensors")
    for length in LENGTHS[name]:
        clip = expected[f"clip.{length}"]
        assert len(expected[f"codes.{length}"]) == -(-length // FRAME[name])
        torch.testing.assert_close(encoder.vectors(clip), expected[f"vectors.{length}"], rtol=0, atol=TOLERANCE)
        assert torch.equal(encoder.encode(clip), expected[f"codes.{length}"])
    assert len(encoder.encode(clip).unique()) > 10


def test_no_clip_is_no_clip(checkpoints: Path) -> None:
    encoder = Qwen3TTSEncoder.load(SafetensorsDirectory(checkpoints / "plain"))
    for samples in (torch.zeros(0), torch.zeros(1, 48)):
        with pytest.raises(ValueError, match="at least one"):
            encoder.encode(samples)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"upsampling_ratios": [4, 3]}, "encode_downsample_rate"),
        ({"upsampling_ratios": "8"}, "upsampling_ratios"),
        ({"pad_mode": "reflect"}, "pad_mode"),
        ({"use_causal_conv": False}, "use_causal_conv"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"num_semantic_quantizers": 2}, "num_semantic_quantizers"),
        ({"audio_channels": 2}, "audio_channels"),
        ({"num_quantizers": 4}, "encoder_valid_num_quantizers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"compress": 5}, "compress"),
        ({"codebook_dim": 16}, "vector_quantization_hidden_dimension"),
        ({"sampling_rate": 16_000}, "sampling_rate"),
        ({"_frame_rate": 12.5}, "_frame_rate"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling"),
    ],
)
def test_what_would_change_the_codes_is_refused_by_name(checkpoints: Path, change: dict[str, Any], key: str) -> None:
    config = json.loads((checkpoints / "plain" / "config.json").read_text())
    config["encoder_config"] |= change
    with pytest.raises(ModelConfigError, match=key):
        EncoderConfig.from_dict(config)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("encoder.encoder.layers.0.conv.bias", None),
        ("encoder.quantizer.acoustic_residual_vector_quantizer.layers.3.codebook.embed_sum", (32, 9)),
        ("encoder.quantizer.acoustic_residual_vector_quantizer.layers.6.codebook.embed_sum", (32, 8)),
        ("encoder.upsample.conv.weight", (1,)),
    ],
)
def test_a_tensor_too_few_too_many_or_misshapen_is_named(
    checkpoints: Path, tmp_path: Path, name: str, shape: tuple[int, ...] | None
) -> None:
    shutil.copy(checkpoints / "plain" / "config.json", tmp_path)
    tensors = load_file(checkpoints / "plain" / "model.safetensors")
    if shape is None:
        del tensors[name]
    else:
        tensors[name] = torch.zeros(shape)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(TensorError, match=name.removeprefix("encoder.").replace(".", r"\.")):
        Qwen3TTSEncoder.load(SafetensorsDirectory(tmp_path))


def test_the_defaults_are_the_published_shape() -> None:
    config = EncoderConfig.from_dict({"encoder_config": {"_frame_rate": 12.5}})
    assert (config.groups, config.quantisers, config.codebook_size, config.codebook_dim) == (16, 32, 2048, 256)
    assert (config.frame_samples, config.ratios, config.sample_rate) == (1920, (4, 5, 6, 8), 24_000)
    assert (config.hidden_size, config.layers, config.heads, config.head_dim) == (512, 8, 8, 64)
