"""A codec TTS without a model, beside the pretended chat of simulation.py, under one scheduler.

A frame follows from everything read before it, and samples from every frame decoded before them. A page or a slot that
holds anything else fails at once. So the expected sound of a text is known without an engine.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from simulation import Clock, PretendEngine, Simulation

from voxlane.engine.api import Rewound, Samples, Submit
from voxlane.engine.jobs.chat import ChatJobFactory
from voxlane.engine.jobs.speak_codec import CodecVoiceFacts, SpeakCodecJobFactory
from voxlane.engine.loop.core import Core
from voxlane.engine.memory.blocks import BlockPool
from voxlane.engine.memory.state_rows import StateRows
from voxlane.engine.models.qwen3_tts.config import Qwen3TTSConfig, SpeechSampling
from voxlane.engine.models.qwen3_tts.prompt import Clone, Codes, Utterance, open_utterance
from voxlane.engine.runners.codec_tts import FrameOutcome, UtteranceStream, stream_of
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.cost import CostModel
from voxlane.engine.schedule.plan import SPEECH_FRAMES, Limits, ModelBatch, ModelResources, Row
from voxlane.engine.schedule.scheduler import Scheduler
from voxlane.engine.text.incremental import Reader
from voxlane.engine.voices.prompt import VoicePrompt
from voxlane.engine.voices.word_timing import WordTimer
from voxlane.server.conversation.replies.ledger import Ledger

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from support import random_talkers

CONFIG = Qwen3TTSConfig.from_dict(random_talkers.SHAPES["tiny"][0])
BASE = Qwen3TTSConfig.from_dict(
    random_talkers.SHAPES["tiny"][0]
    | {
        "tts_model_type": "base",
        "speaker_encoder_config": {
            "enc_dim": 64, "enc_channels": [16, 16, 16, 32], "enc_kernel_sizes": [5, 3, 3, 1],
            "enc_dilations": [1, 2, 3, 1], "enc_attention_channels": 8, "enc_res2net_scale": 4, "enc_se_channels": 8,
        },
    }
)  # fmt: skip
END = CONFIG.codec.eos
RATE, FRAME_SAMPLES = 100, 8  # a frame lasts 80 ms, as a real one
LIMIT = 200
HEARS = 5
"""Frames that a stream without a row of codec state decodes again in one step."""

SAMPLING = SpeechSampling(max_frames=60)
ENDLESS = 1000  # from this seed on no utterance ends by itself


def _hash(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=CONFIG.groups + 1).digest()


def next_frame(rows: list[tuple[int, Codes]], spoken: int, seed: int) -> Codes:
    """Return the pretended talker's frame after it has read `rows`; now and then it ends, even too early."""
    chance, *codes = _hash(_keys(rows)[-1], seed)
    return (END if chance < 10 and spoken >= 2 and seed < ENDLESS else codes[0], *codes[1:])


def sound(heard: list[Codes], frame: Codes) -> list[float]:
    """Return a frame's samples; they depend on all frames decoded before it."""
    return [_hash(hash(tuple(heard)), frame)[0] / 256] * FRAME_SAMPLES


def manner(submit: Submit) -> VoicePrompt:
    """Return the voice prompt of a submission: the tenant's name says which clip it has, if any."""
    clone = None
    if submit.tenant:
        clip, text = int(submit.tenant[0]), int(submit.tenant[1])
        frame = tuple(range(CONFIG.groups))
        clone = Clone(torch.zeros(64), (7,) * text, (frame,) * clip)
    opening = partial(open_utterance, CONFIG, [5, 6, 7], speaker="ryan")
    if clone is not None:
        opening = partial(open_utterance, BASE, [5, 6, 7], clone=clone)
    return VoicePrompt(opening, clone, SAMPLING, submit.speak.seed, Reader(_letters, "auto"))


def _letters(text: str) -> list[int]:
    return [ord(letter) % 1000 for letter in text]


def offline(submit: Submit, text: str) -> tuple[str, list[float]]:
    """Return how a text ends and its sound, spoken whole and alone."""
    how = manner(submit)
    reader = Reader(_letters, "auto")
    words = [*reader.read(text), *reader.finish()]
    lead = list(how.clone.frames) if how.clone else []
    skipped = len(lead) - len(how.clone.text) if how.clone else 0
    pace, samples, tokens = WordTimer(RATE), list[float](), list[int]()
    for number in range(1000):
        firsts: list[int] = []
        for said in words:
            firsts.append(len(tokens))
            pace.add(said, len(samples) + max(len(tokens) - skipped, 0) * FRAME_SAMPLES)
            tokens += said.tokens
        if not tokens:
            return "eos", samples
        utterance = how.open()
        utterance.append(tokens)
        utterance.end()
        reason, read = _speak(utterance, how.seed + number, lead, samples)
        told, read = pace.told(len(samples)), read + skipped
        if reason == "length":
            if not pace.untold or not told:
                return ("length" if pace.untold else "eos"), samples
            words, tokens = pace.take_back(pace.untold), []
        elif read <= 0 or read >= len(tokens):
            return "eos", samples
        else:
            unread = [first for first in firsts if first >= read]
            words, tokens = pace.take_back(len(unread)), tokens[read : unread[0] if unread else None]
    raise AssertionError("it never ends")


def _speak(utterance: Utterance, seed: int, lead: list[Codes], samples: list[float]) -> tuple[str, int]:
    heard = list(lead)
    while True:
        stop = utterance.available
        frame = next_frame(list(zip(*utterance.rows(0, stop), strict=True)), utterance.spoken, seed)
        if frame[0] == END:
            return "eos", 1 + utterance.spoken
        utterance.add(frame)
        samples += sound(heard, frame)
        heard.append(frame)
        if stop >= LIMIT or utterance.spoken >= SAMPLING.max_frames:
            return "length", 0


class PretendTalker(PretendEngine):
    """Speaks in virtual time, on pages and in slots that remember what they hold."""

    def __init__(self, clock: Clock, block_tokens: int, slots: int) -> None:
        super().__init__(clock, block_tokens)
        self.slots = StateRows(slots)
        self.heard: dict[int, list[Codes]] = {}
        self.caught: dict[tuple[int, int], int] = {}  # frames decoded again, by stream and slot
        self.chunks: list[int] = []
        self.streams: dict[UtteranceStream, None] = {}  # streams that were in a step, in order

    def _row(self, row: Row) -> Outcome:
        stream = stream_of(row)
        self.streams[stream] = None
        stop = row.start + row.count
        rows = list(zip(*stream.utterance.rows(0, stop), strict=True))
        slots = row.request.table.slots(0, stop)
        keys = [("", (key,)) for key in _keys(rows)]
        self.device |= dict(zip(slots[row.start :], keys[row.start :], strict=True))
        assert [self.device.get(slot) for slot in slots] == keys, "a page holds another prefix"
        if not stream.utterance.frame_due(stop):
            return FrameOutcome()
        self._catch_up(stream)
        if stream.stale:
            return FrameOutcome()
        frame = next_frame(rows, stream.utterance.spoken, stream.seed)
        samples: list[float] = []
        for due in stream.due(frame, over=frame[0] == END):
            samples += sound(self.heard[stream.slot], due)
            self.heard[stream.slot].append(due)
        if samples:
            self.chunks.append(len(samples) // FRAME_SAMPLES)
        return FrameOutcome(frame, np.array(samples, np.float32))

    def _catch_up(self, stream: UtteranceStream) -> None:
        if not stream.stale:
            return
        who = (stream.number, stream.slot)
        self.caught[who] = min(self.caught.get(who, 0) + HEARS, len(stream.heard))
        if self.caught[who] == len(stream.heard):
            self.heard[stream.slot] = stream.heard
            stream.stale = False
            del self.caught[who]


class LateTalker(PretendTalker):
    """The same on its own device: the outcome of a step is known only while the next one may run."""

    overlaps = True

    def launch(self, load: ModelBatch) -> list[Outcome]:
        """Execute at once, and remember the slot of each frame."""
        outcomes = super().launch(load)
        self._sounding = [
            (stream_of(row), stream_of(row).slot)
            for row, outcome in zip(load.rows, outcomes, strict=True)
            if isinstance(outcome, FrameOutcome) and outcome.frame is not None
        ]
        return outcomes

    def collect(self, ticket: list[Outcome]) -> list[Outcome]:
        """Return the outcomes; a stream that has ended is decoded only now, in its slot."""
        assert all(stream.slot == slot for stream, slot in self._sounding), "a slot was taken from under a step"
        return super().collect(ticket)


def _keys(rows: list[tuple[int, Codes]]) -> list[int]:
    """Return for every position a hash of everything up to it."""
    return list(itertools.accumulate(rows, lambda key, row: hash((key, row)), initial=0))[1:]


class TalkerSimulation(Simulation):
    """A pretended chat and a pretended talker under one scheduler."""

    def __init__(
        self, *, tts_blocks: int = 200, tts_host: int = 0, slots: int = 8, late: bool = False, **settings: object
    ) -> None:
        super().__init__(blocks=40, host_blocks=0, **settings)  # type: ignore[arg-type]
        size = self.pool.block_tokens
        self.tts_pool = BlockPool(tts_blocks, size, prefix_cache=False)
        resources = ModelResources(
            self.tts_pool, BlockPool(tts_host, size, prefix_cache=False), CostModel(), abilities=SPEECH_FRAMES
        )
        limits = self.scheduler.limits
        assert isinstance(limits, Limits)
        self.scheduler = Scheduler({**self.scheduler.resources, "tts": resources}, limits)
        self.talker = (LateTalker if late else PretendTalker)(self.clock, size, slots)
        self.engine.overlaps = late
        limit = min(LIMIT, tts_blocks * size)
        facts = CodecVoiceFacts(END, FRAME_SAMPLES, RATE, limit, self.talker.slots)
        self.core = Core(
            self.scheduler,
            {"chat": self.engine, "tts": self.talker},
            {
                "chat": ChatJobFactory(self.intake, self.letters),
                "tts": SpeakCodecJobFactory(facts, self.tts_pool, manner),
            },
            clock=self.clock,
            max_waiting=1000,
        )
        self.pcm: dict[str, bytes] = {}
        self.ledgers: dict[str, Ledger] = {}
        self.spoken: list[Samples] = []

    def _collect(self, messages):  # type: ignore[no-untyped-def]
        for message in messages:
            if isinstance(message, Samples):
                name = message.request_id
                assert name not in self.ends, "samples after the end"
                # The server's ledger of a reply: it refuses gaps, repeats, and words out of order.
                self.ledgers.setdefault(name, Ledger()).add(message.offset, len(message.pcm) // 2, message.words)
                self.pcm[name] = self.pcm.get(name, b"") + message.pcm
                self.spoken.append(message)
            elif isinstance(message, Rewound):
                self._forget(message.request_id, message.sample)
        return super()._collect(messages)

    def _forget(self, name: str, sample: int) -> None:
        """Drop the output of a reply after a sample; words that end before it stay."""
        words = [word for one in self.spoken if one.request_id == name for word in one.words]
        kept = tuple(word for word in words if word.end_sample <= sample)
        self.spoken = [one for one in self.spoken if one.request_id != name]
        self.pcm[name], self.ledgers[name] = self.pcm.get(name, b"")[: 2 * sample], Ledger()
        self.spoken.append(Samples(name, 0, 0, self.pcm[name], kept))
        self.ledgers[name].add(0, sample, kept)


def pcm_of(samples: list[float]) -> bytes:
    """Return samples as the engine sends them."""
    return np.rint(np.array(samples, np.float32) * 32767.0).astype("<i2").tobytes()
