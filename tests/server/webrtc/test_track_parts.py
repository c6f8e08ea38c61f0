"""The pure parts of a call over WebRTC: offers and answers, gaps of the microphone, the player of the reply's track."""

from __future__ import annotations

import pytest

from voxlane.codecs.errors import InvalidAudio
from voxlane.server.errors import InvalidRequest
from voxlane.server.protocols.openai_realtime.call_codec import MicrophoneSound, TrackCommand
from voxlane.server.webrtc.sdp import checked_offer, has_data_channel, relay_peers, with_addresses
from voxlane.server.webrtc.track_microphone import TrackMicrophone
from voxlane.server.webrtc.track_playback import TrackPlayback

OFFER = "\r\n".join(
    (
        "v=0",
        "a=group:BUNDLE 0 1",
        "m=audio 9 UDP/TLS/RTP/SAVPF 111",
        "a=rtpmap:111 opus/48000/2",
        "a=candidate:1 1 udp 2113937151 192.168.1.7 50000 typ host",
        "a=candidate:2 1 udp 2113937151 5f0c.local 50001 typ host",
        "a=candidate:3 1 tcp 1518280447 192.168.1.7 9 typ host tcptype active",
        "a=end-of-candidates",
        "a=ice-ufrag:abcd",
        "a=ice-pwd:0123456789012345678901",
        "a=fingerprint:sha-256 " + ":".join(["AB"] * 32),
        "a=setup:actpass",
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
        "",
    )
)
PACKET, OTHER = b"\xf8\xff\xfe", b"\xf8\x00"  # 20 ms each


def test_addresses_of_an_offer_are_left_out() -> None:
    kept = checked_offer(OFFER, keep_addresses=False)
    assert "candidate" not in kept
    assert has_data_channel(kept)
    relayed = checked_offer(OFFER.replace("\r\n", "\n"), keep_addresses=True)
    assert [line for line in relayed.splitlines() if "candidate" in line] == [
        "a=candidate:1 1 udp 2113937151 192.168.1.7 50000 typ host"
    ]


@pytest.mark.parametrize("name", ["a=ice-ufrag:", "a=ice-pwd:", "a=fingerprint:", "a=setup:", "a=rtpmap:", "m=audio"])
def test_what_an_offer_must_have(name: str) -> None:
    with pytest.raises(InvalidRequest):
        checked_offer(OFFER.replace(name, "a=other:"), keep_addresses=False)


def with_lines(*lines: str) -> str:
    """Return the offer with further lines of its audio track."""
    opus = "a=rtpmap:111 opus/48000/2\r\n"
    return OFFER.replace(opus, opus + "".join(f"{line}\r\n" for line in lines))


def test_of_the_codecs_of_an_offer_only_opus_is_taken_and_no_feedback() -> None:
    fmtp = "a=fmtp:111 minptime=10;useinbandfec=1"
    codecs = [f"a=rtpmap:{number} G722/8000" for number in range(100)]
    feedback = [f"a=rtcp-fb:{number} nack" for number in ("*", 111)]
    more_opus = [f"a=rtpmap:{number} opus/48000/2" for number in range(112, 128)]
    sources = ["a=ssrc:1 cname:x", "a=ssrc-group:FID 1 2", "a=fmtp:63 111/111"]
    hidden = ["a=x\x0ba=rtcp-fb:* nack", "a=x\u2028a=candidate:1 1 udp 1 10.0.0.1 9 typ host", "a=x\ra=ssrc:2 cname:x"]
    offer = with_lines(fmtp, *codecs, *feedback * 20, *more_opus, *sources, *hidden)
    kept = checked_offer(offer, keep_addresses=False).splitlines()
    plain = checked_offer(OFFER, keep_addresses=False).splitlines()
    assert sorted(set(kept) - set(plain)) == [fmtp, *more_opus[:3], "a=x"]
    assert len(kept) == len(plain) + 1 + 3 + len(hidden)


def test_an_offer_of_very_many_lines_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than 400 lines"):
        checked_offer(with_lines(*["a=rtcp-fb:* nack"] * 400), keep_addresses=False)


@pytest.mark.parametrize(
    ("size", "taken"), [("0", True), ("65536", True), ("65535", False), ("1", False), ("x", False)]
)
def test_a_client_must_take_messages_of_64_kib(size: str, taken: bool) -> None:
    offer = f"{OFFER}a=max-message-size:{size}\r\n"
    if taken:
        assert f"a=max-message-size:{size}" in checked_offer(offer, keep_addresses=False)
        return
    with pytest.raises(InvalidRequest, match="max-message-size"):
        checked_offer(offer, keep_addresses=False)


def test_public_addresses_stand_for_those_of_the_cards() -> None:
    answer = "v=0\r\na=candidate:9 1 udp 5 10.0.0.2 4711 typ host\r\na=candidate:8 1 udp 5 fd00::2 4712 typ host\r\n"
    assert with_addresses(answer, ()) == answer
    public = with_addresses(answer, ("203.0.113.7", "203.0.113.8"))
    assert [line.split(" ")[4:6] for line in public.split("\r\n") if "candidate" in line] == [
        ["203.0.113.7", "4711"],
        ["203.0.113.8", "4711"],
    ]


@pytest.mark.parametrize(
    ("client", "let_in"),
    [
        ("198.51.100.4", ["198.51.100.4", "203.0.113.7"]),
        ("::ffff:198.51.100.4", ["198.51.100.4", "203.0.113.7"]),
        ("203.0.113.7", ["203.0.113.7"]),  # it uses the relay's machine
        ("2001:db8::4", ["203.0.113.7"]),  # the relay cannot reach it
        ("-", ["203.0.113.7"]),
    ],
)
def test_the_relay_lets_in_the_address_of_the_offer_and_its_own(client: str, let_in: list[str]) -> None:
    assert relay_peers(client, "203.0.113.7") == let_in


def test_the_packet_before_or_silence_stands_for_what_is_lost_or_never_sent() -> None:
    microphone = TrackMicrophone()
    assert microphone.quiet() is None  # the track has not begun
    assert microphone.push(0, OTHER) == MicrophoneSound(0, (OTHER,))
    assert microphone.push(2880, PACKET) == MicrophoneSound(0, (OTHER, OTHER, PACKET))  # two are lost
    assert microphone.push(3840 + 4800, PACKET) == MicrophoneSound(4800, (PACKET,))  # five are lost
    assert microphone.quiet() == MicrophoneSound(24_000)
    assert microphone.push(9600 + 24_000, PACKET) == MicrophoneSound(0, (PACKET,))  # the silence was there already
    assert microphone.push(48_000 * 60, PACKET) == MicrophoneSound(48_000, (PACKET,))  # no more than a second
    assert microphone.push(960, PACKET) == MicrophoneSound(0, (PACKET,))  # time that goes back adds nothing
    with pytest.raises(InvalidAudio):
        microphone.push(1920, b"")


def audio(epoch: int, offset: int, samples: int) -> TrackCommand:
    fields = {"epoch": epoch, "offset": offset, "data": b"\1\0" * samples, "response": f"resp_{epoch}"}
    return TrackCommand("audio", fields)


def told(playback: TrackPlayback, samples: int) -> list[tuple[str, str]]:
    return [(one["type"].rpartition(".")[2], one["response_id"]) for one in playback.pull(samples).events]


def test_the_client_is_told_what_is_in_the_output_buffer() -> None:
    playback = TrackPlayback()
    assert told(playback, 480) == []
    playback.handle(audio(1, 0, 700))
    assert told(playback, 480) == [("started", "resp_1")]
    frame = playback.pull(480)
    assert frame.position is not None
    assert (frame.position.epoch, frame.position.samples, len(frame.pcm)) == (1, 700, 960)
    assert told(playback, 480) == []  # an underrun is no end
    playback.handle(TrackCommand("finished", {"epoch": 1}))
    assert told(playback, 480) == [("stopped", "resp_1")]
    assert told(playback, 480) == []


def test_a_reply_that_follows_at_once() -> None:
    playback = TrackPlayback()
    playback.handle(audio(1, 0, 480))
    playback.handle(TrackCommand("finished", {"epoch": 1}))
    playback.handle(audio(2, 0, 480))
    assert told(playback, 480) == [("started", "resp_1")]
    assert told(playback, 480) == [("stopped", "resp_1"), ("started", "resp_2")]


def test_a_hold_is_silence_a_release_goes_on_and_an_interruption_clears() -> None:
    playback = TrackPlayback()
    playback.handle(audio(1, 0, 4800))
    playback.pull(480)
    playback.handle(TrackCommand("hold", {"epoch": 1}))
    assert playback.pull(480).position is None
    playback.handle(TrackCommand("release", {"epoch": 1}))
    frame = playback.pull(480)
    assert frame.position is not None
    assert frame.position.samples == 960  # the very next sample
    (cleared,) = playback.handle(TrackCommand("interrupted", {"epoch": 1}))
    assert (cleared["type"], cleared["response_id"]) == ("output_audio_buffer.cleared", "resp_1")
    assert playback.pull(480).position is None
    assert playback.handle(TrackCommand("interrupted", {"epoch": 1})) == []
