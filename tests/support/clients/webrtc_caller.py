"""A client over WebRTC through aiortc: its events are checked like those of a WebSocket, its sound is kept."""

from __future__ import annotations

import asyncio
import fractions
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame
from httpx import AsyncClient, Response
from realtime_grammar import Event, Grammar

RATE = 48_000
FRAME = RATE // 50


class SpokenTrack(MediaStreamTrack):
    """A microphone in real time: silence, and clips that are said into it."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._queued = np.zeros(0, np.int16)
        self._sent = 0
        self._began_s = asyncio.get_running_loop().time()

    def say(self, samples: np.ndarray) -> None:
        """Queue floats at 48 kHz behind those that are being said."""
        self._queued = np.concatenate((self._queued, (samples * 32767).astype(np.int16)))

    @property
    def silent(self) -> bool:
        """Whether all that was queued has been sent."""
        return not len(self._queued)

    async def recv(self) -> AudioFrame:
        """Return the next 20 ms."""
        await asyncio.sleep(self._began_s + self._sent / RATE - asyncio.get_running_loop().time())
        if self.readyState != "live":
            raise MediaStreamError
        piece, self._queued = self._queued[:FRAME], self._queued[FRAME:]
        piece = np.concatenate((piece, np.zeros(FRAME - len(piece), np.int16)))
        frame = AudioFrame.from_ndarray(piece[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._sent, fractions.Fraction(1, RATE)
        self._sent += FRAME
        return frame


class Caller:
    """One call."""

    def __init__(self, http: AsyncClient) -> None:
        self.http = http
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.channel = self.connection.createDataChannel("oai-events")
        self.microphone = SpokenTrack()
        self.connection.addTrack(self.microphone)
        self.grammar = Grammar(webrtc=True)
        self.location = ""
        self.heard: list[np.ndarray] = []  # what came on the track, at 48 kHz
        self.open = asyncio.Event()
        self.closed = asyncio.Event()
        self._received: asyncio.Queue[Event] = asyncio.Queue()
        self._listening: asyncio.Task[None] | None = None
        self.channel.on("open", self.open.set)
        self.channel.on("close", self.closed.set)
        self.channel.on("message", lambda text: self._received.put_nowait(json.loads(text)))
        self.connection.on("track", self._take_track)

    async def offer(self) -> str:
        """Return the offer of this client."""
        await self.connection.setLocalDescription(await self.connection.createOffer())
        return str(self.connection.localDescription.sdp)

    async def post(self, key: str = "", session: Mapping[str, Any] | None = None, query: str = "?model=m") -> Response:
        """Send the offer, as plain SDP or with a session; return the answer."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        offer, address = await self.offer(), f"/v1/realtime/calls{query}"
        if session is None:
            headers["content-type"] = "application/sdp"
            return await self.http.post(address, content=offer, headers=headers)
        files = {"sdp": (None, offer, "application/sdp"), "session": (None, json.dumps(session), "application/json")}
        return await self.http.post(address, files=files, headers=headers)

    async def connect(self, answer: Response) -> None:
        """Go on with the answer until events can be exchanged."""
        assert answer.status_code == 201, answer.text
        self.location = answer.headers["location"]
        await self.connection.setRemoteDescription(RTCSessionDescription(answer.text, "answer"))
        await self.open.wait()

    def send(self, *events: Event) -> None:
        """Send events over the data channel."""
        for event in events:
            self.channel.send(json.dumps(event))

    async def until(self, kind: str) -> Event:
        """Return the next event of a type; all are checked."""
        while True:
            event = await self._received.get()
            self.grammar.check(event)
            if event["type"] == kind:
                return event

    def kinds(self) -> list[str]:
        """Return the types of all events so far."""
        return [one["type"] for one in self.grammar.events]

    def _take_track(self, track: MediaStreamTrack) -> None:
        self._listening = asyncio.create_task(self._listen(track))

    async def _listen(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame: Any = await track.recv()
            except MediaStreamError:
                return
            self.heard.append(frame.to_ndarray().reshape(-1, 2)[:, 0].copy())

    async def close(self) -> None:
        """Leave."""
        await self.connection.close()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)


@asynccontextmanager
async def calling(http: AsyncClient, **options: Any) -> AsyncIterator[Caller]:
    """Call as long as the context lasts."""
    caller = Caller(http)
    try:
        await caller.connect(await caller.post(**options))
        yield caller
    finally:
        await caller.close()
