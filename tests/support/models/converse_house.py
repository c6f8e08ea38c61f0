"""Runs LFM2-Audio's requests by hand, step by step, on a small random model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from voxlane.engine.api import SamplingParams
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.lfm2_audio.config import TEXT_END
from voxlane.engine.models.lfm2_audio.dialogue import Dialogue, Piece, number_of, rows_of
from voxlane.engine.models.lfm2_audio.interleaving import Turn
from voxlane.engine.models.lfm2_audio.mimi import MimiCodec
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.runners.converse import ConverseOutcome, ConverseRunner, DialogueStream
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Request

LIKELIEST = SpeechSampling(temperature=0.0)
DRAWN = SpeechSampling(temperature=1.0, top_k=4)
STEPS = 24
SOUND_TOLERANCE = 2e-5
"""Of samples whose loudness is 0.1: a codec's products round differently for another number of rows."""
BLOCK, BLOCKS, ROWS = 4, 400, 6

MakeRunner = Callable[[Lfm2Audio, MimiCodec, KVCache], ConverseRunner]


def host_runner(model: Lfm2Audio, codec: MimiCodec, cache: KVCache) -> ConverseRunner:
    """Return a runner on the host."""
    return ConverseRunner(model, codec, cache, slots=ROWS, max_rows=ROWS)


class House:
    """A runner and its requests, stepped by hand."""

    def __init__(self, model: Lfm2Audio, codec: MimiCodec, make: MakeRunner = host_runner) -> None:
        cache = KVCache(model.spec.pages, BLOCKS, BLOCK, torch.float32, host_blocks=8)
        self.model = model
        self.runner = make(model, codec, cache)
        self.pool = BlockPool(BLOCKS, BLOCK, state=cache.state)
        self.samples: dict[Request, list[np.ndarray]] = {}

    def ask(
        self, prompt: Sequence[Piece], sampling: SpeechSampling = LIKELIEST, seed: int = 5, turn: Turn | None = None
    ) -> Request:
        """Return a request whose prompt is complete; without `turn` text and sound take turns."""
        dialogue = Dialogue(prompt)
        config = self.model.config
        dialogue.begin(turn or Turn.interleaved(config.interleaved_text, config.interleaved_frames))
        stream = DialogueStream(dialogue, sampling, seed, slot=self.runner.slots.take())
        numbers = [number_of(piece) for piece in dialogue.pieces]
        text = SamplingParams() if sampling is LIKELIEST else SamplingParams(temperature=1.0, top_k=20)
        made = Request(
            f"{seed}", "converse", numbers, len(numbers), BlockTable(self.pool), model="speech", payload=stream,
            sampling=text, seed=seed,
        )  # fmt: skip
        self.samples[made] = []
        return made

    def step(self, requests: Sequence[Request], most: int = 1 << 20) -> None:
        """Run one step in which each request computes at most so many positions, and take its outcomes."""
        rows = []
        for request in requests:
            count = min(request.pending, most)
            rows.append(Row(request, request.table.length, count))
            request.table.append(count)
        for row, outcome in zip(rows, self.runner.run(ModelBatch(rows=rows)), strict=True):
            assert isinstance(outcome, ConverseOutcome)
            self._take(row, outcome)

    def _take(self, row: Row, outcome: ConverseOutcome) -> None:
        stream = row.request.payload
        assert isinstance(stream, DialogueStream)
        dialogue = stream.utterance
        if outcome.token is not None:
            dialogue.add_token(outcome.token)
        if outcome.frame is not None:
            dialogue.add(outcome.frame)
        elif dialogue.frame_due(row.start + row.count):
            row.request.table.rewind(row.start + row.count - 1)  # its state row is behind
        stream.decoded += len(outcome.samples) // self.runner.codec.frame_samples
        self.samples[row.request].append(outcome.samples)
        row.request.tokens = [number_of(piece) for piece in dialogue.pieces]

    def answer(self, request: Request, steps: int = STEPS) -> list[Piece]:
        """Run a request alone until it has made so many pieces; return them."""
        while len(dialogue(request).answer) < steps and not dialogue(request).ended:
            self.step([request])
        return dialogue(request).answer


def dialogue(request: Request) -> Dialogue:
    """Return a request's dialogue."""
    assert isinstance(request.payload, DialogueStream)
    return request.payload.utterance


def sound(seconds: float, seed: int) -> torch.Tensor:
    """Return noise at 16 kHz."""
    return torch.randn(int(16_000 * seconds), generator=torch.Generator().manual_seed(seed)) * 0.1


def prompts(model: Lfm2Audio) -> list[list[Piece]]:
    """Return prompts: text alone, a clip among text, an earlier answer with frames, two clips."""
    groups = model.config.groups
    frames: list[Piece] = [tuple(range(n, n + groups)) for n in (3, 700)]
    return [
        [1, 6, 150, 160, 7],
        [1, 6, *rows_of(model.clip(sound(0.7, 1))), 7, 6],
        [1, 140, *frames, 141, TEXT_END, frames[0], 7, *rows_of(model.clip(sound(0.3, 2))), 7],
        [1, *rows_of(model.clip(sound(0.5, 3))), 7, 150, *rows_of(model.clip(sound(1.2, 4))), 7, 6],
    ]
