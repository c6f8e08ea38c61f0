"""One TOML file into one frozen tree. Secrets come from the environment and are no part of the tree.

It knows names, types and ranges, and refuses everything else by name. It does not know what the values are used for.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import textwrap
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from voxlane.engine.api import AUTO_ADAPTER, AUTO_MODEL, EngineConfig, Priority
from voxlane.server import limits
from voxlane.server.conversation.values import INSTRUCTIONS
from voxlane.server.errors import ConfigError
from voxlane.server.log import quote

API_KEY_VARIABLE = "VOXLANE_API_KEY"
"""When set, every request to /v1 needs `Authorization: Bearer` with this value."""

CHAT_KEY_VARIABLE = "VOXLANE_CHAT_KEY"
"""The key for the server at chat.url."""

PRIORITIES = {"normal": Priority.NORMAL, "high": Priority.HIGH, "critical": Priority.CRITICAL}
"""What priorities are called outside."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where the server listens and how it behaves."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one, see the banner
    open: bool = False  # serve others than this machine without a key
    model_alias: str = ""  # a second name under which the model is served
    highest_priority: Literal["normal", "high", "critical"] = "critical"  # what a request may ask for
    drain_s: float = limits.DRAIN_SECONDS  # how long answers may go on after SIGTERM; ending them takes longer
    log_level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """What clients may use."""

    # The reasons for each stand in limits.py.
    body_bytes: int = limits.BODY_BYTES
    body_s: float = limits.BODY_SECONDS
    write_s: float = limits.WRITE_SECONDS
    open_requests: int = limits.OPEN_REQUESTS
    connections: int = limits.CONNECTIONS
    audio_body_bytes: int = limits.AUDIO_BODY_BYTES
    audio_body_s: float = limits.AUDIO_BODY_SECONDS
    audio_s: float = limits.AUDIO_SECONDS
    audio_held_bytes: int = limits.AUDIO_HELD_BYTES
    audio_decoders: int = limits.AUDIO_DECODERS
    speech_characters: int = limits.SPEECH_CHARACTERS


@dataclass(frozen=True, slots=True)
class VoiceConfig:
    """Conversations: how they are led by default, and how many and how long they may be."""

    instructions: str = INSTRUCTIONS
    greeting: str = ""  # said when a conversation begins
    origins: tuple[str, ...] = ()  # pages of other addresses that may connect, as https://example.org
    sessions: int = limits.VOICE_SESSIONS
    sessions_per_address: int = limits.VOICE_SESSIONS_PER_ADDRESS
    session_s: float = limits.VOICE_SESSION_SECONDS
    idle_s: float = limits.VOICE_IDLE_SECONDS
    resume_s: float = limits.VOICE_RESUME_SECONDS  # 0: a lost connection ends the conversation
    history_tokens: int = 0  # of a conversation that the chat model is shown; 0: chosen from its context and device


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """Another server that does the thinking in conversations. Its key, if it wants one, is in the environment."""

    url: str = ""  # as http://127.0.0.1:11434/v1; "": our own engine does it
    model: str = ""


@dataclass(frozen=True, slots=True)
class WeightsConfig:
    """Where the models that have a name may be fetched from."""

    mirrors: bool = True  # where a publisher's file cannot be had, third parties' copies of it, by its hash


@dataclass(frozen=True, slots=True)
class Config:
    """The whole tree."""

    server: ServerConfig = field(default_factory=ServerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    voice: VoiceConfig = field(default_factory=VoiceConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)


RANGES: Mapping[str, tuple[float, float]] = {
    "server.port": (0, 65535),
    "server.drain_s": (0, 3600),
    "engine.threads": (0, 1024),
    "engine.context_tokens": (0, 1 << 24),
    "engine.kv_memory_mib": (1, 1 << 22),
    "engine.asr_memory_mib": (0, 1 << 22),
    "engine.tts_memory_mib": (0, 1 << 22),
    "engine.swap_memory_mib": (0, 1 << 22),
    "engine.block_tokens": (0, 1024),
    "engine.max_batch": (0, 4096),
    "engine.max_step_tokens": (0, 1 << 20),
    "engine.max_waiting": (1, 1 << 20),
    "engine.step_budget_ms": (0, 60_000),
    "engine.lookup_tokens": (0, 64),
    "engine.gpu_memory_share": (0.05, 0.98),
    "limits.body_bytes": (1024, limits.BODY_BYTES_MOST),
    "limits.body_s": (0.1, 3600),
    "limits.write_s": (0.1, 3600),
    "limits.open_requests": (1, 1 << 20),
    "limits.connections": (1, 1 << 20),
    "limits.audio_body_bytes": (1024, 1 << 31),
    "limits.audio_body_s": (0.1, 3600),
    "limits.audio_s": (1, 8 * 3600),
    "limits.audio_held_bytes": (1 << 20, 1 << 40),
    "limits.audio_decoders": (1, 256),
    "limits.speech_characters": (1, limits.SPEECH_CHARACTERS),
    "voice.sessions": (1, 1 << 20),
    "voice.sessions_per_address": (1, 1 << 20),
    "voice.session_s": (1, 7 * 86400),
    "voice.idle_s": (1, 86400),
    "voice.resume_s": (0, 3600),
    "voice.history_tokens": (0, 1 << 20),
}
"""Least and most of every number in the tree, both allowed."""

DERIVED = {"engine.mirrors": "weights.mirrors"}
"""Values of the tree that are no keys, and the keys they are taken from: the engine is given its own section alone."""

NOT_EMPTY = frozenset({"server.host"})

SETTLED = frozenset(
    {
        "engine.threads",
        "engine.context_tokens",
        "engine.asr_memory_mib",
        "engine.tts_memory_mib",
        "engine.block_tokens",
        "engine.max_batch",
        "engine.max_step_tokens",
        "engine.step_budget_ms",
    }
)
"""Numbers that the engine chooses where they are zero; `voxlane doctor` shows what it would choose."""


def load(path: Path | None = None, overrides: Mapping[str, object] | None = None) -> Config:
    """Return the configuration of `path` (all defaults without one) with `overrides`, whose keys are `section.name`."""
    values = _read(path) if path is not None else {}
    config: Config = _section("", Config, values, str(path))
    for key, value in (overrides or {}).items():
        section, _, name = key.partition(".")
        part = getattr(config, section)
        hint = typing.get_type_hints(type(part))[name]
        part = dataclasses.replace(part, **{name: _value(key, hint, value, "command line")})
        config = dataclasses.replace(config, **{section: part})
    config = dataclasses.replace(config, engine=dataclasses.replace(config.engine, mirrors=config.weights.mirrors))
    source = f"{path}: " if path is not None else ""
    if config.chat.url and (not config.chat.url.startswith(("http://", "https://")) or not config.chat.model):
        raise ConfigError(f"{source}chat.url must begin with http:// or https://, and chat.model must be given with it")
    if not (config.engine.model or config.engine.asr_model or config.engine.tts_model):
        raise ConfigError(
            f"{source}engine.model, engine.asr_model and engine.tts_model are all empty: nothing to serve"
        )
    if config.engine.adapter not in ("", AUTO_ADAPTER) and config.engine.model in ("", AUTO_MODEL):
        raise ConfigError(f"{source}engine.adapter is given: engine.model must name the model that it was trained on")
    return config


def render(config: Config, meanings: Mapping[str, str] | None = None) -> str:
    """Return the configuration as TOML, with comments: the choices where there are some, the default if it differs.

    With `meanings`, each section and each key also tells what it is for, and each key what it takes.
    """
    default = Config()
    lines: list[str] = []
    for section in dataclasses.fields(Config):
        ours, theirs = getattr(config, section.name), getattr(default, section.name)
        lines += ["", f"[{section.name}]", *(_comment(type(ours).__doc__ or "") if meanings else ())]
        hints = typing.get_type_hints(type(ours))
        for name in _names(f"{section.name}.", type(ours)):
            key, value, usual = f"{section.name}.{name}", getattr(ours, name), getattr(theirs, name)
            notes = [] if value == usual else [f"default: {_toml(usual)}"]
            if meanings:
                lines += ["", *_comment(meanings[key])]
            if meanings or typing.get_origin(hints[name]) is Literal:
                notes.append(_kind(key, hints[name]))
            if key in SETTLED:
                notes.append("0: chosen for the model and the machine")
            lines.append(f"{name} = {_toml(value)}{'  # ' if notes else ''}{'; '.join(notes)}")
    return "\n".join(lines[1:]) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ")


def _kind(key: str, hint: Any) -> str:
    """Return what values a key takes, in words."""
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(typing.get_args(hint))}"
    if hint == tuple[str, ...]:
        return "a list of strings"
    if hint not in (int, float):
        return _TYPE_NAMES[hint]
    return f"{_TYPE_NAMES[hint]} {_range(key)}"


def _range(key: str) -> str:
    least, most = RANGES[key]
    return f"between {least:.15g} and {most:.15g}"  # all figures: a limit in bytes has up to thirteen


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8")
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _section(prefix: str, cls: Any, values: Mapping[str, Any], source: str) -> Any:
    hints = typing.get_type_hints(cls)
    known = _names(prefix, cls)
    for name in values:
        if name not in known:
            raise ConfigError(f"{source}: unknown key {quote(prefix + name)} ({_did_you_mean(name, known)})")
    return cls(**{name: _value(prefix + name, hints[name], value, source) for name, value in values.items()})


def _value(key: str, hint: Any, value: object, source: str) -> Any:
    """Return `value` as a `hint`, or say what is wrong with `key`."""
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: {key} must be a table: [{key}]")
        return _section(f"{key}.", hint, value, source)
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ConfigError(f"{source}: {key} must be one of {', '.join(choices)}, not {quote(value)}")
        return value
    if hint == tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) and item.isprintable() for item in value):
            raise ConfigError(f"{source}: {key} must be a list of printable strings, not {quote(value)}")
        return tuple(value)
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        raise ConfigError(f"{source}: {key} must be {_TYPE_NAMES[hint]}, not {quote(value)}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_range(key, value, source)
    if isinstance(value, str) and (not value.isprintable() or (key in NOT_EMPTY and not value)):
        raise ConfigError(f"{source}: {key} must be printable text and not empty, not {quote(value)}")
    return value


_TYPE_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def _check_range(key: str, value: float, source: str) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{source}: {key} must be a finite number, not {value}")
    least, most = RANGES[key]
    if not least <= value <= most:
        raise ConfigError(f"{source}: {key} must be {_range(key)}, not {value}")


def _did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {quote(close[0])}?"
    elsewhere = {
        name: f"{section.name}.{name}"
        for section in reversed(dataclasses.fields(Config))  # of two names alike, the first section's is meant
        for name in _names(f"{section.name}.", type(getattr(Config(), section.name)))
    }
    close = difflib.get_close_matches(name, elsewhere, n=1)
    return f"did you mean {elsewhere[close[0]]}?" if close else f"known: {', '.join(known)}"


def _names(prefix: str, cls: Any) -> list[str]:
    """Return the names of the keys in a section."""
    return [item.name for item in dataclasses.fields(cls) if prefix + item.name not in DERIVED]


def _toml(value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else repr(value)
