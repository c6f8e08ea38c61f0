"""Values that events carry: the configuration of a conversation and the items of its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from voxlane.engine.api import Tool
from voxlane.server import limits
from voxlane.server.conversation.turns.policies import BargePolicy, LanguageName, PhraseList, TurnPolicy

StateName = Literal["listening", "hearing", "thinking", "speaking", "held"]
TurnEnd = Literal["done", "interrupted", "failed"]

TEXT_CHARACTERS = 16_000
"""A typed turn, or the instructions: a sixth of what the engine takes, and longer than any spoken turn."""

TypedText = Annotated[str, Meta(max_length=TEXT_CHARACTERS)]
VoiceStyle = Annotated[str, Meta(max_length=limits.INSTRUCTION_CHARACTERS)]
Speed = Annotated[float, Meta(ge=limits.SPEEDS[0], le=limits.SPEEDS[1])]
Temperature = Annotated[float, Meta(ge=limits.TEMPERATURES[0], le=limits.TEMPERATURES[1])]
Pronunciations = Annotated[tuple[Annotated[str, Meta(max_length=200)], ...], Meta(max_length=100)]
Seed = Annotated[int, Meta(ge=0, le=limits.LARGEST_SEED)]

INSTRUCTIONS = (
    "You are Voxlane, a friendly voice assistant. Today is {date}. You talk with a person by voice: answer in one or "
    "two short, plain sentences, without lists, code, markdown or emoji. You answer questions, chat, and remember what "
    "the person tells you. You are a computer program without internet. If you do not understand, ask what is meant."
)
"""The default instructions. The adapter of the 0.5B model was trained with exactly these words."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Settings of one conversation. A client may change them at any time; a reply that has begun keeps the old ones.

    The types are those of the wire: protocols/settings.py checks a client's values against them.
    """

    instructions: TypedText = INSTRUCTIONS
    voice: Annotated[str, Meta(max_length=256)] = ""  # "": the engine's default
    voice_language: LanguageName = ""  # the language of the voice; "": each reply's text decides
    voice_instructions: VoiceStyle = ""  # style of speaking, in plain words
    pronunciations: Pronunciations = ()  # how names are said: "Siobhan = shiv-awn"
    speed: Speed = 1.0
    language: LanguageName = ""  # of the person; "": the ASR model decides
    hot_words: PhraseList = ()  # names and rare words that the person may say, the most important first
    temperature: Temperature | None = None  # None: the model's own
    max_tokens: Annotated[int, Meta(ge=1, le=4096)] = 256  # per reply
    seed: Seed | None = None  # None: a new one for every reply
    greeting: Annotated[str, Meta(max_length=2000)] = ""  # said when the conversation begins
    tools: tuple[Tool, ...] = ()
    tool_choice: Annotated[str, Meta(max_length=64)] = "auto"
    replies: bool = True  # False: turns are answered only when the client asks for it
    chains_tools: bool = True  # False: tool results are answered only when the client asks for it
    turns: TurnPolicy = field(default_factory=TurnPolicy)
    barge_in: BargePolicy = field(default_factory=BargePolicy)
    interruptible: bool = True  # False: what is said during a reply is answered after it
    speaks: bool = True  # False: replies are text only
    buffer_s: Annotated[float, Meta(ge=0.1, le=10)] = 1.5  # how far sent speech may be ahead of playback


ItemKind = Literal["user", "assistant", "system", "call", "result"]


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of the history."""

    id: str
    kind: ItemKind
    text: str = ""  # the words, a call's arguments as JSON, or a result's output
    name: str = ""  # of the called tool
    call_id: str = ""  # of a call and of its result
    spoken: bool = False  # the words were spoken, not written
    whole: bool = True  # False: only the heard part of a reply, or speech not yet transcribed
    # For a speech-to-speech model, which knows more than the words; neither is saved.
    sound: bytes = b""  # what the person said, 16-bit at the listening rate
    pieces: tuple[tuple[int, ...], ...] = ()  # what was heard of a reply, as the engine's Pieces
