"""Train the adapter that comes with voxlane for the 0.5B model, on the dialogues in partner_dialogues/.

It trains LoRA on the attention matrices, with a loss on the replies and calls alone. Dialogues with a turn that is
close to a turn of the partner benchmark, with or without --page, are left out, so that the benchmark measures nothing
that was trained on. The adapter is written in PEFT's layout, as in engine/weights/adapters/. It needs transformers
(extra `test`) and, to be quick, a GPU.

Time: a minute on one H200; with --steps 2 on a CPU some minutes, to try it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from msgspec import structs
from safetensors.torch import save_file
from torch import Tensor, nn

from voxlane.engine.api import ChatMessage, Tool, ToolUse
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.weights import store
from voxlane.engine.weights.files import open_weights
from voxlane.server.conversation.values import INSTRUCTIONS

FOLDER = Path(__file__).parent
MODEL, BASE = "qwen2.5-coder-0.5b-instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct"
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
RANK, ALPHA = 32, 64
RATE, EPOCHS, BATCH_TOKENS, WARM_UP_STEPS = 4e-4, 3, 16_384, 20
TRIAL_TOKENS, TRIAL_HELD = 1024, 4
"""The batches and the held-out samples of a run with --steps, small enough for a CPU."""

LONGEST_TOKENS = 1400
BENCHMARK_FILES = ("partner_exchanges.toml", "partner_page.toml", "partner_phone.toml")
CLOSE = 0.6
"""Two turns with at least this share of words in common (over words in either) are too close."""

USUAL_SHARE = 0.88
OTHER_INSTRUCTIONS = (
    "You are a helpful voice assistant. Answer briefly.",
    "You are a friendly assistant on the phone. Keep your answers short.",
    "You are the voice of a small hotel. Be polite and brief.",
    "You are a voice assistant for a family. Speak in short, simple sentences.",
    "",
)

Dialogue = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """A dialogue as tokens, and which of them count in the loss."""

    tokens: list[int]
    learnt: list[bool]


def words(text: str) -> frozenset[str]:
    """Return the words of a turn."""
    return frozenset(re.findall(r"[a-z0-9']+", text.lower()))


def benchmark_turns() -> list[frozenset[str]]:
    """Return the words of every turn of the partner benchmark, and of its exchanges with the demo page's tools."""

    def texts(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            for part in value.values() if isinstance(value, dict) else value:
                yield from texts(part)

    exchanges = [tomllib.loads((FOLDER.parent / name).read_text("utf-8")) for name in BENCHMARK_FILES]
    return [found for text in texts(exchanges) if len(found := words(text)) > 2]


def is_close(dialogue: Dialogue, turns: Sequence[frozenset[str]]) -> bool:
    """Return whether a turn of the person is close to one of `turns`."""
    said = [words(text) for role, text in dialogue["turns"] if role == "user"]
    return any(len(one & other) / max(1, len(one | other)) >= CLOSE for one in said for other in turns)


def instructions(chance: random.Random, dialogue: Dialogue) -> str:
    """Return the usual instructions with the dialogue's date or a random one, or sometimes other instructions."""
    if not dialogue.get("tools") and "date" not in dialogue and chance.random() >= USUAL_SHARE:
        return chance.choice(OTHER_INSTRUCTIONS)
    day = date.fromisoformat(dialogue.get("date", "2025-01-01"))
    if "date" not in dialogue:
        day += timedelta(days=chance.randrange(1400))
    return INSTRUCTIONS.replace("{date}", f"{day:%A}, {day.day} {day:%B %Y}")


def messages(dialogue: Dialogue, system: str) -> list[ChatMessage]:
    """Return a dialogue as the chat template takes it."""
    made = [ChatMessage("system", system)] if system else []
    calls: list[str] = []
    for role, content in dialogue["turns"]:
        if role == "call":
            first = sum(len(message.tool_calls) for message in made)
            uses = [
                ToolUse(f"c{first + n}", one["name"], json.dumps(one["arguments"])) for n, one in enumerate(content)
            ]
            calls = [use.call_id for use in uses]
            made.append(ChatMessage("assistant", "", tool_calls=tuple(uses)))
        elif role == "result":
            made += [ChatMessage("tool", str(text), call_id=call) for call, text in zip(calls, content, strict=False)]
        else:
            made.append(ChatMessage(role, content))
    return made


def written(call: ToolUse) -> str:
    """Return a call as the model learns to write it: JSON without tags.

    The embedding of <tool_call> was never trained: in Qwen2.5-Coder-0.5B its row equals those of two thousand other
    tokens, so the model cannot choose it, whatever it learns. JSON alone is what the model writes by itself, and
    CallReader in engine/text/tools.py reads it.
    """
    return json.dumps({"name": call.name, "arguments": json.loads(call.arguments)}, ensure_ascii=False)


def calls_written(said: Sequence[ChatMessage]) -> Iterator[list[ChatMessage]]:
    """Yield, for every call of a conversation, what was before it and then the call as the model has to write it.

    The model writes one call at a time and sees its result before the next one.
    """
    for place, message in enumerate(said):
        for number, call in enumerate(message.tool_calls):
            made = structs.replace(message, tool_calls=message.tool_calls[:number])
            before = [made, *said[place + 1 : place + 1 + number]] if number else []
            yield [*said[:place], *before, ChatMessage("assistant", written(call))]


def sample(said: Sequence[ChatMessage], learnt_from: int, tools: Sequence[Tool], tokenizer: Tokenizer) -> Sample | None:
    """Return a conversation as tokens, with the replies from a message on to learn; calls among them are not learnt.

    None if it is too long, if it has nothing to learn or if its replies cannot be located.
    """
    tokens = tokenizer.encode_chat(said, tools=tools, add_generation_prompt=False)
    learnt = [False] * len(tokens)
    for place, message in enumerate(said):
        if message.role != "assistant" or message.tool_calls or place < learnt_from:
            continue
        begin = tokenizer.encode_chat(said[:place], tools=tools)
        end = tokenizer.encode_chat(said[: place + 1], tools=tools, add_generation_prompt=False)
        if tokens[: len(begin)] != begin or tokens[: len(end)] != end:
            return None
        last = len(end) - (not tokenizer.decode(end[-1:]).strip())  # the line break after a turn is the template's
        learnt[len(begin) : last] = [True] * (last - len(begin))
    return Sample(tokens, learnt) if len(tokens) <= LONGEST_TOKENS and any(learnt) else None


def dialogue_samples(dialogue: Dialogue, tokenizer: Tokenizer, chance: random.Random) -> list[Sample]:
    """Return a dialogue as one sample for all its replies, and one for each of its calls."""
    said = messages(dialogue, instructions(chance, dialogue))
    tools = tuple(
        Tool(tool["name"], tool.get("description", ""), json.dumps(tool["parameters"]))
        for tool in dialogue.get("tools", [])
    )
    made = [sample(said, 0, tools, tokenizer)]
    made += [sample(call, len(call) - 1, tools, tokenizer) for call in calls_written(said)]
    return [one for one in made if one is not None]


def samples(tokenizer: Tokenizer) -> list[Sample]:
    """Return all dialogues for training, in random order."""
    chance, turns = random.Random(7), benchmark_turns()
    lines = [line for path in sorted(FOLDER.glob("partner_dialogues/*.jsonl")) for line in path.open("rb")]
    dialogues = [dialogue for line in lines if not is_close(dialogue := json.loads(line), turns)]
    found = [made for dialogue in dialogues for made in dialogue_samples(dialogue, tokenizer, chance)]
    chance.shuffle(found)
    learnt = sum(sum(one.learnt) for one in found)
    tokens = sum(len(one.tokens) for one in found)
    print(f"  {len(dialogues)} of {len(lines)} dialogues, {len(found)} samples, {tokens} tokens, {learnt} to learn")
    return found


class LowRank(nn.Module):
    """A fixed matrix plus a trained product of two small ones."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        device = base.weight.device
        self.a = nn.Parameter(torch.randn(RANK, base.in_features, device=device) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, RANK, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both."""
        change = F.linear(F.linear(x, self.a.to(x.dtype)), self.b.to(x.dtype))
        return self.base(x) + change * (ALPHA / RANK)  # type: ignore[no-any-return]


def load(device: torch.device) -> Any:
    """Return the base model as transformers builds it, with the weights that the GGUF file stands for."""
    import voxlane.engine.audio.torchaudio_import  # noqa: F401, I001  (before transformers, which imports torchaudio)
    from transformers import Qwen2Config, Qwen2ForCausalLM

    weights = open_weights(store.resolve(MODEL))
    number = torch.bfloat16 if device.type == "cuda" else torch.float32  # many CPUs have no fast bfloat16
    settings = {key: value for key, value in weights.config.items() if key not in ("architectures", "model_type")}
    settings |= {"tie_word_embeddings": True, "attn_implementation": "eager"}
    model = Qwen2ForCausalLM(Qwen2Config(**settings)).to(number)
    named = {name: weights.tensor(name).to(number) for name in weights.names() if name != "lm_head.weight"}
    model.load_state_dict(named, strict=False)
    model.tie_weights()
    return model.requires_grad_(False).to(device)


def adapt(model: Any) -> dict[str, LowRank]:
    """Add a trained product to every attention matrix; return the products by PEFT's names."""
    found = {}
    for index, layer in enumerate(model.model.layers):
        for target in TARGETS:
            product = LowRank(getattr(layer.self_attn, target))
            setattr(layer.self_attn, target, product)
            found[f"base_model.model.model.layers.{index}.self_attn.{target}"] = product
    return found


def batches(rows: Sequence[Sample], chance: random.Random, most_tokens: int) -> list[list[Sample]]:
    """Return the samples in batches of similar lengths and at most so many tokens, or of one sample."""
    made: list[list[Sample]] = []
    order = chance.sample(list(rows), len(rows))
    for start in range(0, len(order), 512):
        batch: list[Sample] = []
        for row in sorted(order[start : start + 512], key=lambda one: len(one.tokens)):
            if batch and (len(batch) + 1) * len(row.tokens) > most_tokens:
                made.append(batch)
                batch = []
            batch.append(row)
        made.append(batch)
    return chance.sample(made, len(made))


def loss(model: Any, batch: Sequence[Sample], device: torch.device) -> tuple[Tensor, int]:
    """Return the summed cross-entropy of the trained tokens, and their number."""
    longest = max(len(row.tokens) for row in batch)
    tokens = torch.zeros(len(batch), longest, dtype=torch.long)
    there, learnt = torch.zeros_like(tokens), torch.zeros(len(batch), longest, dtype=torch.bool)
    for index, row in enumerate(batch):
        size = len(row.tokens)
        tokens[index, :size], learnt[index, :size] = torch.tensor(row.tokens), torch.tensor(row.learnt)
        there[index, :size] = 1
    tokens, there, learnt = tokens.to(device), there.to(device), learnt.to(device)
    hidden = model.model(input_ids=tokens, attention_mask=there).last_hidden_state[:, :-1]
    wanted = learnt[:, 1:]
    logits = model.lm_head(hidden[wanted]).float()
    return F.cross_entropy(logits, tokens[:, 1:][wanted], reduction="sum"), int(wanted.sum())


def judge(model: Any, held: Sequence[Sample], device: torch.device) -> float:
    """Return the mean cross-entropy of dialogues held out from training."""
    with torch.no_grad():
        found = [loss(model, batch, device) for batch in batches(held, random.Random(0), TRIAL_TOKENS)]
    return sum(float(one) for one, _ in found) / sum(count for _, count in found)


def train(model: Any, products: dict[str, LowRank], rows: Sequence[Sample], device: torch.device, steps: int) -> None:
    """Train the products; stop after `steps`, unless that is 0."""
    learnt = [number for product in products.values() for number in (product.a, product.b)]
    optimiser, chance = torch.optim.AdamW(learnt, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01), random.Random(1)
    most_tokens = TRIAL_TOKENS if steps else BATCH_TOKENS
    plan = [batch for _ in range(EPOCHS) for batch in batches(rows, chance, most_tokens)][: steps or None]
    begin = time.perf_counter()
    for step, batch in enumerate(plan):
        fade = max(0.05, 0.5 * (1 + math.cos(math.pi * step / len(plan))))
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * fade
        total, count = loss(model, batch, device)
        (total / count).backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(learnt, 1.0)
        if norm.isfinite():
            optimiser.step()
        else:
            print(f"  step {step + 1}: no finite gradient of {count} tokens of {len(batch)} samples, left out")
        optimiser.zero_grad(set_to_none=True)
        print(f"\r  step {step + 1} of {len(plan)}, {time.perf_counter() - begin:.0f} s", end="", flush=True)
    print()


def write(products: dict[str, LowRank], target: Path) -> None:
    """Write the adapter in PEFT's layout."""
    target.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, product in products.items():
        for letter, number in (("A", product.a), ("B", product.b)):
            tensors[f"{name}.lora_{letter}.weight"] = number.detach().to(torch.bfloat16).cpu().contiguous()
    save_file(tensors, str(target / "adapter_model.safetensors"), metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": BASE,
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": list(TARGETS),
        "bias": "none",
        "inference_mode": True,
    }
    (target / "adapter_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")


def main() -> None:
    """Train, and write the adapter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, required=True, help="the folder to write")
    parser.add_argument("--steps", type=int, default=0, help="end after so many; 0: after three epochs (%(default)s)")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    rows = samples(Tokenizer.open(store.resolve(MODEL)))
    held, rows = rows[: len(rows) // 25], rows[len(rows) // 25 :]
    if asked.steps:
        held = held[:TRIAL_HELD]
    model = load(device)
    before = judge(model, held, device)
    products = adapt(model)
    train(model, products, rows, device, asked.steps)
    print(f"  cross-entropy of held-out dialogues: {before:.3f} before, {judge(model, held, device):.3f} after")
    write(products, asked.to)


if __name__ == "__main__":
    main()
