"""A speech-to-speech model reads texts aloud, beside its conversations.

The weights are random: the plumbing is real, the voice is noise.
"""

from __future__ import annotations

import functools

import lfm2_audio_checkpoint as checkpoint
import pytest
from converse_listener import Listener, Talker, assert_alike, sound
from examples import sweep

from voxlane.engine.api import (
    MAX_UNSAID_CHARS,
    Append,
    Cancel,
    EndInput,
    Pause,
    Resume,
    Rewind,
    SamplingParams,
    SpeakParams,
    Submit,
)
from voxlane.engine.models.lfm2_audio.config import AUDIO_START, CODES, END_OF_TURN
from voxlane.engine.models.lfm2_audio.dialogue import Dialogue
from voxlane.engine.runners.converse import ConverseRunner
from voxlane.engine.runners.cuda.converse import CudaConverse

TEXT = (
    "The library opens at nine. A ticket costs $4.50, and children are free! Bring your own lunch if you like; there"
    " is a garden behind the house where you can sit and eat. Thanks."
)
"""Three passages: the last sentence is too short to stand alone anywhere but at the end."""
BRIEF = "A ticket costs $4.50, and children are free! Bring your own lunch if you like;"

both = pytest.mark.parametrize("make", [ConverseRunner, CudaConverse], ids=["host", "device"])


Spans = list[tuple[int, int]]


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Talker:
    """A model that begins to sound when its turn begins, and ends its sound now and then."""
    follows = {checkpoint.token_of("\n"): AUDIO_START}
    folder = tmp_path_factory.mktemp("talker")
    return Talker.of(checkpoint.write(folder, letters="abc ", breathes=True, breath=-3.5, follows=follows))


def submit(name: str, text: str = TEXT) -> Submit:
    return Submit(name, "tts", text=text, speak=SpeakParams(seed=0))


def read(listener: Listener, asked: Submit) -> tuple[bytes, Spans]:
    name = asked.request_id
    listener.send(asked, EndInput(name))
    listener.run()
    assert listener.ends[name] == "eos"
    return listener.pcm[name], listener.words[name]


@functools.cache
def alone(talker: Talker, make: type[ConverseRunner] = ConverseRunner, text: str = TEXT) -> tuple[bytes, Spans]:
    return read(talker.listener(make), submit("a", text))


def is_token(piece: object) -> bool:
    return isinstance(piece, int)


def dialogues(monkeypatch: pytest.MonkeyPatch) -> list[Dialogue]:
    """Return the dialogues that are begun from now on."""
    found: list[Dialogue] = []
    begin = Dialogue.begin

    def begin_and_note(dialogue: Dialogue, turn: object) -> None:
        found.append(dialogue)
        begin(dialogue, turn)

    monkeypatch.setattr(Dialogue, "begin", begin_and_note)
    return found


@both
def test_a_text_becomes_frames_a_passage_at_a_time(
    talker: Talker, make: type[ConverseRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, listener = dialogues(monkeypatch), talker.listener(make)
    pcm, words = read(listener, submit("a"))
    assert len(made) == 3
    assert len(pcm) == 2 * talker.codec.frame_samples * sum(dialogue.spoken for dialogue in made)
    for dialogue in made:
        assert dialogue.answer[0] == AUDIO_START
        assert [piece[0] == CODES for piece in dialogue.answer[1:]] == [False] * dialogue.spoken + [True]
    told = [talker.prompts.tokenizer.decode(filter(is_token, dialogue.pieces)) for dialogue in made]
    heard = "".join(text.split("user\n")[1].split("\nassistant")[0] for text in told)
    assert heard.startswith("The library opens at nine. A ticket costs four dollars and fifty cents, and children")
    assert all("Perform TTS." in text for text in told)
    assert [TEXT[start:end] for start, end in words] == TEXT.split()
    times = listener.times["a"]
    assert times == sorted(times)
    assert times[-1][1] == len(pcm) // 2
    assert listener.idle


@both
def test_a_voice_is_described_by_the_instructions(
    talker: Talker, make: type[ConverseRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, listener = dialogues(monkeypatch), talker.listener(make)
    read(listener, Submit("a", "tts", text="Hello.", speak=SpeakParams(instructions=" a calm man ")))
    (dialogue,) = made
    text = talker.prompts.tokenizer.decode(filter(is_token, dialogue.pieces))
    assert "system\nPerform TTS.\nUse the following voice: a calm man\nuser\nHello.\nassistant\n" in text


@pytest.mark.parametrize("cuts", [(40, 41, 90), tuple(range(5, 160, 5))])
def test_passages_do_not_depend_on_the_pieces_that_a_text_comes_in(talker: Talker, cuts: tuple[int, ...]) -> None:
    expected = alone(talker)
    listener = talker.listener()
    listener.send(submit("a", ""))
    for start, stop in zip((0, *cuts), (*cuts, len(TEXT)), strict=True):
        listener.send(Append("a", text=TEXT[start:stop]))
        listener.run(3)
    listener.send(EndInput("a"))
    listener.run()
    assert listener.ends["a"] == "eos"
    assert listener.pcm["a"] == expected[0]
    if 41 not in cuts:  # a price has to come in one piece
        assert [word for word in listener.words["a"] if word[0] > 60] == [one for one in expected[1] if one[0] > 60]


@both
def test_texts_do_not_depend_on_others(talker: Talker, make: type[ConverseRunner]) -> None:
    """Two texts, one of them brief, and a conversation: two rows of the codec, and blocks so few that some yield."""
    said, sampling = sound(0.5), SamplingParams(max_tokens=9, temperature=1.0, top_k=20, seed=3)
    one = talker.listener(make)
    one.ask("c", Submit("c", "converse", sampling=sampling), said)
    one.run()
    listener = talker.listener(make, slots=2, blocks=80)
    listener.send(submit("long"), EndInput("long"), submit("brief", BRIEF), EndInput("brief"))
    listener.ask("c", Submit("c", "converse", sampling=sampling), said)
    listener.run()
    for name, text in (("long", TEXT), ("brief", BRIEF)):
        pcm, words = alone(talker, make, text)
        assert_alike(listener.pcm[name], pcm)
        assert listener.words[name] == words
    assert listener.pieces["c"] == one.pieces["c"]
    assert listener.preemptions
    assert listener.idle


@pytest.mark.parametrize("make", sweep([CudaConverse, ConverseRunner]), ids=["device", "host"])
def test_held_and_let_go_nothing_is_lost_or_repeated(talker: Talker, make: type[ConverseRunner]) -> None:
    pcm, words = alone(talker, make)
    listener = talker.listener(make)
    listener.send(submit("a"), EndInput("a"))
    while "a" not in listener.ends:
        listener.run(2)
        listener.send(Pause(("a",)))
        listener.run(3)
        listener.send(Resume("a"))
    assert_alike(listener.pcm["a"], pcm)
    assert listener.words["a"] == words
    assert listener.idle


@both
@pytest.mark.parametrize("share", sweep([0.6, 0.0, 0.3, 0.95]))
def test_rewound_it_says_the_same_again(talker: Talker, make: type[ConverseRunner], share: float) -> None:
    pcm, words = alone(talker, make)
    listener, frame = talker.listener(make), talker.codec.frame_samples
    listener.send(submit("a"), EndInput("a"))
    while len(listener.pcm.get("a", b"")) < len(pcm) - 2 * frame:
        listener.run(1)
    back = int(share * len(pcm)) // 2
    listener.send(Rewind("a", back))
    assert len(listener.pcm["a"]) == 2 * (back // frame) * frame
    listener.run()
    assert listener.ends["a"] == "eos"
    assert_alike(listener.pcm["a"], pcm)
    assert listener.words["a"] == words
    assert listener.idle


@both
@pytest.mark.parametrize("steps", [1, 4, 30])
def test_a_cancelled_text_leaves_nothing(talker: Talker, make: type[ConverseRunner], steps: int) -> None:
    listener = talker.listener(make)
    listener.send(submit("a"))
    listener.run(steps)
    listener.send(Cancel("a"))
    listener.run()
    assert listener.ends["a"] == "cancelled"
    assert listener.idle


def test_a_model_that_writes_instead_of_speaking_is_ended(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("silent")
    silent = Talker.of(checkpoint.write(folder / "writes", letters="abc "))
    listener = silent.listener()
    listener.send(submit("a"), EndInput("a"))
    listener.run()
    assert listener.ends["a"] == "length"
    assert not listener.pcm
    ends = Talker.of(checkpoint.write(folder / "ends", follows={checkpoint.token_of("\n"): END_OF_TURN}))
    for text, end in (("Hello.", "length"), ("—", "eos"), ("", "eos")):
        listener = ends.listener()
        listener.send(submit("a", text), EndInput("a"))
        listener.run()
        assert listener.ends["a"] == end
        assert not listener.pcm
        assert listener.idle


def test_sound_that_does_not_end_is_ended(tmp_path_factory: pytest.TempPathFactory) -> None:
    """By the time that a text of its length may take; by the context, the reply is incomplete."""
    follows = {checkpoint.token_of("\n"): AUDIO_START}
    endless = Talker.of(checkpoint.write(tmp_path_factory.mktemp("endless"), letters="abc ", follows=follows))
    listener = endless.listener(max_frames=9)
    pcm, words = read(listener, submit("a"))
    assert len(pcm) == 2 * 3 * 9 * endless.codec.frame_samples
    assert [TEXT[start:end] for start, end in words] == TEXT.split()
    listener = endless.listener(max_frames=2000, blocks=80)
    listener.send(submit("a"), EndInput("a"))
    listener.run()
    assert listener.ends["a"] == "length"
    assert max(end for _, end in listener.words["a"]) < len(TEXT)
    assert listener.idle


def test_what_it_cannot_do_is_named(talker: Talker) -> None:
    listener = talker.listener()
    refused = {
        "speed": SpeakParams(speed=1.5),
        "voice": SpeakParams(voice="somebody"),
        "language": SpeakParams(language="german"),
        "pronunciations": SpeakParams(pronunciations=("Siobhan = /ʃɪˈvɔːn/",)),
        "instructions": SpeakParams(instructions="a" * 400),
    }
    for name, speak in refused.items():
        listener.send(Submit(name, "tts", text="Hello.", speak=speak))
        assert name in listener.refused[name]
    listener.send(Submit("text", "tts", text="a" * (MAX_UNSAID_CHARS + 1)))
    assert "text" in listener.refused["text"]
    assert listener.idle
