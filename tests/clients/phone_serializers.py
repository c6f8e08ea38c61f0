"""pipecat's serializers of telephone systems, for comparison: they read and write what a server of a system does.

Reads a list of cases from stdin as JSON and writes one list of results for each to stdout. A case names a system, the
arguments of its serializer, the rate of the line, and its steps: `read` a message of the system, `write` 16-bit sound,
`interrupt`, `end`. Bytes are {"bytes": base64}.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from types import SimpleNamespace
from typing import Any

from pipecat.frames.frames import (
    EndFrame,
    InputAudioRawFrame,
    InputDTMFFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    OutputTransportMessageUrgentFrame,
)
from pipecat.serializers.base_serializer import FrameSerializer
from pipecat.serializers.exotel import ExotelFrameSerializer
from pipecat.serializers.genesys import GenesysAudioHookSerializer
from pipecat.serializers.plivo import PlivoFrameSerializer
from pipecat.serializers.telnyx import TelnyxFrameSerializer
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.serializers.vonage import VonageFrameSerializer

SERIALIZERS: dict[str, Any] = {
    "twilio": TwilioFrameSerializer,
    "telnyx": TelnyxFrameSerializer,
    "plivo": PlivoFrameSerializer,
    "exotel": ExotelFrameSerializer,
    "vonage": VonageFrameSerializer,
    "genesys": GenesysAudioHookSerializer,
}


def packed(value: str | bytes | None) -> Any:
    """Return a message as JSON."""
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes | bytearray) else value


def unpacked(value: Any) -> str | bytes:
    """Return a message from JSON."""
    return base64.b64decode(value["bytes"]) if isinstance(value, dict) else value


async def step(serializer: FrameSerializer, rate: int, kind: str, value: Any) -> Any:
    """Return what the serializer makes of one step."""
    if kind == "read":
        frame = await serializer.deserialize(unpacked(value))
        if isinstance(frame, InputAudioRawFrame):
            assert frame.sample_rate == rate
            return {"sound": base64.b64encode(frame.audio).decode()}
        if isinstance(frame, InputDTMFFrame):
            return {"key": frame.button.value}
        if isinstance(frame, OutputTransportMessageUrgentFrame):
            return {"message": frame.message}
        assert frame is None, frame
        return None
    if kind == "write":
        frame = OutputAudioRawFrame(audio=base64.b64decode(value), sample_rate=rate, num_channels=1)
    else:
        frame = {"interrupt": InterruptionFrame, "end": EndFrame}[kind]()
    return packed(await serializer.serialize(frame))


async def play(case: dict[str, Any]) -> list[Any]:
    """Return the results of a case's steps."""
    kind = SERIALIZERS[case["system"]]
    params = kind.InputParams(**case["params"])
    serializer = kind(**case["arguments"], params=params)
    rate = case["rate"]
    await serializer.setup(SimpleNamespace(audio_in_sample_rate=rate))  # they look at nothing else of a pipeline
    return [await step(serializer, rate, kind, value) for kind, value in case["steps"]]


async def main() -> None:
    """Play all cases."""
    json.dump([await play(case) for case in json.load(sys.stdin)], sys.stdout)


asyncio.run(main())
