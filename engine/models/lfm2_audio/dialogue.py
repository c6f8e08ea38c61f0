"""The positions of a conversation with LFM2-Audio: tokens of text, frames of sound, rows of clips.

A request has one. Its prompt comes first, then what the person says, then the answer, in which each position is made
from the one before it. interleaving.py says whether a token or a frame is next. Pure but for the rows of clips.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from voxlane.engine.models.lfm2_audio.config import CODES
from voxlane.engine.models.lfm2_audio.interleaving import Turn

Codes = tuple[int, ...]

_NOT_TEXT = 1 << 31  # of a position's number: it is no token
_NUMBER_BYTES = 4


@dataclass(slots=True, eq=False)
class SpokenClip:
    """What a person said, 16 kHz, -1 to 1."""

    samples: Tensor  # [n] float32
    states: int  # how many rows it becomes
    rows: Tensor | None = None  # [states, hidden], once a step needed them
    mel: Tensor | None = None  # its spectrogram [frames, bins], if that was computed while the person spoke
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.digest = hashlib.blake2b(self.samples.numpy().tobytes(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class ClipRow:
    """One position of a clip."""

    clip: SpokenClip
    index: int


Piece = int | Codes | ClipRow
"""A token, a frame or a row of a clip."""


def rows_of(clip: SpokenClip) -> list[ClipRow]:
    """Return the positions of a clip."""
    return [ClipRow(clip, index) for index in range(clip.states)]


def number_of(piece: Piece) -> int:
    """Return the number of a position by which the prefix cache knows it: a token is its own."""
    if isinstance(piece, int):
        return piece
    if isinstance(piece, ClipRow):
        content = piece.clip.digest + piece.index.to_bytes(_NUMBER_BYTES, "little")
    else:
        content = b"".join(code.to_bytes(_NUMBER_BYTES, "little") for code in piece)
    return _NOT_TEXT | int.from_bytes(hashlib.blake2b(content, digest_size=_NUMBER_BYTES).digest(), "little")


class Dialogue:
    """One request's positions, and where its answer stands."""

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self.pieces: list[Piece] = list(pieces)
        self.frames: list[Codes] = []  # of the answer, those that are sound
        self.turn: Turn | None = None  # None: the person has not finished
        self._answer = 0  # where the answer begins
        self._places: list[tuple[int, Turn]] = []  # of each frame: its position, and the turn before it

    @property
    def available(self) -> int:
        """Return how many positions there are."""
        return len(self.pieces)

    @property
    def spoken(self) -> int:
        """Return how many frames of sound the answer has."""
        return len(self.frames)

    @property
    def answer(self) -> list[Piece]:
        """Return the answer so far."""
        return self.pieces[self._answer :] if self.turn is not None else []

    @property
    def ended(self) -> bool:
        """Return whether the answer is over."""
        return self.turn is not None and self.turn.ended

    def hear(self, pieces: Iterable[Piece]) -> None:
        """Take more of the prompt."""
        assert self.turn is None, "the prompt is complete"
        self.pieces += pieces

    def begin(self, turn: Turn) -> None:
        """Begin the answer after what is there."""
        assert self.turn is None, "the answer has begun"
        self.turn, self._answer = turn, len(self.pieces)

    def token_due(self, position: int) -> bool:
        """Return whether a token is made after so many positions."""
        return self._due(position, sound=False)

    def frame_due(self, position: int) -> bool:
        """Return whether a frame is made after so many positions."""
        return self._due(position, sound=True)

    def add_token(self, token: int) -> None:
        """Take a token of the answer."""
        assert self.turn is not None, "there is no answer yet"
        self.turn = self.turn.after_token(token)
        self.pieces.append(token)

    def add(self, frame: Codes) -> None:
        """Take a frame of the answer; one that ends the sound is no sound."""
        assert self.turn is not None, "there is no answer yet"
        if frame[0] == CODES:
            frame = (CODES,) * len(frame)
        else:
            self._places.append((len(self.pieces), self.turn))
            self.frames.append(frame)
        self.turn = self.turn.after_frame(frame[0])
        self.pieces.append(frame)

    def rewind(self, frames: int) -> None:
        """Go back to before the frame that so many frames of sound precede; it is made again, and what followed it."""
        if frames >= len(self.frames):
            return
        place, self.turn = self._places[frames]
        del self.pieces[place:], self.frames[frames:], self._places[frames:]

    def _due(self, position: int, *, sound: bool) -> bool:
        turn = self.turn
        return turn is not None and not turn.ended and turn.sound == sound and position == len(self.pieces)
