"""An engine with LFM2-Audio alone, in this process: model, codec, cache, runner and core."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from support.lfm2.shapes import AUDIO_SHAPES

from voxlane.engine.api import Append, EndInput, Finished, FromEngine, Pieces, Samples, SamplingParams, Submit
from voxlane.engine.build.model_part import build_resources
from voxlane.engine.jobs.converse import ConverseJobFactory
from voxlane.engine.jobs.dialogue_job import ANSWERING, ConverseFacts
from voxlane.engine.loop.core import Core
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.lfm2_audio.config import END_OF_TURN
from voxlane.engine.models.lfm2_audio.mimi import MimiCodec
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.lfm2_audio.prompt import ConversePrompts
from voxlane.engine.models.lfm2_audio.random_model import random_lfm2_audio, random_mimi
from voxlane.engine.models.loading import Mode
from voxlane.engine.runners.converse import ConverseRunner
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
    most_frames: int = 2048  # of an answer


@dataclass(frozen=True, slots=True)
class DialogueEngine:
    """A core, and what a measurement needs to know of it."""

    core: Core
    runner: ConverseRunner
    frame_samples: int
    rate: int


def dialogue_engine(
    shape: str, device: torch.device, sizes: Dimensions, codec_type: torch.dtype, say: Callable[[str], None]
) -> DialogueEngine:
    """Return an engine whose graphs are captured; its weights are drawn on the device."""
    begin = time.monotonic()
    config, mimi = AUDIO_SHAPES[shape]
    mode: Mode = "bfloat16" if device.type == "cuda" else "float32"
    model = random_lfm2_audio(config, mode, device, drawn_on=device, context_tokens=sizes.context_tokens)
    codec = random_mimi(mimi, model.config.groups, codec_type, device, drawn_on=device)
    say(f"{shape}: {model.parameters / 1e9:.2f}e9 weights made in {time.monotonic() - begin:.1f} s")
    return _assembled(model, codec, device, sizes, say)


def same_engines(shape: str, device: torch.device, sizes: Dimensions) -> tuple[DialogueEngine, DialogueEngine]:
    """Return an engine on the host and one on the device with the same weights, in float32."""
    config, mimi = AUDIO_SHAPES[shape]
    found: list[DialogueEngine] = []
    for place in (torch.device("cpu"), device):
        model = random_lfm2_audio(config, "float32", place, context_tokens=sizes.context_tokens)
        codec = random_mimi(mimi, model.config.groups, torch.float32, place)
        found.append(_assembled(model, codec, None if not found else place, sizes, lambda line: None))
    return found[0], found[1]


def _assembled(
    model: Lfm2Audio, codec: MimiCodec, device: torch.device | None, sizes: Dimensions, say: Callable[[str], None]
) -> DialogueEngine:
    """Return an engine; without a device it runs as on a host."""
    narrow = model.dtype is torch.bfloat16
    pages = torch.bfloat16 if narrow else torch.float32
    blocks = sizes.cache_tokens // sizes.block_tokens
    cache = KVCache(model.spec.pages, blocks, sizes.block_tokens, pages, model.device)
    runner = _runner(model, codec, cache, device, sizes, say)
    resources = build_resources(cache, prefix_cache=True, abilities=CONVERSATION)
    facts = ConverseFacts(
        model.config.interleaved_text,
        model.config.interleaved_frames,
        codec.frame_samples,
        codec.sample_rate,
        limit=min(model.context_tokens, cache.num_blocks * cache.block_tokens),
        slots=runner.slots,
        pool=resources.pool,
        prompts=ConversePrompts(model, Letters(model.vocab_size), start=6, end=END_OF_TURN, begin=1),  # type: ignore[arg-type]
        sampling=replace(ANSWERING, max_frames=sizes.most_frames),
    )
    limits = Limits(max_batch=sizes.rows, max_step_tokens=sizes.step_tokens, step_budget_s=sizes.step_budget_s)
    core = Core(
        Scheduler({"speech": resources}, limits),
        {"speech": runner},
        {"speech": ConverseJobFactory(facts)},
        clock=time.monotonic,
        max_waiting=4096,
    )
    return DialogueEngine(core, runner, codec.frame_samples, codec.sample_rate)


def _runner(
    model: Lfm2Audio,
    codec: MimiCodec,
    cache: KVCache,
    device: torch.device | None,
    sizes: Dimensions,
    say: Callable[[str], None],
) -> ConverseRunner:
    if device is None:
        return ConverseRunner(model, codec, cache, slots=sizes.rows, max_rows=sizes.rows)
    runner = CudaConverse(
        model, codec, cache, device, slots=sizes.rows, max_rows=sizes.rows, max_tokens=sizes.step_tokens
    )
    if device.type == "cuda":
        begin, told = time.monotonic(), [0]

        def progress(done: float) -> None:
            if done * 4 >= told[0] + 1:
                told[0] = int(done * 4)
                say(f"captured {done:.0%} after {time.monotonic() - begin:.0f} s")

        runner.capture(progress)
    return runner


@dataclass(slots=True)
class WholeAnswer:
    """All that an engine has made for one request."""

    pieces: list[tuple[int, ...]] = field(default_factory=list)
    pcm: bytes = b""
    end: str = ""


def whole_answers(engine: DialogueEngine, count: int, tokens: int) -> list[WholeAnswer]:
    """Return the answers to so many people who speak at once: the likeliest tokens, and frames that are drawn."""
    found = {str(number): WholeAnswer() for number in range(count)}
    noise = np.random.default_rng(2)
    for number, name in enumerate(found):
        said = noise.normal(0, 2500, 4000 * (1 + number % 5) + 77).astype("<i2").tobytes()
        sampling = SamplingParams(max_tokens=tokens, seed=number)
        _collect(engine.core.handle([Submit(name, "converse", sampling=sampling)]), found)
        _collect(engine.core.handle([Append(name, audio=said), EndInput(name)]), found)
    while engine.core.busy:
        _collect(engine.core.step(), found)
    return list(found.values())


def _collect(messages: Iterable[FromEngine], found: dict[str, WholeAnswer]) -> None:
    for message in messages:
        match message:
            case Pieces(name, _, pieces):
                found[name].pieces += pieces
            case Samples(name, _, _, pcm):
                found[name].pcm += pcm
            case Finished(name, _, reason):
                found[name].end = reason
            case _:
                pass
