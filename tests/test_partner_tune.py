"""partner_tune.py: calls are taught as the engine reads them, in tokens that the model can choose; dialogues fit."""

from __future__ import annotations

import json
import random
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from voxlane.engine.api import Tool
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.text.tools import Call, CallReader
from voxlane.engine.weights import gguf_blocks, store
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.gguf import GGUFFile
from voxlane.server.conversation.replies.history import as_messages
from voxlane.server.conversation.values import Item

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
sys.path.append(str(Path(__file__).parent.parent / "benchmarks" / "training"))

import partner_tune
from support.partner.rules import count_sentences, markup

DIALOGUES = partner_tune.FOLDER / "partner_dialogues"
CLOCK = {"name": "get_time", "description": "", "parameters": {"type": "object", "properties": {}}}
DICE = {"name": "roll_dice", "description": "", "parameters": {"type": "object", "properties": {"dice": {}}}}
BOTH: dict[str, Any] = {
    "tools": [CLOCK, DICE],
    "turns": [
        ["user", "What time is it, and roll two dice."],
        ["call", [{"name": "get_time", "arguments": {}}, {"name": "roll_dice", "arguments": {"dice": 2}}]],
        ["result", ["16:25", "[5,2]"]],
        ["assistant", "It's 16:25. You got 5 and 2."],
    ],
}


def read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DIALOGUES / name).read_text("utf-8").splitlines()]


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.open(store.resolve(partner_tune.MODEL))


def learnt(sample: partner_tune.Sample) -> list[int]:
    return [token for token, wanted in zip(sample.tokens, sample.learnt, strict=True) if wanted]


@pytest.mark.weights
def test_calls_are_learnt_one_at_a_time_as_the_engine_reads_them() -> None:
    whole, *calls = partner_tune.dialogue_samples(BOTH, tokenizer(), random.Random(1))
    assert tokenizer().decode(learnt(whole)) == "It's 16:25. You got 5 and 2."
    found = []
    for sample in calls:
        reader = CallReader([Tool("get_time", "", "{}"), Tool("roll_dice", "", "{}")])
        text = tokenizer().decode(learnt(sample))
        found += [*reader.push(text), *reader.finish()]
        assert learnt(sample)[-1] in tokenizer().eos_ids
    assert found == [Call("get_time", "{}"), Call("roll_dice", '{"dice": 2}')]
    second = tokenizer().decode(calls[1].tokens)
    assert second.index("16:25") < second.index('{"name": "roll_dice", "arguments": {"dice": 2}}')
    assert "[5,2]" not in second


def test_what_is_before_a_call_is_what_the_server_sends() -> None:
    said = partner_tune.messages(BOTH, "")
    asked = Item("1", "user", BOTH["turns"][0][1])
    first = [Item("2", "call", "{}", "get_time", "c0"), Item("3", "result", "16:25", call_id="c0")]
    second = [Item("4", "call", '{"dice": 2}', "roll_dice", "c1"), Item("5", "result", "[5,2]", call_id="c1")]
    before = [tuple(call[:-1]) for call in partner_tune.calls_written(said)]
    assert before == [as_messages([asked]), as_messages([asked, *first])]
    assert tuple(said[:-1]) == as_messages([asked, *first, *second])


@pytest.mark.weights
def test_no_token_is_taught_whose_row_was_never_trained() -> None:
    """All rows that were never trained are alike, so a model cannot prefer one of their tokens."""
    file = open_weights(store.resolve(partner_tune.MODEL))
    assert isinstance(file, GGUFFile)
    info = file._tensors["lm_head.weight"]
    stored = file._rows(info)

    def rows(start: int, count: int) -> Tensor:  # as floats, all of them take half a gigabyte
        return gguf_blocks.decode(stored[start : start + count], info.kind).dequantise()

    call = rows(tokenizer().token_id("<tool_call>"), 1)
    starts = range(0, len(stored), 4096)
    near = torch.cat([(rows(start, 4096) - call).abs().amax(1) < 1e-3 for start in starts])
    untrained = set(near.nonzero().flatten().tolist())
    assert len(untrained) > 2000
    dialogues = [*read("tools.jsonl")[::20], *read("plain_tools.jsonl")[::20], *read("long.jsonl")[::20]]
    samples = [
        sample
        for dialogue in dialogues
        for sample in partner_tune.dialogue_samples(dialogue, tokenizer(), random.Random(1))
    ]
    assert len(samples) > len(dialogues)
    assert not untrained.intersection(token for sample in samples for token in learnt(sample))


def test_calls_are_of_offered_tools_with_arguments_that_they_have() -> None:
    dialogues = [*read("plain_tools.jsonl"), *read("tools.jsonl")]
    bare = 0
    for dialogue in dialogues:
        offered = {tool["name"]: tool["parameters"] for tool in dialogue["tools"]}
        assert len(offered) == len(dialogue["tools"])
        for call in (call for role, calls in dialogue["turns"] if role == "call" for call in calls):
            schema = offered[call["name"]]
            assert set(schema.get("required", ())) <= call["arguments"].keys() <= schema["properties"].keys()
            bare += not call["arguments"]
    assert bare > 250


def test_long_answers_are_long_plain_and_end_in_time() -> None:
    longest = 0
    for dialogue in (*read("long.jsonl"), *read("counts.jsonl")):
        reply = dialogue["turns"][-1][1]
        assert count_sentences(reply) >= 5 or reply.count(",") >= 9
        assert not markup(reply)
        longest = max(longest, len(reply.split()))
    assert longest < 150  # a reply has at most 256 tokens


def test_no_new_dialogue_is_close_to_a_benchmark() -> None:
    turns = partner_tune.benchmark_turns()
    assert partner_tune.words("How late is it already?") in turns
    assert partner_tune.words("What is the capital of France?") in turns
    for name in ("plain_tools.jsonl", "counts.jsonl", "long.jsonl"):
        assert not [dialogue for dialogue in read(name) if partner_tune.is_close(dialogue, turns)]
