"""Every family against Hugging Face's own implementation, in float32, on small random checkpoints."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CONFIGS, random_tensors, write_checkpoint
from lazily import transformers
from paged import Pager
from pretended_device import pretended_cuda
from torch import Tensor

from voxlane.engine.kernels.linear import skinny
from voxlane.engine.kernels.linear.weights import ExpertWeights
from voxlane.engine.memory.pages import PageShape
from voxlane.engine.models import decoder
from voxlane.engine.models.decoder import Decoder
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.registry import load_model
from voxlane.engine.weights.files import open_weights

MakeCheckpoint = Callable[[str], Path]

TOKENS = random.Random(3).choices(range(3, 211), k=45)  # longer than every sliding window, not a whole number of blocks
PROMPTS = [TOKENS[start : start + length] for start, length in ((0, 5), (5, 17), (9, 1), (20, 24))]


def reference(path: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()


def reference_logits(model: Any, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0]


def reference_greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def error(found: Tensor, wanted: Tensor) -> float:
    """The root mean square of the difference as a share of the logits' own spread."""
    return float((found - wanted).square().mean().sqrt() / wanted.std())


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_the_reference(checkpoint: MakeCheckpoint, name: str) -> None:
    wanted = reference_logits(reference(checkpoint(name)), TOKENS)
    assert wanted.std() > 0.5  # a dead model would agree with anything
    model = load_model(open_weights(checkpoint(name)), "float32")
    torch.testing.assert_close(Pager(model).logits(0, TOKENS), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen2-window", "qwen3", "gemma3", "lfm2", "lfm2-biased", "lfm2-moe"])
def test_greedy_tokens_equal_the_reference(checkpoint: MakeCheckpoint, name: str) -> None:
    oracle = reference(checkpoint(name))
    model = load_model(open_weights(checkpoint(name)), "float32")
    assert Pager(model).greedy(PROMPTS, 8) == [reference_greedy(oracle, prompt, 8) for prompt in PROMPTS]


@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2-biased", "lfm2-moe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_chunks_equal_the_whole(checkpoint: MakeCheckpoint, name: str, dtype: torch.dtype) -> None:
    model = load_model(open_weights(checkpoint(name)), "float32")
    whole = Pager(model, dtype).logits(0, TOKENS)
    for chunk in (1, 7, 16):
        torch.testing.assert_close(Pager(model, dtype).logits(0, TOKENS, chunk), whole, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "qwen3", "lfm2"])
def test_the_way_of_few_rows_is_that_of_many(
    checkpoint: MakeCheckpoint, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU one or two rows go through fused products; on a CPU their references serve."""
    model = load_model(open_weights(checkpoint(name)), "float32")
    whole = Pager(model).logits(0, TOKENS)
    taken: list[int] = []

    def serves(rows: int, *matrices: object) -> bool:
        taken.append(rows)
        return rows == 1

    monkeypatch.setattr(skinny, "serves", serves)
    torch.testing.assert_close(Pager(model).logits(0, TOKENS, 1), whole, rtol=1e-4, atol=1e-4)
    assert taken.count(1) >= len(TOKENS)


def test_neighbours_change_nothing(checkpoint: MakeCheckpoint) -> None:
    model = load_model(open_weights(checkpoint("gemma3")), "float32")
    alone = [Pager(model).feed({0: prompt})[0] for prompt in PROMPTS]
    together = Pager(model).feed(dict(enumerate(PROMPTS)))
    for single, batched in zip(alone, together, strict=True):
        torch.testing.assert_close(batched, single, rtol=1e-4, atol=1e-4)


# Random weights amplify: what is rounded by 0.2 % (bfloat16) or 0.5 % (int8) at one place moves the logits by eight
# times as much. Measured on these checkpoints: bfloat16 pages at most 0.007, int8 pages 0.019, packed weights and
# activations 0.053, bfloat16 weights 0.014. Anything misplaced gives about 1.
@pytest.mark.parametrize(
    ("mode", "pages", "bound"),
    [
        ("float32", torch.bfloat16, 0.015),
        ("float32", torch.int8, 0.04),
        ("packed", torch.float32, 0.1),
        ("bfloat16", torch.float32, 0.03),
    ],
)
@pytest.mark.parametrize("name", ["llama", "llama-biased", "qwen2", "qwen3", "gemma3", "lfm2", "lfm2-biased"])
def test_narrow_pages_and_weights_cost_little(
    checkpoint: MakeCheckpoint, name: str, mode: Mode, pages: torch.dtype, bound: float
) -> None:
    weights = open_weights(checkpoint(name))
    exact = Pager(load_model(weights, "float32")).logits(0, TOKENS)
    assert 0 < error(Pager(load_model(weights, mode), pages).logits(0, TOKENS), exact) < bound


@pytest.mark.parametrize("mode", ["packed", "bfloat16"])
def test_narrow_experts_cost_most_tokens_little(checkpoint: MakeCheckpoint, mode: Mode) -> None:
    """A token between two experts goes to the other one after any rounding: its logits, and those after it, jump."""
    weights = open_weights(checkpoint("lfm2-moe"))
    exact, found = (Pager(load_model(weights, one)).logits(0, TOKENS) for one in ("float32", mode))
    errors = sorted(error(one, other) for one, other in zip(found, exact, strict=True))
    assert 0 < errors[len(errors) // 2] < 0.1


@pytest.mark.parametrize("product", [decoder._linear_bfloat16, decoder.linear])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # torch's, on a CPU without bfloat16 instructions
def test_both_bfloat16_products(product: decoder.Linear) -> None:
    """Which of them runs depends on the CPU; they must mean the same."""
    generator = torch.Generator().manual_seed(5)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((7, 96), (40, 96), (40,)))
    weight = weight.to(torch.bfloat16)
    exact = x @ weight.float().T
    for found, wanted in ((product(x, weight, None), exact), (product(x, weight, bias), exact + bias)):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, wanted, rtol=2**-7, atol=0.1)


def test_new_spelling_of_rope_settings_is_the_same_model(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    """transformers 5 writes rope_parameters, and for Gemma 3 one per layer type."""
    for name in ("llama-yarn", "gemma3", "lfm2", "lfm2-biased", "lfm2-moe"):
        reference(checkpoint(name)).save_pretrained(tmp_path / name)
        again = open_weights(tmp_path / name)
        assert "rope_parameters" in again.config
        assert "rope_scaling" not in again.config
        old, new = (load_model(weights, "float32") for weights in (open_weights(checkpoint(name)), again))
        assert old.config == new.config
        assert torch.equal(Pager(old).logits(0, TOKENS), Pager(new).logits(0, TOKENS))


@pytest.mark.parametrize("prefixes", [("language_model.model.", "language_model."), ("model.language_model.", "")])
def test_text_half_of_a_vision_model(tmp_path: Path, prefixes: tuple[str, str]) -> None:
    config, tensors = CONFIGS["gemma3"], random_tensors(CONFIGS["gemma3"])
    plain = load_model(open_weights(write_checkpoint(tmp_path / "text", config)), "float32")
    nested = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": config,
        "vision_config": {"hidden_size": 8},
    }
    renamed = {prefixes[0] + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    renamed[prefixes[1] + "lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()  # tied: ignored
    renamed["vision_tower.patch.weight"] = torch.zeros(8, 8)
    renamed["model.multi_modal_projector.weight"] = torch.zeros(8, 8)
    model = load_model(open_weights(write_checkpoint(tmp_path / "vision", nested, renamed)), "float32")
    assert torch.equal(Pager(model).logits(0, TOKENS), Pager(plain).logits(0, TOKENS))
    assert model.parameters == plain.parameters


@pytest.mark.parametrize("mode", ["float32", "packed", "bfloat16"])
def test_experts_in_one_tensor_are_the_same_model(tmp_path: Path, mode: Mode) -> None:
    config, tensors = CONFIGS["lfm2-moe"], random_tensors(CONFIGS["lfm2-moe"])
    apart = load_model(open_weights(write_checkpoint(tmp_path / "apart", config, tensors)), mode)
    fused = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(1, 5):
        name = f"model.layers.{layer}.feed_forward.experts."
        w1, w3, w2 = (
            torch.stack([tensors[f"{name}{n}.{part}.weight"] for n in range(6)]) for part in ("w1", "w3", "w2")
        )
        fused |= {f"{name}gate_up_proj": torch.cat([w1, w3], dim=1), f"{name}down_proj": w2}
    together = load_model(open_weights(write_checkpoint(tmp_path / "fused", config, fused)), mode)
    assert torch.equal(Pager(together).logits(0, TOKENS), Pager(apart).logits(0, TOKENS))
    assert together.parameters == apart.parameters


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("device", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", ["lfm2-moe", "lfm2-moe-plain"])
def test_all_experts_in_one_product_are_the_same_model(checkpoint: MakeCheckpoint, name: str, device: bool) -> None:
    """As a device runs them: with the reference of its product, or with all kernels in the interpreter."""
    apart = load_model(open_weights(checkpoint(name)), "float32")
    expected = Pager(apart).logits(0, TOKENS)
    together = load_model(open_weights(checkpoint(name)), "float32")
    stacked = 0
    for index, layer in enumerate(together._layers):
        if isinstance(layer.feed, ExpertWeights):
            parts = {f"all_{part}": torch.stack(getattr(layer.feed, part)) for part in ("gate_up", "down")}
            together._layers[index] = replace(layer, feed=replace(layer.feed, **parts))
            stacked += 1
    assert stacked
    with pretended_cuda() if device else nullcontext():
        found = Pager(together).logits(0, TOKENS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_attributes(checkpoint: MakeCheckpoint) -> None:
    seen: list[float] = []
    model = load_model(open_weights(checkpoint("qwen3")), "packed", seen.append, context_tokens=100)
    assert isinstance(model, Decoder)
    assert (model.spec.pages, model.vocab_size) == (PageShape(layers=3, kv_heads=2, head_dim=16), 211)
    assert model.context_tokens == 100
    assert model.parameters == sum(tensor.numel() for tensor in random_tensors(CONFIGS["qwen3"]).values())
    assert model.spec.cache_bytes_per_block(torch.bfloat16, 8) == 8 * 3 * 2 * 2 * 16 * 2
    assert model.spec.cache_bytes_per_block(torch.int8, 8) == 8 * 3 * 2 * 2 * (16 + 2)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert load_model(open_weights(checkpoint("qwen3")), context_tokens=10**6).context_tokens == 256
