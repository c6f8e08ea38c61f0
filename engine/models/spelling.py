"""What a recogniser's tokens spell."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from voxlane.engine.errors import WeightsError
from voxlane.engine.text.tokenizer import HasPath, Tokenizer
from voxlane.engine.weights.importers.ort import TOKENS, MoonshineDirectory, read_pieces


@dataclass(frozen=True, slots=True)
class Spelling:
    """A vocabulary."""

    pieces: Sequence[bytes]  # what each token adds to a text; control tokens add nothing
    names: Sequence[str]  # of tokens that stand for something else: "<|en|>"; "" for the rest
    tokenizer: Tokenizer | None = None  # None: texts cannot be turned into tokens

    @classmethod
    def open(cls, weights: HasPath, vocab_size: int) -> Spelling:
        """Return the vocabulary that lies beside opened weights, or raise WeightsError."""
        if isinstance(weights, MoonshineDirectory):
            pieces = read_pieces(weights.path / TOKENS)
            if len(pieces) > vocab_size:
                raise WeightsError(weights.path / TOKENS, f"{len(pieces)} tokens for a model of {vocab_size}")
            return cls([*pieces, *[b""] * (vocab_size - len(pieces))], [""] * vocab_size)
        return cls.of(Tokenizer.from_weights(weights), vocab_size)

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int) -> Spelling:
        """Return a tokenizer's vocabulary for a model that may have more or fewer rows than it has tokens."""
        known = range(min(vocab_size, tokenizer.vocab_size))
        pieces = [tokenizer.token_bytes(token) for token in known]
        names = [tokenizer.token_name(token) if token in tokenizer.special_ids else "" for token in known]
        more = vocab_size - len(known)
        return cls([*pieces, *[b""] * more], [*names, *[""] * more], tokenizer)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; none if the vocabulary has no tokenizer."""
        return [] if self.tokenizer is None else self.tokenizer.encode(text)

    def text(self, tokens: Sequence[int]) -> str:
        """Return what tokens spell, with the space before the first; half a character at the end is left out."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(b"".join(self.pieces[token] for token in tokens))
