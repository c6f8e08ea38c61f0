"""One TOML file into one frozen tree. Secrets come from the environment and are no part of the tree.

A key's type, range, default and meaning stand at its field; those of [engine] in engine.api. Everything else is refused
by name.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import json
import re
import textwrap
import tomllib
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

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

VERSION = version("voxlane")

API_KEY_VARIABLE = "VOXLANE_API_KEY"
"""When set, every request to /v1 needs `Authorization: Bearer` with this value."""

CHAT_KEY_VARIABLE = "VOXLANE_CHAT_KEY"
"""The key for the server at chat.url."""

WEBHOOK_SECRET_VARIABLE = "VOXLANE_WEBHOOK_SECRET"
"""The secret that signs the messages to webhook.url; whsec_ and base64, as Standard Webhooks has it, or any text."""

STORE_PASSWORD_VARIABLE = "VOXLANE_STORE_PASSWORD"
"""The password of the server at store.url."""

KEEPER_FAILURES_VARIABLE = "VOXLANE_KEEPER_FAILURES"
"""How often the keeper of a cell of `voxlane cluster` has failed. It has no metrics: its cell counts for it."""

TURN_PASSWORD_VARIABLE = "VOXLANE_TURN_PASSWORD"
"""The password of webrtc.ice_username at the relay in webrtc.ice_servers."""

_ENDING_S = limits.STOP_SECONDS - limits.DRAIN_SECONDS

_TARGET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _-]{0,63}")
_TARGET = re.compile(
    r"\+?[0-9]{2,15}|sips?:[A-Za-z0-9._+-]{1,64}@[A-Za-z0-9.\[\]:-]{1,255}(?:;[A-Za-z0-9=;.-]{1,128})?"
)

_ICE_SERVER = re.compile(r"(stun|turns?):[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?(\?transport=(udp|tcp))?")
_URL_PLAIN = re.compile(r"[A-Za-z0-9.:/\[\]_~%-]+")
_GPU = re.compile(r"[0-9]{1,3}|[A-Za-z0-9-]{8,64}")
_HOST_AND_PORT = re.compile(r"[A-Za-z0-9.:\[\]_-]+:[0-9]+")

_SERVER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
GPUS_MOST = 64
ENGINES_MOST = 16  # on one GPU
"""Most engines of a machine: cell/counts.py has a place for each."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

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
    tls_cert: Annotated[
        str,
        Meta(
            description="A PEM file with the certificate and its chain: serve https and wss. A renewed file is used"
            " without a restart."
        ),
    ] = ""
    tls_key: Annotated[str, Meta(description="The PEM file with the certificate's private key.")] = ""
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses and networks of reverse proxies, as 10.0.0.0/8: what their X-Forwarded-For and"
            " X-Forwarded-Proto say is believed."
        ),
    ] = ()
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
    reuse_port: Annotated[
        bool,
        Meta(
            description="Share the port with another server process: start the new one, and stop the old one when it is"
            " ready. It listens when its engine is ready, not before."
        ),
    ] = False
    agent_check: Annotated[
        str,
        Meta(
            description="Where HAProxy's agent-check is answered with the room of this process, as 10.0.0.1:9100;"
            ' "": nowhere.'
        ),
    ] = ""
    at: Annotated[
        str,
        Meta(
            description="The name of this server at its balancer. Clients are told it, and name it in `?at=` when they"
            ' resume; "": they give an empty name.'
        ),
    ] = ""
    processes: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Server processes that share the port and the engines; 0 chooses by cores and device, 1 without"
            " a GPU.",
        ),
    ] = 0
    gpus: Annotated[
        tuple[str, ...],
        Meta(
            description="GPUs by number or UUID, an engine on each, as 0 and 1; one that is named twice has two;"
            " empty: one engine, on the first.",
        ),
    ] = ()
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
    connections_per_address: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 20,
            description="Open HTTP connections from one address; behind a proxy of server.trusted_proxies, open"
            " requests. Requests on more are refused with 503.",
        ),
    ] = limits.CONNECTIONS_PER_ADDRESS
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
        int,
        Meta(
            ge=1,
            le=1 << 20,
            description="Conversations from one address, parked ones too;"
            " a reverse proxy that is not in server.trusted_proxies is one.",
        ),
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
class RoomConfig:
    """When the server is full by what it measures: then clients get 503 with Retry-After. limits.py has the reasons."""

    measured: Annotated[
        bool,
        Meta(description="Refuse new conversations by measured room; else only voice.sessions and other limits count."),
    ] = True
    sure: Annotated[
        int, Meta(ge=0, le=1 << 20, description="Conversations that are admitted whatever is measured.")
    ] = limits.ROOM_SURE
    step_share: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="The engine is full when its step thread works so much of the time for conversations; above 1"
            " counts on larger batches. 0 takes 0.95 on a CPU, 1.6 on a GPU.",
        ),
    ] = 0.0
    lag_ms: Annotated[
        float, Meta(ge=1, le=10_000, description="The process is full at this mean lag of its event loop, in ms.")
    ] = limits.ROOM_LAG_MS
    first_sound_ms: Annotated[
        float,
        Meta(
            ge=0,
            le=600_000,
            description="The server is full at this mean time from a person's last sound to the first of the reply, in"
            " ms; 0 takes 4000 on a CPU, 1000 on a GPU.",
        ),
    ] = 0.0
    blocks_kept: Annotated[
        float, Meta(ge=0, le=0.9, description="The share of the KV blocks that stays available for running requests.")
    ] = limits.ROOM_BLOCKS_KEPT
    kept_for_resumes: Annotated[
        float,
        Meta(ge=0, le=0.8, description="The share of the room that only conversations from other servers may take."),
    ] = limits.ROOM_KEPT_FOR_RESUMES


@dataclass(frozen=True, slots=True)
class PhoneConfig:
    """Telephone calls at /v1/phone. The keys of telephone systems are in the environment."""

    public_url: Annotated[
        str,
        Meta(
            description="The address under which telephone systems reach this server, as https://example.org. Their"
            " signatures are checked against it."
        ),
    ] = ""
    sources: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses and networks that calls may come from, as 203.0.113.0/24; empty: from everywhere."
            " A reverse proxy must be in server.trusted_proxies, or every call comes from its address."
        ),
    ] = ()
    audiosocket: Annotated[
        str,
        Meta(description='Where Asterisk\'s AudioSocket is listened for, as 127.0.0.1:19092; "": nowhere.'),
    ] = ""
    greeting: Annotated[str, Meta(description='What is said when a call is answered; "" takes voice.greeting.')] = ""
    instructions: Annotated[
        str,
        Meta(
            description='What the chat model is told to be on the telephone; "" takes voice.instructions. {caller},'
            " {called} and {parameter.NAME} become what is known about the call."
        ),
    ] = ""
    language: Annotated[str, Meta(description='The language of calls, as de; "" leaves it to the models.')] = ""
    voice: Annotated[str, Meta(description='The voice of calls; "" takes the first one.')] = ""
    call_s: Annotated[
        float, Meta(ge=1, le=86400, description="The longest call, in seconds; then good-bye is said.")
    ] = 3600.0
    silence_s: Annotated[
        float,
        Meta(
            ge=0, le=3600, description="Seconds without a word after which the caller is asked; 0 waits without asking."
        ),
    ] = 15.0
    reprompt: Annotated[str, Meta(description="What a silent caller is asked.")] = "Are you still there?"
    reprompts: Annotated[
        int, Meta(ge=0, le=100, description="How often a silent caller is asked before the call ends.")
    ] = 2
    good_bye: Annotated[
        str, Meta(description='What is said before the server ends a call; "" ends it without a word.')
    ] = "Good-bye."
    digits_s: Annotated[
        float, Meta(ge=0.1, le=60, description="Seconds after the last key that end a number which the caller presses.")
    ] = 2.0
    digits_end: Annotated[Literal["#", "*", "none"], Meta(description="The key that ends such a number at once.")] = "#"
    hang_up: Annotated[bool, Meta(description="Whether the chat model may end a call.")] = False
    transfer: Annotated[
        tuple[str, ...],
        Meta(
            description='Where the chat model may connect a caller to, as "sales = +4930123456" or'
            ' "sales = sip:sales@example.org"; empty: nowhere.'
        ),
    ] = ()
    send_digits: Annotated[bool, Meta(description="Whether the chat model may press keys.")] = False
    collect_digits: Annotated[
        bool, Meta(description="Whether the chat model may wait for keys that the caller presses.")
    ] = False
    tools: Annotated[
        str, Meta(description="A JSON file with the tools of calls, in OpenAI's words; needs phone.tools_url.")
    ] = ""
    tools_url: Annotated[
        str,
        Meta(
            description="The server that runs these tools: each call of a tool is a POST to it, signed with"
            " VOXLANE_PHONE_KEY."
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class PhoneKeys:
    """The secrets of telephone systems. They come from the environment and are never shown."""

    phone: str = dataclasses.field(default="", repr=False)  # our own, for systems that do not sign
    systems: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)  # by the names of the systems

    def __bool__(self) -> bool:
        return bool(self.phone or any(self.systems.values()))


def read_keeper_failures(environment: Mapping[str, str]) -> int:
    """Return how often the keeper of this cell has failed; 0 without one."""
    told = environment.get(KEEPER_FAILURES_VARIABLE, "")
    return int(told) if told.isdecimal() else 0


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
class WebRtcConfig:
    """Calls over WebRTC at /v1/realtime/calls. They need the extra webrtc, and UDP ports that clients can reach."""

    on: Annotated[bool, Meta(description="Whether offers are answered.")] = True
    public_addresses: Annotated[
        tuple[str, ...],
        Meta(
            description="IP addresses that clients are told instead of those of the network cards, for a server behind"
            " a NAT that forwards its ports one to one; empty: those of the cards."
        ),
    ] = ()
    ice_servers: Annotated[
        tuple[str, ...],
        Meta(
            description="A STUN server and a relay that this server uses itself, as stun:stun.example.org or"
            " turn:turn.example.org:3478; empty: none. The relay's password is VOXLANE_TURN_PASSWORD."
        ),
    ] = ()
    ice_username: Annotated[str, Meta(description="The user name at the relay.")] = ""


@dataclass(frozen=True, slots=True)
class KeysConfig:
    """Several keys, each with its limits. VOXLANE_API_KEY goes on beside them."""

    file: Annotated[
        str, Meta(description='The file that `voxlane keys` writes; it is read again when it changes. "": none.')
    ] = ""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How the log is written; server.log_level says how much."""

    format: Annotated[
        Literal["text", "json"],
        Meta(
            description="Either text, one line a record for people, or json, one object a line for machines and no"
            " banner."
        ),
    ] = "text"


@dataclass(frozen=True, slots=True)
class TracesConfig:
    """OpenTelemetry traces. Its own variables, OTEL_EXPORTER_OTLP_ENDPOINT and others, say where they go."""

    on: Annotated[
        bool,
        Meta(description="Send a span for each turn of a conversation, with its stages. Needs the extra otel."),
    ] = False


@dataclass(frozen=True, slots=True)
class RecordingsConfig:
    """Recordings of conversations, off by default. Clients are told; telephone callers are told by the greeting."""

    audio: Annotated[
        bool,
        Meta(description="Keep the sound as stereo WAV files: the person left, what was heard of the assistant right."),
    ] = False
    transcripts: Annotated[
        bool, Meta(description="Keep what was said and what was heard of the replies, as JSON lines.")
    ] = False
    folder: Annotated[str, Meta(description="Where the files go; needed with either of the two.")] = ""
    keep_days: Annotated[
        float, Meta(ge=0.01, le=3650, description="Days after which a file is deleted, at start and every hour.")
    ] = 30.0
    most_mib: Annotated[
        int,
        Meta(ge=1, le=1 << 30, description="MiB of all files together; above it the oldest are deleted."),
    ] = 10_240


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """A message to a server of one's own when a conversation ends, signed with VOXLANE_WEBHOOK_SECRET."""

    url: Annotated[
        str,
        Meta(
            description='Where the message is posted, as https://example.org/calls; "": nowhere. http:// only on this'
            " machine."
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where conversations are kept for a resume. A password of the Redis server is VOXLANE_STORE_PASSWORD."""

    kind: Annotated[
        Literal["memory", "sqlite", "redis"],
        Meta(
            description="With memory, conversations end with the server process. With sqlite they go on in the next"
            " process on this machine, with redis on any machine with the same Redis or Valkey server."
        ),
    ] = "memory"
    path: Annotated[str, Meta(description='The SQLite file; "" takes a file in the user\'s state folder.')] = ""
    url: Annotated[
        str, Meta(description="The Redis or Valkey server, without a password; rediss:// connects with TLS.")
    ] = "redis://127.0.0.1:6379/0"
    wait_s: Annotated[
        float,
        Meta(
            ge=0.01,
            le=10,
            description="Seconds that a client's message waits for the store; then the conversation goes on without.",
        ),
    ] = limits.STORE_WAIT_SECONDS


@dataclass(frozen=True, slots=True)
class Config:
    """The whole tree."""

    server: ServerConfig = dataclasses.field(default_factory=ServerConfig)
    engine: EngineConfig = dataclasses.field(default_factory=EngineConfig)
    limits: LimitsConfig = dataclasses.field(default_factory=LimitsConfig)
    voice: VoiceConfig = dataclasses.field(default_factory=VoiceConfig)
    chat: ChatConfig = dataclasses.field(default_factory=ChatConfig)
    weights: WeightsConfig = dataclasses.field(default_factory=WeightsConfig)
    phone: PhoneConfig = dataclasses.field(default_factory=PhoneConfig)
    keys: KeysConfig = dataclasses.field(default_factory=KeysConfig)
    log: LogConfig = dataclasses.field(default_factory=LogConfig)
    traces: TracesConfig = dataclasses.field(default_factory=TracesConfig)
    recordings: RecordingsConfig = dataclasses.field(default_factory=RecordingsConfig)
    webhook: WebhookConfig = dataclasses.field(default_factory=WebhookConfig)
    store: StoreConfig = dataclasses.field(default_factory=StoreConfig)
    room: RoomConfig = dataclasses.field(default_factory=RoomConfig)
    webrtc: WebRtcConfig = dataclasses.field(default_factory=WebRtcConfig)


DERIVED = {"engine.mirrors": "weights.mirrors"}
"""Values of the tree that are no keys, and the keys they are taken from: the engine is given its own section alone."""

SETTLED = frozenset(
    {
        "engine.threads",
        "engine.context_tokens",
        "engine.asr_memory_mib",
        "engine.tts_memory_mib",
        "engine.speech_memory_mib",
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
    if config.engine.speech_model:
        _check_speech_model(config, source)
    if config.engine.adapter not in ("", AUTO_ADAPTER) and config.engine.model in ("", AUTO_MODEL):
        raise ConfigError(f"{source}engine.adapter is given: engine.model must name the model that it was trained on")
    _check_server(config.server, source)
    _check_phone(config.phone, source)
    _check_webrtc(config.webrtc, source)
    _check_watching(config, source)
    if "@" in config.store.url or not config.store.url.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigError(
            f"{source}store.url must begin with redis://, rediss:// or unix://, and hold no password:"
            f" {STORE_PASSWORD_VARIABLE} has it"
        )


def _check_speech_model(config: Config, source: str) -> None:
    """Raise ConfigError for what engine.speech_model needs, and for what it cannot do in any conversation or call."""
    phone = config.phone
    if not config.engine.asr_model:
        raise ConfigError(
            f"{source}engine.speech_model needs engine.asr_model: it writes what the person said, and hears when a"
            " turn ends"
        )
    if config.voice.pronunciations and not config.engine.tts_model:
        raise ConfigError(
            f"{source}voice.pronunciations needs engine.tts_model: engine.speech_model chooses itself how names are"
            " said"
        )
    if phone.voice:
        raise ConfigError(f"{source}phone.voice must be empty: engine.speech_model has one voice")
    for key in ("hang_up", "transfer", "send_digits", "collect_digits", "tools"):
        if getattr(phone, key):
            raise ConfigError(f"{source}phone.{key} is given, and engine.speech_model calls no tools")


def _check_watching(config: Config, source: str) -> None:
    """Raise ConfigError for a key of [recordings] or [webhook] that cannot be used."""
    if (config.recordings.audio or config.recordings.transcripts) and not config.recordings.folder:
        raise ConfigError(f"{source}recordings.folder must be given with recordings.audio or recordings.transcripts")
    url = config.webhook.url
    if not url:
        return
    if not _is_web_address(url):
        raise ConfigError(f"{source}webhook.url must be an address as https://example.org/calls")
    split = urlsplit(url)
    if split.scheme != "https" and not _is_loopback(split.hostname or ""):
        raise ConfigError(f"{source}webhook.url must begin with https://, unless it is on this machine")
    if split.username is not None or split.fragment:
        raise ConfigError(f"{source}webhook.url must have no user name and no fragment")


def _check_server(server: ServerConfig, source: str) -> None:
    """Raise ConfigError for a key of [server] that cannot be used."""
    if bool(server.tls_cert) != bool(server.tls_key):
        raise ConfigError(f"{source}server.tls_cert and server.tls_key must be given together")
    networks_of(server.trusted_proxies, "server.trusted_proxies", source)
    if server.agent_check:
        socket_address(server.agent_check, f"{source}server.agent_check")
    if server.at and not _SERVER_NAME.fullmatch(server.at):
        raise ConfigError(f"{source}server.at must be at most 64 letters, digits, dots, dashes and underscores")
    if not all(map(_GPU.fullmatch, server.gpus)) or len(server.gpus) > GPUS_MOST:
        raise ConfigError(f"{source}server.gpus must be numbers or UUIDs of GPUs, as 0 and 1")
    if max(Counter(server.gpus).values(), default=0) > ENGINES_MOST:
        raise ConfigError(f"{source}server.gpus may name a GPU {ENGINES_MOST} times: each time is an engine on it")


def _check_webrtc(webrtc: WebRtcConfig, source: str) -> None:
    """Raise ConfigError for a key of [webrtc] that cannot be used."""
    if not all(map(_is_ip_address, webrtc.public_addresses)):
        raise ConfigError(f"{source}webrtc.public_addresses must be IP addresses, as 203.0.113.7")
    if not all(map(_ICE_SERVER.fullmatch, webrtc.ice_servers)):
        raise ConfigError(f"{source}webrtc.ice_servers must be as stun:HOST, turn:HOST:PORT or turns:HOST:PORT")


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _check_phone(phone: PhoneConfig, source: str) -> None:
    """Raise ConfigError for a key of [phone] that cannot be used."""
    if phone.public_url and (not _is_web_address(phone.public_url) or not _URL_PLAIN.fullmatch(phone.public_url)):
        raise ConfigError(f"{source}phone.public_url must be an address as https://example.org, without @, ? and #")
    networks = phone_networks(phone.sources, source)
    if phone.audiosocket:
        host, _ = socket_address(phone.audiosocket, f"{source}phone.audiosocket")
        if not networks and not _is_loopback(host):
            raise ConfigError(
                f"{source}phone.audiosocket can be reached by others and knows no keys: phone.sources must be given"
                " with it"
            )
    transfer_targets(phone.transfer, source)
    if bool(phone.tools) != bool(phone.tools_url):
        raise ConfigError(f"{source}phone.tools and phone.tools_url must be given together")
    if phone.tools_url and not _is_web_address(phone.tools_url):
        raise ConfigError(f"{source}phone.tools_url must be an address that begins with http:// or https://")


def phone_networks(sources: Iterable[str], source: str = "") -> tuple[Network, ...]:
    """Return the networks of phone.sources; an address is a network of one."""
    return networks_of(sources, "phone.sources", source)


def networks_of(entries: Iterable[str], key: str, source: str = "") -> tuple[Network, ...]:
    """Return the networks that a key lists; an address is a network of one."""
    try:
        return tuple(ipaddress.ip_network(one.strip(), strict=False) for one in entries)
    except ValueError as error:
        raise ConfigError(f"{source}{key} must be addresses and networks, as 203.0.113.7 or 203.0.113.0/24") from error


def transfer_targets(entries: Iterable[str], source: str = "") -> dict[str, str]:
    """Return the destinations of phone.transfer by their names."""
    found: dict[str, str] = {}
    for entry in entries:
        name, _, target = (part.strip() for part in entry.partition("="))
        if not _TARGET_NAME.fullmatch(name) or not _TARGET.fullmatch(target):
            raise ConfigError(
                f'{source}phone.transfer: {quote(name)}: write it as "sales = +4930123456" or'
                ' "sales = sip:sales@example.org"'
            )
        if name in found:
            raise ConfigError(f"{source}phone.transfer has two destinations called {quote(name)}")
        found[name] = target
    return found


def socket_address(address: str, key: str) -> tuple[str, int]:
    """Return the host and the port of `host:port`; a ConfigError names the key."""
    try:
        split = urlsplit(f"//{address}")
        host, port = split.hostname, split.port
    except ValueError:  # unbalanced brackets, or a port that is none
        host, port = None, None
    if not host or port is None or not _HOST_AND_PORT.fullmatch(address):
        raise ConfigError(f"{key} must be an address and a port, as 127.0.0.1:19092")
    return host, port


def _is_web_address(url: str) -> bool:
    try:
        split = urlsplit(url)
        return split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
    except ValueError:  # unbalanced brackets, or a port that is none
        return False


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
