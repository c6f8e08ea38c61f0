"""Vocabularies from model files: GGUF metadata or a Hugging Face directory, made into one shape.

The backend built here knows no control token at all, so it cannot produce one; their ids are kept beside it for the
template. This module reads files and builds; encoding is tokenizer.py's.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from voxlane.engine.weights.errors import WeightsError
from voxlane.engine.weights.gguf_header import MAGIC, Header, map_file, read_header
from voxlane.engine.weights.gguf_names import Fields
from voxlane.engine.weights.json_files import read_json

# GGUF's token types. The others (unknown, control, unused) are special.
_NORMAL, _USER_DEFINED, _BYTE = 1, 4, 6
_TEXT_TYPES = (_NORMAL, _BYTE)

_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = rf"{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2_SPLIT = rf"{_LETTERS}|\p{{N}}|{_REST}"

# tokenizer.ggml.pre -> how the text is cut before merging
_PLAIN = frozenset({"gpt-2", "default", "mpt", "olmo", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de"})
_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
_LLAMA3 = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx"})
_QWEN2 = frozenset({"qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan-dense"})

_TURN_ENDS = ("<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_text|>", "<|endoftext|>")
_SPACE = "▁"


@dataclass(frozen=True, slots=True)
class Control:
    """A token that only a template may write."""

    id: int
    strip_before: bool = False  # white space on that side belongs to the token
    strip_after: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything a tokenizer is made of."""

    backend: tokenizers.Tokenizer  # plain text only
    tokens: dict[int, str]  # what each id stands for, as the file spells it
    size: int  # ids run from 0 to here
    literal_ids: frozenset[int]  # tokens spelt as themselves, not in the byte alphabet
    byte_level: bool  # GPT-2's byte alphabet; otherwise sentencepiece's ▁ and <0xNN>
    controls: dict[str, Control]
    special_ids: frozenset[int]
    bos_id: int | None
    eos_ids: frozenset[int]
    prefix: tuple[int, ...]  # what the model expects before any text
    space_before_first: bool  # sentencepiece's dummy space, at the start of the whole text only
    chat_template: str | None
    variables: dict[str, str]  # bos_token and the like, for the template

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token adds to a text; special tokens and unused ids add none."""
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
        return text.replace(_SPACE, " ").encode("utf-8")


def open_vocabulary(path: Path) -> Vocabulary:
    """Return the vocabulary of a GGUF file or a directory with tokenizer.json, or raise WeightsError."""
    if path.is_dir():
        if (path / "tokenizer.json").is_file():
            return _from_directory(path)
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            raise WeightsError(path, "there is no tokenizer.json in it")
        path = files[0]
    data = map_file(path)
    try:
        if data[:4] != MAGIC:
            return _from_directory(path.parent)
        return _from_gguf(read_header(path, data))
    finally:
        data.close()


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's spelling of bytes: printable Latin-1 as itself, the others shifted to U+0100 and up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


# ---- GGUF


def _from_gguf(header: Header) -> Vocabulary:
    fields = Fields(header)
    kind = fields.text("tokenizer.ggml.model")
    tokens = _strings(header, "tokenizer.ggml.tokens")
    types = _numbers(header, "tokenizer.ggml.token_type", len(tokens), np.full(len(tokens), _NORMAL)).tolist()
    template = fields.text("tokenizer.chat_template", "") or None
    controls = {
        text: Control(id_)
        for id_, (text, type_) in enumerate(zip(tokens, types, strict=True))
        if text and type_ not in _TEXT_TYPES and _is_control(text, special=type_ != _USER_DEFINED, template=template)
    }
    special_ids = frozenset(id_ for id_, type_ in enumerate(types) if type_ not in (*_TEXT_TYPES, _USER_DEFINED))
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
        eos_ids=_eos_ids({named["eos"], named["eot"], named["eom"]}, controls, template),
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


def _byte_level_backend(header: Header, fields: Fields, vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
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
        pattern = Regex(_LLAMA3_SPLIT if pre in _LLAMA3 else _QWEN2_SPLIT)
        split = pre_tokenizers.Split(pattern, behavior="isolated", invert=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        if pre in _QWEN2:
            backend.normalizer = normalizers.NFC()
    else:
        supported = ", ".join(sorted(_PLAIN | _DIGITS | _LLAMA3 | _QWEN2))
        raise WeightsError(header.path, f"pre-tokenizer {pre!r} is not supported (supported: {supported})")
    return backend


def _sentencepiece_backend(
    header: Header, fields: Fields, vocabulary: dict[str, int], pieces: dict[str, int], scores: np.ndarray[Any, Any]
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
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    if header.metadata.get("tokenizer.ggml.add_space_prefix", True) is True:
        steps.insert(0, normalizers.Prepend(_SPACE))
    backend.normalizer = normalizers.Sequence(steps)
    return backend


def _bpe(path: Path, vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **options))
    except Exception as error:  # the library raises nothing narrower
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


def _token_id(header: Header, fields: Fields, key: str, count: int) -> int | None:
    if not fields.has(key):
        return None
    id_ = fields.integer(key)
    if not 0 <= id_ < count:
        raise WeightsError(header.path, f"{key} is {id_}, outside the vocabulary of {count}")
    return id_


# ---- both


def _is_control(text: str, *, special: bool, template: str | None) -> bool:
    """Tell whether only a template may write this added token.

    Besides special tokens these are added tokens that work like them though their file does not say so: those the
    template itself writes ("<think>"), and everything spelt "<|…|>".
    """
    return (
        special
        or (text.startswith("<|") and text.endswith("|>"))
        or (template is not None and not text.isspace() and text.strip() in template)
    )


def _eos_ids(named: set[int | None], controls: dict[str, Control], template: str | None) -> frozenset[int]:
    """Return what ends a reply: the named tokens, the ends of turns in the template, and the end of text."""
    ends = {
        controls[text].id
        for text in _TURN_ENDS
        if text in controls and (text == "<|endoftext|>" or text in (template or ""))
    }
    return frozenset(ends | {id_ for id_ in named if id_ is not None})


# ---- Hugging Face directories


def _from_directory(path: Path) -> Vocabulary:
    file = path / "tokenizer.json"
    data = read_json(file)
    settings = _optional(path / "tokenizer_config.json")
    template = _directory_template(path, settings)
    added = _added_tokens(file, data)
    model = data.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise WeightsError(file, "only BPE tokenizers are supported")
    pieces = model["vocab"]
    if not all(map(_is_id, pieces.values())):
        raise WeightsError(file, "the vocabulary has an impossible id")
    tokens = {id_: text for text, id_ in pieces.items()} | {id_: text for text, (id_, _) in added.items()}
    controls: dict[str, Control] = {}
    for text, (id_, flags) in added.items():
        if _is_control(text, special=flags.get("special") is True, template=template):
            controls[text] = Control(id_, flags.get("lstrip") is True, flags.get("rstrip") is True)
            if text != model.get("unk_token"):
                pieces.pop(text, None)
        else:
            pieces[text] = id_  # so that the backend gives it this very id
    prefix = _post_processor_prefix(data)
    data["added_tokens"] = [flags for text, (_, flags) in added.items() if text not in controls]
    data["post_processor"] = data["truncation"] = data["padding"] = None
    space_before_first = _take_first_space(data)
    byte_level = '"ByteLevel"' in json.dumps([data.get("pre_tokenizer"), data.get("decoder")])
    if not byte_level and model.get("byte_fallback") is not True:
        raise WeightsError(file, "the tokenizer is neither byte-level nor does it fall back to bytes")
    variables = {
        key: token for key in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (token := _token_text(settings.get(key))) is not None
    }  # fmt: skip
    ids = {text: id_ for id_, text in tokens.items()}
    return Vocabulary(
        backend=_load_backend(file, data),
        tokens=tokens,
        size=max(tokens, default=-1) + 1,
        literal_ids=frozenset(id_ for id_, _ in added.values()),
        byte_level=byte_level,
        controls=controls,
        special_ids=frozenset(id_ for id_, flags in added.values() if flags.get("special") is True),
        bos_id=ids.get(variables.get("bos_token", "")),
        eos_ids=_eos_ids(
            {ids.get(variables.get("eos_token", "")), *_config_eos(path, len(tokens))}, controls, template
        ),
        prefix=prefix,
        space_before_first=space_before_first,
        chat_template=template,
        variables=variables,
    )


def _load_backend(file: Path, data: dict[str, Any]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # the library raises nothing narrower
        raise WeightsError(file, f"not a usable tokenizer: {error}") from error


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 24


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _added_tokens(file: Path, data: dict[str, Any]) -> dict[str, tuple[int, dict[str, Any]]]:
    entries = data.get("added_tokens") or []
    added: dict[str, tuple[int, dict[str, Any]]] = {}
    for entry in entries if isinstance(entries, list) else [{}]:
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str) or not _is_id(entry.get("id")):
            raise WeightsError(file, "added_tokens is damaged")
        added[entry["content"]] = (entry["id"], entry)
    return added


def _post_processor_prefix(data: dict[str, Any]) -> tuple[int, ...]:
    """Return the ids the tokenizer's post-processor puts before a text: usually the start token or nothing."""
    match data.get("post_processor"):
        case {"type": "Sequence", "processors": list(processors)}:
            pass
        case processor:
            processors = [processor]
    prefix: list[int] = []
    for processor in processors:
        match processor:
            case {"type": "TemplateProcessing", "single": list(steps), "special_tokens": dict(specials)}:
                for step in steps:
                    match step:
                        case {"SpecialToken": {"id": str(name)}}:
                            ids = specials[name].get("ids", []) if isinstance(specials.get(name), dict) else []
                            prefix.extend(id_ for id_ in ids if type(id_) is int)
                        case _:
                            return tuple(prefix)
    return tuple(prefix)


def _take_first_space(data: dict[str, Any]) -> bool:
    """Move sentencepiece's "space before the first word" out of the backend, which sees only stretches of a text."""
    found = False
    pre = data.get("pre_tokenizer")
    steps = pre.get("pretokenizers", [pre]) if isinstance(pre, dict) else []
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict) and step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
            found = True
    return found


def _directory_template(path: Path, settings: dict[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) and template else None


def _token_text(value: object) -> str | None:
    match value:
        case str(text) | {"content": str(text)}:
            return text
        case _:
            return None


def _config_eos(path: Path, count: int) -> set[int]:
    """Return the ends of a reply that generation_config.json names, or else config.json."""
    for file in (path / "generation_config.json", path / "config.json"):
        value = _optional(file).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        found = {id_ for id_ in ids if type(id_) is int and 0 <= id_ < count}
        if found:
            return found
    return set()
