"""Taking tensors out of files: what is missing, surplus or misshapen is named; what is fused stays what it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import CONFIGS, random_tensors, write_checkpoint
from torch import Tensor

from voxlane.engine.errors import ModelConfigError, TensorError
from voxlane.engine.kernels.linear.linear import PackedWeight
from voxlane.engine.models.loading import TensorReader
from voxlane.engine.models.registry import CHAT_MODELS, architecture_of, load_model
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.tensors import Blocks, quantise

CPU = torch.device("cpu")
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


class Held:
    """A weight file in memory, of quantised matrices."""

    def __init__(self, matrices: dict[str, Blocks]) -> None:
        self.matrices = matrices
        self.config: dict[str, object] = {}

    def names(self) -> list[str]:
        return list(self.matrices)

    def tensor(self, name: str) -> Tensor:
        return self.matrices[name].dequantise()

    def blocks(self, name: str) -> Blocks | None:
        return self.matrices[name]

    def reader(self) -> TensorReader:
        return TensorReader(self, {name: name for name in self.matrices}, "packed", CPU)


def eight_bits(out: int, seed: int) -> Blocks:
    return quantise(torch.randn((out, 64), generator=torch.Generator().manual_seed(seed)))


def four_bits(out: int, seed: int) -> Blocks:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (out, 64), generator=generator, dtype=torch.uint8)
    scales = torch.rand((out, 2), generator=generator).half().float()  # what a 4-bit file holds
    return Blocks(4, codes, scales, (-8 * scales).half().float())


@pytest.mark.parametrize("mode", ["packed", "float32", "bfloat16"])
def test_a_missing_tensor_is_named(tmp_path: Path, mode: str) -> None:
    tensors = random_tensors(CONFIGS["llama"])
    del tensors[Q_PROJ]
    with pytest.raises(TensorError, match=f"^tensor {Q_PROJ} is missing$"):
        load_model(open_weights(write_checkpoint(tmp_path, CONFIGS["llama"], tensors)), mode)


@pytest.mark.parametrize("mode", ["packed", "float32"])
@pytest.mark.parametrize(("name", "shape"), [(Q_PROJ, (64, 32)), (Q_PROJ, (64,)), ("model.norm.weight", (65,))])
def test_a_misshapen_tensor_is_named(tmp_path: Path, name: str, shape: tuple[int, ...], mode: str) -> None:
    tensors = random_tensors(CONFIGS["llama"]) | {name: torch.zeros(shape)}
    with pytest.raises(TensorError, match=rf"^tensor {name} has shape \[{shape[0]}.*\], not \[64.*\]$"):
        load_model(open_weights(write_checkpoint(tmp_path, CONFIGS["llama"], tensors)), mode)


def test_a_surplus_tensor_is_named(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIGS["llama"]) | {"model.layers.0.self_attn.q_norm.weight": torch.zeros(16)}
    with pytest.raises(TensorError, match=r"^tensor model\.layers\.0\.self_attn\.q_norm\.weight does not belong"):
        load_model(open_weights(write_checkpoint(tmp_path, CONFIGS["llama"], tensors)))


def test_harmless_surplus_is_ignored(tmp_path: Path) -> None:
    """Old checkpoints carry their rotary buffers, and tied ones often their output head as well."""
    tensors = random_tensors(CONFIGS["qwen3"])
    count = sum(tensor.numel() for tensor in tensors.values())
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    tensors["lm_head.weight"] = torch.zeros(211, 64)
    assert load_model(open_weights(write_checkpoint(tmp_path, CONFIGS["qwen3"], tensors))).parameters == count


@pytest.mark.parametrize("make", [eight_bits, four_bits])
def test_fused_blocks_keep_their_codes(make: object) -> None:
    assert callable(make)
    parts = {"a": make(24, 1), "b": make(8, 2), "c": make(8, 3)}
    fused = Held(parts).reader().matrix(list(parts), [24, 8, 8], 64)
    assert isinstance(fused, PackedWeight)
    assert {part.bits for part in fused.parts} == {parts["a"].bits}
    assert torch.equal(fused.dequantise(), torch.cat([part.dequantise() for part in parts.values()]))


def test_parts_keep_their_bits() -> None:
    parts = {"a": four_bits(24, 1), "b": eight_bits(8, 2)}
    fused = Held(parts).reader().matrix(["a", "b"], [24, 8], 64)
    assert isinstance(fused, PackedWeight)
    assert [part.bits for part in fused.parts] == [4, 8]
    assert torch.equal(fused.dequantise(), torch.cat([part.dequantise() for part in parts.values()]))


def test_codes_without_a_layout_become_eight_bits() -> None:
    """Q2_K: 16 inputs share a scale and a minimum."""
    narrow = four_bits(24, 1)
    assert narrow.minimums is not None
    given = Blocks(4, narrow.codes, narrow.scales.repeat_interleave(2, 1), narrow.minimums.repeat_interleave(2, 1))
    fused = Held({"a": given}).reader().matrix(["a"], [24], 64)
    assert isinstance(fused, PackedWeight)
    assert [part.bits for part in fused.parts] == [8]
    step = given.dequantise().abs().max() / 127
    torch.testing.assert_close(fused.dequantise(), given.dequantise(), rtol=0, atol=float(step) / 2 + 1e-6)


@pytest.mark.parametrize("damage", [float("nan"), float("inf"), 1e6])
def test_a_damaged_scale_names_its_tensor(damage: float) -> None:
    given = eight_bits(24, 1)
    given.scales[3, 1] = damage
    with pytest.raises(TensorError, match=r"^tensor a: a scale or minimum is not a number, or beyond float16's range$"):
        Held({"a": given}).reader().matrix(["a"], [24], 64)


def test_rows_that_do_not_split_into_groups_stay_float(tmp_path: Path) -> None:
    weights = open_weights(write_checkpoint(tmp_path, CONFIGS["llama-biased"]))
    name = "model.layers.0.mlp.down_proj.weight"
    matrix = TensorReader(weights, {name: name}, "packed", CPU).matrix([name], [64], 80)
    assert isinstance(matrix, Tensor)
    assert torch.equal(matrix, random_tensors(CONFIGS["llama-biased"])[name])


def test_the_table_names_the_architecture() -> None:
    for config in CONFIGS.values():
        assert architecture_of(config) in CHAT_MODELS
        assert architecture_of({"model_type": config["model_type"]}) == architecture_of(config)
    for config in ({"architectures": ["MambaForCausalLM"], "model_type": "llama"}, {"model_type": "mamba"}, {}):
        found = (config.get("architectures") or [config.get("model_type", "none")])[0]
        with pytest.raises(ModelConfigError, match=rf"^architecture '{found}' is not supported \(supported: Llama"):
            architecture_of(dict(config))
