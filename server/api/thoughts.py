"""Tells a model's thoughts from its answer: `<think>…</think>` at the beginning of an output. Pure.

A mark that comes later is text: a person may have asked about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from msgspec import structs

from voxlane.engine.api import Text, TokenLogprob

_BEGIN, _END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """More of what a model thinks before it answers."""

    text: str


class _Stage(Enum):
    UNDECIDED = auto()  # only white space, or the beginning of the mark
    THOUGHT = auto()
    BETWEEN = auto()  # behind the thought, only white space so far
    ANSWER = auto()


class ThoughtSplitter:
    """Splits the output of one choice as it comes. The result does not depend on where the output was cut."""

    def __init__(self) -> None:
        self._stage = _Stage.UNDECIDED
        self._held = ""
        self._tokens: tuple[TokenLogprob, ...] = ()  # of the held text, as far as they may belong to the answer
        self._begun = False  # some of the thought was told

    def push(self, piece: Text) -> list[Text | ReasoningText]:
        """Take more output; return what is certain. Log-probabilities of thoughts are dropped."""
        if self._stage is _Stage.ANSWER:
            return [piece]
        self._held += piece.text
        self._tokens += piece.logprobs
        told: list[Text | ReasoningText] = []
        if self._is_at(_Stage.UNDECIDED):
            self._decide()
        if self._is_at(_Stage.THOUGHT):
            told += self._think()
        if self._is_at(_Stage.BETWEEN):
            self._skip_space()
        if self._is_at(_Stage.ANSWER):
            told.append(structs.replace(piece, text=self._held, logprobs=self._tokens))
            self._held, self._tokens = "", ()
        return told

    def finish(self, last: Text | None) -> list[Text | ReasoningText]:
        """Return what was held back; `last` is the last piece of the output."""
        held, tokens = self._held, self._tokens
        self._held, self._tokens = "", ()
        if self._stage is _Stage.UNDECIDED and last is not None:
            self._stage = _Stage.ANSWER
            return [structs.replace(last, text=held, logprobs=tokens)]
        if self._stage is _Stage.THOUGHT and held:
            return [ReasoningText(held)]
        return []

    def _is_at(self, stage: _Stage) -> bool:
        return self._stage is stage

    def _decide(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(_BEGIN):
            self._stage, self._held = _Stage.THOUGHT, begun.removeprefix(_BEGIN)
        elif not _BEGIN.startswith(begun):
            self._stage = _Stage.ANSWER

    def _think(self) -> list[Text | ReasoningText]:
        """Return the thought as far as it is certain."""
        thought, mark, rest = self._held.partition(_END)
        if mark:
            self._stage, self._held = _Stage.BETWEEN, rest
        else:
            cut = len(thought) - _overlap(thought)
            thought, self._held = thought[:cut], thought[cut:]
            self._tokens = ()
        if not self._begun:
            thought = thought.lstrip()
        self._begun = self._begun or bool(thought)
        return [ReasoningText(thought)] if thought else []

    def _skip_space(self) -> None:
        self._held = self._held.lstrip()
        self._tokens = _last_tokens(self._tokens, len(self._held.encode()))
        if self._held:
            self._stage = _Stage.ANSWER


def _overlap(text: str) -> int:
    """Return the length of the longest end of `text` that begins the mark behind a thought."""
    return next((size for size in range(len(_END) - 1, 0, -1) if text.endswith(_END[:size])), 0)


def _last_tokens(tokens: Sequence[TokenLogprob], size: int) -> tuple[TokenLogprob, ...]:
    """Return the last tokens that together have at least `size` bytes."""
    first = len(tokens)
    while size > 0 and first:
        first -= 1
        size -= len(tokens[first].data)
    return tuple(tokens[first:])
