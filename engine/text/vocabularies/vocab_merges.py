"""Vocabularies from vocab.json and merges.txt, as the authors of Qwen publish them, in the form of tokenizer.json.

It reads and checks the files for tokenizer_json.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxlane.engine.errors import WeightsError
from voxlane.engine.text.vocabularies.gguf import QWEN2_SPLIT
from voxlane.engine.weights.json_files import MAX_JSON_BYTES, read_json

VOCABULARY, MERGES, SETTINGS = "vocab.json", "merges.txt", "tokenizer_config.json"
_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
"""Tokenizers with a known way of splitting text; the files do not tell it."""


def has_pair(path: Path) -> bool:
    """Return whether a directory has a vocabulary in two files."""
    return (path / VOCABULARY).is_file() and (path / MERGES).is_file()


def read_pair(path: Path) -> dict[str, Any]:
    """Return the equivalent of tokenizer.json for a directory, or raise WeightsError."""
    settings = read_json(path / SETTINGS)
    if settings.get("tokenizer_class") not in _CLASSES:
        wanted = ", ".join(_CLASSES)
        raise WeightsError(path / SETTINGS, f"tokenizer_class {settings.get('tokenizer_class')!r:.60} is not {wanted}")
    if settings.get("add_prefix_space"):
        raise WeightsError(path / SETTINGS, "add_prefix_space is not supported")
    return {
        "version": "1.0",
        "added_tokens": _added(path / SETTINGS, settings.get("added_tokens_decoder")),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": read_json(path / VOCABULARY), "merges": _merges(path / MERGES)},
    }


def _merges(file: Path) -> list[list[str]]:
    try:
        size = file.stat().st_size
        if size > MAX_JSON_BYTES:
            raise WeightsError(file, f"{size} bytes of merges are over the limit of {MAX_JSON_BYTES}")
        lines = file.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(file, f"cannot be read: {error}") from error
    if lines[0].startswith("#version"):
        del lines[0]
    pairs = [line.split(" ") for line in lines if line]
    if any(len(pair) != 2 for pair in pairs):
        raise WeightsError(file, "a line is not two pieces")
    return pairs


def _added(file: Path, entries: object) -> list[dict[str, Any]]:
    if not isinstance(entries, dict):
        raise WeightsError(file, "added_tokens_decoder is missing")
    added: list[dict[str, Any]] = []
    for number, entry in entries.items():
        if not (number.isascii() and number.isdigit() and len(number) < 9 and isinstance(entry, dict)):
            raise WeightsError(file, "added_tokens_decoder is damaged")
        flags = {name: entry.get(name) is True for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        added.append({"id": int(number), "content": entry.get("content"), **flags})
    return added
