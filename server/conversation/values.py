"""What the events of a conversation are made of: how it is led, what is remembered of it. Values only."""

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
"""What the chat model is told to be. The adapter of the 0.5B model was trained with these very words."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How one conversation is led. A client may change any of it at any time; what has begun goes on as it was."""

    instructions: str = INSTRUCTIONS
    voice: str = ""  # "": the engine's default
    voice_language: str = ""  # what it speaks; "": each reply decides
    voice_instructions: str = ""  # how it speaks, in plain words
    speed: float = 1.0
    language: str = ""  # "": the listening model decides
    temperature: float | None = None  # None: the model's own
    max_tokens: int = 256  # of one reply
    seed: int | None = None  # None: a fresh one for every reply
    greeting: str = ""  # said when the conversation begins
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    replies: bool = True  # False: turns are answered when the client asks for it
    chains_tools: bool = True  # False: so are the results of tool calls
    turns: TurnPolicy = field(default_factory=TurnPolicy)
    barge_in: BargePolicy = field(default_factory=BargePolicy)
    interruptible: bool = True  # False: what is said during a reply is answered after it
    speaks: bool = True  # False: replies are text only
    buffer_s: float = 1.5  # speech sent ahead of what the client has played


ItemKind = Literal["user", "assistant", "system", "call", "result"]


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of a conversation, as it is remembered."""

    id: str
    kind: ItemKind
    text: str = ""  # the words; a call's arguments, as JSON; a result's output
    name: str = ""  # of the tool that is called
    call_id: str = ""  # of a call and of its result
    spoken: bool = False  # the words were said, not written
    whole: bool = True  # False: of a reply, only what was heard; of speech, what is yet to be understood
