"""LFM2-Audio's joint generation: the slow reference's pieces, whatever is beside a dialogue and however it is cut."""

from __future__ import annotations

import lfm2_audio_checkpoint as checkpoint
import numpy as np
import pytest
import torch
from converse_house import DRAWN, LIKELIEST, SOUND_TOLERANCE, STEPS, House, dialogue, prompts
from examples import sweep
from lfm2_audio_reference import SlowSpeech

from voxlane.engine.models.lfm2_audio.dialogue import ClipRow, SpokenClip, number_of
from voxlane.engine.models.lfm2_audio.mimi import MimiCodec
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.runners.converse import DialogueStream, EncodedClips


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


@pytest.mark.parametrize("sampling", sweep([DRAWN, LIKELIEST]), ids=["drawn", "likeliest"])
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


@pytest.mark.parametrize("frames", sweep([3, 0, 1, 4, 6]))
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


def test_a_clip_that_was_heard_before_is_not_encoded_again(
    model: Lfm2Audio, codec: MimiCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next turns bring the same sound along, in clips of their own."""
    house, encoded = House(model, codec), []
    plain = model.encode
    monkeypatch.setattr(model, "encode", lambda clips: (encoded.extend(clips), plain(clips)))
    for _ in range(2):
        request = house.ask(prompts(model)[1])
        house.answer(request)
        house.runner.slots.release(request.payload.slot)
    heard = {piece.clip.digest for piece in prompts(model)[1] if isinstance(piece, ClipRow)}
    assert [clip.digest for clip in encoded] == list(heard)


def test_only_so_many_rows_are_kept_those_used_last() -> None:
    clips = [SpokenClip(torch.full((16,), number / 8), states=4) for number in range(4)]
    encoded: list[SpokenClip] = []

    def encode(given: list[SpokenClip]) -> None:
        encoded.extend(given)
        for clip in given:
            clip.rows = clip.samples[:4].clone()

    kept = EncodedClips(most_rows=8)
    for number in (0, 1, 0, 2, 0, 1):
        clip = SpokenClip(clips[number].samples, states=4)
        kept.encode([clip, clip], encode)
        assert torch.equal(clip.rows, clips[number].samples[:4])
    assert [int(8 * clip.samples[0]) for clip in encoded] == [0, 1, 2, 1]
