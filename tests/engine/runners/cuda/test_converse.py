"""LFM2-Audio as it runs on a device, here on a CPU: token by token, frame by frame what the host's runner makes."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from converse_house import BLOCK, DRAWN, LIKELIEST, ROWS, SOUND_TOLERANCE, House, dialogue, host_runner, prompts, sound
from examples import sweep

from voxlane.engine.api import SamplingParams
from voxlane.engine.jobs.dialogue_job import READING
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.lfm2_audio.dialogue import number_of
from voxlane.engine.models.lfm2_audio.mimi import MimiCodec
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.runners.codec_streams import CodecRunner
from voxlane.engine.runners.converse import ConverseRunner, DialogueStream
from voxlane.engine.runners.cuda import conformer_graphs
from voxlane.engine.runners.cuda.conformer_graphs import ConformerGraphs
from voxlane.engine.runners.cuda.converse import CudaConverse
from voxlane.engine.schedule.request import Request

TOKENS, STEPS = 300, 30


def device_runner(model: Lfm2Audio, codec: MimiCodec, cache: KVCache) -> CudaConverse:
    return CudaConverse(model, codec, cache, torch.device("cpu"), slots=ROWS, max_rows=ROWS, max_tokens=TOKENS)


def stream(request: Request) -> DialogueStream:
    assert isinstance(request.payload, DialogueStream)
    return request.payload


def rewind(house: House, request: Request, frames: int) -> None:
    """Let a request go back to a frame, as its job does."""
    sounds = np.concatenate(house.samples[request])
    own = stream(request)
    own.rewind(frames)
    request.tokens = [number_of(piece) for piece in own.utterance.pieces]
    request.table.rewind(min(request.table.length, own.utterance.available - 1))
    house.samples[request] = [sounds[: own.decoded * house.runner.codec.frame_samples]]


def play(house: House, seed: int, sampling: SpeechSampling) -> list[Request]:
    """Let dialogues come and go on in chunks of any size; now and then one is rewound."""
    luck = random.Random(seed)
    requests = [house.ask(prompt, sampling, seed=n) for n, prompt in enumerate(prompts(house.model))]
    for request in requests:
        request.sampling = SamplingParams()  # drawn differently on the host: see sampling.py
    there = requests[:2]
    for step in range(STEPS):
        there = requests[: 2 + step // 3]
        going = [one for one in there if not dialogue(one).ended]
        some = [one for one in going if luck.random() < 0.8] or going
        if not some:
            break
        for one in some:
            stream(one).chunk, stream(one).keep = luck.choice((1, 2, 3, 8)), luck.choice((0, 0, 1))
        if step % 7 == 6 and (spoken := [one for one in some if dialogue(one).frames]):
            one = luck.choice(spoken)
            rewind(house, one, luck.randrange(len(dialogue(one).frames)))
        house.step(some, most=luck.choice((1, 3, 100)))
    return requests


@pytest.mark.parametrize("sampling", sweep([DRAWN, LIKELIEST, READING]), ids=["drawn", "likeliest", "read aloud"])
@pytest.mark.parametrize("seed", sweep([0, 1]))
def test_tokens_frames_and_samples_are_the_hosts(
    model: Lfm2Audio, codec: MimiCodec, monkeypatch: pytest.MonkeyPatch, seed: int, sampling: SpeechSampling
) -> None:
    """Prompts in chunks, mixed with tokens and frames; chunks of any size for the codec; rewound dialogues."""
    monkeypatch.setattr(CudaConverse, "hears", CodecRunner.hears)
    houses = [House(model, codec, make) for make in (host_runner, device_runner)]
    expected, got = (play(house, seed, sampling) for house in houses)
    assert sum(len(dialogue(one).frames) for one in expected) > 20
    for one, other in zip(expected, got, strict=True):
        assert dialogue(other).pieces == dialogue(one).pieces or _same_but_clips(other, one)
        assert stream(other).decoded == stream(one).decoded
        wanted, found = (
            np.concatenate(house.samples[request]) for house, request in zip(houses, (one, other), strict=True)
        )
        np.testing.assert_allclose(found, wanted, atol=SOUND_TOLERANCE)


def _same_but_clips(one: Request, other: Request) -> bool:
    """Return whether two dialogues have the same positions; each has clips of its own."""
    return one.tokens == other.tokens


def test_sound_goes_on_after_an_end_of_sound(
    model: Lfm2Audio, codec: MimiCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device decodes a frame before the host sees that it is an end: then the state row is caught up."""
    make_frames = Lfm2Audio.make_frames
    found = []
    for make in (host_runner, device_runner):
        house, calls = House(model, codec, make), [0]

        def make_and_end(self: Lfm2Audio, *arguments: object, calls: list[int] = calls) -> torch.Tensor:
            frames = make_frames(self, *arguments)  # type: ignore[arg-type]
            calls[0] += 1
            if calls[0] == 3:
                frames[:, 0] = self.end_code
            return frames

        monkeypatch.setattr(Lfm2Audio, "make_frames", make_and_end)
        request = house.ask(prompts(model)[1], DRAWN)
        request.sampling = SamplingParams()
        pieces = house.answer(request, 20)
        found.append((pieces, np.concatenate(house.samples[request])))
    (wanted, sound), (pieces, samples) = found
    assert pieces == wanted
    ends = [number for number, piece in enumerate(wanted) if isinstance(piece, tuple) and piece[0] == model.end_code]
    assert ends
    assert any(isinstance(piece, tuple) for piece in wanted[ends[0] + 1 :]), "there is sound after it"
    np.testing.assert_allclose(samples, sound, atol=SOUND_TOLERANCE)


def test_a_draw_does_not_depend_on_the_batch_or_on_chunks(model: Lfm2Audio, codec: MimiCodec) -> None:
    """Rows of conversations and of texts that are read aloud, in the same steps."""
    alone, asked = [], list(enumerate(zip(prompts(model), itertools.cycle((DRAWN, READING)), strict=False)))
    for number, (prompt, sampling) in asked:
        house = House(model, codec, device_runner)
        alone.append(house.answer(house.ask(prompt, sampling, seed=number)))
    house = House(model, codec, device_runner)
    requests = [house.ask(prompt, sampling, seed=number) for number, (prompt, sampling) in asked]
    while going := [one for one in requests if len(dialogue(one).answer) < 24 and not dialogue(one).ended]:
        house.step(going, most=3)
    assert [dialogue(one).answer for one in requests] == alone


def test_penalties_and_biases_are_the_hosts(model: Lfm2Audio, codec: MimiCodec) -> None:
    found = []
    for make in (host_runner, device_runner):
        house = House(model, codec, make)
        one, other = (house.ask(prompt, DRAWN, seed=n) for n, prompt in enumerate(prompts(model)[1:3]))
        one.sampling = SamplingParams(repetition_penalty=1.4, presence_penalty=0.5, logit_bias=((150, 30.0),))
        other.sampling = SamplingParams()
        for _ in range(12):
            house.step([one, other])
        found.append([dialogue(request).answer for request in (one, other)])
    assert found[0] == found[1]
    assert 150 in found[0][0]


def test_after_a_fault_everything_is_told_again(model: Lfm2Audio, codec: MimiCodec) -> None:
    """A step that failed half way leaves nothing that a later one would take for granted."""
    found = []
    for make in (host_runner, device_runner):
        house = House(model, codec, make)
        request = house.ask(prompts(model)[1], DRAWN)
        request.sampling = SamplingParams()
        house.answer(request, 6)
        if isinstance(house.runner, CudaConverse):
            launch, house.runner._calls.launch = house.runner._calls.launch, _fail  # type: ignore[method-assign]
            length = request.table.length
            with pytest.raises(RuntimeError, match="no more memory"):
                house.step([request])
            house.runner._calls.launch = launch  # type: ignore[method-assign]
            request.table.rewind(length)
            house.runner.state.numbers.fill_(0.5)
        found.append((house.answer(request, 18), np.concatenate(house.samples[request])))
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[1][1], found[0][1], atol=SOUND_TOLERANCE)


def _fail(pieces: object) -> list[list[torch.Tensor]]:
    raise RuntimeError("no more memory")


def test_a_clip_longer_than_any_graph_is_encoded_all_the_same(
    model: Lfm2Audio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformer_graphs, "STATES", (4, 8))
    graphs = ConformerGraphs(model.encoder, torch.device("cpu"))
    for seconds in (0.1, 0.5, 0.64, 2.0):
        own, other = (model.clip(sound(seconds, 7)) for _ in range(2))
        with torch.inference_mode():
            model.encode([own])
            model.encode([other], graphs.encode)
        assert own.rows is not None
        assert other.rows is not None
        torch.testing.assert_close(other.rows, own.rows, rtol=1e-4, atol=1e-5)


def test_there_is_a_graph_for_every_step_there_may_be(model: Lfm2Audio, codec: MimiCodec) -> None:
    rows, most = 300, 4000
    cache = KVCache(model.spec.pages, 8, BLOCK, torch.float32)
    runner = CudaConverse(model, codec, cache, torch.device("cpu"), slots=4, max_rows=rows, max_tokens=most)
    for tokens, members, wide in ((rows, rows, False), (1, 1, False), (5 * rows, rows, True), (most, 1, True)):
        size = runner._graphs.size(tokens, members, wide=wide)
        assert (size.tokens >= tokens, size.rows >= members, size.wide) == (True, True, wide)
        assert len(runner._graphs.packet(size).host["lengths"]) == size.rows
    assert (runner._text.size(rows), runner._speech.size(rows), runner._text.size(3)) == (rows, rows, 4)


def test_the_device_runs_what_the_host_runs() -> None:
    assert issubclass(CudaConverse, ConverseRunner)
    assert CudaConverse.launch is not ConverseRunner.launch
