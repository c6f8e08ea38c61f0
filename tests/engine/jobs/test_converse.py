"""A speech-to-speech model in a whole engine: turns with text and sound, held, rewound, and what is known of them next.

The weights are random: the plumbing is real, the voice is noise.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import lfm2_audio_checkpoint as checkpoint
import pytest
import torch
from converse_listener import BLOCK, Listener, Talker, assert_alike, sound
from examples import sweep

from voxlane.engine.api import (
    Append,
    Cancel,
    ChatMessage,
    EndInput,
    Pause,
    Resume,
    Rewind,
    SamplingParams,
    SpeakParams,
    Submit,
    Tool,
    heard_pieces,
)
from voxlane.engine.jobs.converse import ConverseJob
from voxlane.engine.models.lfm2_audio.config import END_OF_TURN, TEXT_END
from voxlane.engine.models.lfm2_audio.dialogue import ClipRow
from voxlane.engine.models.lfm2_audio.mimi import MimiCodec
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.lfm2_audio.prompt import ConversePrompts
from voxlane.engine.runners.converse import ConverseRunner
from voxlane.engine.runners.cuda.converse import CudaConverse
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.voices.word_timing import LETTERS_PER_S
from voxlane.engine.weights.safetensors import SafetensorsDirectory

TOKENS = 9
PLAIN = SamplingParams(max_tokens=TOKENS)
DRAWN = SamplingParams(max_tokens=TOKENS, temperature=1.0, top_k=20, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.write(tmp_path_factory.mktemp("lfm2-audio"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Lfm2Audio:
    return Lfm2Audio.load(SafetensorsDirectory(folder), "float32")


@pytest.fixture(scope="module")
def codec(folder: Path, model: Lfm2Audio) -> MimiCodec:
    return MimiCodec.load(SafetensorsDirectory(folder / "mimi"), model.config.groups)


@pytest.fixture(scope="module")
def prompts(folder: Path, model: Lfm2Audio) -> ConversePrompts:
    return ConversePrompts.of(model, Tokenizer.open(folder))


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Talker:
    """A model that writes letters and never ends its text, and ends its sound now and then."""
    return Talker.of(checkpoint.write(tmp_path_factory.mktemp("talker"), letters="abc ", breathes=True))


both = pytest.mark.parametrize("make", [ConverseRunner, CudaConverse], ids=["host", "device"])
"""On the host, and as it runs on a device, here on a CPU."""


def answer(listener: Listener, submit: Submit, said: bytes) -> tuple[str, bytes, list[tuple[int, ...]]]:
    listener.ask(submit.request_id, submit, said)
    listener.run()
    name = submit.request_id
    assert listener.ends[name] in ("eos", "length")
    return listener.text.get(name, ""), listener.pcm[name], listener.pieces[name]


@pytest.mark.parametrize("sampling", [PLAIN, DRAWN], ids=["likeliest", "drawn"])
def test_a_turn_is_answered_in_text_and_sound_the_same_every_time(
    model: Lfm2Audio, codec: MimiCodec, prompts: ConversePrompts, sampling: SamplingParams
) -> None:
    first = answer(Listener(model, codec, prompts), Submit("a", "converse", sampling=sampling), sound(0.9))
    text, pcm, pieces = first
    frames = [piece for piece in pieces if len(piece) > 1 and piece[0] != 2048]
    assert any(len(piece) == 1 for piece in pieces)
    assert frames
    assert text or sampling is PLAIN, "the likeliest tokens of random weights may have no text"
    assert len(pcm) == 2 * codec.frame_samples * len(frames)
    listener = Listener(model, codec, prompts)
    for name, seconds in (("b", 0.4), ("c", 1.3)):
        listener.ask(name, Submit(name, "converse", sampling=DRAWN), sound(seconds, seed=9))
    assert answer(listener, Submit("a", "converse", sampling=sampling), sound(0.9))[::2] == first[::2]
    assert_alike(listener.pcm["a"], pcm)


def test_a_listener_with_audio_gets_several_frames_at_a_time_and_none_is_lost(
    model: Lfm2Audio, codec: MimiCodec, prompts: ConversePrompts
) -> None:
    """The first frame leaves alone. Before text, and at the end, all frames that were made are decoded."""
    listener = Listener(model, codec, prompts)
    listener.tick_s = 1e-6  # the engine is faster than the sound
    for seed in range(3):
        name, sampling = f"s{seed}", SamplingParams(max_tokens=4 + 2 * seed, temperature=1.0, top_k=20, seed=seed)
        _, pcm, pieces = answer(listener, Submit(name, "converse", sampling=sampling), sound(0.4, seed))
        frames = sum(len(piece) > 1 and piece[0] != model.end_code for piece in pieces)
        assert len(pcm) == 2 * codec.frame_samples * frames
    assert listener.sizes[0] == 1, "words wait for their sound"
    assert max(listener.sizes) > 1


@pytest.mark.parametrize("cuts", [(), (1,), (7001, 7002, 20001), tuple(range(333, 28000, 333))])
def test_a_clip_has_the_same_rows_however_it_came(
    model: Lfm2Audio, prompts: ConversePrompts, cuts: tuple[int, ...]
) -> None:
    """Its spectrogram is computed while the person speaks; that of a clip in the history is not."""
    said = sound(0.9)
    clip = prompts.listen()
    for start, stop in itertools.pairwise((0, *cuts, len(said))):
        clip.append(said[start:stop])
    live, kept = (pieces[0].clip for pieces in (clip.finish(), prompts.spoken(said)) if isinstance(pieces[0], ClipRow))
    assert live.mel is not None
    assert kept.mel is None
    assert live.digest == kept.digest
    with torch.inference_mode():
        model.encode([live])
        model.encode([kept])
    assert live.rows is not None
    assert torch.equal(live.rows, kept.rows)


@both
def test_held_and_let_go_nothing_is_lost_or_repeated(
    model: Lfm2Audio, codec: MimiCodec, prompts: ConversePrompts, make: type[ConverseRunner]
) -> None:
    expected = answer(Listener(model, codec, prompts, make), Submit("a", "converse", sampling=DRAWN), sound(0.9))
    listener = Listener(model, codec, prompts, make)
    listener.ask("a", Submit("a", "converse", sampling=DRAWN), sound(0.9))
    for _ in range(12):
        listener.run(3)
        listener.send(Pause(("a",)))
        listener.run(2)  # a step under way on a device still counts
        before = listener.pcm.get("a")
        listener.run(4)
        assert listener.pcm.get("a") == before
        listener.send(Resume("a"))
    listener.run()
    assert (listener.text["a"], listener.pcm["a"], listener.pieces["a"]) == expected


@both
@pytest.mark.parametrize("frame", sweep([1, 0, 4, 5]))
def test_rewound_it_says_the_same_again(
    model: Lfm2Audio, codec: MimiCodec, prompts: ConversePrompts, make: type[ConverseRunner], frame: int
) -> None:
    expected = answer(Listener(model, codec, prompts, make), Submit("a", "converse", sampling=DRAWN), sound(0.9))
    listener = Listener(model, codec, prompts, make)
    listener.ask("a", Submit("a", "converse", sampling=DRAWN), sound(0.9))
    while len(listener.pcm.get("a", b"")) < 2 * codec.frame_samples * 7:
        listener.run(1)
    listener.send(Rewind("a", frame * codec.frame_samples + 5))
    assert len(listener.pcm["a"]) == 2 * frame * codec.frame_samples
    listener.run()
    assert (listener.text["a"], listener.pieces["a"]) == (expected[0], expected[2])
    assert_alike(listener.pcm["a"], expected[1])


@both
def test_streams_share_a_row_of_the_codec_and_blocks(
    model: Lfm2Audio, codec: MimiCodec, prompts: ConversePrompts, make: type[ConverseRunner]
) -> None:
    """One row for two who speak, and so few blocks that one has to yield."""
    alone = {
        name: answer(Listener(model, codec, prompts, make), Submit(name, "converse", sampling=DRAWN), sound(0.5, seed))
        for name, seed in (("a", 1), ("b", 2))
    }
    listener = Listener(model, codec, prompts, make, slots=1, blocks=80)
    for name, seed in (("a", 1), ("b", 2)):
        listener.ask(name, Submit(name, "converse", sampling=DRAWN), sound(0.5, seed))
    listener.run()
    for name, (text, pcm, pieces) in alone.items():
        assert (listener.text.get(name, ""), listener.pieces[name]) == (text, pieces)
        assert_alike(listener.pcm[name], pcm)


def test_the_next_answer_knows_what_was_heard_and_nothing_else(
    model: Lfm2Audio, codec: MimiCodec, prompts: ConversePrompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history holds what the person said and the answer up to the last frame of which a sample was heard."""
    listener = Listener(model, codec, prompts)
    first = sound(0.9)
    _, _, pieces = answer(listener, Submit("a", "converse", sampling=DRAWN), first)
    heard = heard_pieces(pieces, 3 * codec.frame_samples + 1, codec.frame_samples)
    frames = [piece for piece in heard if len(piece) > 1]
    assert len(frames) == 4
    assert heard == tuple(pieces[: len(heard)])
    history = (ChatMessage("user", "", sound=first), ChatMessage("assistant", "", pieces=heard))
    opened: list[ConverseJob] = []
    begin = ConverseJob.open

    def open_and_note(job: ConverseJob, now: float) -> object:
        opened.append(job)
        return begin(job, now)

    monkeypatch.setattr(ConverseJob, "open", open_and_note)
    told = answer(listener, Submit("b", "converse", history, sampling=DRAWN), sound(0.4, seed=5))
    (job,) = opened
    read = job._dialogue.pieces[: -len(job._dialogue.answer)]
    shown = [piece for piece in read if isinstance(piece, tuple)]
    assert shown == frames, "no frame that was not heard"
    clips = {piece.clip.samples.shape[0] for piece in read if isinstance(piece, ClipRow)}
    assert clips == {len(first) // 2, int(16_000 * 0.4)}
    assert listener.cached["b"] >= BLOCK, "the first turn's clip was read before"
    anew = answer(Listener(model, codec, prompts), Submit("b", "converse", history, sampling=DRAWN), sound(0.4, seed=5))
    assert (told[0], told[2]) == (anew[0], anew[2]), "a prefix that was cached has the same bits"
    other = ChatMessage("assistant", "", pieces=heard_pieces(pieces, codec.frame_samples, codec.frame_samples))
    changed = Submit("c", "converse", (history[0], other), sampling=DRAWN)
    assert answer(listener, changed, sound(0.4, seed=5))[2] != told[2], "it is conditioned on what was heard"


def test_typed_text_is_answered(model: Lfm2Audio, codec: MimiCodec, prompts: ConversePrompts) -> None:
    listener = Listener(model, codec, prompts)
    listener.send(Submit("a", "converse", text="Hello there", sampling=PLAIN), EndInput("a"))
    listener.run()
    assert listener.pcm["a"]
    listener.send(Submit("b", "converse", sampling=PLAIN), EndInput("b"))
    listener.run()
    assert listener.ends["b"] == "eos"
    assert "b" not in listener.pcm, "nothing was said"


def test_a_cancelled_turn_leaves_nothing(model: Lfm2Audio, codec: MimiCodec, prompts: ConversePrompts) -> None:
    listener = Listener(model, codec, prompts)
    listener.ask("a", Submit("a", "converse", sampling=PLAIN), sound(0.5))
    listener.run(9)
    listener.send(Cancel("a"))
    listener.run()
    assert listener.ends["a"] == "cancelled"
    assert listener.pool.used == 0


def test_what_it_cannot_do_is_named(model: Lfm2Audio, codec: MimiCodec, prompts: ConversePrompts) -> None:
    listener = Listener(model, codec, prompts)
    refused = {
        "tools": Submit("tools", "converse", tools=(Tool("f", "", "{}"),)),
        "schema": Submit("schema", "converse", sampling=SamplingParams(schema="json")),
        "speed": Submit("speed", "converse", speak=SpeakParams(speed=1.5)),
        "pieces": Submit("pieces", "converse", (ChatMessage("assistant", "", pieces=((1, 2),)),)),
        "role": Submit("role", "converse", (ChatMessage("tool", "x"),)),
    }
    for name, submit in refused.items():
        listener.send(submit)
        assert name in listener.refused[name]
    assert listener.core.busy is False


LONG = [SamplingParams(max_tokens=most, temperature=1.0, top_k=20, seed=most) for most in (1, 3, 7, 9)]
"""Answers whose text ends within a run of tokens and at the end of one."""


def place_of_end(pieces: list[tuple[int, ...]]) -> int:
    """Return how many frames of sound come before the end of the text."""
    end = pieces.index((TEXT_END,))
    return sum(len(piece) > 1 and piece[0] != Lfm2Audio.end_code for piece in pieces[:end])


@both
@pytest.mark.parametrize("sampling", sweep(LONG, here=2), ids=lambda one: str(one.max_tokens))
def test_text_as_long_as_it_may_be_is_ended_and_said(
    talker: Talker, make: type[ConverseRunner], sampling: SamplingParams
) -> None:
    """Text runs ahead of sound: the words that have no sound yet are said before the answer ends."""
    listener = talker.listener(make)
    text, pcm, pieces = answer(listener, Submit("a", "converse", sampling=sampling), sound(0.9))
    assert listener.ends["a"] == "length"
    tokens = [place for place, piece in enumerate(pieces) if len(piece) == 1]
    assert len(tokens) == sampling.max_tokens + 1
    assert pieces[tokens[-1]] == (TEXT_END,)
    spoken = [piece for piece in pieces if len(piece) > 1 and piece[0] != talker.model.end_code]
    assert len(pcm) == 2 * talker.codec.frame_samples * len(spoken)
    assert pieces[-1] == (talker.model.end_code,) * talker.model.config.groups, "the model ended it"
    words = [text[start:end] for start, end in listener.words.get("a", [])]
    assert words == text.split()
    assert listener.pool.used == 0


@both
@pytest.mark.parametrize("sampling", sweep(LONG), ids=lambda one: str(one.max_tokens))
def test_held_or_rewound_where_its_text_was_ended_an_answer_is_the_same(
    talker: Talker, make: type[ConverseRunner], sampling: SamplingParams
) -> None:
    submit = Submit("a", "converse", sampling=sampling)
    text, pcm, pieces = answer(talker.listener(make), submit, sound(0.9))
    before, frame = place_of_end(pieces), 2 * talker.codec.frame_samples
    last = len(pcm) // frame
    for reached, back in {(before, before), (min(before + 1, last), before), (last, max(before - 1, 0)), (last, 0)}:
        listener = talker.listener(make)
        listener.ask("a", submit, sound(0.9))
        while len(listener.pcm.get("a", b"")) < frame * reached and "a" not in listener.ends:
            listener.run(1)
        for _ in range(4):
            listener.send(Pause(("a",)))
            listener.run(4)
            listener.send(Resume("a"))
            listener.run(1)
        if "a" not in listener.ends:
            listener.send(Rewind("a", back * talker.codec.frame_samples))
        listener.run()
        assert (listener.ends["a"], listener.text["a"], listener.pieces["a"]) == ("length", text, pieces)
        assert_alike(listener.pcm["a"], pcm)


@pytest.mark.parametrize("make", sweep([CudaConverse, ConverseRunner]), ids=["device", "host"])
def test_answers_whose_text_is_ended_do_not_depend_on_others(talker: Talker, make: type[ConverseRunner]) -> None:
    """Two rows of the codec for four who speak, and so few blocks that some have to yield."""
    alone = [
        answer(talker.listener(make), Submit("a", "converse", sampling=sampling), sound(0.5, seed))
        for seed, sampling in enumerate(LONG)
    ]
    listener = talker.listener(make, slots=2, blocks=28)
    for seed, sampling in enumerate(LONG):
        name = f"r{seed}"
        listener.send(Submit(name, "converse", sampling=sampling), Append(name, audio=sound(0.5, seed)), EndInput(name))
    listener.run()
    for name, (text, pcm, pieces) in zip((f"r{seed}" for seed in range(len(LONG))), alone, strict=True):
        assert (listener.text.get(name, ""), listener.pieces[name]) == (text, pieces)
        assert_alike(listener.pcm[name], pcm)
    assert listener.preemptions
    assert listener.pool.used == 0


def test_words_without_sound_have_no_time_and_are_no_pieces(talker: Talker) -> None:
    """The engine ends the sound: text that runs ahead of it was not said."""
    for max_frames in (1, 4, 6):
        listener = talker.listener(max_frames=max_frames)
        sampling = SamplingParams(max_tokens=60, temperature=1.0, top_k=20, seed=4)
        text, _, pieces = answer(listener, Submit("a", "converse", sampling=sampling), sound(0.5))
        assert listener.ends["a"] == "length"
        assert len(pieces[-1]) > 1, "what follows the last frame was not heard"
        assert sum(len(piece) > 1 and piece[0] != talker.model.end_code for piece in pieces) == max_frames
        samples = max_frames * talker.codec.frame_samples
        heard = max((end for _, end in listener.words.get("a", [])), default=0)
        assert heard / LETTERS_PER_S <= samples / talker.codec.sample_rate
        assert heard < len(text)


def test_an_answer_without_sound_was_not_heard(model: Lfm2Audio, codec: MimiCodec, prompts: ConversePrompts) -> None:
    """The model ends its turn before it has made a frame."""
    listener = Listener(model, codec, prompts)
    bias = ((END_OF_TURN, 100.0),)
    listener.ask("a", Submit("a", "converse", sampling=SamplingParams(max_tokens=9, logit_bias=bias)), sound(0.4))
    listener.run()
    assert listener.ends["a"] == "eos"
    assert not listener.pieces
    assert not any(listener.words.values())


def test_what_was_heard() -> None:
    pieces = ((5,), (1, 1), (2, 2), (6,), (2048, 2048), (3, 3), (7,))
    assert heard_pieces(pieces, 0, 10) == ()
    assert heard_pieces(pieces, 1, 10) == pieces[:2]
    assert heard_pieces(pieces, 20, 10) == pieces[:3]
    assert heard_pieces(pieces, 21, 10) == pieces
    assert heard_pieces(((5,), (7,)), 99, 10) == ()
