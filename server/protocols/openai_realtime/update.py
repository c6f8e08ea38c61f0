"""Updates of OpenAI Realtime's session object, and the settings of one response.

A null is a value where the specification has one (`turn_detection: null`), and the default everywhere else; only a
missing key changes nothing. session.py turns the result into our configuration.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from voxlane.server.conversation.turns.policies import Eagerness, Probability
from voxlane.server.conversation.values import Temperature, TypedText
from voxlane.server.protocols.openai_realtime.session import FORMATS, MOST_TOKENS, RealtimeSession, TurnDetection
from voxlane.server.protocols.openai_realtime.values import Metadata, Name, Wrong, read
from voxlane.server.protocols.settings import TOOLS, ToolName

T = TypeVar("T")
Given: TypeAlias = T | UnsetType | None
"""A value that may be absent, or null. A whole number is a float here: some clients write 300 as 300.0."""

FunctionOnly = Annotated[Literal["function"], Meta(extra={"unsupported": "must be function: others are not supported"})]
_NO_LOGPROBS = "must be empty: this server has no log probabilities of transcripts"
Texts = Annotated[list[Name], Meta(max_length=64)]


class _Function(Struct, kw_only=True):
    type: FunctionOnly = "function"
    name: ToolName


class _Tool(_Function):
    description: TypedText | None = None
    parameters: dict[str, Any] | None = None


class _Retention(Struct):
    retention_ratio: Probability
    type: Any = None

    def __post_init__(self) -> None:
        self.type = "retention_ratio"  # there is no other


class _Tracing(Struct, forbid_unknown_fields=True):
    workflow_name: Name | None = None
    group_id: Name | None = None
    metadata: Metadata | None = None


class _Reasoning(Struct, forbid_unknown_fields=True):
    effort: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None


class _Format(Struct, forbid_unknown_fields=True):
    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: Any = None


class _Voice(Struct):
    id: Name


class _Detection(Struct, forbid_unknown_fields=True):
    type: Literal["server_vad", "semantic_vad"] | UnsetType = UNSET
    create_response: Given[bool] = UNSET
    interrupt_response: Given[bool] = UNSET
    eagerness: Given[Eagerness] = UNSET
    threshold: Given[Probability] = UNSET
    prefix_padding_ms: Given[Annotated[float, Meta(ge=0, le=5_000, multiple_of=1)]] = UNSET
    silence_duration_ms: Given[Annotated[float, Meta(ge=0, le=30_000, multiple_of=1)]] = UNSET
    idle_timeout_ms: Given[Annotated[float, Meta(ge=1_000, le=600_000, multiple_of=1)]] = UNSET


class _Transcription(Struct, forbid_unknown_fields=True):
    model: Given[Name] = UNSET
    language: Given[Name] = UNSET
    prompt: Given[TypedText] = UNSET
    delay: Given[Literal["minimal", "low", "medium", "high", "xhigh"]] = UNSET
    keywords: Given[Texts] = UNSET
    languages: Given[Texts] = UNSET


class _NoiseReduction(Struct, forbid_unknown_fields=True):
    type: Literal["near_field", "far_field"] = "near_field"
    strength: Any = None


class _Input(Struct, forbid_unknown_fields=True):
    format: Given[_Format] = UNSET
    turn_detection: Given[_Detection] = UNSET
    transcription: Given[_Transcription] = UNSET
    noise_reduction: Given[_NoiseReduction] = UNSET


class _Output(Struct, forbid_unknown_fields=True):
    format: Given[_Format] = UNSET
    voice: Given[Name | _Voice] = UNSET
    speed: Given[Annotated[float, Meta(ge=0.25, le=2)]] = UNSET


class _Audio(Struct, forbid_unknown_fields=True):
    output: _Output | None = None


class _SessionAudio(_Audio):
    input: _Input | None = None


class _Common(Struct, kw_only=True, forbid_unknown_fields=True):
    instructions: Given[TypedText] = UNSET
    output_modalities: Given[Annotated[list[Literal["text", "audio"]], Meta(min_length=1, max_length=2)]] = UNSET
    temperature: Given[Temperature] = UNSET
    max_output_tokens: Given[Annotated[float, Meta(ge=1, le=MOST_TOKENS, multiple_of=1)] | Literal["inf"]] = UNSET
    tools: Given[Annotated[list[_Tool], Meta(max_length=TOOLS)]] = UNSET
    tool_choice: Given[Literal["auto", "none", "required"] | _Function] = UNSET
    parallel_tool_calls: Given[bool] = UNSET
    reasoning: Given[_Reasoning] = UNSET
    prompt: Annotated[None, Meta(extra={"unsupported": "names a stored prompt, and this server has none"})] = None


class _SessionUpdate(_Common):
    type: Literal["realtime", "transcription"] | None = None
    model: Given[Name] = UNSET
    truncation: Given[Literal["auto", "disabled"] | _Retention] = UNSET
    tracing: Given[Literal["auto"] | _Tracing] = UNSET
    include: Given[Annotated[list[Any], Meta(max_length=0, extra={"rule": _NO_LOGPROBS})]] = UNSET
    audio: _SessionAudio | None = None
    # A client sends these if it sends back a session as it was shown.
    id: Any = None
    object: Any = None
    expires_at: Any = None


class ResponseOptions(_Common):
    """The response of a response.create."""

    audio: _Audio | None = None
    conversation: Literal["auto", "none"] | None = None
    metadata: Metadata | None = None
    input: Annotated[list[Any], Meta(max_length=256)] | None = None


def updated(session: RealtimeSession, values: object, usual: RealtimeSession) -> RealtimeSession:
    """Return the session with the keys of an update; raise Wrong for a value that is not allowed."""
    update = read(_SessionUpdate, values, "session")
    audio = update.audio or _SessionAudio()
    return replace(
        session,
        type=update.type or session.type,
        **_plain(update, usual),
        **_heard("session.audio.input", audio.input or _Input(), session),
        **_spoken("session.audio.output", audio.output or _Output(), usual),
    )


def overridden(session: RealtimeSession, options: ResponseOptions, usual: RealtimeSession) -> RealtimeSession:
    """Return the session with the settings of one response; raise Wrong for a value that is not allowed."""
    output = options.audio and options.audio.output
    spoken = _spoken("response.audio.output", output or _Output(), usual)
    return replace(session, **_plain(options, usual), **spoken)


def _given(update: Struct) -> dict[str, Any]:
    return {name: value for name, value in structs.asdict(update).items() if value is not UNSET}


def _plain(update: _Common, usual: RealtimeSession) -> dict[str, Any]:
    """Return the settings that have the same names in RealtimeSession."""
    changes = {
        name: getattr(usual, name) if value is None else _shown(value)
        for name, value in _given(update).items()
        if name != "type" and hasattr(usual, name)
    }
    if isinstance(changes.get("max_output_tokens"), float):
        changes["max_output_tokens"] = int(changes["max_output_tokens"])
    return changes


def _shown(value: Any) -> Any:
    """Return a value as a session is shown: an object without its nulls."""
    if isinstance(value, list):
        return tuple(map(_shown, value))
    if isinstance(value, Struct):
        return {name: one for name, one in structs.asdict(value).items() if one is not None}
    return value


def _spoken(param: str, update: _Output, usual: RealtimeSession) -> dict[str, Any]:
    changes = {name: getattr(usual, name, None) if value is None else value for name, value in _given(update).items()}
    if "format" in changes:
        changes["output_format"] = _format(f"{param}.format", changes.pop("format"))
    if isinstance(update.voice, _Voice):
        changes["voice"] = update.voice.id
    return changes


def _heard(param: str, update: _Input, session: RealtimeSession) -> dict[str, Any]:
    changes = _given(update)
    if "format" in changes:
        changes["input_format"] = _format(f"{param}.format", changes.pop("format"))
    if update.turn_detection:
        changes["turn_detection"] = _detection(update.turn_detection, session.turn_detection)
    if update.transcription:
        changes["transcription"] = {**(session.transcription or {}), **_given(update.transcription)}
    if update.noise_reduction:
        changes["noise_reduction"] = {"type": update.noise_reduction.type}
    return changes


def _format(param: str, form: _Format | None) -> str:
    given = form or _Format()
    if given.rate not in (None, FORMATS[given.type].rate):
        raise Wrong(f"{param}.rate", f"must be {FORMATS[given.type].rate}")
    return given.type


def _detection(update: _Detection, before: TurnDetection | None) -> TurnDetection:
    kind = update.type or (before or _USUAL_DETECTION).type
    # Settings of another kind of detection do not carry over.
    base = before if before is not None and before.type == kind else TurnDetection(kind)
    changes: dict[str, Any] = {
        name: getattr(_USUAL_DETECTION, name) if value is None else int(value) if name.endswith("_ms") else value
        for name, value in _given(update).items()
    }
    return replace(base, **changes)


_USUAL_DETECTION = TurnDetection()
