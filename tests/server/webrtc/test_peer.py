"""What the peer connection of a call puts in the place of aiortc's own parts, without a network."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from aiortc.rtcsctptransport import DataChunk, InboundStream
from aiortc.rtp import RtpPacket

from voxlane.server import limits
from voxlane.server.config import WebRtcConfig
from voxlane.server.errors import TooLarge, VoxlaneError
from voxlane.server.http.frames import REFUSAL
from voxlane.server.webrtc.call_socket import CallSocket
from voxlane.server.webrtc.peer import Peer, ReassemblyGuard, _ArrivalOrder


class Transport:
    """What the guard uses of aiortc's transport, and of its account of what came; no message is ever whole."""

    def __init__(self) -> None:
        self._inbound_streams: dict[int, InboundStream] = {}
        self._sack_needed = False
        self._last_received_tsn: int | None = None
        self.taken: list[int] = []

    async def _receive_data_chunk(self, chunk: DataChunk) -> None:
        self.taken.append(chunk.tsn)
        self._inbound_streams.setdefault(chunk.stream_id, InboundStream()).add_chunk(chunk)
        following = range(0 if self._last_received_tsn is None else self._last_received_tsn + 1, 2**32)
        for number in itertools.takewhile(set(self.taken).__contains__, following):
            self._last_received_tsn = number


def part(number: int, size: int = 1, stream: int = 0) -> DataChunk:
    chunk = DataChunk()
    chunk.tsn, chunk.stream_id, chunk.user_data = number, stream, bytes(size)
    return chunk


@pytest.mark.parametrize(
    ("size", "streams", "most"),
    [
        (1, 1, limits.CALL_HELD_PARTS),
        (1, 32, limits.CALL_HELD_PARTS),
        (16 * 1024, 1, limits.CALL_HELD_BYTES // (16 * 1024)),
        (1, 100, limits.CALL_STREAMS),
    ],
)
async def test_parts_of_messages_that_are_never_whole_end_the_call(size: int, streams: int, most: int) -> None:
    transport, refused = Transport(), list[VoxlaneError]()
    ReassemblyGuard(transport, refused.append)  # type: ignore[arg-type]
    for number in range(most):
        await transport._receive_data_chunk(part(number, size, number % streams))
    assert (len(transport.taken), refused) == (most, [])
    for number in range(most, most + 3):
        await transport._receive_data_chunk(part(number, size, number % streams))
    assert len(transport.taken) == most
    assert [type(one) for one in refused] == [TooLarge]


@pytest.mark.parametrize(
    ("size", "most"), [(1, limits.CALL_HELD_PARTS - 1), (16 * 1024, limits.CALL_HELD_BYTES // (16 * 1024))]
)
async def test_parts_behind_a_gap_are_dropped_beyond_a_limit_and_the_call_goes_on(size: int, most: int) -> None:
    transport, refused = Transport(), list[VoxlaneError]()
    ReassemblyGuard(transport, refused.append)  # type: ignore[arg-type]
    await transport._receive_data_chunk(part(0))  # then number 1 is lost
    for number in range(2, 2 + 2 * limits.CALL_HELD_PARTS):
        await transport._receive_data_chunk(part(number, size))
    assert transport.taken == [0, *range(2, 2 + most)]
    assert transport._sack_needed  # the client is told what is missing
    await transport._receive_data_chunk(part(1))
    assert transport.taken[-1] == 1
    assert transport._last_received_tsn == 1 + most
    assert refused == []


async def test_a_part_that_was_there_before_is_left_to_the_library() -> None:
    transport, refused = Transport(), list[VoxlaneError]()
    guard = ReassemblyGuard(transport, refused.append)  # type: ignore[arg-type]
    transport._last_received_tsn = 5
    received: list[int] = []

    async def receive(chunk: DataChunk) -> None:
        received.append(chunk.tsn)

    guard._receive = receive  # type: ignore[method-assign]
    for number in (5, 4, 2**32 - 3):
        await transport._receive_data_chunk(part(number))
    assert (received, refused) == ([5, 4, 2**32 - 3], [])


def test_a_sender_that_begins_anew_is_heard_and_a_late_packet_is_not() -> None:
    order = _ArrivalOrder()

    def heard(number: int, ssrc: int = 1) -> bool:
        return order.add(RtpPacket(sequence_number=number, ssrc=ssrc))[1] is not None

    assert [heard(number) for number in (65_535, 1, 0, 65_534, 1)] == [True, True, False, False, False]
    assert heard(20_000)
    assert not heard(19_901)
    assert heard(19_900)  # its numbers begin anew
    assert heard(19_901)
    assert heard(19_000 + 850, ssrc=2)  # another sender
    assert not heard(19_000 + 849, ssrc=2)


class SmallChannel:
    """A channel to a client that takes no large message."""

    readyState = "open"
    bufferedAmount = 0

    def send(self, text: str) -> None:
        raise ValueError(text)


async def test_an_event_that_the_client_does_not_take_ends_the_call() -> None:
    peer = Peer(WebRtcConfig(), "", {})
    channel: Any = SmallChannel()
    peer._channel = channel
    await peer.socket.send_text("{}")
    assert isinstance((await peer.socket.receive())[REFUSAL], TooLarge)
    peer._channel = None
    await peer.close()


async def test_a_call_is_refused_once_and_a_message_that_is_too_large_does_not_wait() -> None:
    socket = CallSocket({}, lambda _: None)
    socket.take_text("x" * limits.REALTIME_FRAME_BYTES)
    socket.take_text("x" * (limits.REALTIME_FRAME_BYTES + 1))
    socket.take_text(b"x")
    socket.refuse(TooLarge())
    assert "text" in await socket.receive()
    assert isinstance((await socket.receive())[REFUSAL], TooLarge)
    assert socket._received.empty()
