"""Compare what Qwen3-TTS says on the GPU with what it says on the CPU, and alone with what it says in a batch.

The talker is small, has the true heads and numbers of codes, random weights in float32, and a small codec. The eight
requests differ: texts of several lengths, greedy and sampled codes, a voice from a clip, frames from a clip, prompts in
pieces, sound in chunks of several sizes, one that is rewound; some come later, some end. Every frame is compared, all
its sixteen codes, and every sample.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from support.random_talkers import LANGUAGE, SHAPES, SPEAKER, Unwritten
from support.tts import codec as codec_decoder

from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.qwen3_tts.codec_config import MODEL_TYPE, CodecConfig
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.models.qwen3_tts.prompt import NOTHING, Clone, Codes, Utterance, open_utterance
from voxlane.engine.models.qwen3_tts.prompt import SPEAKER as VOICE
from voxlane.engine.runners.codec_tts import CodecTTS, FrameOutcome, UtteranceStream
from voxlane.engine.runners.cuda import codec_graphs, staged_graphs
from voxlane.engine.runners.cuda.codec_tts import CudaCodecTTS
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Request

REQUESTS, FRAMES = 8, 24
BLOCK, BLOCKS, TOKENS = 16, 64, 512
PROMPT_SIZES = ((32, REQUESTS), (128, REQUESTS))
"""Fewer than an engine has, to save compilation."""

CLOSE = 1e-3
"""The largest difference of samples (-1 to 1) that count as equal: sums in another order."""

SEED = 8
REWOUND, REWOUND_AT, REWOUND_TO = 3, 9, 4


@dataclass(slots=True)
class Speaker:
    """One request with its frames and samples."""

    number: int
    request: Request
    stream: UtteranceStream
    frames: list[Codes] = field(default_factory=list)
    pieces: list[NDArray[np.float32]] = field(default_factory=list)
    over: bool = False
    rewound: bool = False

    @property
    def sound(self) -> NDArray[np.float32]:
        """Return all samples so far."""
        return np.concatenate(self.pieces) if self.pieces else np.zeros(0, np.float32)

    def row(self) -> Row:
        """Return its next row: every second request has its prompt in pieces of five."""
        table, utterance = self.request.table, self.stream.utterance
        start = table.length
        count = min(utterance.available - start, 5 if self.number % 2 else 1000)
        self.request.tokens = [0] * utterance.available
        table.append(count)
        self.stream.chunk, self.stream.keep = 1 + (utterance.spoken + self.number) % 4, int(self.number == 6)
        return Row(self.request, start, count)

    def take(self, spoken: FrameOutcome, frame_samples: int, end_code: int) -> None:
        """Keep what a step brought."""
        if spoken.frame is None:
            if self.stream.utterance.frame_due(self.request.table.length):  # still due: decode again
                self.request.table.rewind(self.request.table.length - 1)
            return
        self.pieces.append(spoken.samples)
        self.stream.decoded += len(spoken.samples) // frame_samples
        self.frames.append(spoken.frame)
        self.over = spoken.frame[0] == end_code or len(self.frames) == FRAMES
        if not self.over:
            self.stream.utterance.add(spoken.frame)
        if self.number == REWOUND and len(self.frames) == REWOUND_AT and not self.rewound and not self.over:
            self._rewind(frame_samples)

    def _rewind(self, frame_samples: int) -> None:
        self.rewound = True
        self.stream.rewind(REWOUND_TO)
        self.request.table.rewind(min(self.request.table.length, self.stream.utterance.available - 1))
        del self.frames[REWOUND_TO:]
        self.pieces = [self.sound[: self.stream.decoded * frame_samples]]


def enter(engine: CodecTTS, pool: BlockPool, number: int) -> Speaker:
    """Return the request of this number; each is of another kind."""
    own, config = random.Random(number), engine.model.config
    utterance = open_utterance(config, [1, 2, 3], language=LANGUAGE, speaker=SPEAKER)
    if number % 3 == 0:  # a voice from a clip
        voice = torch.randn(config.talker.hidden_size, generator=torch.Generator().manual_seed(number))
        head = [(1, NOTHING), (config.text.pad, VOICE), (config.text.bos, config.codec.pad)]
        utterance = Utterance(config, head, Clone(voice), whole_text=False)
    utterance.append(own.choices(range(5, 900), k=2 + 3 * number))
    utterance.end()
    likeliest = SpeechSampling(temperature=0.0, inner_temperature=0.0)
    drawn = SpeechSampling(top_p=0.8, inner_top_p=0.7) if number % 4 == 1 else SpeechSampling()
    lead = tuple(tuple(own.choices(range(config.codes), k=config.groups)) for _ in range(11 if number == 5 else 0))
    stream = UtteranceStream(utterance, likeliest if number == 4 else drawn, SEED + number, lead, engine.slots.take())
    request = Request(str(number), "tts", [], 0, BlockTable(pool), model="tts", payload=stream)
    return Speaker(number, request, stream)


def speak(engine: CodecTTS, numbers: Sequence[int]) -> list[Speaker]:
    """Run the requests to their end, two joining at each of the first steps."""
    pool = BlockPool(BLOCKS, BLOCK, prefix_cache=False)
    waiting, speakers = list(numbers), list[Speaker]()
    while waiting or any(not one.over for one in speakers):
        speakers += [enter(engine, pool, waiting.pop(0)) for _ in range(min(2, len(waiting)))]
        going = [one for one in speakers if not one.over]
        for one, outcome in zip(going, engine.run(ModelBatch([one.row() for one in going])), strict=True):
            if not isinstance(outcome, FrameOutcome):
                raise RuntimeError(f"request {one.number}: a step failed")
            one.take(outcome, engine.codec.frame_samples, engine.model.end_code)
    for one in speakers:
        one.request.table.free()
        engine.slots.release(one.stream.slot)
    return speakers


def compare(name: str, expected: Sequence[Speaker], got: Sequence[Speaker]) -> bool:
    """Print how many frames are equal, and the samples' difference; return whether all are equal."""
    same, off, pairs = 0, 0.0, list(zip(expected, got, strict=True))
    for one, other in pairs:
        same += sum(a == b for a, b in zip(one.frames, other.frames, strict=False))
        equal = len(one.sound) == len(other.sound)
        off = max(off, float(np.abs(one.sound - other.sound).max()) if equal else math.inf)
    total = sum(max(len(one.frames), len(other.frames)) for one, other in pairs)
    samples = sum(len(one.sound) for one in expected)
    ended = sum(one.over and len(one.frames) < FRAMES for one in expected)
    print(
        f"{name}: {same} of {total} frames the same, {samples} samples off by {off:.1e}; {ended} ended by themselves",
        *(f"request {one.number} {place}" for one, other in pairs if (place := _difference(one.frames, other.frames))),
        sep="; ",
        flush=True,
    )
    return same == total and off < CLOSE


def _difference(expected: Sequence[Codes], got: Sequence[Codes]) -> str:
    """Return where frames begin to differ."""
    for number, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one != other:
            return f"from frame {number} on, code {next(at for at, code in enumerate(one) if other[at] != code)}"
    return "" if len(expected) == len(got) else "in length"


def talker(device: torch.device, *, graphs: bool) -> CodecTTS:
    """Return a talker: the host's on a CPU, unless `graphs` asks for the device's."""
    shape = SHAPES["small"]
    model = Qwen3TTS.load(Unwritten("small"), "float32", device=device)
    config = CodecConfig.from_dict({"model_type": MODEL_TYPE, "decoder_config": shape[1]})
    codec, layers = codec_decoder.build(config, torch.float32, device), model.talker
    cache = KVCache(layers.spec.pages, BLOCKS, BLOCK, torch.float32, device=device)
    if device.type == "cpu" and not graphs:
        return CodecTTS(model, codec, cache, slots=REQUESTS, max_rows=REQUESTS)
    return CudaCodecTTS(model, codec, cache, device, slots=REQUESTS, max_rows=REQUESTS, max_tokens=TOKENS)


def check_frames(device: torch.device) -> bool:
    """Compare frames and samples; return whether all are the same."""
    began, numbers = time.monotonic(), range(REQUESTS)
    cpu = torch.device("cpu")
    wanted = speak(talker(cpu, graphs=False), numbers)
    with (
        mock.patch.object(staged_graphs, "PROMPT_SIZES", PROMPT_SIZES),
        mock.patch.object(codec_graphs, "STREAMS", (1, 8)),
    ):
        engine = talker(device, graphs=True)
        launched = speak(engine, numbers)
        good = compare("launched", wanted, launched)
        print(f"after {time.monotonic() - began:.0f} s", flush=True)
        if isinstance(engine, CudaCodecTTS) and device.type == "cuda":
            engine.capture()
    together = speak(engine, numbers)
    good = compare("graphs", wanted, together) and good
    good = compare("graphs as launched", launched, together) and good
    good = compare("alone", together, [speak(engine, [number])[0] for number in numbers]) and good
    print(f"after {time.monotonic() - began:.0f} s", flush=True)
    return good


def run(device: torch.device) -> bool:
    """Compare, and print what was found; return whether all frames are the same."""
    with torch.inference_mode():
        return check_frames(device)
