"""What a server process spends on 20 ms of a microphone, by part, with the native ear and with the reference.

The first table is measured in this process: recorded speech and silence go through the parts one after the other. The
second is the real server with microphones that speak or are silent, and an engine that computes nothing
(support/crowd/); beside the parts above it has the WebSocket, the event loop and the system calls. "Per core" is how
many such microphones 65 % of a core holds. CPU time: it does not depend on what else the machine does, though busy
neighbours make it up to half as long again.

Time: about 4 × (--seconds + 5).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgpack
import numpy as np
import uvloop
from numpy.typing import NDArray
from support.command_line import command_line
from support.common import machine, table
from support.crowd.clients import Caller, microphone, speak
from support.crowd.process import Server
from support.people import FRAME_S
from support.speech import recording

from voxlane.codecs.pcm import encode_pcm16
from voxlane.codecs.voicing import FRAME_SAMPLES, Voicing
from voxlane.engine.api import Append, Words, bundle, encode, fragments
from voxlane.server.conversation.client_events import Audio
from voxlane.server.conversation.effects import SendToEngine
from voxlane.server.conversation.hearing.ear import Ear
from voxlane.server.conversation.hearing.echo_guard import EchoGuard
from voxlane.server.conversation.hearing.native_ear import NativeEar
from voxlane.server.conversation.session import Session
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.protocols.dialect import Hello
from voxlane.server.protocols.native import Native

FRAME_BYTES = 640
LIVE = 50
SPREAD = 37
SHARE = 0.65
SPEAK_RATE = 24_000

Frames = Sequence[bytes]


def spent_us(act: Callable[[], object], frames: int) -> float:
    """Return the microseconds of CPU that each frame costs."""
    began = time.process_time()
    act()
    return (time.process_time() - began) / frames * 1e6


def detectors_us(frames: Frames, ear: type[Ear]) -> float:
    """Return what Silero costs per frame: as many of its frames as the ear asks for."""
    asked = 0

    class Counted(Voicing):
        def __call__(self, samples: NDArray[np.float32]) -> list[float]:
            nonlocal asked
            asked += 1
            return super().__call__(samples)

    listener = Ear(detector=Counted)
    for frame in frames:
        listener.feed(frame)
    if not asked:
        return 0.0
    sound = np.frombuffer(b"".join(frames), "<i2").astype(np.float32) / np.float32(32768)
    blocks = sound[: len(sound) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    step = NativeEar.silero() if ear is NativeEar else Voicing()
    whole = spent_us(lambda: [step(block) for block in blocks], len(blocks))
    return whole * asked / len(frames)


def ear_us(frames: Frames, ear: type[Ear]) -> float:
    """Return what the whole ear costs per frame."""
    listener = ear()
    return spent_us(lambda: [listener.feed(frame) for frame in frames], len(frames))


def session_us(frames: Frames, ear: type[Ear]) -> tuple[float, float]:
    """Return what the session costs per frame with its ear, and what finding out costs when it wants to be woken."""
    session = Session("s", SessionConfig(), ear(), speak_rate=SPEAK_RATE)
    session.open(0.0)
    now = 0.0
    began = time.process_time()
    for frame in frames:
        now += FRAME_S
        for effect in session.feed(Audio(frame), now):
            message = effect.message if isinstance(effect, SendToEngine) else None
            if isinstance(message, Append) and int(now / FRAME_S) % 25 == 0:  # words twice a second
                session.feed(Words(message.request_id, 0, "", f"so I said {now:.0f}", 0.0), now)
        session.wake_at(now)
    whole = (time.process_time() - began) / len(frames) * 1e6
    began = time.process_time()
    for _ in frames:
        session.wake_at(now)
    waking = (time.process_time() - began) / len(frames) * 1e6
    return whole - waking, waking


def echo_us(frames: Frames) -> float:
    """Return what the echo guard costs while no reply is played."""
    guard = EchoGuard(SPEAK_RATE)
    return spent_us(lambda: [guard.hear(frame, None, 0.0) for frame in frames], len(frames))


def decode_us(frames: Frames) -> tuple[float, float]:
    """Return what the long and the short way of reading a message cost."""
    messages = [msgpack.packb(("audio", frame)) for frame in frames]
    long, short = Native(Hello(), SPEAK_RATE), Native(Hello(), SPEAK_RATE)
    ways = (lambda: [long.decode(one) for one in messages], lambda: [short.sound(one) for one in messages])
    first, second = (spent_us(way, len(messages)) for way in ways)
    return first, second


def link_us(frames: Frames) -> tuple[float, float]:
    """Return what encoding for the engine costs: a packet each 60 ms of each voice, or one for seven voices."""
    appends = [Append("s/hear1", audio=b"".join(frames[at : at + 3])) for at in range(0, len(frames) - 3, 3)]
    groups = [appends[at : at + 7] for at in range(0, len(appends), 7)]
    ways = (lambda: [fragments(encode(one)) for one in appends], lambda: [bundle(group) for group in groups])
    first, second = (spent_us(way, len(frames)) for way in ways)
    return first, second


def parts(speech: Frames, silence: Frames) -> list[list[str]]:
    """Return the rows of the first table."""
    columns = []
    for ear, frames in ((Ear, speech), (NativeEar, speech), (Ear, silence), (NativeEar, silence)):
        place = int(ear is NativeEar)
        detectors, whole = detectors_us(frames, ear), ear_us(frames, ear)
        with_session, waking = session_us(frames, ear)
        echo = echo_us(frames)
        read, link = decode_us(frames)[place], link_us(frames)[place] if frames is speech else 0.0
        columns.append([detectors, whole - detectors, echo, with_session - whole - echo, waking, read, link])
    names = (
        "Silero", "the rest of the ear", "echo guard, no reply", "session machine, ends of voices", "when to wake",
        "decode", "encode for the engine",
    )  # fmt: skip
    rows = [[name, *(f"{column[place]:.1f}" for column in columns)] for place, name in enumerate(names)]
    return [*rows, ["sum", *(f"{sum(column):.0f}" for column in columns)]]


async def serve(server: Server, sound: bytes, seconds: float) -> float:
    """Return what the whole server spends on 20 ms of a microphone."""
    stop, frames = asyncio.Event(), microphone(sound, FRAME_BYTES)
    callers = [Caller(server.address, Counter[str]()) for _ in range(LIVE)]
    for caller in callers:
        await caller.connect(input={"codec": "pcm16", "rate": 16_000})
    speaking = asyncio.create_task(speak(callers, frames, SPREAD, stop))
    await asyncio.sleep(2.0)
    before = server.report()
    await asyncio.sleep(seconds)
    after = server.report()
    stop.set()
    await speaking
    for caller in callers:
        caller.hang_up()
    return (after["server_s"] - before["server_s"]) / (seconds * LIVE / FRAME_S) * 1e6


def whole(name: str, native: bool, speech: bytes, silence: bytes, seconds: float) -> list[str]:
    """Return a row of the second table."""
    os.environ["VOXLANE_NATIVE"] = "1" if native else "0"
    found = []
    for sound in (speech, silence):
        server = Server()
        try:
            found.append(uvloop.run(serve(server, sound, seconds)))
        finally:
            server.stop()
    return [name, *(f"{one:.0f}" for one in found), *(f"{SHARE * FRAME_S * 1e6 / one:.0f}" for one in found)]


def main() -> None:
    """Measure and print both tables."""
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each kind of microphone (%(default)g)")
    options = parser.parse_args()
    speech = encode_pcm16(recording("two_cities.wav"))
    silence = np.random.default_rng(0).integers(-3, 4, len(speech) // 2).astype("<i2").tobytes()
    cut = [
        [sound[at : at + FRAME_BYTES] for at in range(0, len(sound) - FRAME_BYTES, FRAME_BYTES)]
        for sound in (speech, silence)
    ]
    header = ["part", "speech, reference", "native", "silence, reference", "native"]
    table(f"µs of CPU for 20 ms of a microphone, {machine()}, load {os.getloadavg()[0]:.1f}", header, parts(*cut))
    rows = [
        whole(name, native, speech, silence, options.seconds)
        for name, native in (("reference ear", False), ("native ear", True))
    ]
    header = ["the whole server", "speech", "silence", "speaking per core", "silent per core"]
    table(f"µs of CPU for 20 ms of a microphone, {machine()}, load {os.getloadavg()[0]:.1f}", header, rows)


if __name__ == "__main__":
    main()
