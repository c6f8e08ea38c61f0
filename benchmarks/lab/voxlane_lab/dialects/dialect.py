"""What a dialect of the lab is: the client's side of a protocol, with a loudspeaker that obeys it.

A dialect has no socket and no clock. The call (call.py) gives it the microphone and the server's messages, sends what
it returns, and pulls its loudspeaker every 20 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from voxlane_lab.loudspeaker import VirtualLoudspeaker
from voxlane_lab.values import Arrival, Message, Occurrence, Pcm


@dataclass(frozen=True, slots=True)
class LabHandshake:
    """How to connect: the address, and what the request must have."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    subprotocols: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class LabTool:
    """A tool that the agent may call, and what it is told after a while."""

    name: str
    description: str
    result: str
    takes_s: float


@dataclass(frozen=True, slots=True)
class DialectOptions:
    """What a run wants of every dialect."""

    url: str
    key: str = ""  # the server's key, from the environment
    model: str = ""
    voice: str = ""
    turn_detection: str = ""  # how the server decides that a turn is over, where the dialect names it
    instructions: str = ""
    tools: tuple[LabTool, ...] = ()
    naive: bool = False  # the loudspeaker obeys nothing
    mapping: str = ""  # the mapping file of plain PCM


class LabDialect(Protocol):
    """The client's side of one call."""

    name: str
    speaker: VirtualLoudspeaker
    arrivals: list[Arrival]  # all sound that came
    texts: dict[str, str]  # what each response says, as the server wrote it
    history: list[tuple[str, str]]  # role and text, as the server says that it remembers; empty: it does not say
    occurrences: list[Occurrence]  # messages both ways but microphone sound, and what the loudspeaker did
    failure: str  # one sentence, when the server refused or spoke garbage; "": all is well
    ready: bool  # whether the conversation may begin
    finished: set[str]  # responses of which all sound has come, where the dialect says so
    calling_tool: bool  # whether the agent waits for a tool's result
    pauses: bool  # whether the dialect can pause a loudspeaker
    names_responses: bool  # whether sound names its response

    def handshake(self) -> LabHandshake:
        """Return how to connect."""
        ...

    def open(self, at_s: float) -> list[Message]:
        """Return the first messages."""
        ...

    def say(self, pcm: Pcm, at_s: float) -> list[Message]:
        """Return the messages that carry 20 ms of the microphone, at USER_RATE."""
        ...

    def receive(self, message: Message, at_s: float) -> list[Message]:
        """Process a message of the server; return what must be sent at once."""
        ...

    def due(self, at_s: float) -> list[Message]:
        """Return what must be sent after a tick: acknowledgements, marks, results of tools."""
        ...

    def close(self, at_s: float) -> list[Message]:
        """Return the last messages."""
        ...
