"""OpenAI Realtime's session object: what it holds, how it is shown, and what it means as our configuration.

Names that we do not use (a model, a voice, a transcription model) are kept and shown as they were given. Updates are
read by update.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from voxlane.server import limits
from voxlane.server.conversation.turns.policies import PHRASE_CHARACTERS, PHRASES, Eagerness
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.log import quote
from voxlane.server.protocols.dialect import AudioFormat, Capabilities
from voxlane.server.protocols.openai_realtime.values import Wrong
from voxlane.server.protocols.settings import configured
from voxlane.server.validation import InvalidValue

FORMATS: Mapping[str, AudioFormat] = {
    "audio/pcm": AudioFormat("pcm16", 24_000),
    "audio/pcmu": AudioFormat("mulaw", 8_000),
    "audio/pcma": AudioFormat("alaw", 8_000),
}

MOST_TOKENS = 4096
"""Most tokens of one reply, as OpenAI has it; "inf" means this number."""

_LONGEST_PRE_ROLL_S = 2.0
_SILENCES_S = (0.1, 10.0)
"""Shortest and longest silence that can end a turn."""


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """How the end of a turn is detected."""

    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    create_response: bool = True
    interrupt_response: bool = True
    eagerness: Eagerness = "auto"  # of semantic_vad; the rest is server_vad's
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RealtimeSession:
    """A session in its client's words."""

    type: Literal["realtime", "transcription"] = "realtime"
    model: str = ""
    instructions: str = ""
    output_modalities: tuple[str, ...] = ("audio",)
    voice: str = ""
    speed: float = 1.0
    temperature: float | None = None  # None: the operator's
    max_output_tokens: int | Literal["inf"] = "inf"
    input_format: str = "audio/pcm"
    output_format: str = "audio/pcm"
    turn_detection: TurnDetection | None = TurnDetection()
    transcription: Mapping[str, Any] | None = None
    noise_reduction: Mapping[str, Any] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, str] = "auto"
    parallel_tool_calls: bool = True
    truncation: str | Mapping[str, Any] = "auto"
    tracing: str | Mapping[str, Any] | None = None
    reasoning: Mapping[str, Any] | None = None
    include: tuple[str, ...] | None = None
    prompt: None = None


def usual_session(defaults: SessionConfig, capabilities: Capabilities, model: str = "") -> RealtimeSession:
    """Return the session of a client that asks for nothing."""
    return RealtimeSession(
        model=model or capabilities.chat_model,
        instructions=defaults.instructions,
        voice=capabilities.voices[0] if capabilities.voices else "",
        max_output_tokens=defaults.max_tokens,
    )


def transcribes(session: RealtimeSession) -> bool:
    """Return whether the client wants transcripts of what the person says."""
    return session.transcription is not None or session.type == "transcription"


# ---- as our configuration


def configuration(
    session: RealtimeSession, base: SessionConfig, capabilities: Capabilities, param: str = "session"
) -> SessionConfig:
    """Return the conversation's configuration; raise Wrong for tools that cannot be used."""
    if capabilities.one_pace and session.speed != 1:
        raise Wrong(f"{param}.audio.output.speed", "must be 1: this voice has one pace")
    talks, detection = session.type == "realtime", session.turn_detection
    speaks = talks and "audio" in session.output_modalities and bool(capabilities.tts_model)
    if session.tools and not (capabilities.tools if speaks else capabilities.written_tools):
        raise Wrong(f"{param}.tools", f"must be empty: {quote(capabilities.speech_model)} calls no tools")
    chosen = session.tool_choice if isinstance(session.tool_choice, str) else session.tool_choice["name"]
    values: dict[str, Any] = {
        "instructions": session.instructions,
        "voice": session.voice,
        "speed": min(max(session.speed, limits.SPEEDS[0]), limits.SPEEDS[1]),
        "language": _language(session.transcription or {}, capabilities.languages),
        "hot_words": _keywords(session.transcription or {}),
        "max_tokens": MOST_TOKENS if session.max_output_tokens == "inf" else session.max_output_tokens,
        "tools": tuple(_declared(tool) for tool in session.tools),
        "tool_choice": chosen if session.tools else "auto",
        "greeting": base.greeting if talks else "",
        "replies": talks and detection is not None and detection.create_response,
        "chains_tools": False,
        "interruptible": detection is None or detection.interrupt_response,
        "speaks": speaks,
        "turns": _turns(detection),
        # Its clients cannot lower what they have queued, and have more than a second of it.
        "barge_in": {"at_once": detection is not None and detection.type == "server_vad", "hold": "pause"},
    }
    if session.temperature is not None:
        values["temperature"] = session.temperature
    try:
        return configured(base, values, param)
    except InvalidValue as error:
        raise Wrong(error.path, error.rule) from error


def _declared(tool: Mapping[str, Any]) -> dict[str, str]:
    parameters = tool.get("parameters")
    described = {"name": tool["name"], "description": tool.get("description", "")}
    return {**described, "parameters": json.dumps(parameters) if parameters else ""}


def _language(transcription: Mapping[str, Any], known: tuple[str, ...]) -> str:
    """Return the language that was asked for as the listening model calls it; "" if it does not know it."""
    asked = transcription.get("language") or next(iter(transcription.get("languages") or ()), "")
    return next((name for name in known if name == asked.lower().replace("_", "-").partition("-")[0]), "")


def _keywords(transcription: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words to expect; OpenAI lets them be longer than we do."""
    return tuple(word[:PHRASE_CHARACTERS] for word in (transcription.get("keywords") or ())[:PHRASES])


def _turns(detection: TurnDetection | None) -> dict[str, Any]:
    if detection is None:
        return {"mode": "buffer", "idle_s": None}
    usual: dict[str, Any] = {"mode": "auto", "idle_s": None, "threshold": 0.5, "pre_roll_s": 0.3}
    if detection.type == "semantic_vad":
        return {**usual, "eagerness": detection.eagerness, "min_wait_s": 0.25, "max_wait_s": 2.5}
    silence_s = min(max(detection.silence_duration_ms / 1000, _SILENCES_S[0]), _SILENCES_S[1])
    return {
        "mode": "auto",
        "eagerness": "auto",
        "min_wait_s": silence_s,
        "max_wait_s": silence_s,
        "pre_roll_s": min(detection.prefix_padding_ms / 1000, _LONGEST_PRE_ROLL_S),
        "threshold": float(detection.threshold),
        "idle_s": None if detection.idle_timeout_ms is None else detection.idle_timeout_ms / 1000,
    }


# ---- showing


def shown(session: RealtimeSession, name: str) -> dict[str, Any]:
    """Return the whole session as its client is shown it."""
    heard = {
        "format": shown_format(session.input_format),
        "transcription": session.transcription,
        "noise_reduction": session.noise_reduction,
        "turn_detection": session.turn_detection and _shown_detection(session.turn_detection),
    }
    common: dict[str, Any] = {"type": session.type, "id": name, "include": session.include}
    if session.type == "transcription":
        return {**common, "object": "realtime.transcription_session", "audio": {"input": heard}}
    spoken = {"format": shown_format(session.output_format), "voice": session.voice, "speed": session.speed}
    temperature = {} if session.temperature is None else {"temperature": session.temperature}
    reasoning = {} if session.reasoning is None else {"reasoning": session.reasoning}
    return {
        **common,
        "object": "realtime.session",
        "model": session.model,
        "output_modalities": session.output_modalities,
        "instructions": session.instructions,
        "tools": session.tools,
        "tool_choice": session.tool_choice,
        "parallel_tool_calls": session.parallel_tool_calls,
        "max_output_tokens": session.max_output_tokens,
        **temperature,
        **reasoning,
        "truncation": session.truncation,
        "tracing": session.tracing,
        "prompt": session.prompt,
        "audio": {"input": heard, "output": spoken},
    }


def shown_format(name: str) -> dict[str, Any]:
    """Return a sound format as clients are shown it."""
    return {"type": name, "rate": FORMATS[name].rate} if name == "audio/pcm" else {"type": name}


def _shown_detection(detection: TurnDetection) -> dict[str, Any]:
    others = ("threshold", "prefix_padding_ms", "silence_duration_ms", "idle_timeout_ms")
    hidden = others if detection.type == "semantic_vad" else ("eagerness",)
    return {key: value for key, value in asdict(detection).items() if key not in hidden}
