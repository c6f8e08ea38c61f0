"""Moonshine's .ort files: the tensors of small ones; damage is a WeightsError."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from voxlane.engine.errors import WeightsError
from voxlane.engine.weights.importers.ort import MoonshineDirectory, read_graph, read_pieces, read_tokens
from voxlane.engine.weights.store import resolve

from .flatfile import OrtFile

FLOAT, UINT8, STRING = 1, 2, 8
HIDDEN, INNER, VOCABULARY = 8, 16, 10


def floats(values: object) -> bytes:
    return np.asarray(values, dtype="<f4").tobytes()


def quantised(file: OrtFile, name: str, shape: tuple[int, int], zero: int = 120, scale: float = 0.25) -> list[str]:
    codes = bytes(range(shape[0] * shape[1] % 256)) * 1 + bytes(shape[0] * shape[1] - shape[0] * shape[1] % 256)
    return [
        file.constant(f"{name}_quantized", UINT8, shape, codes),
        file.constant(f"{name}_scale", FLOAT, (), floats(scale)),
        file.constant(f"{name}_zero_point", UINT8, (), bytes([zero])),
    ]


def encoder() -> OrtFile:
    file = OrtFile()
    file.node("Unsqueeze", "/Unsqueeze", ["audio"])
    file.node("FusedConv", "/conv1/Conv", ["x", file.constant("c", FLOAT, (2, 1, 3), floats(range(6)))])
    weight, scale, zero = quantised(file, "m1", (HIDDEN, HIDDEN))
    file.node("MatMulIntegerToFloat", "/layers.0/self_attn/q_proj/MatMul_quant", ["x", weight, "s", scale, "z", zero])
    weight, scale, zero = quantised(file, "m2", (HIDDEN, INNER), zero=7, scale=0.5)
    bias = file.constant("layers.0.mlp.fc1.bias", FLOAT, (INNER,), floats(range(INNER)))
    file.node("DynamicQuantizeMatMul", "/layers.0/mlp/fc1/MatMul_quant", ["x", weight, scale, zero, bias])
    file.node("Mul", "/groupnorm/Mul", ["x", file.constant("g", FLOAT, (HIDDEN, 1), floats(range(HIDDEN)))])
    norm = file.constant("layer_norm.weight", FLOAT, (HIDDEN,), floats(range(HIDDEN)))
    file.node("SkipLayerNormalization", "SkipLayerNormalization", ["a", "b", norm])
    file.constant("words", STRING, (1,), b"")
    return file


def decoder() -> OrtFile:
    inner, outer = OrtFile(), OrtFile()
    weight = quantised(outer, "model.decoder.embed_tokens.weight_merged_0", (VOCABULARY, HIDDEN))[0]
    inner.node("Gather", "/model/decoder/embed_tokens/Gather", [weight, "ids"])
    norm = outer.constant("n", FLOAT, (HIDDEN,), floats(range(HIDDEN)))
    inner.node("LayerNormalization", "/model/decoder/layers.0/input_layernorm/LayerNormalization", ["x", norm, "zeros"])
    outer.node("If", "optimum::if", ["use_cache"], inner.graph())
    return outer


def write(folder: Path, encoder_bytes: bytes, decoder_bytes: bytes) -> Path:
    (folder / "encoder_model.ort").write_bytes(encoder_bytes)
    (folder / "decoder_model_merged.ort").write_bytes(decoder_bytes)
    return folder


def test_weights_are_named_by_the_nodes_that_use_them(tmp_path: Path) -> None:
    model = MoonshineDirectory(write(tmp_path, encoder().bytes(), decoder().bytes()))
    assert sorted(model.names()) == [
        "model.decoder.embed_tokens.weight", "model.decoder.layers.0.input_layernorm.weight",
        "model.encoder.conv1.weight", "model.encoder.groupnorm.weight", "model.encoder.layer_norm.weight",
        "model.encoder.layers.0.mlp.fc1.bias", "model.encoder.layers.0.mlp.fc1.weight",
        "model.encoder.layers.0.self_attn.q_proj.weight",
    ]  # fmt: skip
    codes = torch.zeros(HIDDEN * INNER)
    codes[: HIDDEN * INNER % 256] = torch.arange(HIDDEN * INNER % 256)
    up = model.tensor("model.encoder.layers.0.mlp.fc1.weight")
    assert torch.equal(up, ((codes - 7) * 0.5).view(HIDDEN, INNER).T)  # stored [in, out]
    assert model.tensor("model.decoder.embed_tokens.weight").shape == (VOCABULARY, HIDDEN)  # stored as it is
    assert model.tensor("model.encoder.groupnorm.weight").tolist() == list(range(HIDDEN))
    assert model.blocks("model.encoder.conv1.weight") is None
    for ask in (model.tensor, model.blocks):
        with pytest.raises(KeyError):
            ask("nothing")
    config = model.config
    assert (config["vocab_size"], config["hidden_size"], config["intermediate_size"]) == (VOCABULARY, HIDDEN, INNER)
    assert (config["encoder_num_hidden_layers"], config["decoder_num_hidden_layers"]) == (1, 1)
    assert config["tie_word_embeddings"] is True


def deep() -> bytes:
    innermost, middle, outer = OrtFile(), OrtFile(), OrtFile()
    middle.node("If", "a", [], innermost.graph())
    outer.node("If", "b", [], middle.graph())
    top = OrtFile()
    top.node("If", "c", [], outer.graph())
    return top.bytes()


def misshapen() -> bytes:
    file = OrtFile()
    file.constant("a", FLOAT, (1 << 30, 4), b"1234")
    return file.bytes()


def two_for_one_name() -> bytes:
    file = OrtFile()
    for name in ("a", "b"):
        file.node("Conv", "/conv1/Conv", ["x", file.constant(name, FLOAT, (1,), floats([1]))])
    return file.bytes()


def without_scale() -> bytes:
    file = OrtFile()
    weight, _, zero = quantised(file, "m", (2, 2))
    file.node("DynamicQuantizeMatMul", "/layers.0/fc/MatMul_quant", ["x", weight, "missing", zero])
    return file.bytes()


def without_norm() -> bytes:
    file = OrtFile()
    file.node("SkipLayerNormalization", "SkipLayerNormalization", ["a", "b", "missing"])
    return file.bytes()


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (b"", "empty"), (b"hello, this is no model", "not a ORTM file"),
        (b"\xff\xff\xff\x7fORTM" + bytes(50), "beyond the end"), (encoder().bytes()[:200], "beyond the end"),
        (OrtFile().bytes(), "no weights"), (deep(), "graphs within graphs"), (misshapen(), "does not fill its place"),
        (two_for_one_name(), "two different tensors"), (without_scale(), "not 8-bit codes"),
        (without_norm(), "missing"),
    ],
)  # fmt: skip
def test_forged_files_are_refused_in_one_line(tmp_path: Path, forged: bytes, reason: str) -> None:
    with pytest.raises(WeightsError, match=reason) as caught:
        MoonshineDirectory(write(tmp_path, forged, decoder().bytes()))
    assert "encoder_model.ort" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_or_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"encoder_model\.ort"):
        MoonshineDirectory(tmp_path)
    with pytest.raises(WeightsError, match=r"embed_tokens"):
        MoonshineDirectory(write(tmp_path, encoder().bytes(), encoder().bytes()))


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_an_error_and_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(encoder().bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 4))
        struct.pack_into("<I", whole, at, data.draw(st.sampled_from([0, 1, 255, 1 << 16, 1 << 31, (1 << 32) - 1])))
    end = data.draw(st.one_of(st.just(len(whole)), st.integers(1, len(whole))))
    (tmp_path / "encoder_model.ort").write_bytes(whole[:end])
    with contextlib.suppress(WeightsError):
        graph = read_graph(tmp_path / "encoder_model.ort")
        for initializer in graph.initializers.values():
            assert initializer.array().nbytes <= end, "no more than the file holds"


def test_tokens_of_one_and_two_length_bytes(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.bin"
    long = b"x" * 300
    tokens = [b"<unk>", b"<s>", b"</s>", "▁a▁b".encode(), b"<<ST_12>>", b"", b"\xff"]
    path.write_bytes(b"".join(bytes([len(token)]) + token for token in tokens) + bytes([128 + 300 % 128, 2]) + long)
    assert read_tokens(path) == [*tokens, long]
    assert read_pieces(path) == [b"", b"", b"", b" a b", b"", b"", b"\xff", long]
    whole = path.read_bytes()
    for cut in (1, 5, 299):
        path.write_bytes(whole[:-cut])
        with pytest.raises(WeightsError, match="token 7"):
            read_tokens(path)


@pytest.mark.weights
def test_the_real_vocabulary(tmp_path: Path) -> None:
    pieces = read_pieces(resolve("moonshine-tiny-en") / "tokenizer.bin")
    assert len(pieces) == 32_768
    assert sum(piece == b"" for piece in pieces) == 3 + 768 + 1
