"""What passes between a planted agent's behaviour and its face: acts one way, the client's input the other. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from voxlane_lab.agents.voice import AgentClip
from voxlane_lab.values import Message, Pcm, WordSpan


@dataclass(frozen=True, slots=True)
class ResponseBegins:
    """The agent begins to say a clip. Responses and turns count from 1; turn 0: the agent greets, unasked."""

    response: int
    turn: int
    clip: AgentClip


@dataclass(frozen=True, slots=True)
class ResponseSound:
    """The samples from `first` to `end` of a response's clip are sent now."""

    response: int
    clip: AgentClip
    first: int
    end: int

    @property
    def words(self) -> tuple[WordSpan, ...]:
        """The words that begin in the piece."""
        return tuple(one for one in self.clip.spans if self.first <= one.start_sample < self.end)


@dataclass(frozen=True, slots=True)
class ResponseSent:
    """All sound of a response was sent."""

    response: int
    clip: AgentClip


@dataclass(frozen=True, slots=True)
class ResponsePlayed:
    """A response was heard to its end, as far as the agent knows."""

    response: int
    turn: int
    clip: AgentClip


@dataclass(frozen=True, slots=True)
class ResponseCut:
    """A response is over before its end."""

    response: int
    turn: int
    clip: AgentClip
    played: int  # samples of the clip that were played, as far as the agent knows
    heard: str  # the words that the agent will remember
    flush: bool  # whether the client is told to drop what it has not played


@dataclass(frozen=True, slots=True)
class TurnBegins:
    """The person's sound is long enough for a turn."""

    turn: int
    at_s: float  # of the microphone's sound: when it began


@dataclass(frozen=True, slots=True)
class TurnEnds:
    """The person's turn is over."""

    turn: int
    at_s: float  # of the microphone's sound: when its last voiced sample was


Act = ResponseBegins | ResponseSound | ResponseSent | ResponsePlayed | ResponseCut | TurnBegins | TurnEnds


@dataclass(frozen=True, slots=True)
class ClientInput:
    """What a message of the client says."""

    replies: tuple[Message, ...] = ()  # what the protocol asks the server to send at once
    sound: Pcm | None = None  # of the microphone, at USER_RATE
    played: tuple[int, int] | None = None  # a response, and how many samples at AGENT_RATE of it were played
    ended: bool = False  # the client is done


class Face(Protocol):
    """The server's side of one protocol, for one call. It has no socket and no clock."""

    ready: bool  # whether the conversation has begun

    def opening(self) -> list[Message]:
        """Return what the server sends before it has heard anything."""
        ...

    def read(self, message: Message) -> ClientInput:
        """Return what a message says; raise NotUnderstood if it breaks the rules."""
        ...

    def write(self, act: Act) -> list[Message]:
        """Return the messages for an act."""
        ...
