"""Text to tokens and back, and whole conversations to prompts.

Only a model's own chat template can produce control tokens. A person's words are plain text: "<|im_end|>" in a message
is ten ordinary characters. vocabularies/ knows the file formats, chat_template.py the templates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import structs

from voxlane.engine.api import ChatMessage, Tool
from voxlane.engine.errors import WeightsError
from voxlane.engine.text.chat_template import FALLBACK_SOURCE, ChatTemplate, ChatTemplateError
from voxlane.engine.text.known_texts import KnownTexts
from voxlane.engine.text.tools import (
    LFM2_STYLE,
    CallStyle,
    called,
    declarations,
    entry,
    python_calls,
    spelt_out,
    strings,
)
from voxlane.engine.text.vocabularies.gguf import from_gguf
from voxlane.engine.text.vocabularies.tokenizer_json import from_directory
from voxlane.engine.text.vocabularies.vocab_merges import has_pair
from voxlane.engine.text.vocabularies.vocabulary import Vocabulary
from voxlane.engine.weights.gguf import GGUFFile
from voxlane.engine.weights.gguf_header import MAGIC, map_file, read_header

_GUARDS = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))

_SENTENCE_ENDS = (
    "\n", "\n\n",
    *(space + mark + rest for mark in ".?!。？！" for space in ("", " ") for rest in ("", '"', "\n", "\n\n")),
)  # fmt: skip
_OPEN_ENDS = " \t\r\n.?!,;:…。？！、"


class HasPath(Protocol):
    """Opened weights: a GGUF file or a directory."""

    path: Path


class Tokenizer:
    """A model's vocabulary and chat template."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._known = KnownTexts(self._encode_new)
        self._template = ChatTemplate(vocabulary.chat_template or FALLBACK_SOURCE)
        self._template_characters = frozenset(self._template.source)
        self._first_characters = "".join({re.escape(text[0]) for text in vocabulary.controls})
        longest_first = sorted(vocabulary.controls, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        ends = self._encode_plain(_SENTENCE_ENDS, first=False)
        self._sentence_ends = frozenset(ids[0] for ids in ends if len(ids) == 1)
        lfm2 = self._template.shows_tools and LFM2_STYLE.marks.call in vocabulary.controls
        self._call_style = LFM2_STYLE if lfm2 else self._template.call_style
        marks = self.call_style.marks
        self.call_starts, self.result_starts = self._starts_of(marks.call), self._starts_of(marks.result)

    @classmethod
    def open(cls, path: str | Path) -> Tokenizer:
        """Return the tokenizer of a GGUF file or a Hugging Face directory, or raise WeightsError."""
        return cls._of(_open_vocabulary(Path(path)), path)

    @classmethod
    def from_weights(cls, weights: HasPath) -> Tokenizer:
        """Return the tokenizer that belongs to opened weights, or raise WeightsError."""
        if isinstance(weights, GGUFFile):  # its header was read
            return cls._of(from_gguf(weights.header), weights.path)
        return cls.open(weights.path)

    @classmethod
    def _of(cls, vocabulary: Vocabulary, path: str | Path) -> Tokenizer:
        try:
            return cls(vocabulary)
        except ChatTemplateError as error:
            raise WeightsError(path, str(error)) from error

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return self._vocabulary.size

    @property
    def bos_id(self) -> int | None:
        """The token that starts a text, if the model has one."""
        return self._vocabulary.bos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every token that ends a reply."""
        return self._vocabulary.eos_ids

    @property
    def special_ids(self) -> frozenset[int]:
        """Every token that is structure, not text."""
        return self._vocabulary.special_ids

    @property
    def chat_template(self) -> str | None:
        """The model's own chat template. FALLBACK_SOURCE is used if it has none."""
        return self._vocabulary.chat_template

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """Return the tokens of plain text. They never hold a control token.

        With `add_bos` the tokens that the model expects before any text come first, if it expects any.
        """
        return [*(self._vocabulary.prefix if add_bos else ()), *self._encode_plain([text], first=True)[0]]

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        begin: str = "",
        add_generation_prompt: bool = True,
        tenant: str | None = None,
    ) -> list[int]:
        """Return the prompt for a conversation, up to where the assistant has said `begin`, or raise ChatTemplateError.

        Equal to rendering the template and encoding the result, except that control tokens named in a role, a message
        or a tool stay plain text; those in `begin` are control tokens. With a `tenant`, messages that were read for
        that tenant before are not read again.
        """
        rendered, guard = self._render(messages, tools, add_generation_prompt=add_generation_prompt)
        return self._encode_rendered(rendered + begin, guard, tenant=tenant)

    def encode_open(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[Tool] = (), tenant: str | None = None
    ) -> tuple[list[int], frozenset[int]]:
        """Return the prompt for a conversation whose last message is unfinished, and the tokens that would end it.

        Punctuation at the end of the message is left out, because speech recognition adds some to half a sentence too.
        So the tokens that would end it are the end of the turn and every mark that can end a sentence. Except for its
        last token or two, the prompt is a prefix of what `encode_chat` returns for the same messages.
        """
        mark = self._unused(messages, tools)
        last = structs.replace(messages[-1], content=messages[-1].content.rstrip(_OPEN_ENDS) + mark)
        rendered, guard = self._render([*messages[:-1], last], tools, add_generation_prompt=False)
        head, found, tail = rendered.rpartition(mark)
        if not found:
            raise ChatTemplateError("the model's chat template does not show the last message")
        ends = self._encode_rendered(tail, guard, first=False, tenant=tenant)[:1]
        return self._encode_rendered(head, guard, tenant=tenant), self.eos_ids.union(ends, self._sentence_ends)

    @property
    def call_style(self) -> CallStyle:
        """How this model writes a call."""
        return self._call_style

    @property
    def call_marks(self) -> dict[int, bytes]:
        """The spelling of special tokens that mark a call: they are no text, but a reader of calls needs them."""
        marks, controls = self._call_style.marks, self._vocabulary.controls
        found = {controls[text].id: text.encode() for text in (marks.call, marks.end, marks.result) if text in controls}
        return {token: text for token, text in found.items() if token in self.special_ids}

    def _starts_of(self, mark: str) -> frozenset[int]:
        """Return the tokens that this model begins a reply with if `mark` is the first thing in it."""
        if self._call_style.python and mark in self._vocabulary.controls:
            return frozenset({self._vocabulary.controls[mark].id})
        guard = self._unused((), ())
        encoded = [self._encode_rendered(space + mark, guard, first=False) for space in ("", " ", "\n", "\n\n")]
        return frozenset(ids[0] for ids in encoded if ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens without the special ones; invalid bytes become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes one token adds to the text; special tokens add none. IndexError outside the vocabulary."""
        return self._vocabulary.token_bytes(token)

    def token_name(self, token: int) -> str:
        """Return the vocabulary's name of a token, special or not."""
        return self._vocabulary.tokens.get(token, "")

    def token_id(self, name: str) -> int | None:
        """Return the token with this name in the vocabulary, if there is one."""
        return next((token for token, spelt in self._vocabulary.tokens.items() if spelt == name), None)

    def _render(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool], *, add_generation_prompt: bool
    ) -> tuple[str, str]:
        """Return the conversation as text, and the guard: a character before text that looks like a control token."""
        guard = self._unused(messages, tools)
        names, shown = called(messages), declarations(tools)
        if not self._template.knows_tools and not self._call_style.python:
            messages, shown = spelt_out(messages, tools), []
        rendered = self._template.render(
            [self._entry(message, names, guard) for message in messages],
            {
                **self._vocabulary.variables,
                # Thoughts are not spoken: of a thought a person hears only the silence.
                **({"enable_thinking": False} if self._template.may_think else {}),
                "add_generation_prompt": add_generation_prompt,
                "tools": self._guarded_all(shown, guard) or None,
                "documents": None,
            },
        )
        return rendered, guard

    def _entry(self, message: ChatMessage, names: Mapping[str, str], guard: str) -> dict[str, Any]:
        """Return a message as the template takes it; calls that the template would not write are in its text."""
        shown: dict[str, Any] = self._guarded_all(entry(message, names), guard)
        if message.tool_calls and not self._template.knows_tools and self._call_style.python:
            marks = self._call_style.marks
            calls = self._guarded(python_calls(message), guard)
            shown["content"] = f"{marks.call}{calls}{marks.end}{shown['content']}"
        return shown

    def _encode_rendered(
        self, rendered: str, guard: str, *, first: bool = True, tenant: str | None = None
    ) -> list[int]:
        ids = list(self._vocabulary.prefix) if first and not self._vocabulary.chat_template else []
        pieces = list(self._split_controls(rendered, guard))
        texts = [piece for piece in pieces if isinstance(piece, str)]
        encoded = iter(self._encode_plain(texts, first=first and texts[:1] == pieces[:1], tenant=tenant))
        for piece in pieces:
            ids += (piece,) if isinstance(piece, int) else next(encoded)
        return ids

    def _unused(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> str:
        """Return a private-use character that occurs nowhere in the conversation, the tools or the template."""
        used = set(self._template_characters)
        for text in strings([declarations(tools), *(entry(message, {}) for message in messages)]):
            used.update(text)
        for code in _GUARDS:
            if chr(code) not in used:
                return chr(code)
        raise ChatTemplateError("the conversation uses every private-use character of Unicode")

    def _guarded_all(self, value: Any, guard: str) -> Any:
        """Return a JSON value with every string in it guarded."""
        match value:
            case str():
                return self._guarded(value, guard)
            case dict():
                # A template looks parts up by keys like "content", and no such key is a control token.
                return {
                    key if key.isidentifier() else self._guarded(key, guard): self._guarded_all(part, guard)
                    for key, part in value.items()
                }
            case list():
                return [self._guarded_all(part, guard) for part in value]
            case _:
                return value

    def _guarded(self, text: str, guard: str) -> str:
        """Return `text` with a guard before each character that a control token could start with.

        The guard is before the text, not inside it, so templates that look for "</think>" in a reply still find it.
        Text without such a character is unchanged.
        """
        return re.sub(f"(?=[{self._first_characters}])", guard, text) if self._first_characters else text

    def _split_controls(self, rendered: str, guard: str) -> Iterator[str | int]:
        """Yield stretches of plain text, and ids of the control tokens that the template wrote."""
        position = 0
        for match in self._pattern.finditer(rendered):
            start, end = match.span()
            if start and rendered[start - 1] == guard:
                continue
            control = self._vocabulary.controls[match[0]]
            stretch = rendered[position:start].replace(guard, "")
            if stretch := stretch.rstrip() if control.strip_before else stretch:
                yield stretch
            yield control.id
            position = end
            if control.strip_after:
                position += len(rendered[end:]) - len(rendered[end:].lstrip())
        if stretch := rendered[position:].replace(guard, ""):
            yield stretch

    def _encode_plain(self, texts: Sequence[str], *, first: bool, tenant: str | None = None) -> Sequence[Sequence[int]]:
        """Return the tokens of each text; with `first`, the first text begins the prompt.

        Texts of a tenant are kept with their tokens.
        """
        vocabulary, texts = self._vocabulary, list(texts)
        if first and vocabulary.space_before_first and texts and texts[0] and not texts[0].startswith((" ", "▁")):
            texts[0] = " " + texts[0]
        return self._encode_new(texts) if tenant is None else self._known.encode(texts, tenant)

    def _encode_new(self, texts: list[str]) -> list[list[int]]:
        # Lone surrogates cannot be encoded. A broken character is replaced and does not fail the request.
        sound = [text.encode("utf-8", "surrogatepass").decode("utf-8", "replace") for text in texts]
        # One call for all texts. Of the library's functions this one releases the GIL, and takes a fifth less time.
        try:
            return [found.ids for found in self._vocabulary.backend.encode_batch_fast(sound, add_special_tokens=False)]
        except Exception as error:  # the library raises `Exception` itself, nothing narrower
            raise ValueError("the model's tokenizer cannot read this text") from error


def _open_vocabulary(path: Path) -> Vocabulary:
    if path.is_dir():
        if (path / "tokenizer.json").is_file() or has_pair(path):
            return from_directory(path)
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            raise WeightsError(path, "there is no tokenizer.json in it, nor vocab.json with merges.txt")
        path = files[0]
    data = map_file(path)
    try:
        if data[:4] != MAGIC:
            return from_directory(path.parent)
        return from_gguf(read_header(path, data))
    finally:
        data.close()
