"""Chat deltas -> clauses fit to be spoken, as early as they are certain.

The first clause is short, so that sound comes soon; later ones are sentences, or pieces of long ones. A cut never falls
inside a number, an abbreviation, an address, a Markdown link, inline code or a code block. Every clause says which
stretch of the reply it is; together they are the reply, once. What is cut where depends on the text alone, never on
how it was split into deltas. It knows nothing of how words are read: that is the engine's part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from .speech_text import Grade, Inline, grade, is_marker

DIGIT_WEIGHT = 5
"""What a digit counts for in a clause's length: it is read as a word."""

MAX_SPAN_CHARS = 1000
"""Longest link, address or run of spaces that is waited for; a longer one is cut like plain text."""

FENCE_LINE_CHARS = 200
"""Longest first line of a code block."""

_WORD = re.compile(rf"\S{{1,{MAX_SPAN_CHARS + 1}}}+")
_SPACE = re.compile(rf"\s{{0,{MAX_SPAN_CHARS}}}+")
_FENCE = re.compile(r"(`{3,}+|~{3,}+)[^`\n]*\Z")
_ADDRESS = re.compile(r"[(\"'“*_<]{0,3}(?:https?://|www\.|[A-Za-z0-9._+-]{1,64}@)|!?\[[^\]]*\]\(")
_JOINERS = frozenset(
    "and or but so because which that who where when while if as than then although though since until unless with "
    "without from into for to by in on at of".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class CutPolicy:
    """When a clause is long enough, and when too long. Lengths are characters, digits counted DIGIT_WEIGHT times."""

    first_words: int = 3  # the first clause may end at any punctuation from here on
    first_max_words: int = 16
    first_max_length: int = 100
    sentence_words: int = 3  # a later one ends with its sentence from here on,
    soft_length: int = 80  # and at a comma from here on
    max_words: int = 40
    max_length: int = 200


@dataclass(frozen=True, slots=True)
class Clause:
    """`text` is the reply's `[start:end]`, trailing space included; a silent one holds nothing to say."""

    text: str
    start: int
    end: int
    silent: bool
