"""The relay between the phone and the exchange."""

from __future__ import annotations

import random
import re
import selectors
import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Self

import numpy as np

from voxlane.server.exchange.call_sound import FRAME_S, Floats, PhoneCode, SoundPacket, SpokenSound
from voxlane.server.exchange.errors import ExchangeError


class CallRelay:
    """Relays one phone's SIP and RTP. It swaps the microphone's sound and writes down both directions.

    It changes the addresses in SDP, as a session border controller does, so that all sound passes here. `loss` is the
    share of packets that it drops in each direction.
    """

    def __init__(self, exchange: tuple[str, int], code: PhoneCode, loss: float = 0.0, seed: int = 0) -> None:
        self.code = code
        self.changed = threading.Condition()
        self.spoken: list[SoundPacket] = []
        self.heard: list[SoundPacket] = []
        self._speaking: deque[SpokenSound] = deque()
        self._coder = code.coder()
        self._loss, self._random = loss, random.Random(seed)
        self._exchange = exchange
        self._sip = _udp_socket()
        self._phone_sip: tuple[str, int] | None = None
        # Side 0 faces the phone, side 1 the exchange; of each pair the first is RTP and the second RTCP.
        self._media = [_udp_pair(), _udp_pair()]
        self._peers: list[tuple[str, int] | None] = [None, None]
        self._wake, self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="call relay")

    @property
    def port(self) -> int:
        """The SIP port that the phone takes for the exchange's."""
        return port_of(self._sip)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.send(b"x")
        self._thread.join()
        for each in (self._sip, *self._media[0], *self._media[1], self._wake, self._stop):
            each.close()

    def say(self, samples: Floats) -> SpokenSound:
        """Queue sound at the code's rate behind what is being spoken."""
        width = round(self.code.rate * FRAME_S)
        padded = np.concatenate((samples, np.zeros(-len(samples) % width, dtype=np.float32)))
        utterance = SpokenSound(deque(padded.reshape(-1, width)))
        with self.changed:
            self._speaking.append(utterance)
        return utterance

    def hush(self) -> None:
        """Drop what was not spoken yet."""
        with self.changed:
            while self._speaking:
                utterance = self._speaking.popleft()
                now = time.monotonic()
                utterance.began, utterance.ended = utterance.began or now, utterance.ended or now
                utterance.over.set()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(self._sip, selectors.EVENT_READ, (self._relay_sip, 0))
            for side, (rtp, rtcp) in enumerate(self._media):
                selector.register(rtp, selectors.EVENT_READ, (self._relay_rtp, side))
                selector.register(rtcp, selectors.EVENT_READ, (self._relay_rtcp, side))
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    relay, side = key.data
                    with suppress(OSError):  # the other side has closed its port
                        relay(side)

    def _relay_sip(self, _: int) -> None:
        data, sender = self._sip.recvfrom(65_536)
        if sender == self._exchange:
            if self._phone_sip:
                self._sip.sendto(self._through(data, 1), self._phone_sip)
        else:
            self._phone_sip = sender
            self._sip.sendto(self._through(data, 0), self._exchange)

    def _through(self, message: bytes, side: int) -> bytes:
        """Return a SIP message from one side with this relay's ports in its SDP; remember the sender's ports."""
        head, separator, body = message.partition(b"\r\n\r\n")
        host = re.search(rb"(?m)^c=IN IP4 (\S+)", body)
        media = re.search(rb"(?m)^m=audio (\d+) ", body)
        if not host or not media:
            return message
        self._peers[side] = (host[1].decode(), int(media[1]))
        port = port_of(self._media[1 - side][0])
        body = re.sub(rb"(?m)^c=IN IP4 \S+", b"c=IN IP4 127.0.0.1", body)
        body = re.sub(rb"(?m)^m=audio \d+ ", b"m=audio %d " % port, body)
        body = re.sub(rb"(?m)^a=rtcp:\d+", b"a=rtcp:%d" % (port + 1), body)
        head = re.sub(rb"(?mi)^(Content-Length|l)([ \t]*:[ \t]*)\d+", rb"\g<1>\g<2>%d" % len(body), head)
        return head + separator + body

    def _relay_rtcp(self, side: int) -> None:
        data = self._media[side][1].recv(2048)
        if peer := self._peers[1 - side]:
            self._media[1 - side][1].sendto(data, (peer[0], peer[1] + 1))

    def _relay_rtp(self, side: int) -> None:
        data, arrived = _receive(self._media[side][0])
        if len(data) < 12:
            return
        sound = data[1] & 0x7F == self.code.payload_type  # the others are keys
        if sound and side == 0:
            data = self._speak(data)
        if sound and self._random.random() < self._loss:
            return
        if sound and side == 1:
            self._hear(data, arrived)
        if peer := self._peers[1 - side]:
            self._media[1 - side][0].sendto(data, peer)

    def _speak(self, data: bytes) -> bytes:
        """Return the phone's packet with the microphone's sound."""
        header = 12 + 4 * (data[0] & 0x0F)
        width = round(self.code.rate * FRAME_S)
        with self.changed:
            begin = time.monotonic() - FRAME_S
            samples = np.zeros(width, dtype=np.float32)
            if self._speaking:
                utterance = self._speaking[0]
                utterance.began = utterance.began or begin
                if utterance.frames:
                    samples = utterance.frames.popleft()
                utterance.ended = begin + FRAME_S
                if not utterance.frames:
                    self._speaking.popleft().over.set()
            self.spoken.append(SoundPacket(begin, struct.unpack_from("!I", data, 4)[0], samples))
        return data[:header] + self._coder.encode(samples)

    def _hear(self, data: bytes, arrived: float) -> None:
        samples = self._coder.decode(data[12 + 4 * (data[0] & 0x0F) :])
        with self.changed:
            self.heard.append(SoundPacket(arrived, struct.unpack_from("!I", data, 4)[0], samples))
            self.changed.notify_all()


def _udp_socket(port: int = 0) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.bind(("127.0.0.1", port))
        made.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        made.close()
        raise
    return made


def _udp_pair() -> tuple[socket.socket, socket.socket]:
    """Return two sockets on adjacent ports, the first one even."""
    for _ in range(100):
        first = _udp_socket()
        with suppress(OSError):
            if port_of(first) % 2 == 0:
                return first, _udp_socket(port_of(first) + 1)
        first.close()
    raise ExchangeError("this machine has no free ports for telephone calls")


_SO_TIMESTAMPNS = 35
"""Linux: the kernel tells when a packet arrived. Python's socket module has no name for it."""


def _receive(source: socket.socket) -> tuple[bytes, float]:
    """Return a packet, and when the kernel got it."""
    data, extra, _, _ = source.recvmsg(2048, 64)
    arrived = time.monotonic()
    for level, kind, value in extra:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = struct.unpack("@ll", value[: struct.calcsize("@ll")])
            arrived -= max(0.0, time.time() - (seconds + nanoseconds / 1e9))
    return data, arrived


def port_of(bound: socket.socket) -> int:
    """Return the port that a socket has."""
    return int(bound.getsockname()[1])
