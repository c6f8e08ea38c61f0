"""Updates of OpenAI Realtime's session object, read by the keys that are there.

A null is a value where the specification has one (`turn_detection: null`), and the default everywhere else; only a
missing key changes nothing. session.py turns the result into our configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from voxlane.server import limits
from voxlane.server.protocols.openai_realtime.session import FORMATS, MOST_TOKENS, RealtimeSession, TurnDetection
from voxlane.server.protocols.openai_realtime.values import (
    Wrong,
    choice,
    flag,
    listing,
    mapping,
    metadata,
    number,
    text,
    whole,
)
from voxlane.server.protocols.settings import TEXT_CHARACTERS, TOOLS


def updated(session: RealtimeSession, values: object, usual: RealtimeSession) -> RealtimeSession:
    """Return the session with the keys of an update; raise Wrong for a value that is not allowed."""
    given = mapping("session", values, {*_PLAIN, *_SHOWN_ONLY, "audio", "type"})
    changes = _plain("session", given, usual)
    if given.get("type") is not None:
        changes["type"] = choice("session.type", given["type"], ("realtime", "transcription"))
    audio = _part("session", given, "audio", ("input", "output"))
    changes |= _heard("session.audio.input", _part("session.audio", audio, "input", _INPUT), session, usual)
    changes |= _spoken("session.audio.output", _part("session.audio", audio, "output", _OUTPUT), usual)
    return replace(session, **changes)


def overridden(session: RealtimeSession, values: Mapping[str, Any], usual: RealtimeSession) -> RealtimeSession:
    """Return the session with the settings of one response; raise Wrong for a value that is not allowed."""
    given = {key: value for key, value in values.items() if key not in RESPONSE_ONLY}
    mapping("response", given, {*_RESPONSE, "audio"})
    audio = _part("response", given, "audio", ("output",))
    changes = _plain("response", given, usual)
    changes |= _spoken("response.audio.output", _part("response.audio", audio, "output", _OUTPUT), usual)
    return replace(session, **changes)


def _part(param: str, values: Mapping[str, Any], key: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    return {} if values.get(key) is None else mapping(f"{param}.{key}", values[key], known)


def _plain(param: str, given: Mapping[str, Any], usual: RealtimeSession) -> dict[str, Any]:
    return {
        key: getattr(usual, key) if value is None else _PLAIN[key](f"{param}.{key}", value)
        for key, value in given.items()
        if key in _PLAIN
    }


def _spoken(param: str, given: Mapping[str, Any], usual: RealtimeSession) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for key, value in given.items():
        match key:
            case "format":
                changes["output_format"] = _format(f"{param}.format", value)
            case "voice":
                changes["voice"] = usual.voice if value is None else _voice(f"{param}.voice", value)
            case _:
                changes["speed"] = usual.speed if value is None else number(f"{param}.speed", value, 0.25, 2.0)
    return changes


def _heard(param: str, given: Mapping[str, Any], session: RealtimeSession, usual: RealtimeSession) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for key, value in given.items():
        match key:
            case "format":
                changes["input_format"] = _format(f"{param}.format", value)
            case "turn_detection":
                changes[key] = None if value is None else _detection(f"{param}.{key}", value, session.turn_detection)
            case "transcription":
                before = session.transcription or {}
                changes[key] = None if value is None else {**before, **_transcription(f"{param}.{key}", value)}
            case _:
                changes[key] = None if value is None else _noise_reduction(f"{param}.{key}", value)
    return changes


def _format(param: str, value: object) -> str:
    if value is None:
        return "audio/pcm"
    given = mapping(param, value, ("type", "rate"))
    name: str = choice(f"{param}.type", given.get("type", "audio/pcm"), FORMATS)
    if given.get("rate") is not None and given["rate"] != FORMATS[name].rate:
        raise Wrong(f"{param}.rate", f"must be {FORMATS[name].rate}")
    return name


def _voice(param: str, value: object) -> str:
    return text(param, mapping(param, value).get("id") if isinstance(value, dict) else value)


def _detection(param: str, value: object, before: TurnDetection | None) -> TurnDetection:
    given = mapping(param, value, _DETECTION)
    kind = choice(f"{param}.type", given.get("type", "server_vad" if before is None else before.type), _KINDS)
    # Settings of another kind of detection do not carry over.
    base = before if before is not None and before.type == kind else TurnDetection(kind)
    changes = {
        key: getattr(_USUAL_DETECTION, key) if worth is None else _DETECTION[key](f"{param}.{key}", worth)
        for key, worth in given.items()
        if key != "type"
    }
    return replace(base, **changes)


_KINDS = ("server_vad", "semantic_vad")
_USUAL_DETECTION = TurnDetection()
_DETECTION: Mapping[str, Callable[[str, Any], Any]] = {
    "type": text,
    "create_response": flag,
    "interrupt_response": flag,
    "eagerness": lambda param, value: choice(param, value, ("low", "medium", "high", "auto")),
    "threshold": lambda param, value: number(param, value, 0.0, 1.0),
    "prefix_padding_ms": lambda param, value: whole(param, value, 0, 5_000),
    "silence_duration_ms": lambda param, value: whole(param, value, 0, 30_000),
    "idle_timeout_ms": lambda param, value: whole(param, value, 1_000, 600_000),
}


def _transcription(param: str, value: object) -> dict[str, Any]:
    readers: Mapping[str, Callable[[str, Any], Any]] = {
        "model": text,
        "language": text,
        "prompt": lambda param, value: text(param, value, TEXT_CHARACTERS),
        "delay": lambda param, value: choice(param, value, ("minimal", "low", "medium", "high", "xhigh")),
        "keywords": _texts,
        "languages": _texts,
    }
    given = mapping(param, value, readers)
    return {key: None if worth is None else readers[key](f"{param}.{key}", worth) for key, worth in given.items()}


def _texts(param: str, value: object) -> list[str]:
    return [text(param, item) for item in listing(param, value, 64)]


def _noise_reduction(param: str, value: object) -> dict[str, Any]:
    given = mapping(param, value, ("type", "strength"))
    kind = given.get("type", "near_field")
    return {"type": choice(f"{param}.type", kind, ("near_field", "far_field"))}


def _modalities(param: str, value: object) -> tuple[str, ...]:
    given = tuple(choice(param, item, ("text", "audio")) for item in listing(param, value, 2))
    if not given:
        raise Wrong(param, "must not be empty")
    return given


def _tools(param: str, value: object) -> tuple[Mapping[str, Any], ...]:
    return tuple(_tool(f"{param}[{place}]", item) for place, item in enumerate(listing(param, value, TOOLS)))


def _tool(param: str, value: object) -> Mapping[str, Any]:
    given = mapping(param, value)
    if given.get("type", "function") != "function":
        raise Wrong(f"{param}.type", "must be function: others are not supported", "unsupported_parameter")
    tool: dict[str, Any] = {"type": "function", "name": text(f"{param}.name", given.get("name"), 64, least=1)}
    if given.get("description") is not None:
        tool["description"] = text(f"{param}.description", given["description"], TEXT_CHARACTERS)
    if given.get("parameters") is not None:
        tool["parameters"] = mapping(f"{param}.parameters", given["parameters"])
    return tool


def _tool_choice(param: str, value: object) -> str | Mapping[str, str]:
    if isinstance(value, str):
        chosen: str = choice(param, value, ("auto", "none", "required"))
        return chosen
    given = mapping(param, value)
    if given.get("type", "function") != "function":
        raise Wrong(f"{param}.type", "must be function: others are not supported", "unsupported_parameter")
    return {"type": "function", "name": text(f"{param}.name", given.get("name"), 64, least=1)}


def _most_tokens(param: str, value: object) -> int | str:
    return "inf" if value == "inf" else whole(param, value, 1, MOST_TOKENS)


def _truncation(param: str, value: object) -> str | Mapping[str, Any]:
    if not isinstance(value, dict):
        chosen: str = choice(param, value, ("auto", "disabled"))
        return chosen
    ratio = number(f"{param}.retention_ratio", value.get("retention_ratio"), 0.0, 1.0)
    return {"type": "retention_ratio", "retention_ratio": ratio}


def _tracing(param: str, value: object) -> str | Mapping[str, Any]:
    if not isinstance(value, dict):
        chosen: str = choice(param, value, ("auto",))
        return chosen
    mapping(param, value, ("workflow_name", "group_id", "metadata"))
    names = {key: text(f"{param}.{key}", value[key]) for key in ("workflow_name", "group_id") if value.get(key)}
    pairs = metadata(f"{param}.metadata", value.get("metadata"))
    return names if pairs is None else {**names, "metadata": pairs}


def _reasoning(param: str, value: object) -> Mapping[str, Any]:
    effort = mapping(param, value, ("effort",)).get("effort")
    efforts = ("minimal", "low", "medium", "high", "xhigh")
    return {} if effort is None else {"effort": choice(f"{param}.effort", effort, efforts)}


def _include(param: str, value: object) -> tuple[str, ...]:
    known = ("item.input_audio_transcription.logprobs",)
    return tuple(choice(param, item, known) for item in listing(param, value, len(known)))


def _no_prompt(param: str, _: object) -> None:
    raise Wrong(param, "names a stored prompt, and this server has none", "unsupported_parameter")


_PLAIN: Mapping[str, Callable[[str, Any], Any]] = {
    "model": text,
    "instructions": lambda param, value: text(param, value, TEXT_CHARACTERS),
    "output_modalities": _modalities,
    "temperature": lambda param, value: number(param, value, *limits.TEMPERATURES),
    "max_output_tokens": _most_tokens,
    "tools": _tools,
    "tool_choice": _tool_choice,
    "parallel_tool_calls": flag,
    "truncation": _truncation,
    "tracing": _tracing,
    "reasoning": _reasoning,
    "include": _include,
    "prompt": _no_prompt,
}
_SHOWN_ONLY = ("id", "object", "expires_at")
"""Keys that a client sends if it sends back a session as it was shown."""

_RESPONSE = frozenset(_PLAIN) - {"model", "truncation", "tracing", "include"}
RESPONSE_ONLY = ("conversation", "input", "metadata")
_INPUT = ("format", "turn_detection", "transcription", "noise_reduction")
_OUTPUT = ("format", "voice", "speed")
