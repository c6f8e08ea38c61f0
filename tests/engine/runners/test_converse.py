"""LFM2-Audio's joint generation: the slow reference's pieces, whatever is beside a dialogue and however it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lfm2_audio_checkpoint as checkpoint
import numpy as np
import pytest
import torch
from lfm2_audio_reference import SlowSpeech

from voxlane.engine.api import SamplingParams
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.lfm2_audio.config import TEXT_END
from voxlane.engine.models.lfm2_audio.dialogue import ClipRow, Dialogue, Piece, number_of, rows_of
from voxlane.engine.models.lfm2_audio.interleaving import Turn
from voxlane.engine.models.lfm2_audio.mimi import MimiCodec
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.runners.converse import ConverseOutcome, ConverseRunner, DialogueStream
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Request
from voxlane.engine.weights.safetensors import SafetensorsDirectory

LIKELIEST = SpeechSampling(temperature=0.0)
DRAWN = SpeechSampling(temperature=1.0, top_k=4)
STEPS = 24
SOUND_TOLERANCE = 2e-5
"""Of samples whose loudness is 0.1: a codec's products round differently for another number of rows."""
BLOCK = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.write(tmp_path_factory.mktemp("lfm2-audio"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Lfm2Audio:
    return Lfm2Audio.load(SafetensorsDirectory(folder), "float32")


@pytest.fixture(scope="module")
def codec(folder: Path, model: Lfm2Audio) -> MimiCodec:
    return MimiCodec.load(SafetensorsDirectory(folder / "mimi"), model.config.groups)


class House:
    """A runner and its requests, stepped by hand."""

    def __init__(self, model: Lfm2Audio, codec: MimiCodec) -> None:
        cache = KVCache(model.spec.pages, 400, BLOCK, torch.float32, host_blocks=8)
        self.model = model
        self.runner = ConverseRunner(model, codec, cache, slots=6, max_rows=6)
        self.pool = BlockPool(400, BLOCK, state=cache.state)
        self.samples: dict[Request, list[np.ndarray]] = {}

    def ask(self, prompt: Sequence[Piece], sampling: SpeechSampling = LIKELIEST, seed: int = 5) -> Request:
        """Return a request whose prompt is complete."""
        dialogue = Dialogue(prompt)
        config = self.model.config
        dialogue.begin(Turn.interleaved(config.interleaved_text, config.interleaved_frames))
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
    assert isinstance(request.payload, DialogueStream)
    return request.payload.utterance


def sound(seconds: float, seed: int) -> torch.Tensor:
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


def test_the_answers_are_the_slow_references(model: Lfm2Audio, codec: MimiCodec) -> None:
    slow = SlowSpeech(checkpoint.config(), checkpoint.tensors())
    house = House(model, codec)
    made = []
    for prompt in prompts(model):
        request = house.ask(prompt)
        made.append(house.answer(request))
        read = [piece.clip.rows[piece.index] if isinstance(piece, ClipRow) else piece for piece in prompt]
        assert made[-1] == slow.answer(read, STEPS)
        house.runner.slots.release(request.payload.slot)
    pieces = [piece for answer in made for piece in answer]
    assert any(isinstance(piece, int) for piece in pieces)
    assert any(isinstance(piece, tuple) for piece in pieces)


@pytest.mark.parametrize("sampling", [LIKELIEST, DRAWN], ids=["likeliest", "drawn"])
def test_an_answer_is_the_same_alone_and_among_others_and_in_chunks(
    model: Lfm2Audio, codec: MimiCodec, sampling: SpeechSampling
) -> None:
    alone = []
    for number, prompt in enumerate(prompts(model)):
        house = House(model, codec)
        request = house.ask(prompt, sampling, seed=number)
        alone.append((house.answer(request), np.concatenate(house.samples[request])))
    house = House(model, codec)
    requests = [house.ask(prompt, sampling, seed=number) for number, prompt in enumerate(prompts(model))]
    while going := [one for one in requests if len(dialogue(one).answer) < STEPS and not dialogue(one).ended]:
        house.step(going, most=3)
    for request, (pieces, samples) in zip(requests, alone, strict=True):
        assert dialogue(request).answer == pieces
        np.testing.assert_allclose(np.concatenate(house.samples[request]), samples, atol=SOUND_TOLERANCE)


def test_the_samples_are_those_of_all_frames_at_once(model: Lfm2Audio, codec: MimiCodec) -> None:
    house = House(model, codec)
    request = house.ask(prompts(model)[1], DRAWN)
    house.answer(request)
    frames = torch.tensor([dialogue(request).frames])
    whole = codec.decode(frames, codec.state(1, frames.shape[1]), torch.tensor([0]))[0].numpy()
    np.testing.assert_allclose(np.concatenate(house.samples[request]), whole, atol=SOUND_TOLERANCE)


@pytest.mark.parametrize("frames", [0, 1, 3, 4, 6])
def test_after_a_rewind_the_same_follows(model: Lfm2Audio, codec: MimiCodec, frames: int) -> None:
    """Into the middle of a block: convolutions whose past is overwritten are computed again."""
    house = House(model, codec)
    request = house.ask(prompts(model)[3], DRAWN)
    before = house.answer(request)
    sounds = np.concatenate(house.samples[request])
    stream = request.payload
    assert isinstance(stream, DialogueStream)
    stream.rewind(frames)
    request.tokens = [number_of(piece) for piece in stream.utterance.pieces]
    request.table.rewind(min(request.table.length, stream.utterance.available - 1))
    house.samples[request] = [sounds[: frames * codec.frame_samples]]
    assert len(stream.utterance.frames) == frames
    assert house.answer(request) == before
    np.testing.assert_allclose(np.concatenate(house.samples[request]), sounds, atol=SOUND_TOLERANCE)
