"""CTranslate2's Whisper files: fused arrays come apart under the right names, and damage is an error."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxlane.engine.errors import WeightsError
from voxlane.engine.weights.importers.ctranslate2 import CTranslate2Directory

HIDDEN, INNER, MELS, VOCABULARY = 4, 6, 5, 9
KINDS = {"<f4": 0, "<i1": 1, "<i2": 2, "<i4": 3, "<f2": 4}

Arrays = dict[str, NDArray[np.generic]]


def name(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def serialise(arrays: Mapping[str, NDArray[np.generic]], version: int = 6, spec: str = "WhisperSpec") -> bytes:
    parts = [struct.pack("<I", version), name(spec), struct.pack("<II", 3, len(arrays))]
    for key, array in arrays.items():
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        kind = KINDS[array.dtype.str.replace("|", "<")]
        parts += [name(key), shape, struct.pack("<BI", kind, array.nbytes), array.tobytes()]
    parts += [struct.pack("<I", 1), name("decoder/projection/weight"), name("decoder/embeddings/weight")]
    return b"".join(parts)


def whisper() -> Arrays:
    random = np.random.default_rng(0)
    arrays: Arrays = {}

    def add(key: str, *shape: int) -> None:
        arrays[key] = random.normal(size=shape).astype("<f2")

    for side in ("decoder", "encoder"):
        add(f"{side}/position_encodings/encodings", 7, HIDDEN)
        arrays[f"{side}/num_heads"] = np.array(2, dtype="<i2")
        blocks = {"self_attention": (3 * HIDDEN, HIDDEN), "attention": (HIDDEN, 2 * HIDDEN, HIDDEN)}
        for block, outputs in blocks.items() if side == "decoder" else [("self_attention", blocks["self_attention"])]:
            for index, out in enumerate(outputs):
                add(f"{side}/layer_0/{block}/linear_{index}/weight", out, HIDDEN)
                add(f"{side}/layer_0/{block}/linear_{index}/bias", out)
            add(f"{side}/layer_0/{block}/layer_norm/gamma", HIDDEN)
            add(f"{side}/layer_0/{block}/layer_norm/beta", HIDDEN)
        add(f"{side}/layer_0/ffn/linear_0/weight", INNER, HIDDEN)
        add(f"{side}/layer_0/ffn/linear_1/weight", HIDDEN, INNER)
        add(f"{side}/layer_norm/gamma", HIDDEN)
    add("decoder/embeddings/weight", VOCABULARY, HIDDEN)
    add("encoder/conv1/weight", HIDDEN, MELS, 3)
    arrays["decoder/alibi"] = np.array(0, dtype="<i1")
    return arrays


def write(folder: Path, data: bytes) -> Path:
    (folder / "model.bin").write_bytes(data)
    return folder


def test_fused_arrays_come_apart(tmp_path: Path) -> None:
    arrays = whisper()
    (tmp_path / "config.json").write_text(json.dumps({"alignment_heads": [[0, 1]], "suppress_ids": [1], "other": 2}))
    model = CTranslate2Directory(write(tmp_path, serialise(arrays)))

    def stored(key: str) -> torch.Tensor:
        return torch.from_numpy(arrays[key].copy())

    def tensor(key: str) -> torch.Tensor:
        return model.tensor(f"model.decoder.layers.0.{key}")

    fused = stored("decoder/layer_0/self_attention/linear_0/weight")
    for index, part in enumerate("qkv"):
        assert torch.equal(tensor(f"self_attn.{part}_proj.weight"), fused[index * HIDDEN : (index + 1) * HIDDEN])
    fused = stored("decoder/layer_0/attention/linear_1/bias")
    assert torch.equal(tensor("encoder_attn.v_proj.bias"), fused[HIDDEN:])
    assert not [key for key in model.names() if key.endswith("k_proj.bias")]
    norm = stored("decoder/layer_0/attention/layer_norm/beta")
    assert torch.equal(tensor("encoder_attn_layer_norm.bias"), norm)
    assert model.tensor("model.encoder.conv1.weight").dtype is torch.float16
    assert model.blocks("model.encoder.conv1.weight") is None
    with pytest.raises(KeyError):
        model.blocks("nothing")
    wanted = {
        "vocab_size": VOCABULARY, "d_model": HIDDEN, "num_mel_bins": MELS, "max_source_positions": 7,
        "decoder_layers": 1, "encoder_layers": 1, "decoder_attention_heads": 2, "encoder_ffn_dim": INNER,
        "alignment_heads": [[0, 1]], "suppress_tokens": [1],
    }  # fmt: skip
    assert {key: model.config[key] for key in wanted} == wanted
    assert "other" not in model.config


def without(key: str) -> bytes:
    return serialise({name: array for name, array in whisper().items() if name != key})


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 and so on", "not a CTranslate2 model"),
        (serialise(whisper(), version=3), "not a CTranslate2 model"),
        (serialise(whisper(), spec="TransformerSpec"), "only Whisper"),
        (struct.pack("<I", 6) + struct.pack("<H", 60_000), "a name of 60000 bytes"),
        (struct.pack("<I", 6) + name("WhisperSpec") + struct.pack("<II", 3, 1 << 31), "over the limit"),
        (struct.pack("<I", 6) + name("WhisperSpec") + struct.pack("<II", 3, 1) + name("a") + b"\xff", "255 dimensions"),
        (
            struct.pack("<I", 6) + name("WhisperSpec") + struct.pack("<II", 3, 1) + name("a")
            + struct.pack("<BIIBI", 2, 1 << 31, 1 << 31, 0, 16) + bytes(16),
            "does not fill its place",
        ),
        (serialise(whisper())[:1000], "truncated"),
        (without("decoder/embeddings/weight"), "embed_tokens"),
        (without("decoder/num_heads"), "num_heads"),
        (serialise({**whisper(), "encoder/conv1/weight": np.zeros((4, 5, 3), "<i1")}), "not float"),
        (serialise({**whisper(), "decoder/layer_0/self_attention/linear_0/bias": np.zeros(7, "<f4")}), "not float"),
    ],
)  # fmt: skip
def test_forged_files_are_refused_in_one_line(tmp_path: Path, forged: bytes, reason: str) -> None:
    with pytest.raises(WeightsError, match=reason) as caught:
        CTranslate2Directory(write(tmp_path, forged))
    assert "model.bin" in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_an_error_and_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(serialise(whisper()))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.one_of(st.just(len(whole)), st.integers(1, len(whole))))
    tensors, reason = [], ""
    try:
        model = CTranslate2Directory(write(tmp_path, bytes(whole[:end])))
        tensors = [model.tensor(key) for key in model.names()]
    except WeightsError as error:
        reason = str(error)
    assert bool(tensors) != bool(reason)
    assert "\n" not in reason
