"""GGUF files against two other readers: the gguf library for numbers, transformers for names and conventions."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
import torch
from examples import examples
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine.errors import ModelConfigError, WeightsError
from voxlane.engine.models.decoder_config import DecoderConfig, Experts, Hybrid
from voxlane.engine.models.registry import load_model
from voxlane.engine.weights import gguf_blocks
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.gguf import SUPPORTED, GGUFFile

from .conftest import (
    EXPERT_WIDE,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    TAPS,
    VOCABULARY,
    Array,
    WriteGGUF,
    small_tensors,
)

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3", "lfm2")
DOWN = "blk.0.ffn_down.weight"
QUERY = "blk.0.attn_q.weight"
HF_DOWN = "model.layers.0.mlp.down_proj.weight"


HALVES = {  # where a block keeps its float16 scales and minimums
    Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,), Kind.IQ4_NL: (0,),
    Kind.IQ4_XS: (0,), Kind.IQ1_S: (0,), Kind.IQ1_M: (), Kind.IQ2_XXS: (0,), Kind.IQ2_XS: (0,), Kind.IQ2_S: (0,),
    Kind.IQ3_XXS: (0,), Kind.IQ3_S: (0,),
}  # fmt: skip
WITH_MINIMUMS = {Kind.Q4_1, Kind.Q5_1, Kind.Q2_K, Kind.Q4_K, Kind.Q5_K}
BITS = {
    Kind.Q4_0: 4, Kind.Q4_1: 4, Kind.Q5_0: 5, Kind.Q5_1: 5, Kind.Q8_0: 8, Kind.Q2_K: 4, Kind.Q3_K: 6, Kind.Q4_K: 4,
    Kind.Q5_K: 5, Kind.Q6_K: 6, Kind.Q8_K: 8, Kind.IQ4_NL: 8, Kind.IQ4_XS: 8,
}  # fmt: skip


def stored(kind: Kind, rows: int, inputs: int) -> Array:
    """Return a random matrix as this type stores it: by the library's quantiser, or as random codes."""
    random = np.random.default_rng(int(kind))
    if kind not in HALVES and kind is not Kind.Q8_K:
        return np.asarray(gguf.quants.quantize(random.standard_normal((rows, inputs), dtype=np.float32), kind))
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (rows, inputs // block, size), dtype=np.uint8)
    if kind is Kind.Q8_K:
        data[:, :, :4] = random.standard_normal((rows, inputs // block, 1), dtype=np.float32).view(np.uint8)
    if kind is Kind.IQ1_M:  # its float16 is spread over the high nibbles of four words: here between 0.5 and 1
        data[:, :, -1] = data[:, :, -1] & 0x0F | 0x30
        data[:, :, -3] |= 0x80
    for start in HALVES.get(kind, ()):
        data[:, :, start : start + 2] = random.standard_normal((rows, inputs // block, 1)).astype("f2").view(np.uint8)
    return data.reshape(rows, -1)


def meant(data: Array, kind: Kind) -> Array:
    """Return the values of stored rows, by the library or, if it lacks the type, by the definition."""
    if kind is not Kind.Q8_K:
        return np.asarray(gguf.quants.dequantize(data, kind))
    blocks = data.reshape(len(data), -1, 292)
    scales = np.ascontiguousarray(blocks[:, :, :4]).view(np.float32)
    return (blocks[:, :, 4:260].view(np.int8) * scales).reshape(len(data), -1)


@pytest.mark.parametrize("kind", sorted(SUPPORTED), ids=lambda kind: kind.name)
def test_numbers_are_those_of_the_gguf_library(kind: Kind, write_gguf: WriteGGUF) -> None:
    inputs = 512
    data = stored(kind, HIDDEN, inputs)
    expected = meant(data, kind)
    tensors = small_tensors("llama") | {DOWN: data}
    file = GGUFFile(write_gguf("llama", tensors, {"feed_forward_length": inputs}, kinds={DOWN: kind}))
    tensor = file.tensor(HF_DOWN)
    assert tensor.shape == (HIDDEN, inputs)
    assert np.array_equal(tensor.to(torch.float32).numpy(), expected)
    assert np.abs(expected).max() > 0.5  # the random data is not trivially zero
    blocks = file.blocks(HF_DOWN)
    assert (blocks is not None) == (kind in BITS)
    if blocks is not None:
        assert blocks.bits == BITS[kind]
        assert blocks.shape == (HIDDEN, inputs)
        assert blocks.group == (16 if kind in (Kind.Q2_K, Kind.Q3_K, Kind.Q6_K) else 32)
        assert (blocks.minimums is not None) == (kind in WITH_MINIMUMS)
        assert np.array_equal(blocks.dequantise().numpy(), expected)


@pytest.mark.parametrize("kind", sorted(BITS), ids=lambda kind: kind.name)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(15), deadline=None)
def test_any_bytes_mean_what_they_mean_to_the_library(kind: Kind, seed: int) -> None:
    """Include scales that are NaN, infinite or subnormal, as in a damaged file."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(seed).integers(0, 256, (3, 512 // block * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = meant(data, kind)
    found = gguf_blocks.decode(torch.from_numpy(data), kind).dequantise().numpy()
    assert np.array_equal(found, expected, equal_nan=True)


def test_long_matrices_are_decoded_piece_by_piece() -> None:
    data = torch.from_numpy(stored(Kind.Q5_0, 1500, 512))  # 1024 rows make a piece
    order = torch.arange(1500).flip(0)
    expected = gguf.quants.dequantize(data.numpy(), Kind.Q5_0)
    assert np.array_equal(gguf_blocks.decode(data, Kind.Q5_0).dequantise().numpy(), expected)
    assert np.array_equal(gguf_blocks.decode(data, Kind.Q5_0, order).dequantise().numpy(), expected[::-1])


def test_an_unsupported_type_says_what_to_do(write_gguf: WriteGGUF) -> None:
    data = np.zeros((HIDDEN, 54), dtype=np.uint8)
    tensors = small_tensors("llama") | {DOWN: data}
    with pytest.raises(WeightsError) as caught:
        GGUFFile(write_gguf("llama", tensors, {"feed_forward_length": 256}, kinds={DOWN: Kind.TQ1_0}))
    assert "model.gguf: tensor 'blk.0.ffn_down.weight' is TQ1_0, which cannot be read; " in str(caught.value)
    assert str(caught.value).endswith("llama-quantize F16.gguf NEW.gguf Q4_K_M")


@pytest.mark.parametrize("kind", sorted(BITS), ids=lambda kind: kind.name)
def test_rows_of_half_a_block_are_refused(kind: Kind, write_gguf: WriteGGUF) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    path = write_gguf("llama", small_tensors("llama") | {DOWN: np.zeros((HIDDEN, size), np.uint8)}, kinds={DOWN: kind})
    dimensions = struct.pack("<QQ", block, HIDDEN)  # as the header has them, inputs first
    damaged = path.read_bytes().replace(dimensions, struct.pack("<QQ", block // 2, HIDDEN), 1)
    path.write_bytes(damaged)
    with pytest.raises(WeightsError, match=rf"impossible shape \[64, {block // 2}\] for {kind.name}"):
        GGUFFile(path)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_names_and_conventions_are_those_transformers_reads(architecture: str, write_gguf: WriteGGUF) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    words = [f"word {number}" for number in range(VOCABULARY)]
    path = write_gguf(
        architecture, settings={"vocab_size": VOCABULARY}, extra=lambda writer: writer.add_token_list(words)
    )
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(config)
    expected = load_gguf_checkpoint(path, return_tensors=True, model_to_load=reference)["tensors"]
    file = GGUFFile(path)
    assert set(file.names()) == set(expected)
    for name, tensor in expected.items():
        assert torch.allclose(file.tensor(name), tensor, atol=1e-6), name
    keys = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"]
    keys += ["vocab_size", "max_position_embeddings"]
    if architecture == "lfm2":
        keys += ["layer_types", "conv_L_cache", "block_auto_adjust_ff_dim"]
    else:
        keys.append("hidden_act" if architecture != "gemma3" else "hidden_activation")
    for key in keys:
        ours = file.config["hidden_act" if key == "hidden_activation" else key]
        assert ours == getattr(reference.config, key), key
    eps = "norm_eps" if architecture == "lfm2" else "rms_norm_eps"
    assert file.config[eps] == pytest.approx(getattr(reference.config, eps))
    assert file.config["architectures"] == [type(reference).__name__]
    assert file.config["model_type"] == reference.config.model_type


def test_interleaved_rows_are_put_back_in_codes_too(write_gguf: WriteGGUF) -> None:
    random = np.random.default_rng(5)
    wanted = random.standard_normal((HEADS * HEAD_DIM, HIDDEN), dtype=np.float32)  # rows [head, half, pair]
    interleaved = wanted.reshape(HEADS, 2, HEAD_DIM // 2, HIDDEN).swapaxes(1, 2).reshape(wanted.shape)
    data = gguf.quants.quantize(interleaved, Kind.Q4_1)
    file = GGUFFile(
        write_gguf(
            "llama", small_tensors("llama") | {"blk.0.attn_q.weight": data}, kinds={"blk.0.attn_q.weight": Kind.Q4_1}
        )
    )
    blocks = file.blocks("model.layers.0.self_attn.q_proj.weight")
    assert blocks is not None
    expected = gguf.quants.dequantize(gguf.quants.quantize(wanted, Kind.Q4_1), Kind.Q4_1)
    assert np.array_equal(blocks.dequantise().numpy(), expected)
    assert torch.equal(file.tensor("model.layers.0.self_attn.q_proj.weight"), blocks.dequantise())


def test_gemma_settings(write_gguf: WriteGGUF) -> None:
    file = GGUFFile(
        write_gguf("gemma3", settings={"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "block_count": 2})
    )
    config = file.config
    assert config["sliding_window"] == 8
    assert config["layer_types"] == ["sliding_attention"] * 2
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert config["rope_local_base_freq"] == 10_000.0
    assert config["query_pre_attn_scalar"] == HEAD_DIM
    assert config["head_dim"] == HEAD_DIM
    assert config["tie_word_embeddings"] is True


def test_yarn_settings(write_gguf: WriteGGUF) -> None:
    settings = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
    assert GGUFFile(write_gguf("qwen2", settings=settings)).config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }


def test_llama3_factors_become_the_setting_they_came_from(write_gguf: WriteGGUF) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    dimensions = 64
    config = LlamaConfig(
        hidden_size=dimensions, num_attention_heads=1, rope_parameters=scaling | {"rope_theta": 500_000.0}
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500_000.0 ** (-torch.arange(0, dimensions, 2) / dimensions)
    tensors = small_tensors("llama") | {"rope_freqs.weight": (plain / scaled).numpy().astype(np.float32)}
    file = GGUFFile(write_gguf("llama", tensors, {"rope.freq_base": 500_000.0}))
    assert file.config["rope_scaling"] == scaling
    assert "rope_freqs.weight" not in " ".join(file.names())


def test_unknown_rope_factors_are_refused(write_gguf: WriteGGUF) -> None:
    tensors = small_tensors("llama") | {"rope_freqs.weight": np.linspace(1, 9, HEAD_DIM // 2, dtype=np.float32)}
    with pytest.raises(WeightsError, match="not those of Llama 3"):
        GGUFFile(write_gguf("llama", tensors))


def test_the_embedding_decides_the_vocabulary_and_biases_are_announced(write_gguf: WriteGGUF) -> None:
    tensors = small_tensors("llama")
    tensors |= {f"blk.{layer}.attn_q.bias": np.arange(HEADS * HEAD_DIM, dtype=np.float32) for layer in range(LAYERS)}
    file = GGUFFile(write_gguf("llama", tensors))
    assert file.config["vocab_size"] == VOCABULARY
    assert file.config["attention_bias"] is True
    assert file.tensor("model.layers.1.self_attn.q_proj.bias")[:4].tolist() == [0.0, 2.0, 4.0, 6.0]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"attention.head_count": 0}, "contradict the tensors"), ({"embedding_length": 32}, "contradict the tensors"),
        ({"block_count": 1 << 31}, "contradict the tensors"), ({"rope.dimension_count": 99}, "impossible"),
        ({"rope.freq_base": float("nan")}, "unusable value"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, "'longrope' is not supported"),
        ({"expert_count": 8}, "mixture-of-experts"), ({"context_length": "long"}, "unusable value"),
    ],
)  # fmt: skip
def test_impossible_settings(settings: dict[str, int | float | str], reason: str, write_gguf: WriteGGUF) -> None:
    with pytest.raises(WeightsError, match=reason):
        GGUFFile(write_gguf("llama", settings=settings))


def test_heads_that_do_not_divide_the_rows(write_gguf: WriteGGUF) -> None:
    file = GGUFFile(write_gguf("llama", settings={"attention.head_count_kv": 5}))
    assert KV_HEADS != 5
    with pytest.raises(WeightsError, match="does not split into 5 heads"):
        file.tensor("model.layers.0.self_attn.k_proj.weight")


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0])
def test_experts_are_taken_apart(kind: Kind, write_gguf: WriteGGUF) -> None:
    tensors, name = small_tensors("lfm2moe"), "blk.1.ffn_down_exps.weight"
    exact = tensors[name]
    kinds = {}
    if kind is not Kind.F32:
        tensors[name], kinds = gguf.quants.quantize(exact, kind), {name: kind}
        exact = gguf.quants.dequantize(tensors[name], kind)
    file = GGUFFile(write_gguf("lfm2moe", tensors, kinds=kinds))
    for expert in range(EXPERTS):
        found = f"model.layers.1.feed_forward.experts.{expert}."
        assert np.array_equal(file.tensor(f"{found}w2.weight").numpy(), exact[expert])
        assert np.array_equal(file.tensor(f"{found}w1.weight").numpy(), tensors["blk.1.ffn_gate_exps.weight"][expert])
        assert np.array_equal(file.tensor(f"{found}w3.weight").numpy(), tensors["blk.1.ffn_up_exps.weight"][expert])
        blocks = file.blocks(f"{found}w2.weight")
        assert (blocks is None) == (kind is Kind.F32)
        if blocks is not None:
            assert np.array_equal(blocks.dequantise().numpy(), exact[expert])
    assert file.tensor("model.layers.1.feed_forward.expert_bias").shape == (EXPERTS,)
    for mode in ("packed", "float32"):
        model = load_model(file, mode)
        assert model.parameters == sum(tensor.numel() for tensor in map(file.tensor, file.names()))


def test_lfm2_settings(write_gguf: WriteGGUF) -> None:
    config = DecoderConfig.from_dict(GGUFFile(write_gguf("lfm2moe")).config)
    assert config.hybrid == Hybrid(convolutions=frozenset({0}), taps=TAPS, conv_bias=False)
    assert config.experts == Experts(EXPERTS, 2, EXPERT_WIDE, 1, biased=True, normed=True, scale=1.0)
    assert (config.kv_heads, config.norm_eps, config.tied) == (KV_HEADS, pytest.approx(1e-6), True)
    with pytest.raises(WeightsError, match="3 numbers of heads contradict 2 layers"):
        GGUFFile(write_gguf("lfm2", settings={"attention.head_count_kv": [0, 2, 2]}))
    with pytest.raises(WeightsError, match="gating function 1"):
        GGUFFile(write_gguf("lfm2moe", settings={"expert_gating_func": 1}))
    with pytest.raises(ModelConfigError, match="num_key_value_heads"):
        DecoderConfig.from_dict(GGUFFile(write_gguf("lfm2", settings={"attention.head_count_kv": [1, 2]})).config)


def test_other_architectures_are_named(write_gguf: WriteGGUF) -> None:
    with pytest.raises(
        WeightsError, match=r"'phi3' is not supported \(supported: llama, qwen2, qwen3, gemma3, lfm2, lfm2moe\)"
    ):
        open_weights(write_gguf("phi3", small_tensors("llama")))
    with pytest.raises(WeightsError, match=r"'blk\.0\.attn_q_norm\.weight' does not belong to a llama model"):
        open_weights(write_gguf("llama", small_tensors("qwen3")))


def test_unknown_names_are_key_errors(write_gguf: WriteGGUF) -> None:
    file = GGUFFile(write_gguf("llama"))
    with pytest.raises(KeyError):
        file.tensor("model.nothing")
    with pytest.raises(KeyError):
        file.blocks("model.nothing")


@pytest.mark.weights
def test_the_default_model_is_read_as_the_gguf_library_reads_it(smollm2_path: str) -> None:
    file = GGUFFile(smollm2_path)  # type: ignore[arg-type]
    reader = gguf.GGUFReader(smollm2_path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(file.names()) == len(tensors) == 272
    for ours, theirs in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.29.mlp.down_proj.weight", "blk.29.ffn_down.weight"),
        ("model.norm.weight", "output_norm.weight"),
    ):
        expected = gguf.quants.dequantize(tensors[theirs].data, tensors[theirs].tensor_type)
        assert np.array_equal(file.tensor(ours).numpy(), expected)
