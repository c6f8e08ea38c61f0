"""A spoken conversation with the default server, recorded as a person in the room would hear it.

A person asks for the capital of France, tells a name and asks for it, and asks what twelve times eight is: three times
each, in separate conversations. A rule judges each answer, and the right answers are counted. With --write the
recording (Ogg/Opus, the person left, the assistant right) and its captions (WebVTT) go to docs/audio/, where the
documentation links them. The person has a voice of Kokoro, so that the two can be told apart.

Time: three minutes, most of it in real time; making the person's voice takes one more.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from support.command_line import command_line
from support.common import machine, table
from support.conversation import RATE, person, server

from voxlane.codecs.resample import resample
from voxlane.codecs.wav import decode_wav, encode_wav

FOLDER = Path(__file__).parent.parent / "docs" / "audio"
NAME = "first-talk"
VOICE = "am_michael"
OUT_RATE = 24_000
TALKS: dict[str, tuple[tuple[str, ...], str]] = {
    "the capital of France": (("What is the capital of France?",), r"\bparis\b"),
    "a name, remembered": (("Hello, my name is Peter.", "What is my name?"), r"\bpeter\b"),
    "twelve times eight": (("What is twelve times eight?",), r"\b96\b|ninety[ -]six"),
}
TIMES = 3
PAUSE_S = 0.6


@dataclass(slots=True)
class Caption:
    """One caption: the speaker, the words, begin and end."""

    speaker: str
    begin_s: float
    end_s: float
    text: str


@dataclass(slots=True)
class Recording:
    """Both sides of all conversations, one after the other."""

    left: list[NDArray[np.int16]] = field(default_factory=list)
    right: list[NDArray[np.int16]] = field(default_factory=list)
    captions: list[Caption] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The length so far."""
        return sum(map(len, self.left)) / OUT_RATE

    def add(self, person_pcm: NDArray[np.int16], assistant_pcm: NDArray[np.int16]) -> None:
        """Add sound to both sides; fill the shorter one with silence."""
        length = max(len(person_pcm), len(assistant_pcm))
        self.left.append(np.pad(person_pcm, (0, length - len(person_pcm))))
        self.right.append(np.pad(assistant_pcm, (0, length - len(assistant_pcm))))


def say(text: str) -> NDArray[np.int16]:
    """Return a text in the person's voice, at the recording's rate."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "said.wav"
        command = [sys.executable, "-m", "voxlane.server.cli", "say", text, "--model", "kokoro-82m"]
        subprocess.run([*command, "--voice", VOICE, "-o", str(target)], check=True, capture_output=True)
        samples, rate = decode_wav(target.read_bytes())
    sound = np.asarray(resample(samples, rate, OUT_RATE))
    loud = np.flatnonzero(np.abs(sound) > 0.01)
    return (np.clip(sound[loud[0] : loud[-1] + 1], -1, 1) * 32767).astype(np.int16)


async def converse(url: str, turns: tuple[str, ...], said: dict[str, NDArray[np.int16]], kept: Recording) -> str:
    """Hold one conversation, record it, and return the words of the last reply."""
    words = ""
    async with person(url) as somebody:
        await asyncio.sleep(1.0)
        for turn in turns:
            since, begin_s = len(somebody.events), kept.seconds
            sound = np.asarray(resample(said[turn].astype(np.float32) / 32768, OUT_RATE, RATE))
            somebody.speak((np.clip(sound, -1, 1) * 32767).astype(np.int16))
            first = await somebody.wait("audio", since, 60.0)
            if first is None:
                return words
            gap_s = max(0.0, first[0] - somebody.stopped_s)
            await somebody.wait("reply_done", since, 60.0)
            events = [event for _, event in somebody.events[since:]]
            words = "".join(event["text"] for event in events if event.name == "reply_text").strip()
            reply = np.frombuffer(b"".join(event["data"] for event in events if event.name == "audio"), np.int16)
            waited = len(said[turn]) + int(gap_s * OUT_RATE)
            kept.add(said[turn], np.concatenate((np.zeros(waited, np.int16), reply)))
            kept.captions.append(Caption("Person", begin_s, begin_s + len(said[turn]) / OUT_RATE, turn))
            reply_s = begin_s + waited / OUT_RATE
            kept.captions.append(Caption("voxlane", reply_s, reply_s + len(reply) / OUT_RATE, words))
            kept.add(np.zeros(int(PAUSE_S * OUT_RATE), np.int16), np.zeros(0, np.int16))
            await asyncio.sleep(PAUSE_S)
    return words


def vtt(captions: list[Caption]) -> str:
    """Return captions as WebVTT."""

    def clock(seconds: float) -> str:
        minutes, rest = divmod(seconds, 60)
        return f"{int(minutes):02}:{rest:06.3f}"

    cues = (f"{clock(c.begin_s)} --> {clock(c.end_s)}\n<v {c.speaker}>{c.text}" for c in captions)
    return "WEBVTT\n\n" + "\n\n".join(cues) + "\n"


def write(kept: Recording) -> None:
    """Write the recording and its captions where the documentation links them."""
    import av  # the extra `opus`

    FOLDER.mkdir(parents=True, exist_ok=True)
    both = np.stack((np.concatenate(kept.left), np.concatenate(kept.right)), axis=1)
    with av.open(str(FOLDER / f"{NAME}.ogg"), "w") as container:
        stream = container.add_stream("libopus", rate=48_000, layout="stereo")
        stream.bit_rate = 32_000
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(both).reshape(1, -1), format="s16", layout="stereo")
        frame.rate = OUT_RATE
        resampler = av.AudioResampler(format="flt", layout="stereo", rate=48_000)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    (FOLDER / f"{NAME}.vtt").write_text(vtt(kept.captions), encoding="utf-8")
    print(f"  wrote {FOLDER / NAME}.ogg and .vtt, {kept.seconds:.0f} s")


def main() -> None:
    """Hold the conversations, print the table, and write the recording with --write."""
    parser = command_line(__doc__)
    parser.add_argument("--model", default="auto", help="the chat model (%(default)s)")
    parser.add_argument("--write", action="store_true", help="write docs/audio/")
    parser.add_argument("--keep", metavar="FILE", help="write the recording as a WAV file, too")
    asked = parser.parse_args()
    said = {turn: say(turn) for turns, _ in TALKS.values() for turn in turns}
    kept, rows = Recording(), []
    with server("--model", asked.model) as url:
        for name, (turns, rule) in TALKS.items():
            replies = [asyncio.run(converse(url, turns, said, kept)) for _ in range(TIMES)]
            right = sum(re.search(rule, reply.lower()) is not None for reply in replies)
            rows.append([name, f"{right} of {TIMES}", " / ".join(replies)])
    table(f"spoken, {asked.model}, {machine()}", ["", "right", "replies"], rows)
    if asked.write:
        write(kept)
    if asked.keep:
        both = np.stack((np.concatenate(kept.left), np.concatenate(kept.right)), axis=1).astype(np.float32) / 32768
        Path(asked.keep).write_bytes(encode_wav(both.mean(axis=1), OUT_RATE))


if __name__ == "__main__":
    main()
