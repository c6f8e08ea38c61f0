"""Audio to one `asr` request: in pieces, never far ahead of the engine, with what was understood handed on as it comes.

It knows seconds of audio at the engine's rate. Files and their formats are decoding.py's; text is transcript.py's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from voxlane.engine.api import LISTEN_RATE, MAX_UNHEARD_S, Finished, RequestStats, Words
from voxlane.server.audio.feeding import Lead, checked, feed_beside
from voxlane.server.engine_client.stream import RequestStream
from voxlane.server.errors import InternalError

PIECE_BYTES = LISTEN_RATE * 2
"""One second: fits one packet to the engine, and long files need few of them."""

AHEAD_S = MAX_UNHEARD_S / 2
"""Audio sent and not yet heard: more than any model's window, and half of what would lose the request."""


async def hear(
    stream: RequestStream, audio: AsyncIterator[bytes | bytearray], take: Callable[[Words], Awaitable[None]]
) -> RequestStats:
    """Feed 16-bit samples to the request, give all that is understood to `take`, and return what it cost."""
    lead = Lead(AHEAD_S)

    async def feed() -> None:
        async for samples in audio:
            for start in range(0, len(samples), PIECE_BYTES):
                piece = bytes(samples[start : start + PIECE_BYTES])
                await lead.room_for(len(piece) / PIECE_BYTES)
                stream.append(audio=piece)
        stream.end_input()

    async def listen() -> RequestStats:
        async for output in stream:
            if isinstance(output, Words):
                lead.reached(output.heard_s)
                await take(output)
            elif isinstance(output, Finished):
                return checked(output).stats
        raise InternalError(detail="an asr stream without an end")

    return await feed_beside(feed(), listen())


async def whole(samples: bytes | bytearray) -> AsyncIterator[bytes | bytearray]:
    """Yield a recording that is all there."""
    yield samples
