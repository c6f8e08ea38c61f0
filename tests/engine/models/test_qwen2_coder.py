"""The 0.5B model's real file against transformers: Q5_0, Q8_0, Q4_K and Q6_K tensors, biases, a head of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from paged import Pager
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from voxlane.engine.api import ChatMessage
from voxlane.engine.models.decoder import Decoder
from voxlane.engine.models.registry import load_model
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.store import resolve

from .test_smollm2 import _NAMES, TEXT, loss

pytestmark = pytest.mark.weights

NEW_TOKENS = 16
QUESTIONS = ["What is the capital of France?", "Why is the sky blue?", "My name is Peter. What is my name?", "Hello!"]


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve("qwen2.5-coder-0.5b-instruct")


@pytest.fixture(scope="module")
def reference(path: Path) -> Qwen2ForCausalLM:
    """transformers' model with the file's weights as the gguf library reads them: none of our loading code."""
    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=False,
    )
    tensors = {}
    for tensor in GGUFReader(path).tensors:
        *place, kind, ending = tensor.name.split(".")
        layer = f"model.layers.{place[1]}." if place else ""
        name = "lm_head" if kind == "output" else _NAMES[kind]
        tensors[f"{layer}{name}.{ending}"] = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
    with torch.device("meta"):  # no random start values: the file has them all, but for the rotary buffer
        model = Qwen2ForCausalLM(config)
    assert not model.load_state_dict(tensors, strict=False, assign=True).missing_keys
    model.model.rotary_emb = Qwen2RotaryEmbedding(config)
    return model.eval()


@pytest.fixture(scope="module")
def decoder(path: Path) -> Decoder:
    return load_model(open_weights(path), "float32", context_tokens=512)


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.open(path)


@pytest.fixture(scope="module")
def exact(decoder: Decoder, tokenizer: Tokenizer) -> Tensor:
    return Pager(decoder).logits(0, tokenizer.encode(TEXT))


def test_logits_equal_the_reference(reference: Qwen2ForCausalLM, tokenizer: Tokenizer, exact: Tensor) -> None:
    with torch.inference_mode():
        wanted = reference(torch.tensor([tokenizer.encode(TEXT)])).logits[0]
    torch.testing.assert_close(exact, wanted, rtol=1e-4, atol=2e-3)


def test_greedy_continuations_equal_the_reference(
    reference: Qwen2ForCausalLM, decoder: Decoder, tokenizer: Tokenizer
) -> None:
    prompts = [tokenizer.encode_chat([ChatMessage("user", question)]) for question in QUESTIONS]
    for prompt, said in zip(prompts, Pager(decoder, blocks=128).greedy(prompts, NEW_TOKENS), strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + said[:-1]]), logits_to_keep=len(said)).logits[0]
        assert logits.argmax(dim=-1).tolist() == said


def test_packed_weights_cost_little(path: Path, tokenizer: Tokenizer, exact: Tensor) -> None:
    text = tokenizer.encode(TEXT)
    packed = Pager(load_model(open_weights(path), "packed", context_tokens=512)).logits(0, text)
    share = float((packed.argmax(dim=-1) == exact.argmax(dim=-1)).float().mean())
    print(f"packed: equal best tokens {share:.3f}, loss {loss(packed, text):.4f} against {loss(exact, text):.4f}")
    assert share > 0.9
    assert loss(packed, text) == pytest.approx(loss(exact, text), abs=0.03)
