"""Vocabularies from GGUF metadata: byte-level BPE ("gpt2") and sentencepiece's BPE ("llama").

It reads a checked header. tokenizer.py encodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from voxlane.engine.errors import WeightsError
from voxlane.engine.text.vocabularies.vocabulary import (
    SPACE,
    Control,
    Vocabulary,
    find_eos_ids,
    is_control,
    is_silent,
)
from voxlane.engine.weights.gguf_header import Header
from voxlane.engine.weights.gguf_names import MetadataFields

# GGUF's token types. The others (unknown, control, unused) are special.
_NORMAL, _USER_DEFINED, _BYTE = 1, 4, 6
_TEXT_TYPES = (_NORMAL, _BYTE)

_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = rf"{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
QWEN2_SPLIT = rf"{_LETTERS}|\p{{N}}|{_REST}"

# tokenizer.ggml.pre -> how the text is split before merging
_PLAIN = frozenset({"gpt-2", "default", "phi-2", "olmo"})
_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"})
_LLAMA3 = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2"})
_QWEN2 = frozenset({"qwen2", "deepseek-r1-qwen", "megrez"})


def from_gguf(header: Header) -> Vocabulary:
    """Return the vocabulary in a GGUF header, or raise WeightsError."""
    fields = MetadataFields(header)
    kind = fields.text("tokenizer.ggml.model")
    tokens = _strings(header, "tokenizer.ggml.tokens")
    types = _numbers(header, "tokenizer.ggml.token_type", len(tokens), np.full(len(tokens), _NORMAL)).tolist()
    template = fields.text("tokenizer.chat_template", "") or None
    controls = {
        text: Control(id_)
        for id_, (text, type_) in enumerate(zip(tokens, types, strict=True))
        if text and type_ not in _TEXT_TYPES and is_control(text, special=type_ != _USER_DEFINED, template=template)
    }
    special_ids = frozenset(
        id_
        for id_, (text, type_) in enumerate(zip(tokens, types, strict=True))
        if is_silent(text, special=type_ not in (*_TEXT_TYPES, _USER_DEFINED))
    )
    literal_ids = frozenset(id_ for id_, type_ in enumerate(types) if type_ not in _TEXT_TYPES)
    vocabulary = {text: id_ for id_, text in enumerate(tokens) if text not in controls}
    if kind == "gpt2":
        backend = _byte_level_backend(header, fields, vocabulary)
    elif kind == "llama":
        scores = _numbers(header, "tokenizer.ggml.scores", len(tokens), None)
        pieces = {text: id_ for text, id_ in vocabulary.items() if types[id_] == _NORMAL}
        backend = _sentencepiece_backend(header, fields, vocabulary, pieces, scores)
    else:
        raise WeightsError(header.path, f"tokenizer {kind!r} is not supported (supported: gpt2, llama)")
    backend.add_tokens(
        [AddedToken(text, normalized=False) for text, id_ in vocabulary.items() if types[id_] == _USER_DEFINED]
    )
    named = {name: _token_id(header, fields, f"tokenizer.ggml.{name}_token_id", len(tokens)) for name in _NAMED_IDS}
    bos = named["bos"]
    add_bos = header.metadata.get("tokenizer.ggml.add_bos_token", kind == "llama") is True and bos is not None
    return Vocabulary(
        backend=backend,
        tokens=dict(enumerate(tokens)),
        size=len(tokens),
        literal_ids=literal_ids,
        byte_level=kind == "gpt2",
        controls=controls,
        special_ids=special_ids,
        bos_id=bos,
        eos_ids=find_eos_ids({named["eos"], named["eot"], named["eom"]}, controls, template),
        prefix=(bos,) if add_bos and bos is not None else (),
        space_before_first=False,
        chat_template=template,
        variables={
            f"{long}_token": tokens[id_]
            for short, long in _NAMED_IDS.items()
            if long and (id_ := named[short]) is not None
        },
    )


_NAMED_IDS = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "eot": "", "eom": ""}


def _byte_level_backend(header: Header, fields: MetadataFields, vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    merges: list[tuple[str, str]] = []
    for line in _strings(header, "tokenizer.ggml.merges"):
        left, space, right = line.partition(" ")
        if not space or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise WeightsError(header.path, f"the merge {line!r} is not made of tokens")
        merges.append((left, right))
    pre = fields.text("tokenizer.ggml.pre", "default")
    backend = _bpe(header.path, vocabulary, merges, ignore_merges=pre in _LLAMA3)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre in _PLAIN | _DIGITS)
    if pre in _PLAIN:
        backend.pre_tokenizer = byte_level
    elif pre in _DIGITS:
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    elif pre in _LLAMA3 | _QWEN2:
        pattern = Regex(_LLAMA3_SPLIT if pre in _LLAMA3 else QWEN2_SPLIT)
        split = pre_tokenizers.Split(pattern, behavior="isolated", invert=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        if pre in _QWEN2:
            backend.normalizer = normalizers.NFC()
    else:
        supported = ", ".join(sorted(_PLAIN | _DIGITS | _LLAMA3 | _QWEN2))
        raise WeightsError(header.path, f"pre-tokenizer {pre!r} is not supported (supported: {supported})")
    return backend


def _sentencepiece_backend(
    header: Header,
    fields: MetadataFields,
    vocabulary: dict[str, int],
    pieces: dict[str, int],
    scores: np.ndarray[Any, Any],
) -> tokenizers.Tokenizer:
    """Return sentencepiece's BPE: two pieces merge if their union is a piece, the best-scored union first."""
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary]
    if missing:
        raise WeightsError(header.path, f"the vocabulary has no token for byte {missing[0]}")
    ranked = []
    for piece, id_ in pieces.items():
        for cut in range(1, len(piece)):
            left, right = pieces.get(piece[:cut]), pieces.get(piece[cut:])
            if left is not None and right is not None:
                ranked.append((-float(scores[id_]), left, right, piece[:cut], piece[cut:]))
    ranked.sort()
    merges = [(left, right) for *_, left, right in ranked]
    backend = _bpe(header.path, vocabulary, merges, byte_fallback=True, fuse_unk=True)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    if header.metadata.get("tokenizer.ggml.add_space_prefix", True) is True:
        steps.insert(0, normalizers.Prepend(SPACE))
    backend.normalizer = normalizers.Sequence(steps)
    return backend


def _bpe(path: Path, vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **options))
    except Exception as error:  # the library raises `Exception` itself, nothing narrower
        raise WeightsError(path, f"the vocabulary is damaged: {error}") from error


def _strings(header: Header, key: str) -> list[str]:
    value = header.metadata.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise WeightsError(header.path, f"there is no tokenizer in it ({key} is missing)")
    return [str(item) for item in value]


def _numbers(header: Header, key: str, count: int, default: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    value = header.metadata.get(key, default)
    if not isinstance(value, np.ndarray) or len(value) != count:
        raise WeightsError(header.path, f"{key} does not have one number per token")
    return value


def _token_id(header: Header, fields: MetadataFields, key: str, count: int) -> int | None:
    if not fields.has(key):
        return None
    id_ = fields.integer(key)
    if not 0 <= id_ < count:
        raise WeightsError(header.path, f"{key} is {id_}, outside the vocabulary of {count}")
    return id_
