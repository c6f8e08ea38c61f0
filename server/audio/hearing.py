"""Feed audio to one `asr` request in pieces, never far ahead of the engine, and pass its words on as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from voxlane.engine.api import LISTEN_RATE, MAX_UNHEARD_S, Finished, RequestStats, Words
from voxlane.server.audio.feeding import Lead, checked, feed_beside
from voxlane.server.engine_client.stream import RequestStream
from voxlane.server.errors import InternalError

PIECE_BYTES = LISTEN_RATE * 2
"""One second of audio: it fits one packet to the engine, and long files need few packets."""

AHEAD_S = MAX_UNHEARD_S / 2
"""Audio sent and not yet processed: more than any model's window, and half of what would fail the request."""


async def hear(
    stream: RequestStream, audio: AsyncIterator[bytes | bytearray], take: Callable[[Words], Awaitable[None]]
) -> RequestStats:
    """Feed 16-bit samples to the request, pass its words to `take`, and return its statistics."""
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
    """Yield a complete recording."""
    yield samples
