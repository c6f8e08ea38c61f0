"""An engine with LFM2-Audio alone, in this process: model, codec, cache, runner and core."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from support.lfm2.shapes import AUDIO_SHAPES

from voxlane.engine.build.model_part import build_resources
from voxlane.engine.jobs.converse import ConverseFacts, ConverseJobFactory
from voxlane.engine.loop.core import Core
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.lfm2_audio.config import END_OF_TURN
from voxlane.engine.models.lfm2_audio.prompt import ConversePrompts
from voxlane.engine.models.lfm2_audio.random_model import random_lfm2_audio, random_mimi
from voxlane.engine.runners.cuda.converse import CudaConverse
from voxlane.engine.schedule.plan import CONVERSATION, Limits
from voxlane.engine.schedule.scheduler import Scheduler


class Letters:
    """A tokenizer whose tokens are letters, above the numbers of control tokens."""

    special_ids: frozenset[int] = frozenset({END_OF_TURN})

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        """Return a token for every four characters."""
        return [200 + ord(text[place]) % 256 for place in range(0, len(text), 4)]

    def token_bytes(self, token: int) -> bytes:
        """Return a word."""
        return b"word "


@dataclass(frozen=True, slots=True)
class Dimensions:
    """How large the engine is."""

    rows: int
    context_tokens: int
    cache_tokens: int
    step_tokens: int
    block_tokens: int = 64
    step_budget_s: float = 0.010


@dataclass(frozen=True, slots=True)
class DialogueEngine:
    """A core, and what a measurement needs to know of it."""

    core: Core
    runner: CudaConverse
    frame_samples: int
    rate: int
    text_run: int
    parameters: int


def dialogue_engine(
    shape: str, device: torch.device, sizes: Dimensions, codec_type: torch.dtype, say: Callable[[str], None]
) -> DialogueEngine:
    """Return an engine whose graphs are captured."""
    begin = time.monotonic()
    config, mimi = AUDIO_SHAPES[shape]
    narrow = device.type == "cuda"
    model = random_lfm2_audio(
        config,
        "bfloat16" if narrow else "float32",
        device,
        drawn_on=device,
        context_tokens=sizes.context_tokens,
    )
    codec = random_mimi(mimi, model.config.groups, codec_type, device, drawn_on=device)
    say(f"{shape}: {model.parameters / 1e9:.2f}e9 weights made in {time.monotonic() - begin:.1f} s")
    pages = torch.bfloat16 if narrow else torch.float32
    cache = KVCache(model.spec.pages, sizes.cache_tokens // sizes.block_tokens, sizes.block_tokens, pages, device)
    runner = CudaConverse(
        model, codec, cache, device, slots=sizes.rows, max_rows=sizes.rows, max_tokens=sizes.step_tokens
    )
    if narrow:
        begin, told = time.monotonic(), [0]

        def progress(done: float) -> None:
            if done * 4 >= told[0] + 1:
                told[0] = int(done * 4)
                say(f"{shape}: captured {done:.0%} after {time.monotonic() - begin:.0f} s")

        runner.capture(progress)
    resources = build_resources(cache, prefix_cache=True, abilities=CONVERSATION)
    facts = ConverseFacts(
        model.config.interleaved_text,
        model.config.interleaved_frames,
        codec.frame_samples,
        codec.sample_rate,
        limit=min(model.context_tokens, cache.num_blocks * cache.block_tokens),
        slots=runner.slots,
    )
    prompts = ConversePrompts(model, Letters(model.vocab_size), start=6, end=END_OF_TURN, begin=1)  # type: ignore[arg-type]
    limits = Limits(max_batch=sizes.rows, max_step_tokens=sizes.step_tokens, step_budget_s=sizes.step_budget_s)
    core = Core(
        Scheduler({"speech": resources}, limits),
        {"speech": runner},
        {"speech": ConverseJobFactory(facts, resources.pool, prompts)},
        clock=time.monotonic,
        max_waiting=4096,
    )
    return DialogueEngine(core, runner, codec.frame_samples, codec.sample_rate, facts.text_run, model.parameters)
