"""A speech-to-speech model writes down what is said in clips, beside its conversations. The weights are random."""

from __future__ import annotations

from itertools import pairwise

import lfm2_audio_checkpoint as checkpoint
import pytest
from converse_listener import Listener, Talker, sound

from voxlane.engine.api import (
    LISTEN_RATE,
    MAX_UNHEARD_S,
    Append,
    Cancel,
    EndInput,
    ListenParams,
    Pause,
    Resume,
    Rewind,
    Submit,
)
from voxlane.engine.models.lfm2_audio.config import AUDIO_START, END_OF_TURN
from voxlane.engine.models.lfm2_audio.dialogue import ClipRow, Dialogue
from voxlane.engine.runners.converse import ConverseRunner
from voxlane.engine.runners.cuda.converse import CudaConverse

both = pytest.mark.parametrize("make", [ConverseRunner, CudaConverse], ids=["host", "device"])


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Talker:
    """A model that writes " abc", from a letter on that it chooses; the mark of sound before it is no sound here."""
    follows = {checkpoint.token_of("\n"): AUDIO_START}
    follows |= dict(pairwise((*map(checkpoint.token_of, " abc"), END_OF_TURN)))
    return Talker.of(checkpoint.write(tmp_path_factory.mktemp("talker"), letters="abc ", follows=follows))


def submit(name: str) -> Submit:
    return Submit(name, "asr", by_speech_model=True)


def transcript(listener: Listener, name: str, said: bytes) -> str:
    listener.ask(name, submit(name), said)
    listener.run()
    assert listener.ends[name] == "eos"
    return listener.transcripts[name]


CLIPS = {"a": sound(0.4, 1), "b": sound(1.0, 2), "c": sound(2.0, 3)}


@both
def test_a_clip_becomes_text_and_one_segment(
    talker: Talker, make: type[ConverseRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, made, begin = talker.listener(make), [], Dialogue.begin
    monkeypatch.setattr(Dialogue, "begin", lambda dialogue, turn: (made.append(dialogue), begin(dialogue, turn)))
    text = transcript(listener, "a", CLIPS["b"])
    assert set(text) <= set("abc ")
    assert text.index("c") == len(text) - 1
    (dialogue,) = made
    told = talker.prompts.tokenizer.decode(piece for piece in dialogue.pieces if isinstance(piece, int))
    assert "system\nPerform ASR.\nuser\n\nassistant\n" in told
    clips = {piece.clip.samples.shape[0] for piece in dialogue.pieces if isinstance(piece, ClipRow)}
    assert clips == {len(CLIPS["b"]) // 2}
    (segment,) = listener.segments["a"]
    assert (segment.text, segment.start_s, segment.end_s, segment.words) == (text, 0.0, 1.0, ())
    assert "a" not in listener.pcm
    assert listener.idle


@both
def test_clips_do_not_depend_on_others(talker: Talker, make: type[ConverseRunner]) -> None:
    """Also if so few blocks are there that some have to yield, and if they are held."""
    alone = {name: transcript(talker.listener(make), name, said) for name, said in CLIPS.items()}
    listener = talker.listener(make, blocks=26)
    for name, said in CLIPS.items():
        listener.send(submit(name), Append(name, audio=said), EndInput(name))
    for _ in range(4):
        listener.run(2)
        listener.send(Pause(("b",)))
        listener.run(2)
        listener.send(Resume("b"))
    listener.run()
    assert listener.transcripts == alone
    assert listener.preemptions
    assert listener.idle


def test_a_transcript_without_end_is_incomplete(tmp_path_factory: pytest.TempPathFactory) -> None:
    endless = Talker.of(checkpoint.write(tmp_path_factory.mktemp("endless"), letters="abc "))
    listener = endless.listener()
    listener.ask("a", submit("a"), CLIPS["a"])
    listener.run()
    assert listener.ends["a"] == "length"
    assert not listener.segments["a"]
    assert listener.idle


def test_the_end_of_a_clip_that_is_empty_or_too_long(talker: Talker) -> None:
    listener = talker.listener()
    listener.send(submit("a"), EndInput("a"))
    assert listener.ends["a"] == "eos"
    listener.send(submit("b"), Append("b", audio=bytes(2 * LISTEN_RATE * int(MAX_UNHEARD_S + 1))))
    assert listener.ends["b"] == "failed"
    listener.send(submit("c"), Append("c", audio=bytes(2 * LISTEN_RATE * 39)), EndInput("c"))  # 512 positions
    assert listener.ends["c"] == "length"
    listener.ask("d", submit("d"), CLIPS["c"])
    listener.run(3)
    listener.send(Rewind("d", 0), Cancel("d"))
    listener.run()
    assert listener.ends["d"] == "cancelled"
    assert listener.idle


def test_what_it_cannot_do_is_named(talker: Talker) -> None:
    listener = talker.listener()
    refused = {
        "translate": ListenParams(translate=True),
        "word_times": ListenParams(word_times=True),
        "language": ListenParams(language="en"),
        "hot_words": ListenParams(hot_words=("Siobhan",)),
    }
    for name, listen in refused.items():
        listener.send(Submit(name, "asr", listen=listen, by_speech_model=True))
        assert name in listener.refused[name]
    listener.send(Submit("asr", "asr"))
    assert "no model" in listener.refused["asr"], "it listens only where it is named"
