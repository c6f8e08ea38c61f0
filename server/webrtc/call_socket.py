"""A call's data channel and tracks with the face of a WebSocket, so that sessions/connection.py serves it like one.

Text goes over the data channel, bytes to the player of the reply's track. What is received is text of the client's, or
bytes of the tracks; call_codec.py tells them apart.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from msgspec import msgpack
from starlette.websockets import WebSocketState

from voxlane.server import limits
from voxlane.server.conversation.client_events import Played
from voxlane.server.errors import InvalidRequest, TooFast, TooLarge, VoxlaneError
from voxlane.server.http.buckets import Bucket
from voxlane.server.http.client_socket import MADE_UP
from voxlane.server.http.frames import REFUSAL
from voxlane.server.protocols.openai_realtime.call_codec import MicrophoneSound, TrackCommand
from voxlane.server.webrtc.track_playback import Event, TrackPlayback

GONE = 1005

_COMMANDS = msgpack.Decoder(TrackCommand)


class CallSocket:
    """One call, as the connection that serves it sees it."""

    def __init__(self, query: Mapping[str, str], write: Callable[[str], None]) -> None:
        """Write texts with `write`, which may drop them."""
        self.query_params = query
        self.headers: Mapping[str, str] = {}
        self.scope: MutableMapping[str, Any] = {"subprotocols": ()}
        self.application_state = WebSocketState.CONNECTED
        self.playback = TrackPlayback()
        self.report: Callable[[Played], None] = lambda _: None  # is told what was sent of replies
        self.writable = asyncio.Event()  # the data channel has room
        self.writable.set()
        self._write = write
        self._received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._refused = False
        now, most = asyncio.get_running_loop().time(), limits.REALTIME_FRAMES_BURST
        self._messages = Bucket(limits.VOICE_FRAMES_PER_SECOND, most, now)

    # ---- for the connection

    async def receive(self) -> dict[str, Any]:
        """Return the next message as ASGI has it."""
        return await self._received.get()

    async def send_text(self, data: str) -> None:
        """Send an event over the data channel."""
        await self.writable.wait()
        self._write(data)

    async def send_bytes(self, data: bytes) -> None:
        """Give a command to the player of the reply's track."""
        self._tell(self.playback.handle(_COMMANDS.decode(data)))

    async def close(self, code: int = 1000, reason: str | None = None) -> None:
        """Note the end; webrtc/calls.py closes the peer connection."""
        self.application_state = WebSocketState.DISCONNECTED

    # ---- for the peer connection

    def take_text(self, message: object) -> None:
        """Take a message of the data channel."""
        if self._refused:
            return
        if not isinstance(message, str):
            self.refuse(InvalidRequest("messages are text"))
        elif not self._messages.spend(1, asyncio.get_running_loop().time()):
            self.refuse(TooFast(f"At most {limits.VOICE_FRAMES_PER_SECOND} messages a second."))
        elif len(message) > limits.REALTIME_FRAME_BYTES:
            self.refuse(TooLarge(f"A message has at most {limits.REALTIME_FRAME_BYTES} bytes."))
        else:
            self._put({"type": "websocket.receive", "text": message})

    def take_sound(self, sound: MicrophoneSound) -> None:
        """Take sound of the microphone, or silence in its place."""
        self._put({"type": "websocket.receive", "bytes": msgpack.encode(sound), MADE_UP: not sound.packets})

    def next_frame(self, samples: int) -> tuple[bytes, bool]:
        """Return the track's next samples and whether they are silence; note what was sent of replies."""
        frame = self.playback.pull(samples)
        self._tell(frame.events)
        if frame.position is not None:
            self.report(frame.position)
        return frame.pcm, frame.position is None

    def leave(self) -> None:
        """Note that the client is gone."""
        self.application_state = WebSocketState.DISCONNECTED
        self._received.put_nowait({"type": "websocket.disconnect", "code": GONE})
        self.writable.set()

    def _put(self, message: dict[str, Any]) -> None:
        if self._refused or self.application_state is not WebSocketState.CONNECTED:
            return
        if self._received.qsize() >= limits.CALL_WAITING_MESSAGES:
            self.refuse(TooFast("Too many messages wait."))
        else:
            self._received.put_nowait(message)

    def refuse(self, error: VoxlaneError) -> None:
        """End the call with an error, after what was received before; the first error counts."""
        if self._refused:
            return
        self._refused = True
        self._received.put_nowait({"type": "websocket.receive", REFUSAL: error})

    def _tell(self, events: list[Event] | tuple[Event, ...]) -> None:
        """Tell the client of its track, if it can be told."""
        for event in events:
            self._write(json.dumps(event, separators=(",", ":")))
