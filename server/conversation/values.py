"""Values that events carry: the configuration of a conversation and the items of its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from voxlane.engine.api import Tool
from voxlane.server.conversation.turns import BargePolicy, TurnPolicy

StateName = Literal["listening", "hearing", "thinking", "speaking", "held"]
TurnEnd = Literal["done", "interrupted", "failed"]

INSTRUCTIONS = (
    "You are Voxlane, a friendly voice assistant. Today is {date}. You talk with a person by voice: answer in one or "
    "two short, plain sentences, without lists, code, markdown or emoji. You answer questions, chat, and remember what "
    "the person tells you. You are a computer program without internet. If you do not understand, ask what is meant."
)
"""The default instructions. The adapter of the 0.5B model was trained with exactly these words."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Settings of one conversation. A client may change them at any time; a reply that has begun keeps the old ones."""

    instructions: str = INSTRUCTIONS
    voice: str = ""  # "": the engine's default
    voice_language: str = ""  # the language of the voice; "": each reply's text decides
    voice_instructions: str = ""  # style of speaking, in plain words
    speed: float = 1.0
    language: str = ""  # of the person; "": the ASR model decides
    temperature: float | None = None  # None: the model's own
    max_tokens: int = 256  # per reply
    seed: int | None = None  # None: a new one for every reply
    greeting: str = ""  # said when the conversation begins
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    replies: bool = True  # False: turns are answered only when the client asks for it
    chains_tools: bool = True  # False: tool results are answered only when the client asks for it
    turns: TurnPolicy = field(default_factory=TurnPolicy)
    barge_in: BargePolicy = field(default_factory=BargePolicy)
    interruptible: bool = True  # False: what is said during a reply is answered after it
    speaks: bool = True  # False: replies are text only
    buffer_s: float = 1.5  # how far sent speech may be ahead of playback


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
