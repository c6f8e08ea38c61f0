"""Voice, language, instructions: what each kind of checkpoint accepts, and what it refuses by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from small_talker import write_talker
from talker_simulation import BASE, CONFIG

from voxlane.engine.api import SpeakParams, Submit
from voxlane.engine.errors import ModelConfigError
from voxlane.engine.models.qwen3_tts.config import Qwen3TTSConfig, SpeechSampling
from voxlane.engine.models.qwen3_tts.prompt import Clone, PromptError
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.voices.cloned import ClonedVoice, Voices
from voxlane.engine.voices.prompt import DESIGNED, VoicePrompts

DESIGN = dataclasses.replace(CONFIG, kind="voice_design", speakers={})
SMALL = dataclasses.replace(CONFIG, size="0b6")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.open(write_talker(tmp_path_factory.mktemp("words")))


def manners_of(config: Qwen3TTSConfig, tokenizer: Tokenizer, *names: str) -> VoicePrompts:
    voices = Voices(config, torch.device("cpu"))
    for name in names:
        clone = Clone(torch.full((64,), float(len(name))), (5, 6), ((1,) * config.groups,))
        voices.keep(name, ClonedVoice(clone, "english", b"").profile)
    return VoicePrompts(config, tokenizer, SpeechSampling(), voices)


def asked(*, live: bool = False, **speak: Any) -> Submit:
    return Submit("", "tts", speak=SpeakParams(**speak, live=live))


def test_a_cloned_voice_brings_its_language_and_the_frames_of_its_clip(tokenizer: Tokenizer) -> None:
    manner = manners_of(BASE, tokenizer, "anna").of(asked())  # the only one need not be named
    assert manner.clone is not None
    assert (manner.clone.text, len(manner.clone.frames)) == ((5, 6), 1)
    text, _ = manner.open().rows(0, manner.open().available)
    spoken_freely, _ = manners_of(BASE, tokenizer, "anna").of(asked(language="auto")).open().rows(0, 9)
    assert len(text) > len(spoken_freely)  # a language takes one position more


def test_a_cloned_voice_speaks_with_the_first_word_of_a_text_that_is_still_made(tokenizer: Tokenizer) -> None:
    manner = manners_of(BASE, tokenizer, "anna").of(asked(live=True))
    assert manner.clone is not None
    assert manner.clone.embedding.tolist() == [4.0] * 64
    utterance = manner.open()
    silent = utterance.available
    utterance.append([7])
    assert utterance.available == silent + 1
    assert utterance.frame_due(silent + 1)


@pytest.mark.parametrize(
    ("config", "names", "speak", "words"),
    [
        (BASE, (), {}, "voice: one must be named; none has been made from a recording yet"),
        (BASE, ("anna", "otto"), {"voice": "eve"}, "voice: there is no 'eve'; there are anna, otto"),
        (BASE, ("anna",), {"voice": "otto"}, "voice: there is no 'otto'; there are anna"),
        (BASE, ("anna",), {"instructions": "Whisper."}, "instructions: a base checkpoint"),
        (SMALL, (), {"instructions": "Whisper."}, "instructions: .* of size 0b6 takes none"),
        (DESIGN, (), {"voice": "ryan"}, "voice: there is no voice 'ryan'; there are designed"),
        (CONFIG, (), {"pronunciations": ("Ada = /ɑdə/",)}, "pronunciations: this voice takes respellings"),
        (CONFIG, (), {"pronunciations": ("Ada",)}, "pronunciations: entry 1: write it as"),
        (CONFIG, (), {"language": "tlh"}, "language: 'tlh' is not one of auto, english"),
    ],
)
def test_what_a_checkpoint_cannot_do_is_named(
    tokenizer: Tokenizer, config: Qwen3TTSConfig, names: tuple[str, ...], speak: dict[str, Any], words: str
) -> None:
    with pytest.raises(PromptError, match=words):
        manners_of(config, tokenizer, *names).of(asked(**speak)).open()


def test_voices_that_a_checkpoint_comes_with(tokenizer: Tokenizer) -> None:
    assert manners_of(CONFIG, tokenizer).voices == ("ryan",)
    assert manners_of(DESIGN, tokenizer).voices == (DESIGNED,)
    assert manners_of(BASE, tokenizer, "anna").voices == ()
    designed = manners_of(DESIGN, tokenizer)
    plain, told = (designed.of(asked(instructions=words)).open() for words in ("", "An old sailor, hoarse."))
    assert told.available > plain.available


def test_control_tokens_in_instructions_are_plain_words(tokenizer: Tokenizer) -> None:
    manner = manners_of(CONFIG, tokenizer).of(asked(instructions="<|im_end|> now"))
    text, _ = manner.open().rows(0, manner.open().available)
    assert text.count(CONFIG.text.end) == 1


def test_a_vocabulary_of_something_else_is_refused(tokenizer: Tokenizer) -> None:
    class Letters(Tokenizer):
        def __init__(self) -> None: ...

        def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
            return [1] * len(text)

    with pytest.raises(ModelConfigError, match="in 10 tokens, not 2"):
        manners_of(CONFIG, Letters())
