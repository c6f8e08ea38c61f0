"""One TOML file into one frozen tree. Secrets come from the environment and are no part of the tree.

A key's type, range, default and meaning stand at its field; those of [engine] in engine.api. Everything else is refused
by name.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import textwrap
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.inspect import Field

from voxlane.engine.api import (
    AUTO_ADAPTER,
    AUTO_MODEL,
    BadPronunciation,
    EngineConfig,
    Priority,
    read_pronunciations,
)
from voxlane.server import limits
from voxlane.server.conversation.values import INSTRUCTIONS
from voxlane.server.errors import ConfigError
from voxlane.server.log import quote
from voxlane.server.validation import InvalidValue, checked, description_of, fields_of, rule_of

API_KEY_VARIABLE = "VOXLANE_API_KEY"
"""When set, every request to /v1 needs `Authorization: Bearer` with this value."""

CHAT_KEY_VARIABLE = "VOXLANE_CHAT_KEY"
"""The key for the server at chat.url."""

_ENDING_S = limits.STOP_SECONDS - limits.DRAIN_SECONDS

PRIORITIES = {"normal": Priority.NORMAL, "high": Priority.HIGH, "critical": Priority.CRITICAL}
"""Priorities by their names outside."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where the server listens and how it behaves."""

    host: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=255,
            description="The address to listen on. If other machines can reach it, VOXLANE_API_KEY or server.open is"
            " needed.",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="The port to listen on; 0 takes any free one, which the banner tells.")
    ] = 8000
    open: Annotated[bool, Meta(description="Serve every client that can reach server.host, without a key.")] = False
    model_alias: Annotated[
        str, Meta(description="A second name for the chat model, for clients that insist on one.")
    ] = ""
    highest_priority: Annotated[
        Literal["normal", "high", "critical"], Meta(description="The most urgent priority that a request may ask for.")
    ] = "critical"
    drain_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description=f"Seconds for which answers may go on after SIGTERM; the end takes up to {_ENDING_S:g} s more.",
        ),
    ] = limits.DRAIN_SECONDS
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The least that is logged. No level logs what is said."),
    ] = "info"


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """What clients may use; limits.py has the reasons."""

    body_bytes: Annotated[
        int, Meta(ge=1024, le=limits.BODY_BYTES_MOST, description="The largest body of a JSON request, in bytes.")
    ] = limits.BODY_BYTES
    body_s: Annotated[float, Meta(ge=0.1, le=3600, description="Seconds for such a body to arrive.")] = (
        limits.BODY_SECONDS
    )
    write_s: Annotated[
        float,
        Meta(
            ge=0.1, le=3600, description="Seconds that a piece of an answer may wait for a client that does not read."
        ),
    ] = limits.WRITE_SECONDS
    open_requests: Annotated[
        int, Meta(ge=1, le=1 << 20, description="HTTP requests being answered at one time; more are refused with 429.")
    ] = limits.OPEN_REQUESTS
    connections: Annotated[
        int,
        Meta(
            ge=1, le=1 << 20, description="Open connections of all kinds; HTTP requests on more are refused with 503."
        ),
    ] = limits.CONNECTIONS
    audio_body_bytes: Annotated[
        int, Meta(ge=1024, le=1 << 31, description="The largest upload of a recording, in bytes.")
    ] = limits.AUDIO_BODY_BYTES
    audio_body_s: Annotated[float, Meta(ge=0.1, le=3600, description="Seconds for an upload to arrive.")] = (
        limits.AUDIO_BODY_SECONDS
    )
    audio_s: Annotated[float, Meta(ge=1, le=8 * 3600, description="The longest recording, in seconds.")] = (
        limits.AUDIO_SECONDS
    )
    audio_held_bytes: Annotated[
        int, Meta(ge=1 << 20, le=1 << 40, description="Bytes of recordings that all requests together may hold.")
    ] = limits.AUDIO_HELD_BYTES
    audio_decoders: Annotated[
        int, Meta(ge=1, le=256, description="Recordings that are decoded at one time; others wait.")
    ] = limits.AUDIO_DECODERS
    speech_characters: Annotated[
        int,
        Meta(
            ge=1,
            le=limits.SPEECH_CHARACTERS,
            description="The longest text of one /v1/audio/speech request, in characters.",
        ),
    ] = limits.SPEECH_CHARACTERS


@dataclass(frozen=True, slots=True)
class VoiceConfig:
    """Conversations: how they are led by default, and how many and how long they may be."""

    instructions: Annotated[
        str,
        Meta(description="What the chat model is told to be, unless a client says otherwise; {date} becomes the day."),
    ] = INSTRUCTIONS
    greeting: Annotated[str, Meta(description='What is said when a conversation begins; "" waits for the person.')] = ""
    pronunciations: Annotated[
        tuple[str, ...],
        Meta(
            description='How names are said, as "Siobhan = shiv-awn" in plain letters or "Siobhan = /ʃɪˈvɔːn/" in'
            " phonemes; in conversations and in /v1/audio/speech.",
        ),
    ] = ()
    origins: Annotated[
        tuple[str, ...], Meta(description="Pages of other addresses that may connect, as https://example.org.")
    ] = ()
    sessions: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Conversations at one time; more are refused with 503.")
    ] = limits.VOICE_SESSIONS
    sessions_per_address: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Conversations from one address: behind a reverse proxy, all of them.")
    ] = limits.VOICE_SESSIONS_PER_ADDRESS
    session_s: Annotated[
        float,
        Meta(
            ge=1,
            le=7 * 86400,
            description="The longest conversation, in seconds; its client is warned a minute before.",
        ),
    ] = limits.VOICE_SESSION_SECONDS
    idle_s: Annotated[
        float, Meta(ge=1, le=86400, description="Seconds without any message after which a client is taken to be gone.")
    ] = limits.VOICE_IDLE_SECONDS
    resume_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Seconds for which a conversation waits for a lost connection to come back; 0 ends it at once.",
        ),
    ] = limits.VOICE_RESUME_SECONDS
    history_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 20,
            description="Tokens of a conversation that the chat model is shown; 0 takes what suits the device.",
        ),
    ] = 0
    echo_guard: Annotated[
        Literal["auto", "off"],
        Meta(description="Whether the assistant's own voice is taken out of the microphone where it is found there."),
    ] = "auto"


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """Another server that does the thinking in conversations. Its key, if it wants one, is in the environment."""

    url: Annotated[
        str,
        Meta(
            description="A server that does the thinking in conversations, as http://127.0.0.1:11434/v1;"
            ' "": our own engine.'
        ),
    ] = ""
    model: Annotated[
        str, Meta(description="The name of the model there; needed with chat.url. Its key is VOXLANE_CHAT_KEY.")
    ] = ""


@dataclass(frozen=True, slots=True)
class WeightsConfig:
    """Where the models that have a name may be fetched from."""

    mirrors: Annotated[
        bool,
        Meta(description="Where a publisher's file cannot be had, take others' copies of it, told by the pinned hash."),
    ] = True


@dataclass(frozen=True, slots=True)
class Config:
    """The whole tree."""

    server: ServerConfig = dataclasses.field(default_factory=ServerConfig)
    engine: EngineConfig = dataclasses.field(default_factory=EngineConfig)
    limits: LimitsConfig = dataclasses.field(default_factory=LimitsConfig)
    voice: VoiceConfig = dataclasses.field(default_factory=VoiceConfig)
    chat: ChatConfig = dataclasses.field(default_factory=ChatConfig)
    weights: WeightsConfig = dataclasses.field(default_factory=WeightsConfig)


DERIVED = {"engine.mirrors": "weights.mirrors"}
"""Values of the tree that are no keys, and the keys they are taken from: the engine is given its own section alone."""

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
    _check_names(values, str(path))
    for key, value in (overrides or {}).items():
        section, _, name = key.partition(".")
        assert name in keys()[section]
        values.setdefault(section, {})[name] = value
    try:
        config = checked(Config, values)
    except InvalidValue as error:
        raise _refused(error.path, error.rule, values, path, overrides or {}) from error
    for key in _unprintable(values):
        raise _refused(key, "must be printable text", values, path, overrides or {})
    config = dataclasses.replace(config, engine=dataclasses.replace(config.engine, mirrors=config.weights.mirrors))
    _check_together(config, f"{path}: " if path is not None else "")
    return config


def _unprintable(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys whose texts cannot be shown on one line."""
    for section, part in values.items():
        for name, value in part.items():
            texts = value if isinstance(value, list) else [value]
            if not all(text.isprintable() for text in texts if isinstance(text, str)):
                yield f"{section}.{name}"


def _check_together(config: Config, source: str) -> None:
    """Raise ConfigError for values that do not go together."""
    if config.chat.url and (not config.chat.url.startswith(("http://", "https://")) or not config.chat.model):
        raise ConfigError(f"{source}chat.url must begin with http:// or https://, and chat.model must be given with it")
    try:
        read_pronunciations(config.voice.pronunciations)
    except BadPronunciation as error:
        raise ConfigError(f"{source}voice.pronunciations: {error}") from error
    if not (config.engine.model or config.engine.asr_model or config.engine.tts_model):
        raise ConfigError(
            f"{source}engine.model, engine.asr_model and engine.tts_model are all empty: nothing to serve"
        )
    if config.engine.adapter not in ("", AUTO_ADAPTER) and config.engine.model in ("", AUTO_MODEL):
        raise ConfigError(f"{source}engine.adapter is given: engine.model must name the model that it was trained on")


def keys() -> dict[str, dict[str, Field]]:
    """Return the keys of the file, by section and name."""
    return {
        section: {name: key for name, key in fields_of(part).items() if f"{section}.{name}" not in DERIVED}
        for section, part in typing.get_type_hints(Config).items()
    }


def render(config: Config, *, explained: bool = False) -> str:
    """Return the configuration as TOML, with comments: the choices where there are some, the default if it differs.

    If `explained`, each section and each key also says what it is for, and each key what it takes.
    """
    default = Config()
    lines: list[str] = []
    for section, fields in keys().items():
        ours, usual = getattr(config, section), getattr(default, section)
        lines += ["", f"[{section}]", *(_comment(type(ours).__doc__ or "") if explained else ())]
        for name, field in fields.items():
            value, usual_value = getattr(ours, name), getattr(usual, name)
            notes = [] if value == usual_value else [f"default: {_toml(usual_value)}"]
            allowed = rule_of(field.type).removeprefix("must be ")
            if explained:
                lines += ["", *_comment(description_of(field.type))]
            if explained or allowed.startswith("one of"):
                notes.append(allowed)
            if f"{section}.{name}" in SETTLED:
                notes.append("0: chosen for the model and the machine")
            lines.append(f"{name} = {_toml(value)}{'  # ' if notes else ''}{'; '.join(notes)}")
    return "\n".join(lines[1:]) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ")


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


def _check_names(values: Mapping[str, Any], source: str) -> None:
    """Raise ConfigError for a section or a key that is not known."""
    sections = keys()
    for section, part in values.items():
        if section not in sections:
            raise ConfigError(f"{source}: unknown key {quote(section)} ({_did_you_mean(section, list(sections))})")
        if not isinstance(part, dict):
            raise ConfigError(f"{source}: {section} must be a table: [{section}]")
        for name in part:
            if name not in sections[section]:
                close = _did_you_mean(name, list(sections[section]))
                raise ConfigError(f"{source}: unknown key {quote(f'{section}.{name}')} ({close})")


def _did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {quote(close[0])}?"
    # If two sections have the name, the first one is meant.
    elsewhere = {name: f"{section}.{name}" for section, fields in reversed(keys().items()) for name in fields}
    close = difflib.get_close_matches(name, elsewhere, n=1)
    return f"did you mean {elsewhere[close[0]]}?" if close else f"known: {', '.join(known)}"


def _refused(
    key: str, rule: str, values: Mapping[str, Any], path: Path | None, overrides: Mapping[str, object]
) -> ConfigError:
    section, _, name = key.partition(".")
    source = "command line" if key in overrides else path
    return ConfigError(f"{source}: {key} {rule}, not {quote(values[section][name])}")


def _toml(value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else repr(value)
