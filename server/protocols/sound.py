"""Convert sound between a client's format and the session's: PCM16 at 16 kHz in, PCM16 at the voice's rate out.

Samples are counted on both sides, so that a position of the client's player maps exactly to one in the reply.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np
from msgspec import structs

from voxlane.codecs.errors import AudioError
from voxlane.codecs.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw
from voxlane.codecs.g722 import G722Decoder
from voxlane.codecs.opus import DECODED_RATE, OpusEncoder
from voxlane.codecs.opus_packets import packet_samples
from voxlane.codecs.pcm import Floats, decode_pcm16, encode_pcm16
from voxlane.codecs.resample import Resampler
from voxlane.engine.api import LISTEN_RATE, SpokenWord
from voxlane.server.conversation.server_events import Speech
from voxlane.server.protocols.dialect import AudioFormat, BadMessage, CodecName

PCM_RATES = (8_000, 16_000, 24_000, 48_000)
TELEPHONE_RATE = 8_000


def codecs() -> tuple[CodecName, ...]:
    """Return the codecs that this installation offers to clients; telephone lines have G.722 as well."""
    return ("pcm16", "mulaw", "alaw", "opus") if find_spec("av") is not None else ("pcm16", "mulaw", "alaw")


def check_format(form: AudioFormat, *, incoming: bool) -> None:
    """Raise BadMessage if the server does not support a format."""
    if form.codec not in codecs():
        raise BadMessage(f"this server has the codecs {', '.join(codecs())}")
    rates: tuple[int, ...] = PCM_RATES
    if form.codec in ("mulaw", "alaw"):
        rates = (TELEPHONE_RATE,)
    elif form.codec == "opus" and incoming:
        rates = (DECODED_RATE,)
    if form.rate not in rates:
        raise BadMessage(f"{form.codec} has the rates {', '.join(map(str, rates))}")


class Microphone:
    """Converts a client's sound to the session's format; all but Opus, which PacketMicrophone counts."""

    def __init__(self, form: AudioFormat, heard_s: float = 0.0) -> None:
        """Count from `heard_s` seconds on."""
        self._codec = form.codec
        self._g722 = G722Decoder() if form.codec == "g722" else None
        self._resampler = Resampler(form.rate, LISTEN_RATE)
        self._straight = form == AudioFormat("pcm16", LISTEN_RATE)
        self._heard = round(heard_s * form.rate)

    @property
    def seconds(self) -> float:
        """Seconds of sound so far."""
        return self._heard / self._resampler.source_rate

    def push(self, data: bytes) -> bytes:
        """Return the client's next sound in the session's format."""
        if self._straight:
            if len(data) % 2:
                raise BadMessage("16-bit audio has an odd number of bytes")
            self._heard += len(data) // 2
            return data
        samples = self._decode(data)
        self._heard += len(samples)
        return encode_pcm16(self._resampler.push(samples))

    def _decode(self, data: bytes) -> Floats:
        try:
            match self._codec:
                case "mulaw":
                    return decode_mulaw(data)
                case "alaw":
                    return decode_alaw(data)
                case "g722":
                    assert self._g722 is not None
                    return self._g722.decode(data)
                case _:
                    return decode_pcm16(data)
        except AudioError as error:
            raise BadMessage(str(error)) from error


class PacketMicrophone:
    """Checks and counts a client's Opus packets; another process decodes them."""

    def __init__(self, heard_s: float = 0.0) -> None:
        self._before_s = heard_s  # seconds of sound on another server
        self._heard = 0

    @property
    def seconds(self) -> float:
        """Seconds of sound so far."""
        return self._before_s + self._heard / DECODED_RATE

    def push(self, packet: bytes) -> None:
        """Take the client's next packet, or raise BadMessage."""
        try:
            self._heard += packet_samples(packet)
        except AudioError as error:
            raise BadMessage(str(error)) from error


class LatePacket:
    """An Opus packet that is encoded when it is first written. The packets of a reply must be written in order.

    The sound sent ahead at a reply's beginning takes 40 ms to encode: the first packet need not wait for the others.
    """

    __slots__ = ("_data", "_encoder", "_samples")

    def __init__(self, encoder: OpusEncoder, samples: Floats) -> None:
        self._encoder = encoder
        self._samples: Floats | None = samples  # of exactly one packet
        self._data = b""

    def __bytes__(self) -> bytes:
        if self._samples is not None:
            (self._data,) = self._encoder.push(self._samples)
            self._samples = None
        return self._data


@dataclass(frozen=True, slots=True)
class SoundPiece:
    """Sound of a reply in the client's format; all numbers count the client's samples."""

    epoch: int
    offset: int
    samples: int
    data: bytes
    words: tuple[SpokenWord, ...]
    packet: LatePacket | None = None  # an Opus packet, instead of data


class Loudspeaker:
    """Converts replies to the client's format, one at a time."""

    def __init__(self, form: AudioFormat, session_rate: int) -> None:
        self._form = form
        # Without a voice there is no sound and no rate; any rate but 0 works for the arithmetic.
        self._session_rate = session_rate or form.rate
        self._epoch = 0
        self._start_reply(0)

    def _start_reply(self, epoch: int) -> None:
        self._epoch = epoch
        self._resampler = Resampler(self._session_rate, self._form.rate)
        self._opus: OpusEncoder | None = None
        self._frame: Floats = np.zeros(0, dtype=np.float32)  # an incomplete Opus frame
        self._made = 0
        self._words: deque[SpokenWord] = deque()

    def push(self, speech: Speech) -> list[SoundPiece]:
        """Return the pieces of a reply's next sound that are complete; words go with the sound that they begin in."""
        if speech.epoch != self._epoch:
            self._start_reply(speech.epoch)
        self._words.extend(self._converted(word) for word in speech.words)
        if self._form == AudioFormat("pcm16", self._session_rate):
            return self._pieces(speech.pcm, len(speech.pcm) // 2)
        return self._encode(self._resampler.push(decode_pcm16(speech.pcm)))

    def finish(self, epoch: int, samples: int) -> tuple[list[SoundPiece], int]:
        """Return the last pieces of a reply of `samples` session samples, and its length in the client's samples."""
        if epoch != self._epoch:
            self._start_reply(epoch)
        pieces: list[SoundPiece] = []
        if self._form.codec == "opus" or self._form.rate != self._session_rate:
            pieces = self._encode(self._resampler.flush())
        if self._opus is not None:
            # Fill up the last frame, and add one to flush the encoder's look-ahead.
            size = self._form.rate // 50
            pieces += self._packets(self._opus, np.zeros(size + -len(self._frame) % size, dtype=np.float32))
        if self._words:
            pieces.append(self._soundless(pieces.pop() if pieces else SoundPiece(epoch, self._made, 0, b"", ())))
        return pieces, self.client_samples(samples, up=True)

    def _soundless(self, piece: SoundPiece) -> SoundPiece:
        """Return a reply's last piece with the words that begin after all sound."""
        words = (*piece.words, *self._words)
        self._words.clear()
        return replace(piece, words=words)

    def client_samples(self, samples: int, *, up: bool = False) -> int:
        """Convert a position from the session's samples to the client's; `up` rounds up, for a length."""
        scaled = samples * self._form.rate
        return -(-scaled // self._session_rate) if up else scaled // self._session_rate

    def session_samples(self, samples: int) -> int:
        """Convert a position from the client's samples to the session's."""
        return samples * self._session_rate // self._form.rate

    def _encode(self, samples: Floats) -> list[SoundPiece]:
        match self._form.codec:
            case "mulaw":
                return self._pieces(encode_mulaw(samples), len(samples))
            case "alaw":
                return self._pieces(encode_alaw(samples), len(samples))
            case "opus":
                if self._opus is None:
                    self._opus = OpusEncoder(self._form.rate)
                return self._packets(self._opus, samples)
            case _:
                return self._pieces(encode_pcm16(np.asarray(samples)), len(samples))

    def _packets(self, encoder: OpusEncoder, samples: Floats) -> list[SoundPiece]:
        size = self._form.rate // 50
        sound = np.concatenate((self._frame, samples))
        whole = len(sound) // size * size
        self._frame = sound[whole:].copy()
        packets = [LatePacket(encoder, frame) for frame in sound[:whole].reshape(-1, size)]
        return [piece for packet in packets for piece in self._pieces(b"", size, packet)]

    def _pieces(self, data: bytes, samples: int, packet: LatePacket | None = None) -> list[SoundPiece]:
        if not samples:
            return []
        offset = self._made
        self._made += samples
        words = []
        while self._words and self._words[0].start_sample < self._made:
            words.append(self._words.popleft())
        return [SoundPiece(self._epoch, offset, samples, data, tuple(words), packet)]

    def _converted(self, word: SpokenWord) -> SpokenWord:
        start, end = self.client_samples(word.start_sample), self.client_samples(word.end_sample)
        return structs.replace(word, start_sample=start, end_sample=end)
