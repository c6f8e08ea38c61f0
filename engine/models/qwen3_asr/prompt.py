"""How Qwen3-ASR is asked, as tokens: a conversation with a clip in it, and an answer that begins with its language.

    <|im_start|>system⏎<|im_end|>⏎<|im_start|>user⏎<|audio_start|> the clip <|audio_end|><|im_end|>⏎
    <|im_start|>assistant⏎language English<asr_text> the words <|im_end|>

If the request names no language, the model names one after "language", or "None" for a clip without speech. It
knows tokens; sound is the tower's business. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voxlane.engine.errors import ModelConfigError
from voxlane.engine.text.tokenizer import Tokenizer

LANGUAGES: Mapping[str, str] = {
    "en": "English", "zh": "Chinese", "yue": "Cantonese", "ar": "Arabic", "cs": "Czech", "da": "Danish", "nl": "Dutch",
    "fil": "Filipino", "fi": "Finnish", "fr": "French", "de": "German", "el": "Greek", "hi": "Hindi",
    "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "mk": "Macedonian",
    "ms": "Malay", "fa": "Persian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian",
    "es": "Spanish", "sv": "Swedish", "th": "Thai", "tr": "Turkish", "vi": "Vietnamese",
}  # fmt: skip
"""What the model calls the languages it was taught, by ISO 639."""

NOBODY = "None"
"""The model's name for the language of a clip without speech."""


@dataclass(frozen=True, slots=True)
class ClipPrompt:
    """The tokens around a clip."""

    before: tuple[int, ...]  # the clip
    after: tuple[int, ...]
    language: tuple[int, ...]  # "language"
    names: Mapping[str, tuple[int, ...]]  # code -> the tokens of its name; "": no speech
    text: int  # <asr_text>: the words follow
    end: int  # of them
    detectable: Mapping[int, str]  # first tokens of names that only one name begins with -> its code

    @classmethod
    def of(cls, tokenizer: Tokenizer, listed: Sequence[str] = ()) -> ClipPrompt:
        """Return the prompts in a vocabulary's tokens, for languages listed by name; ConfigError if it lacks some."""
        start, end = _control(tokenizer, "<|im_start|>"), _control(tokenizer, "<|im_end|>")
        line = tokenizer.encode("\n")
        known = {code: name for code, name in LANGUAGES.items() if not listed or name in listed}
        if not known:
            raise ModelConfigError(f"config key support_languages: none of {', '.join(listed)[:80]!r} is known")
        spelt = {**known, "": NOBODY}
        names = {code: tuple(tokenizer.encode(f" {name}")) for code, name in spelt.items()}
        begins = Counter(tokens[0] for tokens in names.values())
        return cls(
            before=(
                *(start, *tokenizer.encode("system"), *line, end, *line),
                *(start, *tokenizer.encode("user"), *line, _control(tokenizer, "<|audio_start|>")),
            ),
            after=(
                *(_control(tokenizer, "<|audio_end|>"), end, *line),
                *(start, *tokenizer.encode("assistant"), *line),
            ),
            language=tuple(tokenizer.encode("language")),
            names=names,
            text=_control(tokenizer, "<asr_text>"),
            end=end,
            detectable={tokens[0]: code for code, tokens in names.items() if begins[tokens[0]] == 1},
        )

    @property
    def languages(self) -> tuple[str, ...]:
        """The codes of the languages that can be asked for."""
        return tuple(code for code in self.names if code)

    def ask(self, language: str, clip: Sequence[int]) -> list[int]:
        """Return a prompt with a clip's tokens in it, up to the words; without a language, up to its name."""
        answer = (*self.names[language], self.text) if language else ()
        return [*self.before, *clip, *self.after, *self.language, *answer]

    def after_name(self, token: int) -> list[int]:
        """Return what follows the first token of a name that the model chose."""
        return [*self.names[self.detectable[token]][1:], self.text]


def _control(tokenizer: Tokenizer, name: str) -> int:
    token = tokenizer.token_id(name)
    if token is None:
        raise ModelConfigError(f"the vocabulary has no token {name}")
    return token
