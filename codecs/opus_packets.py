"""The framing of Opus packets (RFC 6716, section 3), checked without decoding: what is not well-formed is refused.

No library is needed: a packet's first bytes say how many frames it holds and how long they are.
"""

from __future__ import annotations

from voxlane.codecs.errors import InvalidAudio

MAX_PACKET_BYTES = 4_000
"""More than speech needs: the largest frame of 20 ms has 1,275 bytes, and a packet holds three."""

_RATE = 48_000
_MOST_SAMPLES = _RATE * 120 // 1000
_FRAME_BYTES = 1_275
# Samples of a frame by the first five bits of a packet: SILK, hybrid and CELT at their lengths.
_SAMPLES = (480, 960, 1920, 2880) * 3 + (480, 960) * 2 + (120, 240, 480, 960) * 4
_SIZES_DIFFER, _PADDED, _COUNT = 0x80, 0x40, 0x3F
_TWO_BYTES = 252  # a length from here on has a second byte


def packet_samples(packet: bytes) -> int:
    """Return how many samples at 48 kHz a packet holds, or raise InvalidAudio if its framing breaks a rule."""
    if not 0 < len(packet) <= MAX_PACKET_BYTES:
        raise InvalidAudio("the Opus packet is empty or too large")
    each, code = _SAMPLES[packet[0] >> 3], packet[0] & 3
    if code == 0:
        _check(len(packet) - 1 <= _FRAME_BYTES)
        return each
    if code == 1:
        _check(len(packet) % 2 == 1 and (len(packet) - 1) // 2 <= _FRAME_BYTES)
        return 2 * each
    if code == 2:
        size, at = _length(packet, 1)
        _check(size <= len(packet) - at <= size + _FRAME_BYTES)
        return 2 * each
    return each * _many(packet, each)


def _many(packet: bytes, each: int) -> int:
    """Return the number of frames of a packet that says it in its second byte."""
    _check(len(packet) > 1)
    frames, at, end = packet[1] & _COUNT, 2, len(packet)
    _check(frames > 0 and frames * each <= _MOST_SAMPLES)
    if packet[1] & _PADDED:
        padding, more = 0, 255
        while more == 255:
            _check(at < end)
            more, at = packet[at], at + 1
            padding += 254 if more == 255 else more
        end -= padding
    if not packet[1] & _SIZES_DIFFER:  # all frames have the same size
        _check(at <= end and (end - at) % frames == 0 and (end - at) // frames <= _FRAME_BYTES)
        return frames
    total = 0
    for _ in range(frames - 1):
        size, at = _length(packet[: max(end, 0)], at)
        total += size
    _check(total <= end - at <= total + _FRAME_BYTES)
    return frames


def _length(packet: bytes, at: int) -> tuple[int, int]:
    """Return the length of a frame that is coded at `at`, and the place after it."""
    _check(at < len(packet))
    first = packet[at]
    if first < _TWO_BYTES:
        return first, at + 1
    _check(at + 1 < len(packet))
    return 4 * packet[at + 1] + first, at + 2


def _check(holds: bool) -> None:
    if not holds:
        raise InvalidAudio("the Opus packet is broken")
