"""What is known about a conversation that is watched. Values only."""

from __future__ import annotations

from dataclasses import dataclass

HANDED_OVER = "handed_over"
"""The reason of an end that is none: another server goes on with the conversation, and will report its end."""


@dataclass(slots=True)
class WatchedCall:
    """One conversation, as the log, the traces and the webhook tell of it."""

    session: str
    dialect: str  # native, realtime or phone
    began_s: float  # seconds since 1970
    tenant: str = ""
    system: str = ""  # the telephone system; "": no telephone
    caller: str = ""  # masked; "": no telephone, or no number
    model: str = ""  # the chat model


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A conversation that is over."""

    call: WatchedCall
    seconds: float
    turns: int
    interruptions: int
    reason: str
    recording: str = ""  # the name of its WAV file; "": there is none
    transcript: str = ""  # the name of its transcript; "": there is none
