"""Safetensors directories: one file, shards, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from voxlane.engine.errors import WeightsError
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.safetensors import SafetensorsDirectory

TENSORS = {
    "model.norm.weight": torch.arange(6, dtype=torch.float32),
    "model.a.weight": torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16),
    "model.b.weight": torch.tensor([[0.5, -2.0]], dtype=torch.float16),
}


def write(folder: Path, *, shards: bool) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 3}))
    if not shards:
        save_file(TENSORS, folder / "model.safetensors")
        return folder
    weight_map = {}
    for index, (name, tensor) in enumerate(TENSORS.items()):
        file = f"model-{index + 1:05}-of-{len(TENSORS):05}.safetensors"
        save_file({name: tensor}, folder / file)
        weight_map[name] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("shards", [False, True])
def test_tensors_come_back_as_written(shards: bool, tmp_path: Path) -> None:
    weights = open_weights(write(tmp_path, shards=shards))
    assert isinstance(weights, SafetensorsDirectory)
    assert weights.config == {"model_type": "llama", "hidden_size": 3}
    assert sorted(weights.names()) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        found = weights.tensor(name)
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)
        assert weights.blocks(name) is None
    with pytest.raises(KeyError):
        weights.tensor("model.c.weight")
    with pytest.raises(KeyError):
        weights.blocks("model.c.weight")


def test_a_file_inside_a_checkpoint_opens_the_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, shards=False)
    assert sorted(open_weights(tmp_path / "model.safetensors").names()) == sorted(TENSORS)


def test_integers_are_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": torch.arange(3)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="'a' is I64; supported are"):
        open_weights(tmp_path).tensor("a")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"neither config\.json nor a GGUF file"):
        open_weights(tmp_path)
    with pytest.raises(WeightsError, match="no such file"):
        open_weights(tmp_path / "nothing.gguf")
    write(tmp_path, shards=True)
    next(tmp_path.glob("model-00002*")).unlink()
    with pytest.raises(WeightsError, match=r"shard model-00002-of-00003\.safetensors is missing"):
        open_weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(WeightsError, match="no weight_map"):
        open_weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(WeightsError, match=r"neither model\.safetensors nor"):
        open_weights(tmp_path)
