"""A whole engine on a small random LFM2: from a directory with its own vocabulary and template to text and calls."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from checkpoints import CONFIGS, Config, write_checkpoint
from drive import Driver, chat_config
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from voxlane.engine.api import ChatMessage, SamplingParams, Submit, Tool, ToolCall, ToolUse
from voxlane.engine.build.assemble import Assembly, assemble

CONTROLS = (
    "<|pad|>", "<|startoftext|>", "<|im_end|>", "<|im_start|>",
    *(f"<|tool_{part}_{side}|>" for part in ("list", "call", "response") for side in ("start", "end")),
)  # fmt: skip
TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|im_start|>system\nList of tools: <|tool_list_start|>{{ tools | tojson }}"
    "<|tool_list_end|><|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'tool' %}<|tool_response_start|>{{ m.content }}<|tool_response_end|>{% else %}{{ m.content }}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SCHEMA = {
    "type": "object",
    "properties": {"minutes": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["minutes"],
}
TIMER = Tool("set_timer", "Set a timer.", json.dumps(SCHEMA))


def write_model(directory: Path, config: Config) -> Path:
    """Write a checkpoint with a tokenizer of single bytes and LFM2's control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {text: index for index, text in enumerate((*CONTROLS, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CONTROLS])
    write_checkpoint(directory, config | {"vocab_size": len(words), "max_position_embeddings": 1024})
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "bos_token": "<|startoftext|>", "eos_token": "<|im_end|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.fixture(scope="module", params=["lfm2", "lfm2-moe"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    path = write_model(tmp_path_factory.mktemp("lfm2") / request.param, CONFIGS[request.param])
    return assemble(chat_config(model=str(path), kv_memory_mib=8, swap_memory_mib=8, lookup_tokens=4))


def test_its_cache_counts_the_states(engine: Assembly) -> None:
    ready = engine.ready
    assert ready.architecture in ("Lfm2ForCausalLM", "Lfm2MoeForCausalLM")
    keys = 2 * 2 * 2 * 16 * 2  # attention layers, keys and values, heads, their width, bytes
    states = 3 * 2 * 64 * 4 // ready.block_tokens  # convolutions, vectors of a block, channels, bytes
    assert ready.page_bytes_per_token == keys + states
    assert ready.kv_blocks == (8 << 20) // (ready.page_bytes_per_token * ready.block_tokens)


def test_a_conversation_goes_on_from_its_cached_beginning(engine: Assembly) -> None:
    driver = Driver(engine.core)
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    asked = ChatMessage("user", "What is the capital of a country that has no name? " * 3)
    driver.send(Submit("a", "chat", messages=(asked,), sampling=sampling))
    driver.run()
    talk = (asked, ChatMessage("assistant", driver.text("a")), ChatMessage("user", "And of another?"))
    driver.send(Submit("b", "chat", messages=talk, sampling=sampling))
    driver.run()
    cached = driver.end("b").stats.cached_tokens
    assert cached >= 128
    pool = engine.core.scheduler.resources["chat"].pool
    for block in pool.take(pool.available):  # without the cache: the same text
        pool.forget(block)
        pool.release(block)
    driver.send(Submit("c", "chat", messages=talk, sampling=sampling))
    driver.run()
    assert driver.end("c").stats.cached_tokens == 0
    assert driver.text("c") == driver.text("b")


def test_a_demanded_call_is_well_formed_in_its_marks(engine: Assembly) -> None:
    driver = Driver(engine.core)
    talk = (
        ChatMessage("user", "Wake me in five minutes."),
        ChatMessage("assistant", "", tool_calls=(ToolUse("1", "set_timer", '{"minutes": 5}'),)),
        ChatMessage("tool", "done", call_id="1"),
        ChatMessage("user", "And in seven."),
    )
    for choice in ("required", "set_timer"):
        driver.send(
            Submit(
                choice, "chat", messages=talk, tools=(TIMER,), tool_choice=choice,
                sampling=SamplingParams(max_tokens=200),
            )
        )  # fmt: skip
    driver.run()
    for choice in ("required", "set_timer"):
        (call,) = [m for m in driver.messages if isinstance(m, ToolCall) and m.request_id == choice]
        assert call.name == "set_timer"
        jsonschema.validate(json.loads(call.arguments), SCHEMA)
