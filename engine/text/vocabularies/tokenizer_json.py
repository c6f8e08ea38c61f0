"""Vocabularies from Hugging Face directories: tokenizer.json, or the files that replace it, and the settings beside it.

It reads and checks the files. tokenizer.py encodes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from voxlane.engine.errors import WeightsError
from voxlane.engine.text.vocabularies.vocab_merges import VOCABULARY, has_pair, read_pair
from voxlane.engine.text.vocabularies.vocabulary import Control, Vocabulary, find_eos_ids, is_control, is_silent
from voxlane.engine.weights.json_files import read_json


def from_directory(path: Path) -> Vocabulary:
    """Return the vocabulary of a directory with tokenizer.json or vocab.json and merges.txt, or raise WeightsError."""
    whole = path / "tokenizer.json"
    paired = not whole.is_file() and has_pair(path)
    file, data = (path / VOCABULARY, read_pair(path)) if paired else (whole, read_json(whole))
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
        if is_control(text, special=flags.get("special") is True, template=template):
            controls[text] = Control(id_, flags.get("lstrip") is True, flags.get("rstrip") is True)
            if text != model.get("unk_token"):
                pieces.pop(text, None)
        else:
            pieces[text] = id_  # so that the backend gives it this id
    if model.get("unk_token") is not None and str(model["unk_token"]) not in pieces:
        raise WeightsError(file, "the vocabulary lacks its token for the unknown")
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
        special_ids=frozenset(
            id_ for text, (id_, flags) in added.items() if is_silent(text, special=flags.get("special") is True)
        ),
        bos_id=ids.get(variables.get("bos_token", "")),
        eos_ids=find_eos_ids(
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
    except Exception as error:  # the library raises `Exception` itself, nothing narrower
        raise WeightsError(file, f"not a usable tokenizer: {error}") from error


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 24


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _added_tokens(file: Path, data: dict[str, Any]) -> dict[str, tuple[int, dict[str, Any]]]:
    entries = data.get("added_tokens") or []
    added: dict[str, tuple[int, dict[str, Any]]] = {}
    for entry in entries if isinstance(entries, list) else [{}]:
        text = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(text, str) or not text or not _is_id(entry.get("id")):
            raise WeightsError(file, "added_tokens is damaged")
        added[text] = (entry["id"], entry)
    return added


def _post_processor_prefix(data: dict[str, Any]) -> tuple[int, ...]:
    """Return the ids that the tokenizer's post-processor puts before a text: usually the start token or none."""
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
    """Remove sentencepiece's "space before the first word" from the backend, which encodes parts of a text."""
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
    """Return the end tokens in generation_config.json, or else in config.json."""
    for file in (path / "generation_config.json", path / "config.json"):
        value = _optional(file).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        found = {id_ for id_ in ids if type(id_) is int and 0 <= id_ < count}
        if found:
            return found
    return set()
