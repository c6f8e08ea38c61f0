"""A vocabulary, independent of its file format: a backend for plain text, and the control tokens beside it.

The backend does not know the control tokens, so it cannot produce one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import tokenizers

SPACE = "▁"
"""How sentencepiece spells a space."""

_THOUGHT_MARKS = ("<think>", "</think>")

_TURN_ENDS = ("<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_text|>", "<|endoftext|>")


@dataclass(frozen=True, slots=True)
class Control:
    """A token that only a template may write."""

    id: int
    strip_before: bool = False  # white space on that side belongs to the token
    strip_after: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All data of a tokenizer."""

    backend: tokenizers.Tokenizer  # plain text only
    tokens: dict[int, str]  # the spelling of each id in the file
    size: int  # ids are 0 to size - 1
    literal_ids: frozenset[int]  # tokens written literally, not in the byte alphabet
    byte_level: bool  # GPT-2's byte alphabet; otherwise sentencepiece's ▁ and <0xNN>
    controls: dict[str, Control]
    special_ids: frozenset[int]  # tokens that add nothing to a text
    bos_id: int | None
    eos_ids: frozenset[int]
    prefix: tuple[int, ...]  # tokens that the model expects before any text
    space_before_first: bool  # sentencepiece's dummy space, only at the start of the whole text
    chat_template: str | None
    variables: dict[str, str]  # bos_token and the like, for the template
    _bytes: dict[int, bytes] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # cache of token_bytes()

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token adds to a text; special tokens and unused ids add none."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._spell(token)
        return found

    def _spell(self, token: int) -> bytes:
        if not 0 <= token < self.size:
            raise IndexError(f"token {token} is outside the vocabulary of {self.size}")
        text = self.tokens.get(token, "")
        if token in self.special_ids:
            return b""
        if token in self.literal_ids:
            return text.encode("utf-8")
        if self.byte_level:
            return bytes(_BYTE_OF[character] for character in text if character in _BYTE_OF)
        if byte := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text):
            return bytes.fromhex(byte[1])
        return text.replace(SPACE, " ").encode("utf-8")


def is_control(text: str, *, special: bool, template: str | None) -> bool:
    """Return whether only a template may write this added token.

    These are the special tokens, and added tokens that work like them although the file does not mark them: those that
    the template writes ("<think>"), and everything spelt "<|…|>".
    """
    if special:
        return True
    markup = text[0] in "<[" and text[-1] in ">]"
    return markup and (text.startswith("<|") or (template is not None and text in template))


def is_silent(text: str, *, special: bool) -> bool:
    """Return whether a token adds nothing to a text.

    These are the special tokens except the marks around a thought: without the marks a thought looks like the reply.
    """
    return special and text not in _THOUGHT_MARKS


def find_eos_ids(named: set[int | None], controls: dict[str, Control], template: str | None) -> frozenset[int]:
    """Return the tokens that end a reply: the named ones, the ends of turns in the template, and the end of text."""
    ends = {
        controls[text].id
        for text in _TURN_ENDS
        if text in controls and (text == "<|endoftext|>" or text in (template or ""))
    }
    return frozenset(ends | {id_ for id_ in named if id_ is not None})


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's spelling of bytes: printable Latin-1 as itself, the others shifted to U+0100 and up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
