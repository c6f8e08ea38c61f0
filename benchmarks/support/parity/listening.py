"""What small random recognisers of both kinds write on a device, beside the same on the CPU, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from support.random_models import SHAPES, RandomWeights

from voxlane.engine.api import SamplingParams
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.moonshine import Moonshine
from voxlane.engine.models.spelling import Spelling
from voxlane.engine.models.whisper import Whisper, WhisperTokens
from voxlane.engine.runners.cuda.recogniser import CudaRecogniser
from voxlane.engine.runners.recogniser import Recogniser, TranscriptionOutcome, TranscriptionPayload
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import ClipStates, Request

Model = Moonshine | Whisper

KINDS = ("whisper-speck", "moonshine-speck")
RATE, SECONDS = 16_000, (3.0, 0.3, 10.0, 1.0)
CONTEXT_TOKENS, BLOCK_TOKENS = 40, 64


@dataclass(slots=True)
class Heard:
    """The result of one transcription."""

    request: Request
    logprobs: list[float] = field(default_factory=list)
    done: bool = False

    @property
    def tokens(self) -> list[int]:
        """The tokens after the prompt."""
        return self.request.tokens[self.request.prompt_tokens :]

    def row(self) -> Row:
        """Allocate the positions of the next row."""
        request, fresh = self.request, self.request.unencoded
        if fresh and request.cross is not None:
            request.cross.append(request.states)
        start, count = request.table.length, len(request.tokens) - request.table.length
        request.table.append(count)
        return Row(request, start, count, encode=fresh)

    def take(self, tokens: list[int], eos_ids: frozenset[int]) -> None:
        """Keep what a step wrote."""
        for token in tokens:
            self.done |= token in eos_ids
            if self.done:
                break
            self.request.tokens.append(token)
        self.done |= len(self.request.tokens) >= self.request.limit
        self.request.table.rewind(min(self.request.table.length, len(self.request.tokens) - 1))


def make_model(shape: str, device: torch.device) -> Model:
    """Return a model with random weights, the same on every device."""
    config = {**SHAPES[shape], "max_target_positions": CONTEXT_TOKENS, "max_position_embeddings": CONTEXT_TOKENS}
    vocabulary = config["vocab_size"]
    assert isinstance(vocabulary, int)
    names = [""] * vocabulary
    kind = Whisper if config["model_type"] == "whisper" else Moonshine
    if kind is Whisper:
        names[WhisperTokens.of(vocabulary).languages.start] = "<|en|>"
    weights = RandomWeights(config, "cpu", torch.float32)
    return kind.load(weights, Spelling([b""] * vocabulary, names), "float32", device=device)


def hear(model: Model, device: torch.device | None, clips: list[NDArray[np.float32]]) -> list[Heard]:
    """Decode clips together to their ends, by a device's runner or, without a device, by the host's."""
    states = model.states(min(model.max_samples, 30 * RATE))
    blocks = len(clips) * (-(-states // BLOCK_TOKENS) + -(-model.context_tokens // BLOCK_TOKENS)) + 2
    cache = KVCache(model.spec.pages, blocks, BLOCK_TOKENS, model.dtype, device or torch.device("cpu"))
    runner = CudaRecogniser(model, cache, device, max_rows=len(clips)) if device else Recogniser(model, cache)
    if isinstance(runner, CudaRecogniser) and device is not None and device.type == "cuda":
        runner.capture()
    pool = BlockPool(blocks, BLOCK_TOKENS)
    looks = [Heard(_request(model, pool, clip)) for clip in clips]
    while live := [look for look in looks if not look.done]:
        for look, outcome in zip(live, runner.run(ModelBatch(rows=[one.row() for one in live])), strict=True):
            assert isinstance(outcome, TranscriptionOutcome)
            assert not outcome.failed
            look.take([choice.token for choice in outcome.choices], frozenset(model.eos_ids))
            look.logprobs += [choice.logprob or 0.0 for choice in outcome.choices]
    return looks


def _request(model: Model, pool: BlockPool, clip: NDArray[np.float32]) -> Request:
    prompt = model.prompt_tokens(model.languages[0])
    return Request(
        id="clip",
        task="asr",
        tokens=list(prompt),
        prompt_tokens=len(prompt),
        table=BlockTable(pool),
        sampling=SamplingParams(logprobs=0),
        limit=model.context_tokens,
        model="asr",
        payload=TranscriptionPayload(clip),
        clip=ClipStates(model.states(len(clip)), BlockTable(pool)),
    )


def compare(device: torch.device) -> Iterator[str]:
    """Compare what both kinds write on the CPU and on a device."""
    chance = np.random.default_rng(0)
    clips = [chance.normal(0, 0.1, int(seconds * RATE)).astype(np.float32) for seconds in SECONDS]
    for shape in KINDS:
        wanted = hear(make_model(shape, torch.device("cpu")), None, clips)
        found = hear(make_model(shape, device), device, clips)
        same = [(a, b) for a, b in zip(found, wanted, strict=True) if a.tokens == b.tokens]
        off = [abs(mine - theirs) for a, b in same for mine, theirs in zip(a.logprobs, b.logprobs, strict=True)]
        words = sum(len(one.tokens) for one in wanted)
        yield (
            f"{shape}: {len(same)} of {len(wanted)} clips as on the CPU, {words} tokens, log-probabilities within "
            f"{max(off, default=0.0):.1e}"
        )
