"""Opus between the page and the server: either's packets are the other's sound, and every sample has its place."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import av
import numpy as np
import pytest
from lossy_line import LossyLine
from playback_account import Account
from realtime_scenario import likeness
from voice_server import RATE, Samples, VoiceServer, words
from waiting import until

from voxlane.codecs.opus import OpusDecoder, OpusEncoder
from voxlane.codecs.pcm import encode_pcm16
from voxlane.codecs.resample import resample

pytestmark = pytest.mark.weights

STEADY = {"temperature": 0, "seed": 7}
QUESTION = "What color is the sky on a clear day?"
STORY = "Tell me a long story about a dragon."
DELAY = 312
"""Samples at 48 kHz by which a decoder's output is late."""

FAITHFUL = 10
"""Samples by which a codec for speech shifts it, most of all low voices: a fifth of a millisecond."""

PACKET = RATE // 50

ENCODE = """
async (frames) => {
  const { OpusMicrophone, canEncode } = await import("/client/opus.js");
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const [packets, times] = [[], []];
  let next = () => {};
  const microphone = new OpusMicrophone((data, last) => next([data, last]), (error) => next([error]));
  for (const [place, frame] of frames.entries()) {
    const made = new Promise((resolve) => { next = resolve; });
    const began = performance.now();
    microphone.push(bytes(frame), place === frames.length - 1);
    const [data, last] = await made;
    times.push(performance.now() - began);
    packets.push([btoa(String.fromCharCode(...data)), last]);
  }
  microphone.close();
  return { able: await canEncode(), packets, times };
}
"""

DECODE = """
async ([packets, samples]) => {
  const { OpusReplies, canDecode } = await import("/client/opus.js");
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const [sound, times] = [[], []];
  let next = () => {};
  let done;
  const replies = new OpusReplies({
    sound: (epoch, offset, samples) => { sound.push([offset, [...samples]]); next(); },
    done: (epoch, length) => done(length),
    failed: (error) => { throw error; },
  });
  for (const [place, packet] of packets.entries()) {
    const heard = new Promise((resolve) => { next = resolve; });
    const began = performance.now();
    replies.push(1, place * 960, bytes(packet));
    await heard;
    times.push(performance.now() - began);
  }
  const length = await new Promise((resolve) => { done = resolve; replies.finish(1, samples); });
  return { able: await canDecode(), sound, length, times };
}
"""

BREAK = """
globalThis.EncodedAudioChunk = class extends EncodedAudioChunk {
  constructor(init) { super({ ...init, data: Uint8Array.of(3, 0) }); } // a packet of no frames, which there cannot be
};
"""


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def go(visitor: Any, url: str, **config: object) -> None:
    """Begin a conversation in Opus."""
    visitor.open(url, query="&codec=opus", **STEADY, **config)
    visitor.start()


def formats(visitor: Any) -> list[tuple[str, str]]:
    """Return the codecs of all conversations, in and out."""
    readies = [one.detail["ready"] for one in visitor.told("ready")]
    return [(ready["input"]["codec"], ready["output"]["codec"]) for ready in readies]


def decoded(packets: list[bytes], samples: int) -> Samples:
    """Return a reply's sound by another decoder than the browser's, to more than 16 bits, where it belongs."""
    decoder = av.AudioCodecContext.create("libopus", "r")
    decoder.sample_rate = RATE
    decoder.layout = "mono"
    decoder.options = {"request_sample_fmt": "flt"}
    frames = [frame.to_ndarray()[0] for packet in packets for frame in decoder.decode(av.Packet(packet))]
    return np.concatenate(frames)[DELAY : DELAY + samples]


def lag(late: Samples, early: Samples, most: int) -> int:
    """Return by how many samples one sound is behind the other."""
    length = min(len(late), len(early)) - most
    return int(np.argmax([np.dot(late[shift : shift + length], early[:length]) for shift in range(most)]))


def closeness_db(sound: Samples, wanted: Samples) -> float:
    """Return how far the difference lies below the sound."""
    return float(10 * np.log10(np.sum(wanted**2) / np.sum((sound - wanted) ** 2)))


@pytest.fixture
def speech(say: Callable[[str], Samples]) -> Samples:
    """A question in whole frames."""
    sound = say(QUESTION)
    return np.pad(sound, (PACKET, PACKET + -len(sound) % PACKET)).astype(np.float32)


def test_what_the_browser_encodes_the_server_decodes(server: VoiceServer, visit: Any, speech: Samples) -> None:
    visitor = visit()
    visitor.page.goto(server.url)
    frames = [text(encode_pcm16(frame)) for frame in speech.reshape(-1, PACKET)]
    made = visitor.page.evaluate(ENCODE, frames)
    assert made["able"]
    assert [last for _, last in made["packets"]] == [False] * (len(frames) - 1) + [True]
    packets = [base64.b64decode(packet) for packet, _ in made["packets"]]
    decoder = OpusDecoder()
    heard = np.concatenate([decoder.decode(packet) for packet in packets])
    assert len(heard) == len(speech)
    assert lag(heard, speech, 1000) == pytest.approx(DELAY, abs=FAITHFUL)
    assert words(server.transcribe(heard, RATE)) == words(QUESTION)
    print(
        f"\n{50 * sum(map(len, packets)) / len(packets):.0f} bytes a second of speech; from a frame to its packet "
        f"{np.median(made['times']):.1f} ms (the first {made['times'][0]:.1f} ms)"
    )


@pytest.mark.parametrize("rate", [24_000, 48_000])
def test_what_the_server_encodes_the_browser_decodes(
    server: VoiceServer, visit: Any, speech: Samples, rate: int
) -> None:
    encoder = OpusEncoder(rate)
    length = len(speech) - 700
    packets = encoder.push(speech[: length : RATE // rate]) + encoder.finish()
    visitor = visit()
    visitor.page.goto(server.url)
    got = visitor.page.evaluate(DECODE, [[text(packet) for packet in packets], length])
    assert got["able"]
    made = 0
    for offset, samples in got["sound"]:
        assert offset == made
        made += len(samples)
    assert made == len(packets) * PACKET - DELAY
    assert got["length"] == length
    heard = np.concatenate([np.array(samples, np.float32) for _, samples in got["sound"]])[:length]
    assert closeness_db(heard, decoded(packets, length)) > 60
    assert lag(np.pad(heard, (500, 0)), speech[:length], 1000) == pytest.approx(500, abs=FAITHFUL)
    print(
        f"\n{50 * sum(map(len, packets)) / len(packets):.0f} bytes a second of speech; from a packet to its sound "
        f"{np.median(got['times']):.1f} ms (the first {got['times'][0]:.1f} ms)"
    )


def test_a_spoken_question_is_answered_in_opus(server: VoiceServer, visit: Any) -> None:
    visitor = visit((1.0, QUESTION))
    go(visitor, server.url)
    (answer,) = visitor.await_lines("assistant", "done")
    visitor.await_state("listening")
    (asked,) = visitor.await_lines("user", "done")
    assert formats(visitor) == [("opus", "opus")]
    assert words(asked.text) == words(QUESTION)
    assert "blue" in words(answer.text)

    heard = visitor.sound("output")
    assert words(server.transcribe(heard.samples, heard.rate)) == words(answer.text)
    (done,) = visitor.messages("audio_done")
    sent = [base64.b64decode(one.detail["data"]) for one in visitor.messages("audio")]
    reply = np.asarray(resample(decoded(sent, done.detail["samples"] * RATE // 24_000), RATE, heard.rate))
    Account(reply, heard.rate).explain(heard.samples)
    visitor.check()


def test_interrupting_in_opus(server: VoiceServer, visit: Any) -> None:
    visitor = visit()
    go(visitor, server.url, max_tokens=120)
    visitor.type(STORY)
    visitor.await_partly_heard()
    visitor.page.click("#interrupt")
    (cut,) = visitor.await_lines("assistant", "interrupted")
    assert cut.heard.strip()
    visitor.type(QUESTION)
    (answer,) = visitor.await_lines("assistant", "done")
    visitor.await_state("listening")
    (interrupted,) = visitor.messages("interrupted")
    heard = visitor.sound("output")
    after = heard.samples[interrupted.frame - heard.frame :]
    assert words(server.transcribe(after, heard.rate)) == words(answer.text)
    visitor.check()


def test_a_line_that_is_lost_in_opus(server: VoiceServer, visit: Any) -> None:
    with LossyLine(server.url) as line:
        visitor = visit()
        go(visitor, line.url, max_tokens=40)
        visitor.type(STORY)
        visitor.await_partly_heard()
        line.lose()
        visitor.await_banner("reconnecting")
        visitor.page.wait_for_timeout(1000)
        line.mend()
        visitor.await_banner("resumed")
        (story,) = visitor.await_lines("assistant", "done")
        visitor.await_state("listening")
        assert formats(visitor) == [("opus", "opus")] * 2
        heard = visitor.sound("output")
        assert likeness(server.transcribe(heard.without_gaps(), heard.rate), story.text) > 0.9


def test_a_decoder_that_fails_is_done_without(server: VoiceServer, visit: Any) -> None:
    visitor = visit()
    visitor.page.add_init_script(BREAK)
    go(visitor, server.url)
    visitor.type(STORY)
    until(lambda: len(visitor.told("ready")) == 2, "another conversation")
    assert [one.detail["code"] for one in visitor.told("fault")] == ["codec_failed"]
    assert formats(visitor) == [("opus", "opus"), ("pcm16", "pcm16")]
    assert visitor.told("ready")[1].detail["how"] == "anew"
    visitor.type(QUESTION)
    (answer,) = visitor.await_lines("assistant", "done")
    assert "blue" in words(answer.text)
    visitor.await_state("listening")
    heard = visitor.sound("output")
    assert words(server.transcribe(heard.samples, heard.rate)) == words(answer.text)
