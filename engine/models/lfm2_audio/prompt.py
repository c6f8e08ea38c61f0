"""How LFM2-Audio is asked: the positions of a conversation up to where a person begins to speak, and those after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from voxlane.engine.api import ChatMessage
from voxlane.engine.errors import ModelError
from voxlane.engine.models.lfm2_audio.clip_stream import ClipStream
from voxlane.engine.models.lfm2_audio.config import CODES, END_OF_TURN
from voxlane.engine.models.lfm2_audio.dialogue import Piece, rows_of
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.text.tokenizer import Tokenizer

MANNER = "Respond with interleaved text and audio."
"""What the authors tell the model so that it answers a conversation in both."""

READ, WRITE, VOICE = "Perform TTS.", "Perform ASR.", "Use the following voice: "
"""What they tell it so that it reads a text aloud, and with which voice; and so that it writes down what it hears."""

_START, _END, _BEGIN = "<|im_start|>", "<|im_end|>", "<|startoftext|>"
_ROLES = frozenset({"system", "user", "assistant"})
_SAMPLE = 1 / 32768


class ConversePromptError(Exception):
    """The messages cannot be a prompt; the text is for the sender."""


@dataclass(frozen=True, slots=True)
class ConversePrompts:
    """Makes prompts for one model."""

    model: Lfm2Audio
    tokenizer: Tokenizer
    start: int
    end: int
    begin: int

    @classmethod
    def of(cls, model: Lfm2Audio, tokenizer: Tokenizer) -> ConversePrompts:
        """Return the prompts of a model, or raise ModelError if its vocabulary is another one."""
        found = [tokenizer.token_id(name) for name in (_START, _END, _BEGIN)]
        start, end, begin = found
        if start is None or begin is None or end != END_OF_TURN:
            raise ModelError(f"the vocabulary is not LFM2-Audio's: {_START}, {_END}, {_BEGIN} are {found}")
        return cls(model, tokenizer, start, end, begin)

    def open(self, messages: Sequence[ChatMessage]) -> list[Piece]:
        """Return the conversation so far and the beginning of the person's turn, or raise ConversePromptError."""
        told = next((message.content for message in messages if message.role == "system"), "")
        pieces: list[Piece] = [self.begin, *self._turn("system", self._text(f"{told}\n{MANNER}" if told else MANNER))]
        for message in messages:
            if message.role not in _ROLES:
                raise ConversePromptError(
                    f"a speech-to-speech model takes no messages of the role {message.role[:20]!r}"
                )
            if message.role != "system":
                pieces += self._turn(message.role, self._said(message))
        return [*pieces, *self._head("user")]

    def read_aloud(self, voice: str) -> list[Piece]:
        """Return what comes before a text that is to be read aloud; `voice` describes who reads, "" leaves it open."""
        return self._task(f"{READ}\n{VOICE}{voice}" if voice else READ)

    def write_down(self) -> list[Piece]:
        """Return what comes before a clip that is to be written down."""
        return self._task(WRITE)

    def spoken(self, pcm: bytes) -> list[Piece]:
        """Return the positions of 16-bit samples at LISTEN_RATE, or raise ConversePromptError."""
        return _clip_rows(self.model, samples_of(pcm), None)

    def listen(self) -> ClipInput:
        """Return a clip that a person is about to speak."""
        return ClipInput(self.model)

    def close(self) -> list[Piece]:
        """Return the end of the person's turn and the beginning of the answer."""
        return [self.end, *self._text("\n"), *self._head("assistant")]

    def typed(self, text: str) -> list[Piece]:
        """Return the positions of a text."""
        return self._text(text)

    def _task(self, told: str) -> list[Piece]:
        return [self.begin, *self._turn("system", self._text(told)), *self._head("user")]

    def _said(self, message: ChatMessage) -> list[Piece]:
        if message.role == "user" and message.sound:
            return self.spoken(message.sound)
        if message.role == "assistant" and message.pieces:
            return [self._piece(piece) for piece in message.pieces]
        return self._text(message.content)

    def _piece(self, piece: tuple[int, ...]) -> Piece:
        if len(piece) == 1 and 0 <= piece[0] < self.model.vocab_size:
            return piece[0]
        if len(piece) == self.model.config.groups and all(0 <= code <= CODES for code in piece):
            return piece
        raise ConversePromptError("pieces: one is neither a token nor a frame of this model")

    def _turn(self, role: str, said: list[Piece]) -> list[Piece]:
        if said and said[-1] == self.end:
            said = said[:-1]  # an answer that was heard to its end has its mark
        return [*self._head(role), *said, self.end, *self._text("\n")]

    def _head(self, role: str) -> list[Piece]:
        return [self.start, *self._text(f"{role}\n")]

    def _text(self, text: str) -> list[Piece]:
        return list(self.tokenizer.encode(text))


class ClipInput:
    """A clip while it is spoken: its spectrogram is computed as the sound comes, its positions are there at the end.

    Every row of the encoder depends on the whole clip, so the encoder waits for the end: see clip_stream.py.
    """

    def __init__(self, model: Lfm2Audio) -> None:
        self._model = model
        self._stream = ClipStream(model.config.encoder)
        self._pcm = bytearray()

    def __len__(self) -> int:
        return len(self._pcm)

    def append(self, pcm: bytes) -> None:
        """Take more 16-bit samples at LISTEN_RATE, or raise ConversePromptError; a sample may come in two parts."""
        self._pcm += pcm
        try:
            self._stream.append(samples_of(bytes(self._pcm[2 * self._stream.samples :])))
        except ValueError as error:
            raise ConversePromptError(f"what was said: {error}") from error

    def finish(self) -> list[Piece]:
        """Return the positions, or raise ConversePromptError."""
        self._stream.end()
        window = self._stream.due()
        return _clip_rows(self._model, samples_of(bytes(self._pcm)), None if window is None else window.mel)


def samples_of(pcm: bytes) -> Tensor:
    """Return 16-bit samples as numbers from -1 to 1; half a sample at the end is left out."""
    return torch.from_numpy(np.frombuffer(pcm, "<i2", len(pcm) // 2).astype(np.float32) * np.float32(_SAMPLE))


def _clip_rows(model: Lfm2Audio, samples: Tensor, mel: Tensor | None) -> list[Piece]:
    try:
        return list(rows_of(model.clip(samples, mel)))
    except ValueError as error:
        raise ConversePromptError(f"what was said: {error}") from error
