"""How a checkpoint of Qwen3-TTS speaks a request: the voice, the language, the instructions.

It turns these into the beginning of an utterance, or raises PromptError that names what is impossible. It runs no model
and does not see a request's text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from voxlane.engine.api import BadPronunciation, Submit, has_phonemes
from voxlane.engine.errors import ModelConfigError
from voxlane.engine.models.qwen3_tts.config import Qwen3TTSConfig, SpeechSampling
from voxlane.engine.models.qwen3_tts.prompt import ROLE_TOKENS, Clone, PromptError, Utterance, open_utterance
from voxlane.engine.text.incremental import Reader
from voxlane.engine.text.normalise.pronunciations import Pronunciations, pronunciations_of
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.voices.cloned import Voices

DESIGNED = "designed"
"""The only voice of a checkpoint that designs a voice for every request from its instructions."""

MOST_NAMES = 12
"""How many voices a refusal names."""

MAX_INSTRUCTION_CHARS = 2000
"""Longer instructions make every prompt longer and the voice no better."""


@dataclass(frozen=True, slots=True)
class VoicePrompt:
    """How a request speaks."""

    open: Callable[[], Utterance]  # returns an utterance without text
    clone: Clone | None
    sampling: SpeechSampling
    seed: int
    reader: Reader


class VoicePrompts:
    """The manners of one checkpoint."""

    def __init__(self, config: Qwen3TTSConfig, tokenizer: Tokenizer, sampling: SpeechSampling, cloned: Voices) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._cloned = cloned
        self._role = [config.text.start, *tokenizer.encode("assistant"), *tokenizer.encode("\n")]
        if len(self._role) != ROLE_TOKENS:
            raise ModelConfigError(
                f'the vocabulary spells "assistant" and a newline in {len(self._role) - 1} tokens, not 2'
            )

    @property
    def voices(self) -> tuple[str, ...]:
        """Return the checkpoint's own voices, the default first."""
        match self._config.kind:
            case "custom_voice":
                return tuple(self._config.speakers)
            case "voice_design":
                return (DESIGNED,)
            case "base":
                return ()

    def tokenize(self, text: str, language: str) -> list[int]:
        """Return the tokens of a clip's words."""
        reader = Reader(self._tokenizer.encode, language)
        return [token for said in (*reader.read(text), *reader.finish()) for token in said.tokens]

    def of(self, submit: Submit) -> VoicePrompt:
        """Return the prompt for `submit`, or raise PromptError."""
        speak, config = submit.speak, self._config
        speaker, clone, language = self._voice(speak.voice)
        if clone is not None and speak.live:
            # The text is first paired with the clip's frames and then with new ones: with a clip of ten seconds nothing
            # would be said before about ninety words have come.
            clone = Clone(clone.embedding)
        language = (speak.language or language).lower()
        opening = partial(
            open_utterance,
            config,
            self._role,
            language=language,
            speaker=speaker,
            clone=clone,
            instructions=self._instructions(speak.instructions),
        )
        reader = Reader(self._tokenizer.encode, language, respellings_of(speak.pronunciations))
        return VoicePrompt(opening, clone, self._sampling, speak.seed, reader)

    def _voice(self, name: str) -> tuple[str, Clone | None, str]:
        """Return the speaker or the cloned voice, and its language."""
        if self._config.kind == "base":
            names = self._cloned.names
            found = self._cloned.find(name)
            if found is None:
                there = f"there are {_few(names)}" if names else "none has been made from a recording yet"
                raise PromptError(f"voice: {f'there is no {name!r:.60}' if name else 'one must be named'}; {there}")
            return "", found.clone, found.language
        name = name or self.voices[0]
        if name.lower() not in self.voices:
            raise PromptError(f"voice: there is no voice {name!r:.60}; there are {_few(self.voices)}")
        return ("" if self._config.kind == "voice_design" else name.lower()), None, "auto"

    def _instructions(self, text: str) -> list[int]:
        if len(text) > MAX_INSTRUCTION_CHARS:
            raise PromptError(f"instructions: {len(text)} characters are more than {MAX_INSTRUCTION_CHARS}")
        if not text.strip():
            return []
        encode, marks = self._tokenizer.encode, self._config.text
        return [marks.start, *encode(f"user\n{text.strip()}"), marks.end, *encode("\n")]


def respellings_of(entries: tuple[str, ...]) -> Pronunciations:
    """Return how names are said, or raise PromptError: a codec voice reads letters, so it takes no phonemes."""
    try:
        names = pronunciations_of(entries)
    except BadPronunciation as error:
        raise PromptError(f"pronunciations: {error}") from error
    if has_phonemes(entries):
        raise PromptError("pronunciations: this voice takes respellings in plain letters, not phonemes")
    return names


def _few(names: Sequence[str]) -> str:
    """Return names in a line, and the number of those left out."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
