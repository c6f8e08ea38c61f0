"""The tokens that a grammar allows next. It knows grammars and vocabularies; it does not know logits, requests or text.

A thread compiles the grammars, so that no step waits for one; compiled grammars are cached. The masks come from
llguidance. Measured on a 49,152-token vocabulary and a Neoverse-N1 core: compiling an ordinary schema 1 to 5 ms,
48 KB of enumerations 50 ms; a mask 0.01 to 0.1 ms, and at most 10 ms for a pattern made to hurt.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from voxlane.engine.text.schema import SchemaError, steering

MAX_PENDING = 64
"""Grammars that may wait for the compiler: a few seconds of its time at worst."""
CACHED_GRAMMARS = 64
"""Compiled grammars kept; an ordinary one takes some 100 KB."""
STACK_BYTES = 64 * 1024 * 1024
"""The stack of the compiling thread: the compiler recurses over a schema's references. Unused pages cost nothing."""

# Fuel and items per step bound one mask to about 10 ms, states bound a running request's memory to about 20 MB, grammar
# size and initial fuel bound compiling to about 0.3 s.
LIMITS = LLParserLimits(
    max_items_in_row=1000,
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=20_000,
    max_grammar_size=50_000,
    verbose_errors=False,
)

ANY_OBJECT: dict[str, Any] = {"type": "object"}

_KEYWORDS = (
    "not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains", "propertyNames",
    "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties",
    "contentEncoding", "contentMediaType", "contentSchema", "$dynamicRef", "$recursiveRef",
)  # fmt: skip

# The compiler's error -> the text for the sender. The compiler's own text may quote the schema.
_REASONS = (
    (r"oneOf", "uses oneOf where the choices do not exclude each other (use anyOf)"),
    (r"(?i)unsatisfiable", "cannot be satisfied by anything"),
    (r"(?i)regex", "has a pattern that cannot be enforced"),
    (r"(?i)too (big|large|complex|many)|fuel|limit", "is too complex"),
    (r"(?i)registry|pointer|\$ref|resolv", "has a $ref that leads nowhere"),
    (r"(?i)invalid type", "names a type that JSON does not have"),
)


class GrammarBusy(Exception):
    """Too many grammars wait to be compiled."""


class TokenBytes(Protocol):
    """The part of a tokenizer that a grammar needs."""

    @property
    def vocab_size(self) -> int:
        """How many token ids there are."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end an output."""

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokens that are never text."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; control tokens spelt out in it are plain text."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token stands for."""


def json_grammar(schema: dict[str, Any]) -> str:
    """Return the grammar of JSON that satisfies a schema."""
    return LLMatcher.grammar_from_json_schema(json.dumps(steering(schema)))


def call_grammar(tools: Sequence[tuple[str, dict[str, Any]]], key: str) -> str:
    """Return the grammar of one call to one of `tools`: each is a name and the schema of the value under `key`."""
    lines = ["start: " + " | ".join(f"call_{index}" for index in range(len(tools)))]
    for index, (name, schema) in enumerate(tools):
        head = json.dumps(f'{{"name": {json.dumps(name)}, {json.dumps(key)}: ')
        # Each schema stays a document of its own, so that its references stay valid.
        lines.append(f'call_{index}: {head} arguments_{index} "}}"')
        lines.append(f"arguments_{index}: %json {json.dumps(steering(schema))}")
    return LLMatcher.grammar_from_lark("\n".join(lines))


class Constraint:
    """A grammar's state after one request's output. It is derived from the tokens alone, wherever they are computed."""

    __slots__ = ("_followed", "_matcher", "_vocabulary")

    def __init__(self, matcher: LLMatcher, start: int, vocabulary: int) -> None:
        self._matcher = matcher
        self._followed = start  # the number of tokens that are the prompt or have been consumed
        self._vocabulary = vocabulary

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_] | None:
        """Return for each token of the vocabulary whether it may follow `tokens`; None if no token may."""
        self._follow(tokens)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, count=self._vocabulary, bitorder="little").view(np.bool_)
        return None if self._matcher.is_error() or not allowed.any() else allowed

    def complete(self, tokens: Sequence[int]) -> bool:
        """Return whether only the end can follow `tokens`."""
        self._follow(tokens)
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def _follow(self, tokens: Sequence[int]) -> None:
        while self._followed < len(tokens):
            self._matcher.consume_token(tokens[self._followed])
            self._followed += 1


class Grammar:
    """A compiled grammar, shared by all requests that use it."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def constraint(self, start: int) -> Constraint:
        """Return a state for an output that begins at token `start`."""
        return Constraint(self._matcher.deep_copy(), start, self._vocabulary)


class Grammars:
    """Compiles grammars for one vocabulary."""

    def __init__(self, tokenizer: TokenBytes, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary  # the model's size, which may exceed the tokenizer's
        self._tokens: LLTokenizer | None = None
        self._known: OrderedDict[str, Future[Grammar]] = OrderedDict()
        self._queue: SimpleQueue[tuple[str, Future[Grammar]] | None] = SimpleQueue()
        self._closed = False
        self._thread: threading.Thread | None = None

    def compile(self, text: str) -> Future[Grammar]:
        """Return a future of the grammar; its exception is a SchemaError. Raise GrammarBusy if too many wait."""
        if (known := self._known.get(text)) is not None:
            self._known.move_to_end(text)
            return known
        if sum(1 for future in self._known.values() if not future.done()) >= MAX_PENDING:
            raise GrammarBusy
        future: Future[Grammar] = Future()
        self._known[text] = future
        while len(self._known) > CACHED_GRAMMARS:
            self._known.popitem(last=False)
        self._queue.put((text, future))
        self._start()
        return future

    def warm_up(self) -> None:
        """Prepare the vocabulary before the first request needs it: that takes 0.3 s."""
        self.compile(json_grammar(ANY_OBJECT))

    def rest(self) -> None:
        """Compile the grammars that wait, and end the thread; the next grammar starts another."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Drop the grammars that wait; wait for the thread to end."""
        self._closed = True
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            before = threading.stack_size(STACK_BYTES)
            self._thread = threading.Thread(target=self._work, name="grammars", daemon=True)
            self._thread.start()
            threading.stack_size(before)

    def _work(self) -> None:
        while (asked := self._queue.get()) is not None and not self._closed:
            text, future = asked
            try:
                future.set_result(self._compiled(text))
            except SchemaError as error:
                future.set_exception(error)
            finally:
                if not future.done():  # a bug in our code or the library: no request may wait for ever
                    future.set_exception(SchemaError("cannot be enforced"))

    def _compiled(self, text: str) -> Grammar:
        if self._tokens is None:
            self._tokens = _vocabulary(self._tokenizer, self._vocabulary)
        matcher = LLMatcher(self._tokens, text, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # detects a grammar that allows no output
        if matcher.is_error():
            raise SchemaError(_reason(matcher.get_error()))
        return Grammar(matcher, self._vocabulary)


def _reason(error: str) -> str:
    if "nimplemented" in error:
        names = [name for name in _KEYWORDS if f'"{name}"' in error]
        return "uses what cannot be enforced" + (": " + ", ".join(names) if names else "")
    return next((told for pattern, told in _REASONS if re.search(pattern, error)), "cannot be enforced")


class _Words:
    """A tokenizer with the interface that llguidance needs."""

    def __init__(self, tokenizer: TokenBytes, vocabulary: int) -> None:
        known = min(tokenizer.vocab_size, vocabulary)
        self.tokens = [_spelling(tokenizer, token) for token in range(known)] + [b""] * (vocabulary - known)
        self.special_token_ids = sorted(token for token in tokenizer.special_ids if token < vocabulary)
        self.eos_tokens = sorted(token for token in tokenizer.eos_ids if token < vocabulary)
        self.eos_token_id = next(iter(self.eos_tokens), 0)
        self.bos_token_id = None
        self._tokenizer = tokenizer
        self._ids = {data: token for token, data in enumerate(self.tokens) if token not in tokenizer.special_ids}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, data: bytes) -> list[int]:
        """Return the model's own tokens for a text that the grammar forces."""
        tokens = self._tokenizer.encode(data.decode("utf-8", "replace"))
        if all(token < len(self.tokens) for token in tokens) and b"".join(self.tokens[t] for t in tokens) == data:
            return tokens
        return self._greedy(data)  # sentencepiece adds a space before the text

    def _greedy(self, data: bytes) -> list[int]:
        tokens: list[int] = []
        place = 0
        while place < len(data):
            sizes = range(min(self._longest, len(data) - place), 0, -1)
            size = next((size for size in sizes if data[place : place + size] in self._ids), 0)
            if not size:
                break
            tokens.append(self._ids[data[place : place + size]])
            place += size
        return tokens


def _spelling(tokenizer: TokenBytes, token: int) -> bytes:
    return b"<%d>" % token if token in tokenizer.special_ids else tokenizer.token_bytes(token)


def _vocabulary(tokenizer: TokenBytes, vocabulary: int) -> LLTokenizer:
    words = _Words(tokenizer, vocabulary)
    if not words.eos_tokens:
        raise SchemaError("cannot be enforced: this model has no token that ends an output")
    return LLTokenizer(TokenizerWrapper(words), n_vocab=vocabulary, eos_token=words.eos_tokens)
