"""What a talker reads: a stream of text and a stream of sound, side by side, one row of ids for every position.

A row is (text, codes), and a position's input is the sum of their embeddings. The same ids describe what the KV cache
holds, so a prompt in chunks, a recompute and a rewind are ranges of rows:

    positions   the head                         from there on
    text        instructions, role, pad…, bos    the text to say, its eos, then pads for ever
    codes       none, none, language and voice   bos, frames of the clip to imitate, frames that were spoken

When streaming, each frame has a text token beside it. A row whose text has not come yet has no input: speech waits for
it, because a pad would mean the end of the text. So clauses can be appended in the middle of a sentence. Speech reads
12.5 text tokens a second that way. With `whole_text` the text is in the head, each token beside a codec pad, and speech
begins after its end; the text may still come in pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from voxlane.engine.models.qwen3_tts.config import Qwen3TTSConfig

NOTHING = -1
"""In a row's codes: this group says nothing."""
SPEAKER = -2
"""In place of the first code: the embedding of the voice to clone."""

ROLE_TOKENS = 3  # <|im_start|>, assistant, newline

Codes = tuple[int, ...]


class PromptError(ValueError):
    """This checkpoint cannot speak as requested; the message names the parameter."""


@dataclass(frozen=True, slots=True)
class Clone:
    """A voice from a clip: its embedding, and to imitate its manner too, the clip's text and frames.

    Speech then goes on where the clip ends: the codec must have decoded the clip's frames before.
    """

    embedding: Tensor  # [hidden]
    text: tuple[int, ...] = ()
    frames: tuple[Codes, ...] = ()


class Utterance:
    """One request's two streams, as far as they have come."""

    def __init__(
        self, config: Qwen3TTSConfig, head: Iterable[tuple[int, int]], clone: Clone | None, *, whole_text: bool
    ) -> None:
        self._groups = config.groups
        self._vocabulary = config.text_vocab_size
        self._text_tokens, self._codec_tokens = config.text, config.codec
        self.speaker = None if clone is None else clone.embedding
        self.whole_text = whole_text
        self.ended = False
        self._head_text: list[int] = []
        self._head_codes: list[Codes] = []
        for text, code in head:
            self._lead(text, code)
        self._text: list[int] = []
        self._sound: list[Codes] = [self._single(config.codec.bos)]
        if clone is not None:
            self._sound += clone.frames
            self.append(clone.text)
        self._opening = len(self._sound)

    def append(self, text: Sequence[int]) -> None:
        """Add text to say."""
        if self.ended:
            raise PromptError("text: it had ended")
        if not _within(text, self._vocabulary):
            raise PromptError(f"text: a token is outside the vocabulary of {self._vocabulary}")
        if self.whole_text:
            for token in text:
                self._lead(token, self._codec_tokens.pad)
        else:
            self._text += text

    def end(self) -> None:
        """Note that no more text will come."""
        if not self.ended:
            self.append([self._text_tokens.eos])
            self.ended = True

    def add(self, frame: Sequence[int]) -> None:
        """Take a spoken frame as the next position's codes."""
        assert len(frame) == self._groups, f"a frame has {self._groups} codes"
        self._sound.append(tuple(frame))

    def rewind(self, frames: int) -> None:
        """Forget what was spoken after the first `frames` frames; the text stays."""
        del self._sound[self._opening + frames :]

    @property
    def opening(self) -> int:
        """Return how many positions come before the first frame, whether their text is there or not."""
        return len(self._head_text) + self._opening

    @property
    def spoken(self) -> int:
        """Return how many frames have been spoken."""
        return len(self._sound) - self._opening

    @property
    def frames(self) -> list[Codes]:
        """Return what has been spoken."""
        return self._sound[self._opening :]

    @property
    def available(self) -> int:
        """Return how many positions have an input: more text or another frame is needed for the next."""
        head = len(self._head_text)
        if self.ended:
            return head + len(self._sound)
        return head if self.whole_text else head + min(len(self._sound), len(self._text))

    def text_for(self, frame: int) -> int | None:
        """Return the text token beside the frame of this number, which need not be known yet; None: it has not come."""
        index = self._opening + frame
        if index < len(self._text):
            return self._text[index]
        return self._text_tokens.pad if self.ended else None

    def frame_due(self, stop: int) -> bool:
        """Return whether the hidden row of position stop - 1 is the one that the next frame is made from."""
        return (self.ended or not self.whole_text) and stop == len(self._head_text) + len(self._sound)

    def rows(self, start: int, stop: int) -> tuple[list[int], list[Codes]]:
        """Return the text tokens and the codes of positions `start` up to `stop`, none beyond what is available."""
        assert 0 <= start <= stop <= self.available, f"positions {start} to {stop} of {self.available}"
        head = len(self._head_text)
        text = self._head_text[start:stop]
        codes = self._head_codes[start:stop]
        first, last = max(start - head, 0), max(stop - head, 0)
        spoken = self._text[first:last]
        text += spoken + [self._text_tokens.pad] * (last - first - len(spoken))
        return text, codes + self._sound[first:last]

    def _lead(self, text: int, code: int) -> None:
        self._head_text.append(text)
        self._head_codes.append(self._single(code))

    def _single(self, code: int) -> Codes:
        return (code, *(NOTHING,) * (self._groups - 1))


def open_utterance(
    config: Qwen3TTSConfig,
    role: Sequence[int],
    *,
    language: str = "auto",
    speaker: str = "",
    clone: Clone | None = None,
    instructions: Sequence[int] = (),
    whole_text: bool = False,
) -> Utterance:
    """Return an utterance without text, or raise PromptError.

    `role` are the tokens of "<|im_start|>assistant" and a newline; `instructions` those of a whole user message.
    """
    if len(role) != ROLE_TOKENS or not _within(role, config.text_vocab_size):
        raise PromptError(f"role: {ROLE_TOKENS} tokens are needed")
    _check_voice(config, speaker, clone)
    if instructions and not config.takes_instructions:
        raise PromptError(f"instructions: a {config.kind} checkpoint of size {config.size or 'unknown'} takes none")
    if not _within(instructions, config.text_vocab_size):
        raise PromptError(f"instructions: a token is outside the vocabulary of {config.text_vocab_size}")
    text, codec = config.text, config.codec
    tags = _language_tags(config, language, speaker)
    if clone is not None:
        tags.append(SPEAKER)
    elif speaker:
        tags.append(config.speakers[speaker.lower()])
    head = [(token, NOTHING) for token in (*instructions, *role)]
    head += [(text.pad, tag) for tag in tags]
    return Utterance(config, [*head, (text.bos, codec.pad)], clone, whole_text=whole_text)


def check_clone(config: Qwen3TTSConfig, clone: Clone) -> None:
    """Raise PromptError unless a voice is one that this checkpoint can speak with."""
    if config.kind != "base":
        raise PromptError("voice: a base checkpoint clones one, and only it does")
    if clone.embedding.shape != (config.talker.hidden_size,):
        raise PromptError(f"voice: its embedding is {list(clone.embedding.shape)}, not [{config.talker.hidden_size}]")
    if bool(clone.text) != bool(clone.frames):
        raise PromptError("voice: the frames of a clip and its text go together")
    if not _within(clone.text, config.text_vocab_size):
        raise PromptError(f"voice: a token of its text is outside the vocabulary of {config.text_vocab_size}")
    if any(len(frame) != config.groups or not _within(frame, config.codes) for frame in clone.frames):
        raise PromptError(f"voice: a frame is {config.groups} codes below {config.codes}")


def _check_voice(config: Qwen3TTSConfig, speaker: str, clone: Clone | None) -> None:
    if (clone is not None) != (config.kind == "base"):
        raise PromptError("voice: a base checkpoint clones one, and only it does")
    if bool(speaker) != (config.kind == "custom_voice"):
        raise PromptError("speaker: a custom_voice checkpoint needs one, and only it does")
    if speaker and speaker.lower() not in config.speakers:
        raise PromptError(f"speaker: {speaker!r:.60} is not one of {', '.join(config.speakers)}")
    if clone is not None:
        check_clone(config, clone)


def _language_tags(config: Qwen3TTSConfig, language: str, speaker: str) -> list[int]:
    name, codec = language.lower(), config.codec
    if name != "auto" and name not in config.languages:
        raise PromptError(f"language: {language!r:.60} is not one of auto, {', '.join(config.languages)}")
    # A speaker of a dialect speaks it wherever Chinese is asked for.
    if name in ("auto", "chinese"):
        name = config.dialects.get(speaker.lower(), name)
    if name == "auto":
        return [codec.nothink, codec.think_bos, codec.think_eos]
    return [codec.think, codec.think_bos, config.languages[name], codec.think_eos]


def _within(ids: Sequence[int], limit: int) -> bool:
    return all(0 <= number < limit for number in ids)
