"""Does a codec language model say on the GPU what it says on the CPU, alone what it says among others?

A small talker with the true heads and numbers of codes, random weights, float32, and a small codec. Eight requests of
all kinds: texts of several lengths, likeliest codes and drawn ones, a voice out of a clip, frames out of a clip,
prompts in pieces, sound in chunks of several sizes, one that is rewound; some come later, some end. Every frame is
compared, all its sixteen codes, and every sample:

  off         (--off) the host's engine on the CPU, with another whose weights are a millionth off: what rounding may do
  launched    the same with the device, launch by launch
  graphs      the same with CUDA graphs
  alone       with CUDA graphs: each request by itself with the eight together

Codes are drawn, so that where two are equally likely but for a rounding error, another may come, and other frames after
it: the first such place of each request is said. With these seeds there is none.

Then the codec at its true shape: how far its samples are from float32 on the CPU, in decibels below their loudness, and
how long a call takes, for each type it could run in.

  python benchmarks/gpu_tts_exact.py               on the GPU
  python benchmarks/gpu_tts_exact.py --dry-run     on the CPU: does the script run?

Time: less than a minute on the GPU.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar
from unittest import mock

import gpu_codec
import numpy as np
import torch
from command_line import command_line
from gpu_clock import time_device
from numpy.typing import NDArray
from random_talkers import LANGUAGE, SHAPES, SPEAKER, Unwritten
from torch import Tensor

from voxlane.engine.kernels.conv import causal
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.qwen3_tts.codec import Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.codec_config import MODEL_TYPE, CodecConfig
from voxlane.engine.models.qwen3_tts.codec_weights import read_weights
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.models.qwen3_tts.prompt import NOTHING, Clone, Codes, Utterance, open_utterance
from voxlane.engine.models.qwen3_tts.prompt import SPEAKER as VOICE
from voxlane.engine.runners.codec_tts import FrameOutcome, Talker, UtteranceStream
from voxlane.engine.runners.cuda import codec_graphs, codec_tts_graphs
from voxlane.engine.runners.cuda.codec_tts import CudaTalker
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Request

REQUESTS, FRAMES = 8, 24
BLOCK, BLOCKS, TOKENS = 16, 64, 512
PROMPT_SIZES = ((32, REQUESTS), (128, REQUESTS))
"""Fewer than an engine has: each is compiled for."""

CLOSE = 1e-3
"""Samples, -1 to 1, that are called the same: sums of another order."""

MILLIONTH = 1e-6
SEED = 8
REWOUND, REWOUND_AT, REWOUND_TO = 3, 9, 4
STREAMS = (1, 16, 64)


@dataclass(slots=True)
class Speaker:
    """One request and what came of it."""

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
        """Return its next positions: prompts in pieces of five, for every second request."""
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
            if self.stream.utterance.frame_due(self.request.table.length):  # not caught up: the same again
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


def enter(engine: Talker, pool: BlockPool, number: int) -> Speaker:
    """Return a request of its own kind."""
    own, config = random.Random(number), engine.model.config
    utterance = open_utterance(config, [1, 2, 3], language=LANGUAGE, speaker=SPEAKER)
    if number % 3 == 0:  # a voice out of a clip
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


def speak(engine: Talker, numbers: Sequence[int]) -> list[Speaker]:
    """Let requests speak, two of them joining at each of the first steps."""
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
    """Print how many frames are the same, and how far samples are apart; return whether all is."""
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


def talker(device: torch.device, *, graphs: bool, off: float = 0.0) -> Talker:
    """Return an engine: the host's on a CPU, unless it is the device's that is asked for."""
    shape = SHAPES["small"]
    model = Qwen3TTS.load(Unwritten("small", off), "float32", device=device)
    config = CodecConfig.from_dict({"model_type": MODEL_TYPE, "decoder_config": shape[1]})
    codec, layers = gpu_codec.build(config, torch.float32, device), model.talker
    cache = KVCache(layers.spec.pages, BLOCKS, BLOCK, torch.float32, device=device)
    if device.type == "cpu" and not graphs:
        return Talker(model, codec, cache, slots=REQUESTS, max_rows=REQUESTS)
    return CudaTalker(model, codec, cache, device, slots=REQUESTS, max_rows=REQUESTS, max_tokens=TOKENS)


def check_frames(device: torch.device, offs: Sequence[float]) -> bool:
    """Compare frames and samples; return whether all are the same."""
    began, numbers = time.monotonic(), range(REQUESTS)
    cpu = torch.device("cpu")
    wanted = speak(talker(cpu, graphs=False), numbers)
    for off in offs:
        compare("off", wanted, speak(talker(cpu, graphs=False, off=off), numbers))
    with (
        mock.patch.object(codec_tts_graphs, "PROMPT_SIZES", PROMPT_SIZES),
        mock.patch.object(codec_graphs, "STREAMS", (1, 8)),
    ):
        engine = talker(device, graphs=True)
        launched = speak(engine, numbers)
        good = compare("launched", wanted, launched)
        print(f"after {time.monotonic() - began:.0f} s", flush=True)
        if isinstance(engine, CudaTalker) and device.type == "cuda":
            engine.capture()
    together = speak(engine, numbers)
    good = compare("graphs", wanted, together) and good
    good = compare("graphs as launched", launched, together) and good
    good = compare("alone", together, [speak(engine, [number])[0] for number in numbers]) and good
    print(f"after {time.monotonic() - began:.0f} s", flush=True)
    return good


# ---- the codec


@dataclass(frozen=True, slots=True)
class Way:
    """How a codec may be computed."""

    name: str
    dtype: torch.dtype
    rounded: bool = False  # products of float32 in TF32
    ours: bool = True  # convolutions by our own kernel, where there is much to do


WAYS = (
    Way("float32", torch.float32, ours=False),
    Way("float32, products in TF32, cuBLAS", torch.float32, rounded=True, ours=False),
    Way("float32, products in TF32", torch.float32, rounded=True),
    Way("bfloat16, cuBLAS", torch.bfloat16, ours=False),
    Way("bfloat16", torch.bfloat16),
    Way("float16", torch.float16),
)


@contextlib.contextmanager
def computed(way: Way) -> Iterator[None]:
    """Compute so meanwhile."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = way.rounded
    try:
        with mock.patch.object(causal, "IN_PLACE", {way.dtype} if way.ours else {}):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


class Remembered(gpu_codec.RandomReader):
    """Draws each tensor once, for all who are built of them."""

    drawn: ClassVar[dict[str, Tensor]] = {}

    def floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor of its own."""
        if name not in self.drawn:
            self.drawn[name] = super().floats(name, shape).cpu()
        return self.drawn[name].to(self._device, copy=True)


def check_codec(device: torch.device, ways: Sequence[Way], *, dry: bool) -> None:
    """Print how far from float32 the codec is in each type, and what a frame of some streams takes as a graph."""
    shape = gpu_codec.SMALL if dry else gpu_codec.TRUE
    config = CodecConfig.from_dict({"model_type": MODEL_TYPE, "decoder_config": shape})
    codes = gpu_codec.random_codes(config, 2, gpu_codec.CHECKED_FRAMES)

    def build(dtype: torch.dtype, where: torch.device) -> Qwen3TTSCodec:
        return Qwen3TTSCodec(config, read_weights(Remembered(where), config, dtype))

    host = build(torch.float32, torch.device("cpu"))
    wanted = host.decode(codes, host.state(2), torch.arange(2))
    for way in ways:
        with computed(way):
            codec, rows = build(way.dtype, device), torch.arange(2, device=device)
            got = codec.decode(codes.to(device), codec.state(2, gpu_codec.CHECKED_FRAMES), rows).cpu()
            noise = 20 * math.log10((got - wanted).std() / wanted.std() + 1e-12)
            took = []
            for count in STREAMS[: 1 if dry else None]:
                _, replay = gpu_codec.next_frames(codec, gpu_codec.random_codes(config, count, 1).to(device))
                took.append(f"{time_device(replay, 3 if dry else 30, device) * 1e3:.2f}")
        streams = ", ".join(map(str, STREAMS[: len(took)]))
        print(f"codec in {way.name}: {noise:.0f} dB; {' '.join(took)} ms for a frame of {streams} streams", flush=True)


def main() -> None:
    """Check both; leave with 1 if a frame is another."""
    parser = command_line(__doc__)
    parser.add_argument("--dry-run", action="store_true", help="on the CPU")
    parser.add_argument("--only", choices=("frames", "codec"), help="one of the two")
    parser.add_argument("--off", action="store_true", help="see what rounding may do, too")
    parser.add_argument("--ways", default="", help="of the codec: numbers, comma-separated; all, but in a dry run")
    chosen = parser.parse_args()
    ways = [WAYS[int(number)] for number in chosen.ways.split(",") if number] or WAYS[: 2 if chosen.dry_run else None]
    device = torch.device("cpu" if chosen.dry_run else "cuda")
    good = True
    with torch.inference_mode():
        if chosen.only != "codec":
            good = check_frames(device, (MILLIONTH, -MILLIONTH) if chosen.off else ())
        if chosen.only != "frames":
            check_codec(device, ways, dry=chosen.dry_run)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
