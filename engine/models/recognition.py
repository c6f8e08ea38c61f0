"""What all recognisers share: their prompts, the tokens they may write, what tokens spell, and the times of words.

Each architecture's own file turns sound into tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.audio.word_times import starts_word, token_states, word_times
from voxlane.engine.models.spelling import Spelling

WRITING, OPENING, DETECTING = range(3)
"""Rows of the restrictions' table: tokens that are forbidden in a text, as its first token, as a language's name."""


@dataclass(frozen=True, slots=True)
class Cross:
    """The second block table of each row of a step: where its encoder states lie."""

    lengths: Tensor  # [rows], int32: encoder states
    block_tables: Tensor  # [rows, max_blocks], int32, padded with 0
    thinned_from: Tensor | None = None  # [rows], int32: the first state that stands for several; None: none does
    thinned: int = 1  # how many equal states such a state stands for


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encoder states of several clips, one clip's rows after the other's."""

    states: Tensor  # [sum of lengths, hidden]
    lengths: list[int]


class SpeechModel:
    """The part of a loaded recogniser that is about tokens."""

    sample_rate: int
    samples_per_state: float
    max_samples: int  # in one clip
    fixed_window = False  # whether every clip costs as much as one of `max_samples`
    long_segments = False  # whether it hears better what is cut into fewer and longer clips
    short_windows = False  # whether it encodes less than it was trained with, except of clips of `max_samples`
    inline = False  # whether an encoded clip takes positions of its request, and no table of its own
    clip_start = 0  # inline: how many tokens of the prompt come before the clip
    thinned = 1  # of a clip's states after its `window`, each stands for so many equal ones
    eos_ids: frozenset[int]
    alignment_heads: tuple[tuple[int, int], ...]  # (layer, head) pairs that attend to where a word sounds
    languages: tuple[str, ...] = ("en",)
    detects_language = False
    # The tokens of a prompt that ask to transcribe and to translate into English; None: it cannot translate.
    tasks: tuple[int, int] | None = None
    nobody = -1  # the token written for a clip without speech; -1: there is none
    tells_silence = False
    restrictions: Tensor | None = None  # [3, vocab]: added to logits; -inf where a token must not be chosen

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling

    def states(self, samples: int) -> int:
        """Return how many encoder states a clip of `samples` becomes."""
        raise NotImplementedError

    def window(self, samples: int) -> int:
        """Return how many of a clip's states the encoder computes; the others are the same for every clip."""
        return self.states(samples)

    def pieces(self, states: Sequence[int]) -> list[int]:
        """Return how many rows attend to each other in the encoder, for clips of so many states: those of a clip."""
        return list(states)

    def prompt_tokens(self, language: str, states: int = 0) -> list[int]:
        """Return what a transcript starts with; with language "", a model that detects it writes its token next.

        With inline clips it holds a token for each of the clip's `states`.
        """
        raise NotImplementedError

    def expecting(self, words: Sequence[str]) -> list[int]:
        """Return tokens that go before the prompt so that the model expects these words; none if it cannot."""
        return []

    def reserve(self, slots: int) -> None:
        """Reserve room for the rows of a step's inline clips."""
        raise NotImplementedError

    def after_language(self, token: int) -> list[int]:
        """Return what follows the token of a language that was detected."""
        raise NotImplementedError

    def language_of(self, token: int) -> str:
        """Return the language, as in ISO 639, that a token names."""
        raise NotImplementedError

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return what tokens spell, with the space before the first word; half a character is left out."""
        return self._spelling.text(tokens)

    def starts_word(self, token: int) -> bool:
        """Return whether a word begins with this token."""
        return starts_word(self._spelling.pieces[token])

    def words_of(self, tokens: Sequence[int], weights: Tensor, samples: int) -> list[tuple[str, float, float]]:
        """Return the words of a transcript and when they were said, in seconds from the start of a clip of `samples`.

        The last len(tokens) + 1 rows of `weights` [heads, rows, states] are the alignment heads' weights for the tokens
        and the end: those of cross_weights from the prompt's last row on.
        """
        if not tokens:
            return []
        states = min(weights.shape[2], max(1, int(-(-samples // self.samples_per_state))))
        begins = token_states(weights[:, -len(tokens) - 1 :, :states].float())
        pieces = [self._spelling.pieces[token] for token in tokens]
        length_s = samples / self.sample_rate
        words = word_times(pieces, begins, self.samples_per_state / self.sample_rate)
        return [(word.text, min(word.start_s, length_s), min(word.end_s, length_s)) for word in words]

    def restrict(self, logits: Tensor, first: Sequence[bool], detecting: Sequence[bool]) -> Tensor:
        """Set forbidden tokens in `logits` [N, vocab] to -inf; return the logits.

        `first` rows choose the first token after the prompt, `detecting` rows the language.
        """
        if self.restrictions is None:
            return logits
        kinds = [
            DETECTING if language else OPENING if opening else WRITING
            for opening, language in zip(first, detecting, strict=True)
        ]
        return logits.add_(self.restrictions[torch.tensor(kinds, dtype=torch.int64)])

    def no_speech(self, hidden: Tensor) -> list[float]:
        """Return the probability of silence, from hidden rows [N, hidden] of prompts' first tokens; 0: not known."""
        return self.silence(hidden).tolist() if self.tells_silence else [0.0] * len(hidden)

    def silence(self, hidden: Tensor) -> Tensor:
        """Return the same as a tensor [N] on the rows' device, without waiting for it; only if `tells_silence`."""
        raise NotImplementedError
