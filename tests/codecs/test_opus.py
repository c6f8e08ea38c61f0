"""Opus packets: 20 ms each, the tone survives, a broken packet does not harm the next."""

from __future__ import annotations

import av
import hypothesis.strategies as st
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings

from voxlane.codecs.errors import CodecMissing, InvalidAudio, UnsupportedAudio
from voxlane.codecs.opus import RATES, OpusDecoder, OpusEncoder
from voxlane.codecs.opus_packets import MAX_PACKET_BYTES, packet_samples

from .signals import noise, tone


def packets_of(samples: np.ndarray, rate: int) -> list[bytes]:
    encoder = OpusEncoder(rate)
    return encoder.push(samples) + encoder.finish()


@pytest.mark.parametrize("rate", RATES)
def test_a_tone_survives(rate: int) -> None:
    sent = tone(440, rate, seconds=0.5)
    decoder = OpusDecoder()
    heard = np.concatenate([decoder.decode(packet) for packet in packets_of(sent, rate)])
    assert len(heard) >= 24_000
    spectrum = np.abs(np.fft.rfft(heard[4_800:14_400] * np.hanning(9_600)))
    assert np.argmax(spectrum) * 48_000 / 9_600 == pytest.approx(440, abs=5)
    assert np.abs(heard[4_800:14_400]).max() == pytest.approx(0.5, abs=0.1)


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 900), max_size=8))
def test_packets_hold_20_ms_however_the_input_is_cut(cuts: list[int]) -> None:
    samples = noise(sum(cuts))
    encoder, whole, decoder = OpusEncoder(16_000), OpusEncoder(16_000), OpusDecoder()
    packets = [packet for piece in np.split(samples, np.cumsum(cuts)) for packet in encoder.push(piece)]
    assert len(packets) == len(samples) // 320
    assert packets == whole.push(samples)
    assert encoder.finish() == whole.finish()
    assert [len(decoder.decode(packet)) for packet in packets] == [960] * len(packets)


def test_the_last_packet_is_filled_with_silence() -> None:
    encoder = OpusEncoder(24_000)
    assert encoder.push(noise(10)) == []
    assert len(encoder.finish()) >= 1


@pytest.mark.parametrize("packet", [b"", bytes(MAX_PACKET_BYTES + 1), b"\xff", b"\x03\xff\xff"])
def test_a_broken_packet_does_not_stop_the_stream(packet: bytes) -> None:
    decoder = OpusDecoder()
    good = packets_of(tone(440, 48_000), 48_000)
    decoder.decode(good[0])
    with pytest.raises(InvalidAudio, match="Opus packet"):
        decoder.decode(packet)
    assert len(decoder.decode(good[1])) == 960


@given(st.binary(max_size=300))
def test_any_bytes_give_finite_samples_or_an_audio_error(packet: bytes) -> None:
    decoder = OpusDecoder()
    try:
        samples = decoder.decode(packet)
    except InvalidAudio:
        return
    assert len(samples) <= 48_000 * 120 // 1000  # the longest packet that Opus has
    assert np.abs(samples).max() <= 1


def test_what_is_not_opus_is_refused() -> None:
    with pytest.raises(UnsupportedAudio, match="8000, 12000"):
        OpusEncoder(22_050)
    with pytest.raises(InvalidAudio, match="finite"):
        OpusEncoder(48_000).push(np.full(960, np.nan))


def test_without_pyav_the_error_names_the_extra(without_pyav: None) -> None:
    for make in (OpusDecoder, lambda: OpusEncoder(48_000)):
        with pytest.raises(CodecMissing, match=r"\.\[opus\]"):
            make()


@given(
    st.integers(0, 255),
    st.none() | st.sampled_from([0, 1, 2, 3, 6, 48, 0x41, 0x42, 0x81, 0x83, 0xC2]),
    st.binary(max_size=300),
)
@settings(max_examples=examples(3000))
def test_the_framing_is_read_as_libopus_reads_it(first: int, second: int | None, rest: bytes) -> None:
    packet = bytes([first] if second is None else [first, second]) + rest
    # Libopus itself, without the check before it.
    try:
        decoded = sum(frame.samples for frame in OpusDecoder()._context.decode(av.Packet(packet)))
    except av.FFmpegError:
        decoded = None
    try:
        said = packet_samples(packet)
    except InvalidAudio:
        said = None
    assert said == decoded
