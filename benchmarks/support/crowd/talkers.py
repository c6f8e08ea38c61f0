"""People who ask, listen and interrupt, many in one process: the load of benchmarks/gpu_conversations.py.

    python -m support.crowd.talkers --port 8000 --people 64 --seconds 40 --number 0 --clips clips.npz --diary FILE

Each person waits a moment, asks a question, and listens to the reply with a simulated loudspeaker, which reports what
it has played. Some replies are interrupted. Each person has an address of its own, as callers have: the server limits
how much comes from one. The diary is JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgpack
import numpy as np
import uvloop
from support.command_line import command_line
from support.crowd.clients import BINARY, Caller, framed, microphone
from support.people import FRAME_S

from voxlane.codecs.pcm import encode_pcm16

RATE, REPLY_RATE = 16_000, 24_000
TICK_SAMPLES = round(REPLY_RATE * FRAME_S)
FRAME_BYTES = 2 * round(RATE * FRAME_S)
BUFFER_S = 0.06  # a loudspeaker's reserve before it begins
PLAYED_S = 0.2  # between two reports of what was played
THINK_S = (1.0, 4.0)
CUT_IN_S = (0.8, 2.5)  # of a reply, before it is interrupted
CUT_IN_SHARE = 0.3
LISTEN_S = 8.0  # then the reply is stopped
PATIENCE_S = 20.0  # then there is no answer
OPENS_PER_S = 8.0  # of one process
MAX_TOKENS = 60


@dataclass(slots=True)
class Diary:
    """What the people of one process noticed; milliseconds."""

    voice_to_voice: list[float] = field(default_factory=list)  # from the last sound of a question to the first of sound
    lowered: list[float] = field(default_factory=list)  # from the first sound of an interruption: lowered or held
    silent: list[float] = field(default_factory=list)  # the same: held or ended
    ended: list[float] = field(default_factory=list)  # the same: ended
    late: list[float] = field(default_factory=list)  # how late this process sent its sound
    played_s: float = 0.0
    dry_s: float = 0.0  # in which a loudspeaker had nothing to play in the middle of a reply
    dry_replies: int = 0
    replies: int = 0
    stale: int = 0  # messages with sound of a reply that was over
    unanswered: int = 0
    missed: int = 0  # interruptions that did not end the reply
    too_late: int = 0  # interruptions of a reply that ended by itself before they were understood
    closed: int = 0  # connections
    refused: int = 0


class Talker(Caller):
    """One person."""

    def __init__(self, address: tuple[str, int], own: str, clips: list[list[bytes]], diary: Diary, seed: int) -> None:
        super().__init__(address, Counter())
        self._socket.bind((own, 0))
        self._questions, self._cut_in = clips[:-1], clips[-1]
        self._silence = microphone(bytes(FRAME_BYTES), FRAME_BYTES)[0]
        self._diary = diary
        self._chance = random.Random(seed)
        self._counting = False
        self._speech: list[bytes] = []
        self._stopped_s = 0.0  # when a question's last sound was sent
        self._sounded_s = 0.0  # when the last sound was sent
        self._cut_in_s = 0.0  # when an interruption's first sound was sent
        self._next_s = time.monotonic() + self._chance.uniform(0.5, 5.0)
        self._waits = False
        self._forget_reply(0)

    def _forget_reply(self, epoch: int) -> None:
        self._epoch, self._length, self._complete = epoch, 0, False
        self._played, self._reported_s, self._first_s = 0, 0.0, 0.0
        self._held = self._dry = self._lowered = False
        self._interrupts_s = 0.0  # when this reply will be interrupted; 0: never

    def count(self) -> None:
        """From now on what happens counts."""
        self._counting = True

    # ---- every 20 ms

    def tick(self, now: float) -> None:
        """Send 20 ms of the microphone, and play 20 ms."""
        if self.close_code is not None:
            return
        if self._speech:
            self.send(self._speech.pop(0))
            self._sounded_s = now
            if not self._speech and not self._cut_in_s:
                self._stopped_s = now
        else:
            self.send(self._silence)
        self._play(now)
        self._decide(now)

    def _play(self, now: float) -> None:
        if not self._first_s or self._held or now < self._first_s + BUFFER_S:
            return
        more = min(TICK_SAMPLES, self._length - self._played)
        self._played += more
        if self._counting:
            self._diary.played_s += more / REPLY_RATE
        if more < TICK_SAMPLES and not self._complete:
            if self._counting:
                self._diary.dry_s += FRAME_S
                self._diary.dry_replies += not self._dry
            self._dry = True
        if now - self._reported_s >= PLAYED_S or (self._complete and self._played == self._length and more):
            self._report(now)

    def _report(self, now: float) -> None:
        self._reported_s = now
        self.send(framed(msgpack.packb(("played", self._epoch, self._played, self._length - self._played))))

    def _decide(self, now: float) -> None:
        if self._speech:
            return
        if self._waits:
            if now - self._stopped_s > PATIENCE_S:
                self._diary.unanswered += self._counting
                self._rest(now)
        elif self._cut_in_s:
            if self._complete and self._played == self._length:
                self._was_too_late()
            elif now - self._cut_in_s > PATIENCE_S:
                self._diary.missed += self._counting
                self._cut_in_s = 0.0
                self._rest(now)
        elif self._first_s:
            if self._interrupts_s and now >= self._interrupts_s:
                self._speech, self._cut_in_s, self._interrupts_s = list(self._cut_in), now, 0.0
            elif self._complete and self._played == self._length:
                self._rest(now)
            elif now - self._first_s > LISTEN_S:
                self.send(framed(msgpack.packb(("stop",))))
                self._rest(now)
        elif now >= self._next_s:
            self._speech, self._waits, self._stopped_s = list(self._chance.choice(self._questions)), True, now

    def _was_too_late(self) -> None:
        """The reply ended by itself: what was said is a question like others."""
        self._diary.too_late += self._counting
        self._cut_in_s, self._waits, self._stopped_s = 0.0, True, self._sounded_s

    def _rest(self, now: float) -> None:
        """Wait a moment before the next question."""
        self._waits = False
        self._first_s = 0.0
        self._next_s = now + self._chance.uniform(*THINK_S)

    # ---- what the server says

    def _take(self, opcode: int, start: int, length: int) -> None:
        if opcode != BINARY:
            super()._take(opcode, start, length)
            return
        name, _, *fields = msgpack.unpackb(memoryview(self._data)[start : start + length])
        if name in ("audio", "audio_done", "duck", "hold", "release", "interrupted"):
            self._reply(name, fields, time.monotonic())

    def _reply(self, name: str, fields: list[object], now: float) -> None:
        epoch = fields[0]
        assert isinstance(epoch, int)
        if name == "audio" and epoch < self._epoch:
            self._diary.stale += self._counting
        if epoch > self._epoch:
            if self._cut_in_s:
                self._was_too_late()
            self._forget_reply(epoch)
        if epoch != self._epoch:
            return
        match name:
            case "audio":
                self._hear(fields, now)
            case "audio_done":
                self._complete = True
            case "duck" | "hold":
                self._interruption(name, now)
                self._held = name == "hold"
                if self._held:
                    self._report(now)
            case "release":
                self._held = False
            case "interrupted":
                self._interruption(name, now)
                self._over(now)

    def _hear(self, fields: list[object], now: float) -> None:
        sound = fields[2]
        assert isinstance(sound, bytes)
        self._length += len(sound) // 2
        if self._first_s or not self._waits:
            return
        self._first_s, self._waits = now, False
        if self._counting and not self._speech:
            self._diary.voice_to_voice.append((now - self._stopped_s) * 1e3)
            self._diary.replies += 1
        if self._chance.random() < CUT_IN_SHARE:
            self._interrupts_s = now + self._chance.uniform(*CUT_IN_S)

    def _interruption(self, name: str, now: float) -> None:
        if not self._cut_in_s or not self._counting:
            return
        after = (now - self._cut_in_s) * 1e3
        if not self._lowered:
            self._lowered = True
            self._diary.lowered.append(after)
        if name != "duck" and not self._held:
            self._diary.silent.append(after)
        if name == "interrupted":
            self._diary.ended.append(after)

    def _over(self, now: float) -> None:
        """The reply was interrupted: what is said goes on, and its answer is the next reply."""
        self._forget_reply(self._epoch + 1)
        if self._cut_in_s:
            self._cut_in_s = 0.0
            self._waits = True
            self._stopped_s = now + FRAME_S * len(self._speech)
        else:
            self._rest(now)


async def talk(address: tuple[str, int], people: int, number: int, seconds: float, clips: list[list[bytes]]) -> Diary:
    """Let people talk; count what happens in the last `seconds`."""
    diary = Diary()
    talkers: list[Talker] = []
    running = asyncio.Event()
    pacing = asyncio.create_task(_pace(talkers, diary, running))
    for index in range(people):
        own = f"127.{number + 1}.{index // 250}.{index % 250 + 1}"
        talker = Talker(address, own, clips, diary, 1000 * number + index)
        try:
            await talker.connect(
                input={"codec": "pcm16", "rate": RATE},
                output={"codec": "pcm16", "rate": REPLY_RATE},
                config={"max_tokens": MAX_TOKENS},
            )
        except ConnectionError:
            diary.refused += 1
            continue
        talkers.append(talker)
        await asyncio.sleep(1 / OPENS_PER_S)
    print("ready", flush=True)
    await asyncio.to_thread(input)  # all processes begin to count at the same time
    running.set()
    for talker in talkers:
        talker.count()
    await asyncio.sleep(seconds)
    diary.closed = sum(talker.close_code is not None for talker in talkers)
    pacing.cancel()
    return diary


async def _pace(talkers: list[Talker], diary: Diary, counting: asyncio.Event) -> None:
    """Let everybody have a turn every 20 ms, spread evenly."""
    due_s = time.monotonic()
    while True:
        due_s += FRAME_S / 4
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        now = time.monotonic()
        if counting.is_set():
            diary.late.append((now - due_s) * 1e3)
        part = round(due_s / (FRAME_S / 4)) % 4
        for talker in talkers[part::4]:
            try:
                talker.tick(now)
            except (ConnectionError, BlockingIOError):
                talker.close_code = talker.close_code or 1006


def main() -> None:
    """Talk, and print the diary."""
    parser = command_line(__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--people", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--number", type=int, required=True, help="of this process")
    parser.add_argument("--clips", required=True, help="16 kHz speech; the last clip is an interruption")
    parser.add_argument("--diary", type=Path, required=True, help="the file to write")
    options = parser.parse_args()
    with np.load(options.clips) as found:
        clips = [microphone(encode_pcm16(found[name]), FRAME_BYTES) for name in sorted(found.files)]
    address = ("127.0.0.1", options.port)
    diary = uvloop.run(talk(address, options.people, options.number, options.seconds, clips))
    options.diary.write_text(json.dumps(asdict(diary)), "utf-8")


if __name__ == "__main__":
    main()
