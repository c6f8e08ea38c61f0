"""A peer connection of one call, through aiortc. No other module imports that library; calls.py imports this one late.

aiortc brings ICE, DTLS, SRTP, SCTP and the jitter buffer. The reply's track sends Opus packets of our own encoder: one
packet stands for all silence, so that a call in which no reply is spoken costs next to nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Any, cast

from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCPeerConnection,
    RTCRtpCodecParameters,
    RTCSctpTransport,
    RTCSessionDescription,
    rtcrtpreceiver,
)
from aiortc.codecs import get_decoder
from aiortc.codecs.base import Decoder
from aiortc.jitterbuffer import JitterFrame
from aiortc.mediastreams import MediaStreamError
from aiortc.rtcsctptransport import DataChunk
from aiortc.rtp import RtpPacket
from av.frame import Frame
from av.packet import Packet

from voxlane.codecs.errors import InvalidAudio
from voxlane.codecs.opus import OpusEncoder
from voxlane.codecs.pcm import decode_pcm16
from voxlane.server import limits
from voxlane.server.config import WebRtcConfig
from voxlane.server.errors import InvalidRequest, TooLarge, VoxlaneError
from voxlane.server.log import line
from voxlane.server.protocols.openai_realtime.call_codec import REPLY_TRACK, MicrophoneSound
from voxlane.server.webrtc.call_socket import CallSocket
from voxlane.server.webrtc.sdp import checked_offer, has_data_channel, relay_peers, unused_servers, with_addresses
from voxlane.server.webrtc.track_microphone import QUIET_S, TrackMicrophone

logger = logging.getLogger(__name__)

EVENTS = "oai-events"
"""The data channel of OpenAI's clients."""

FRAME_S = 0.02
_FRAME_SAMPLES = REPLY_TRACK.rate // 50
_RTP_SAMPLES = 960  # of a frame on Opus's RTP clock
_RTP_TIME = Fraction(1, 48_000)

SILENCE = b"\xf8\xff\xfe"
"""An Opus packet of 20 ms of silence."""

FADING_FRAMES = 2
"""Frames of silence that go through the encoder after sound: its look-ahead holds the last samples back."""

LATE_S = 0.1
"""A track that is later than this goes on from now: the client need not hear faster what it has missed."""

ANEW_PACKETS = 100
"""A packet that is so many behind, two seconds, is the first of a sender that began anew; none is that late."""

_DISCARD_PORT = 9
"""A relay lets all ports of an address in to which it has sent something; this one takes what it gets."""

_JITTER_BUFFER = "_RTCRtpReceiver__jitter_buffer"  # the library has no setting for it

_BROKEN = "The offer cannot be answered: {reason}."


class UndecodedOpus(RTCRtpCodecParameters):
    """Opus of a track whose packets are handed on as they are: no decoder of strangers' bytes runs in this process."""


class _PacketReader(Decoder):
    """Stands where aiortc has its decoder."""

    def decode(self, encoded_frame: JitterFrame) -> list[Frame]:
        return [cast(Frame, encoded_frame)]


class _ArrivalOrder:
    """Stands where aiortc has its jitter buffer, which plays for an ear: 80 ms late, and 300 ms after a lost packet.

    A recogniser takes packets as they come. One that comes behind its successor counts as lost. A sender that begins
    anew is followed: its numbers lie far behind, or its SSRC is another one.
    """

    def __init__(self) -> None:
        self._last: int | None = None  # sequence number
        self._ssrc = 0

    def add(self, packet: RtpPacket) -> tuple[bool, JitterFrame | None]:
        number = packet.sequence_number
        last = self._last if packet.ssrc == self._ssrc else None
        if last is not None and (last - number) % 2**16 < ANEW_PACKETS:
            return False, None
        self._last, self._ssrc = number, packet.ssrc
        return False, JitterFrame(packet.payload, packet.timestamp)


def _decoder(codec: RTCRtpCodecParameters) -> Decoder:
    return _PacketReader() if isinstance(codec, UndecodedOpus) else get_decoder(codec)


# The library has no setting for it. Other peers of this process are as before.
rtcrtpreceiver.get_decoder = _decoder  # type: ignore[attr-defined]


class ReassemblyGuard:
    """Stands before aiortc's reassembly of messages, which has no limit, and whose work grows with all that it holds.

    A part that lies too far behind a missing one is dropped as if the network had lost it: the client sends it again
    when the gap is filled. Parts that came without a gap and still make no whole message are counted over all streams.
    A call that has too many of them is refused, and what comes after that is dropped.
    """

    def __init__(self, transport: RTCSctpTransport, refuse: Callable[[VoxlaneError], None]) -> None:
        """Take the place of the transport's own method."""
        self._transport = transport
        self._receive = transport._receive_data_chunk
        self._refuse = refuse
        self._full = False
        transport._receive_data_chunk = self.receive  # type: ignore[method-assign]

    async def receive(self, chunk: DataChunk) -> None:
        """Take a part of a message, or drop it."""
        if self._full:
            return
        if self._is_never_whole(chunk):
            self._full = True
            self._refuse(TooLarge("Too many parts of messages wait for missing ones."))
        elif self._is_too_early(chunk):
            self._transport._sack_needed = True  # the answer tells the client which part is missing
        else:
            await self._receive(chunk)

    def _ahead(self, number: int) -> int:
        """Return how far a part is ahead of the last one before the first gap; 0: the part was there before."""
        last = self._transport._last_received_tsn
        ahead = 1 if last is None else (number - last) % 2**32
        return ahead if ahead < 2**31 else 0

    def _is_never_whole(self, chunk: DataChunk) -> bool:
        """Return whether a part makes too many that wait for other parts than lost ones."""
        streams = self._transport._inbound_streams
        if len(streams) >= limits.CALL_STREAMS and chunk.stream_id not in streams:
            return True
        if self._ahead(chunk.tsn) != 1:
            return False
        held = [one for stream in streams.values() for one in stream.reassembly if not self._ahead(one.tsn)]
        return len(held) >= limits.CALL_HELD_PARTS or _size(held) + len(chunk.user_data) > limits.CALL_HELD_BYTES

    def _is_too_early(self, chunk: DataChunk) -> bool:
        """Return whether a part is too far behind a gap, or one too many there."""
        ahead = self._ahead(chunk.tsn)
        if ahead <= 1:
            return False
        if ahead > limits.CALL_HELD_PARTS:
            return True
        streams = self._transport._inbound_streams.values()
        held = [one for stream in streams for one in stream.reassembly if self._ahead(one.tsn)]
        return _size(held) + len(chunk.user_data) > limits.CALL_HELD_BYTES


def _size(parts: Iterable[DataChunk]) -> int:
    return sum(len(one.user_data) for one in parts)


class ReplyTrack(MediaStreamTrack):
    """The sound of replies in real time, by the clock of the event loop."""

    kind = "audio"

    def __init__(self, socket: CallSocket) -> None:
        super().__init__()
        self._socket = socket
        self._clock = asyncio.get_running_loop().time  # the base class has a `_loop` of its own
        self._due_s = self._clock()
        self._frames = 0
        self._encoder = OpusEncoder(REPLY_TRACK.rate)
        self._fading = 0

    async def recv(self) -> Packet[Any]:
        """Return the next packet when its time has come."""
        now = self._clock()
        if now > self._due_s + LATE_S:
            self._due_s = now
        await asyncio.sleep(self._due_s - now)
        if self.readyState != "live":
            raise MediaStreamError
        self._due_s += FRAME_S
        packet: Packet[Any] = Packet(self._next())
        packet.pts, packet.time_base = self._frames * _RTP_SAMPLES, _RTP_TIME
        self._frames += 1
        return packet

    def _next(self) -> bytes:
        pcm, silent = self._socket.next_frame(_FRAME_SAMPLES)
        self._fading = self._fading - 1 if silent else FADING_FRAMES
        if self._fading < 0:
            return SILENCE
        return self._encoder.push(decode_pcm16(pcm))[0]


class Peer:
    """One peer connection, from an offer to its end."""

    def __init__(
        self,
        config: WebRtcConfig,
        password: str,
        query: Mapping[str, str],
        on_caught: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `on_caught` for an error of the library that nothing foresaw."""
        self._on_caught = on_caught
        self.open = asyncio.Event()  # events can be exchanged
        self.socket = CallSocket(query, self._write)
        self._config = config
        servers = [_server(url, config.ice_username, password) for url in config.ice_servers]
        # Without a list aiortc would ask a STUN server of its own choice.
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=servers))
        self._channel: RTCDataChannel | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._connection.on("datachannel", self._take_channel)
        self._connection.on("track", self._take_track)
        self._connection.on("connectionstatechange", self._follow)
        self._with_channel = True

    async def answer(self, offer: str, address: str) -> str:
        """Return the answer to an offer that came from an address; raise InvalidRequest if there can be none."""
        relayed = any(url.startswith("turn") for url in self._config.ice_servers)
        offer = checked_offer(offer, keep_addresses=relayed)
        self._with_channel = has_data_channel(offer)
        connection = self._connection
        try:
            await connection.setRemoteDescription(RTCSessionDescription(offer, "offer"))
            if connection.sctp is not None:
                ReassemblyGuard(connection.sctp, self.socket.refuse)
            self._add_reply_track()
            await connection.setLocalDescription(await connection.createAnswer())
        except Exception as error:  # the library raises what its parser happens to stumble over
            logger.debug("offer", exc_info=error)
            self._on_caught()
            raise InvalidRequest(_BROKEN.format(reason=type(error).__name__), param="sdp") from error
        self._let_in(address)
        answer = connection.localDescription.sdp
        for server in unused_servers(answer, self._config.ice_servers):
            logger.warning(line("no address from an ICE server", server=server, setting="webrtc.ice_servers"))
        return with_addresses(answer, self._config.public_addresses)

    def _let_in(self, address: str) -> None:
        """Have our relay let the client's packets in: it drops those from addresses to which it has sent nothing.

        Browsers' offers name no address, since the SDKs send them before the browser has found any. The client's
        packets come from the address of its HTTP request, or from the relay itself if the client uses the same one.
        """
        receivers = [one.receiver.transport for one in self._connection.getTransceivers()]
        channel = self._connection.sctp
        transports = {one.transport for one in (*receivers, *([channel.transport] if channel is not None else []))}
        for protocol in (one for each in transports for one in each._connection._protocols):
            if protocol.local_candidate.type == "relay":
                ours = protocol.local_candidate.host
                for host in relay_peers(address, ours):
                    protocol.transport.sendto(b"", (host, _DISCARD_PORT))

    def _add_reply_track(self) -> None:
        self._connection.addTrack(ReplyTrack(self.socket))
        (transceiver,) = self._connection.getTransceivers()
        opus = [one for one in transceiver._codecs if one.mimeType.lower() == "audio/opus"]
        transceiver._codecs = [UndecodedOpus(**vars(one)) for one in opus]
        setattr(transceiver.receiver, _JITTER_BUFFER, _ArrivalOrder())

    # ---- events of the library

    def _follow(self) -> None:
        match self._connection.connectionState:
            case "connected" if not self._with_channel:
                self.open.set()
            case "failed" | "closed":
                self.socket.leave()
                self.open.set()

    def _take_channel(self, channel: RTCDataChannel) -> None:
        if channel.label != EVENTS or self._channel is not None:
            channel.close()
            return
        self._channel = channel
        channel.bufferedAmountLowThreshold = limits.CALL_UNSENT_BYTES // 2
        channel.on("message", self.socket.take_text)
        channel.on("bufferedamountlow", self.socket.writable.set)
        channel.on("close", self.socket.leave)
        self.open.set()

    def _take_track(self, track: MediaStreamTrack) -> None:
        if self._hearing is None:
            self._hearing = asyncio.create_task(self._hear(track), name="webrtc microphone")

    async def _hear(self, track: MediaStreamTrack) -> None:
        """Hand on the microphone's packets, and the silence of a track that sends none."""
        microphone = TrackMicrophone()
        while True:
            heard: MicrophoneSound | None = None
            try:
                async with asyncio.timeout(QUIET_S):
                    frame: Any = await track.recv()
                heard = microphone.push(frame.timestamp, frame.data) if frame.data else None
            except TimeoutError:
                heard = microphone.quiet()
            except InvalidAudio as error:
                self.socket.refuse(InvalidRequest(str(error)))
            except MediaStreamError:
                return
            if heard is not None and self.open.is_set():  # before that there is no conversation
                self.socket.take_sound(heard)

    def _write(self, text: str) -> None:
        channel = self._channel
        if channel is None or channel.readyState != "open":
            return
        try:
            channel.send(text)
        except ValueError:  # it is larger than the client takes
            self.socket.refuse(TooLarge("An event is larger than the client's a=max-message-size."))
            return
        if channel.bufferedAmount > limits.CALL_UNSENT_BYTES:
            self.socket.writable.clear()

    async def close(self) -> None:
        """Send what waits, and end the connection."""
        channel = self._channel
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.VOICE_CLOSE_SECONDS):
                # The library has no event for an empty channel.
                while channel is not None and channel.readyState == "open" and channel.bufferedAmount:  # noqa: ASYNC110
                    await asyncio.sleep(FRAME_S)
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.VOICE_CLOSE_SECONDS):
                await self._connection.close()


def _server(url: str, username: str, password: str) -> RTCIceServer:
    if not url.startswith("turn"):
        return RTCIceServer(url)
    return RTCIceServer(url, username=username, credential=password)
