"""A whole engine with a small random speech-to-speech model, and what it tells of each request."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from voxlane.engine.api import (
    Append,
    EndInput,
    Finished,
    FromEngine,
    Pieces,
    Refused,
    Rewound,
    Samples,
    Segment,
    Submit,
    Text,
    ToEngine,
    Words,
)
from voxlane.engine.jobs.converse import ConverseJobFactory
from voxlane.engine.jobs.dialogue_job import READING, ConverseFacts
from voxlane.engine.loop.core import Core
from voxlane.engine.memory.blocks import BlockPool
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.lfm2_audio.mimi import MimiCodec
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.lfm2_audio.prompt import ConversePrompts
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.runners.converse import ConverseRunner
from voxlane.engine.runners.cuda.converse import CudaConverse
from voxlane.engine.schedule.cost import CostModel
from voxlane.engine.schedule.plan import CONVERSATION, Limits, ModelResources
from voxlane.engine.schedule.scheduler import Scheduler
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.weights.safetensors import SafetensorsDirectory

BLOCK, BLOCKS = 4, 400


@dataclass(frozen=True)
class Talker:
    """A loaded model, its codec and its vocabulary."""

    model: Lfm2Audio
    codec: MimiCodec
    prompts: ConversePrompts

    @classmethod
    def of(cls, folder: Path) -> Talker:
        """Load a folder."""
        model = Lfm2Audio.load(SafetensorsDirectory(folder), "float32")
        codec = MimiCodec.load(SafetensorsDirectory(folder / "mimi"), model.config.groups)
        return cls(model, codec, ConversePrompts.of(model, Tokenizer.open(folder)))

    def listener(self, make: type[ConverseRunner] = ConverseRunner, **settings: int) -> Listener:
        """Return an engine of its own."""
        return Listener(self.model, self.codec, self.prompts, make, **{"max_frames": 200, **settings})


def runner_of(
    make: type[ConverseRunner], model: Lfm2Audio, codec: MimiCodec, cache: KVCache, slots: int
) -> ConverseRunner:
    """Return a runner for four rows; what runs on a device runs on a CPU here."""
    if make is CudaConverse:
        return CudaConverse(model, codec, cache, torch.device("cpu"), slots=slots, max_rows=4, max_tokens=64)
    return make(model, codec, cache, slots=slots, max_rows=4)


class Listener:
    """An engine, and what was told of each request."""

    def __init__(
        self,
        model: Lfm2Audio,
        codec: MimiCodec,
        prompts: ConversePrompts,
        make: type[ConverseRunner] = ConverseRunner,
        *,
        slots: int = 3,
        blocks: int = BLOCKS,
        max_frames: int = 14,
    ) -> None:
        cache = KVCache(model.spec.pages, blocks, BLOCK, torch.float32, host_blocks=64)
        pool = BlockPool(blocks, BLOCK, state=cache.state)
        resources = ModelResources(pool, BlockPool(64, BLOCK, prefix_cache=False), CostModel(), abilities=CONVERSATION)
        self.runner = runner = runner_of(make, model, codec, cache, slots)
        config = model.config
        facts = ConverseFacts(
            config.interleaved_text, config.interleaved_frames, codec.frame_samples, codec.sample_rate,
            limit=min(512, blocks * BLOCK), slots=runner.slots, pool=pool, prompts=prompts,
            sampling=SpeechSampling(temperature=1.0, top_k=4, max_frames=max_frames),
            reading=dataclasses.replace(READING, max_frames=max_frames),
        )  # fmt: skip
        self.clock, self.tick_s = 0.0, 0.001
        self.core = Core(
            Scheduler({"speech": resources}, Limits(max_batch=4, max_step_tokens=64)),
            {"speech": runner},
            {"speech": ConverseJobFactory(facts)},
            clock=self._now,
            max_waiting=8,
        )
        self.pool = pool
        self.text: dict[str, str] = {}
        self.pcm: dict[str, bytes] = {}
        self.pieces: dict[str, list[tuple[int, ...]]] = {}
        self.words: dict[str, list[tuple[int, int]]] = {}
        self.times: dict[str, list[tuple[int, int]]] = {}  # of the words, in samples
        self.transcripts: dict[str, str] = {}
        self.segments: dict[str, tuple[Segment, ...]] = {}
        self.sizes: list[int] = []  # frames of each message about sound
        self.ends: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.cached: dict[str, int] = {}
        self.preemptions = 0
        self._frame = codec.frame_samples

    @property
    def idle(self) -> bool:
        """Whether nothing is held: no block, no state row; raise if the blocks do not add up."""
        self.pool.check()
        return self.pool.used == 0 and self.runner.slots.free == self.runner.slots.count

    def _now(self) -> float:
        self.clock += self.tick_s
        return self.clock

    def send(self, *commands: ToEngine) -> None:
        self.take(self.core.handle(list(commands)))

    def take(self, messages: list[FromEngine]) -> None:
        for message in messages:
            match message:
                case Text(name, _, text):
                    self.text[name] = self.text.get(name, "") + text
                case Samples(name, _, offset, pcm, words):
                    assert 2 * offset == len(self.pcm.get(name, b"")), "a gap, or something that was under way"
                    self.pcm[name] = self.pcm.get(name, b"") + pcm
                    self.sizes.append(len(pcm) // 2 // self._frame)
                    self.words.setdefault(name, []).extend((word.start, word.end) for word in words)
                    self.times.setdefault(name, []).extend((word.start_sample, word.end_sample) for word in words)
                case Words(name, _, settled, tail, segments=segments):
                    assert not tail
                    self.transcripts[name] = self.transcripts.get(name, "") + settled
                    self.segments[name] = (*self.segments.get(name, ()), *segments)
                case Pieces(name, _, pieces):
                    self.pieces.setdefault(name, []).extend(pieces)
                case Rewound(name, _, sample):
                    self.pcm[name] = self.pcm.get(name, b"")[: 2 * sample]
                    kept_words = [end <= sample for _, end in self.times.get(name, [])]
                    self.words[name] = self.words.get(name, [])[: sum(kept_words)]
                    self.times[name] = self.times.get(name, [])[: sum(kept_words)]
                    kept, frames = [], sample // self._frame
                    for piece in self.pieces.get(name, []):
                        if len(piece) > 1 and piece[0] != Lfm2Audio.end_code:
                            frames -= 1
                        if frames < 0:
                            break
                        kept.append(piece)
                    self.pieces[name] = kept
                case Finished(name, _, reason, stats):
                    self.ends[name], self.cached[name] = reason, stats.cached_tokens
                    self.preemptions += stats.preemptions
                case Refused(name, _, _, detail):
                    self.refused[name] = detail

    def run(self, steps: int = 2000) -> None:
        for _ in range(steps):
            if not self.core.busy:
                return
            self.take(self.core.step())

    def ask(self, name: str, submit: Submit, sound: bytes) -> None:
        """Submit, speak in two pieces with steps between them, and end the turn."""
        self.send(submit)
        self.run(3)
        self.send(Append(name, audio=sound[:7001]), Append(name, audio=sound[7001:]), EndInput(name))


def sound(seconds: float, seed: int = 1) -> bytes:
    """Return noise for a microphone."""
    return (np.random.default_rng(seed).normal(0, 3000, int(16_000 * seconds))).astype("<i2").tobytes()


def assert_alike(one: bytes, other: bytes) -> None:
    """A codec's products round differently beside other streams."""
    assert len(one) == len(other)
    difference = np.frombuffer(one, "<i2").astype(int) - np.frombuffer(other, "<i2").astype(int)
    assert np.abs(difference).max(initial=0) <= 1
