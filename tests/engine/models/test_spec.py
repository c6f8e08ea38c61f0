"""A model's sizes: what its caches, its states and its steps take."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from voxlane.engine.errors import ModelConfigError
from voxlane.engine.memory.pages import PageShape, StateShape
from voxlane.engine.models.decoder_config import DecoderConfig
from voxlane.engine.models.registry import chat_spec
from voxlane.engine.models.spec import AttentionLayer, ConvolutionLayer, ModelSpec

ATTENTION = AttentionLayer(heads=16, kv_heads=8, head_dim=64, scale=64**-0.5)
CONVOLUTION = ConvolutionLayer(channels=1024, taps=3)
HYBRID = ModelSpec(
    layers=(CONVOLUTION, CONVOLUTION, ATTENTION, CONVOLUTION, ATTENTION), hidden_size=1024, intermediate_size=4608,
    vocab_size=65_536, context_tokens=128_000, parameters=350_000_000,
)  # fmt: skip
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49_152,
    "tie_word_embeddings": True,
}  # fmt: skip


def test_attention_has_pages_and_convolutions_have_states() -> None:
    states = StateShape(layers=(0, 1, 3), channels=1024, taps=3)
    assert HYBRID.pages == PageShape(layers=2, kv_heads=8, head_dim=64, states=states)
    kept = 3 * 1024 * 2 * 4  # two float32 vectors of each convolution, whatever the pages are
    assert HYBRID.cache_bytes_per_block(torch.bfloat16, 16) == 16 * 2 * 2 * 8 * 64 * 2 + kept
    assert HYBRID.cache_bytes_per_block(torch.bfloat16, 1) == 2 * 2 * 8 * 64 * 2 + kept // 2
    plain = replace(HYBRID, layers=(ATTENTION,) * 2)
    assert plain.pages.states is None
    assert HYBRID.cache_bytes_per_block(torch.int8, 16) - plain.cache_bytes_per_block(torch.int8, 16) == kept


def test_the_widest_layer_decides_what_a_step_takes() -> None:
    wide = replace(HYBRID, layers=(*HYBRID.layers, ConvolutionLayer(channels=2048, taps=3)))
    assert wide.step_bytes(100, 4) - HYBRID.step_bytes(100, 4) == 4 * 100 * 2 * (3 * 2048 - 3 * 1024)
    assert HYBRID.step_bytes(100, 4) < HYBRID.step_bytes(200, 4) < HYBRID.step_bytes(200, 8)


def test_keys_of_two_sizes_are_refused() -> None:
    mixed = replace(HYBRID, layers=(ATTENTION, replace(ATTENTION, kv_heads=4)))
    with pytest.raises(ModelConfigError, match="2 sizes"):
        _ = mixed.pages
    mixed = replace(HYBRID, layers=(ATTENTION, CONVOLUTION, replace(CONVOLUTION, taps=4)))
    with pytest.raises(ModelConfigError, match="2 sizes of convolutions"):
        _ = mixed.pages


def test_a_config_becomes_a_spec() -> None:
    spec = chat_spec(SMOLLM2)
    assert spec == DecoderConfig.from_dict(SMOLLM2).spec
    assert spec.layers == (AttentionLayer(9, 3, 64, 64**-0.5),) * 30
    assert (spec.tied, spec.parameters) == (True, 134_479_872)
    with pytest.raises(ModelConfigError, match="NopeForCausalLM"):
        chat_spec(SMOLLM2 | {"architectures": ["NopeForCausalLM"]})
