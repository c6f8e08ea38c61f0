"""Which dialect a call speaks: by its name, or guessed from the server's address. Pure."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import SplitResult, urlsplit, urlunsplit

from voxlane_lab.dialects.dialect import DialectOptions, LabDialect
from voxlane_lab.dialects.native import NativeClient
from voxlane_lab.dialects.pcm import PcmClient
from voxlane_lab.dialects.realtime import RealtimeClient
from voxlane_lab.dialects.twilio import TwilioCarrier
from voxlane_lab.errors import LabError, quote

DIALECTS = {
    "native": "voxlane.v1: the loudspeaker can be lowered, paused and cleared, and tells what it played.",
    "realtime": "OpenAI Realtime over WebSocket: the client drops what waits when the person speaks.",
    "twilio": "Twilio Media Streams: the lab is the carrier and obeys clear and mark.",
    "pcm": "Plain PCM over WebSocket: a mapping file says how sound and clear are written.",
}
"""The dialects, and a sentence about each."""

_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}

_SIGNS = {
    "native": ("/v1/voice",),
    "realtime": ("/realtime",),
    "twilio": ("/v1/phone", "twilio", "media-stream", "mediastream"),
    "pcm": ("/pcm",),
}
"""What a path holds where the dialect is known by its path."""


def make_dialect(name: str, options: DialectOptions, call: str = "") -> LabDialect:
    """Return the client's side of one call; raise LabError if it cannot be made.

    `call` tells calls apart where the client names them: the callSid of Twilio is made of it.
    """
    options = replace(options, url=urlunsplit(websocket_address(options.url)))
    match name:
        case "native":
            return NativeClient(options)
        case "realtime":
            return RealtimeClient(options)
        case "twilio":
            return TwilioCarrier(options, call)
        case "pcm":
            return PcmClient(options)
    raise LabError(f"there is no dialect {quote(name)}; there are {', '.join(DIALECTS)}")


def guess_dialect(url: str) -> str | None:
    """Return the dialect that an address looks like; None: it looks like none."""
    try:
        path = websocket_address(url).path.lower()
    except LabError:
        return None
    return next((name for name, signs in _SIGNS.items() if any(sign in path for sign in signs)), None)


def websocket_address(url: str) -> SplitResult:
    """Return the parts of an address, http taken for ws and https for wss; raise LabError if it is no address."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise LabError("the address must be that of a WebSocket, such as ws://127.0.0.1:8000/v1/voice")
    return parts._replace(scheme=_SCHEMES[parts.scheme], fragment="")
