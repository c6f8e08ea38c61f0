"""The default model's real file against transformers, in float32 on the same dequantised weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from paged import Pager
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from voxlane.engine.api import ChatMessage
from voxlane.engine.models.decoder import Decoder
from voxlane.engine.models.registry import load_model
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.weights.files import open_weights

pytestmark = pytest.mark.weights

NEW_TOKENS = 24
QUESTIONS = [
    "What is the capital of France?",
    "Write a short poem about rain.",
    "Explain gravity to a child in two sentences.",
    "List five fruits.",
    "Who are you?",
    "Translate 'good morning' into Spanish.",
    "How do I boil an egg?",
    "Give me a Python function that adds two numbers.",
    "Why is the sky blue?",
    "Tell me a joke about a cat.",
]
STARTS = [
    "The quick brown fox",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4, 5,",
    "The three laws of thermodynamics are",
    "Dear Sir or Madam,\n\nI am writing to",
    "In 1969, the first human",
    "Q: What is 17 + 25?\nA:",
    "Ingredients:\n- 2 eggs\n- 100 g flour\n-",
    "A",
]
TEXT = (
    "Speech is older than writing by tens of thousands of years. A child learns to talk without lessons, while reading "
    "has to be taught letter by letter. When two people talk they do not wait for silence: they begin to answer before "
    "the other has finished, they nod, they say “yes” and “mhm”, and now and then one of them breaks off in the middle "
    "of a word because the other has something to say. Machines found this hard. For many years they listened, then "
    "thought, then spoke, and whoever interrupted them was ignored until the sentence was over. The delay between the "
    "end of a question and the beginning of an answer is about two hundred milliseconds in every language that has "
    "been measured, which is less time than it takes to plan a sentence, so we must be planning while we listen."
)


_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> LlamaForCausalLM:
    """transformers' model with the file's weights as the gguf library reads them: none of our loading code."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    tensors = {}
    for tensor in GGUFReader(smollm2_path).tensors:
        *place, kind, ending = tensor.name.split(".")
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if kind in ("attn_q", "attn_k"):  # stored [head, pair, half] for interleaved rotation
            weight = weight.view(-1, 32, 2, 576).transpose(1, 2).reshape(-1, 576)
        layer = f"model.layers.{place[1]}." if place else ""
        tensors[f"{layer}{_NAMES[kind]}.{ending}"] = weight
    with torch.device("meta"):  # no random start values: the file has them all, but for the rotary buffer
        model = LlamaForCausalLM(config)
    assert model.load_state_dict(tensors, strict=False, assign=True).missing_keys == ["lm_head.weight"]
    model.tie_weights()
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    return model.eval()


@pytest.fixture(scope="module")
def decoder(smollm2_path: Path) -> Decoder:
    return load_model(open_weights(smollm2_path), "float32", context_tokens=1024)


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.open(smollm2_path)


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    chats = [tokenizer.encode_chat([ChatMessage("user", question)]) for question in QUESTIONS]
    return chats + [tokenizer.encode(start) for start in STARTS]


@pytest.fixture(scope="module")
def text(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(TEXT)


@pytest.fixture(scope="module")
def exact(decoder: Decoder, text: list[int]) -> Tensor:
    return Pager(decoder).logits(0, text)


def reference_choices(model: LlamaForCausalLM, prompt: list[int], said: list[int]) -> list[int]:
    """Return the reference's best token after the prompt and after each word said but the last.

    If these are the words said, then each is its greedy choice after the ones before: its continuation is the same.
    """
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + said[:-1]]), logits_to_keep=len(said)).logits[0]
    return logits.argmax(dim=-1).tolist()


def test_logits_equal_the_reference(reference: LlamaForCausalLM, text: list[int], exact: Tensor) -> None:
    with torch.inference_mode():
        wanted = reference(torch.tensor([text])).logits[0]
    # Logits reach 30; float32 sums of 1536 products in another order, thirty layers deep, differ by about 1e-4.
    torch.testing.assert_close(exact, wanted, rtol=1e-4, atol=1e-3)


def test_greedy_continuations_equal_the_reference(
    reference: LlamaForCausalLM, decoder: Decoder, prompts: list[list[int]]
) -> None:
    found = Pager(decoder, blocks=20 * 16).greedy(prompts, NEW_TOKENS)
    assert [len(said) for said in found] == [NEW_TOKENS] * 20
    for prompt, said in zip(prompts, found, strict=True):
        assert reference_choices(reference, prompt, said) == said


def loss(logits: Tensor, tokens: list[int]) -> float:
    return float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens[1:])))


# Measured: error 0.04 of the logits' spread, 95 % equal best tokens, loss 3.44 against 3.435 (pytest -rP prints it).
def test_packed_weights_cost_little(smollm2_path: Path, text: list[int], exact: Tensor) -> None:
    packed = Pager(load_model(open_weights(smollm2_path), "packed", context_tokens=1024)).logits(0, text)
    share = float((packed.argmax(dim=-1) == exact.argmax(dim=-1)).float().mean())
    error = float((packed - exact).square().mean().sqrt() / exact.std())
    print(
        f"packed: error {error:.4f}, equal best tokens {share:.3f}, loss {loss(packed, text):.4f} "
        f"against {loss(exact, text):.4f}"
    )
    assert error < 0.05
    assert share > 0.9
    assert loss(packed, text) == pytest.approx(loss(exact, text), abs=0.03)


# Measured: bfloat16 0.0033, int8 0.019.
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.01), (torch.int8, 0.03)])
def test_narrow_pages_cost_little(
    decoder: Decoder, text: list[int], exact: Tensor, dtype: torch.dtype, bound: float
) -> None:
    narrow = Pager(decoder, dtype).logits(0, text)
    error = float((narrow - exact).square().mean().sqrt() / exact.std())
    print(f"{dtype} pages: error {error:.4f}, loss {loss(narrow, text):.4f} against {loss(exact, text):.4f}")
    assert 0 < error < bound
    assert loss(narrow, text) == pytest.approx(loss(exact, text), rel=0.01)
