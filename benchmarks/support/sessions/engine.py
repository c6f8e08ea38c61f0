"""Engine processes as the server runs them, a random chat model, sound and options, for benchmarks of whole sessions.

The engine is the server's own child process at the other end of its packet socket. The chat model has a real shape,
random weights, and a vocabulary of made-up words: each of its tokens is a word, so that its answers are tokenized into
the same tokens again, as a real model's answers are.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import socket
import string
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from support import random_models
from support.command_line import REPOSITORY, command_line, module_environment
from support.process_times import processor_s
from tokenizers import decoders, models, pre_tokenizers, trainers

from voxlane.codecs.pcm import decode_pcm16, quantise
from voxlane.codecs.resample import resample
from voxlane.engine.api import (
    LISTEN_RATE,
    Append,
    Configure,
    EndInput,
    EngineConfig,
    Finished,
    FromEngine,
    Loading,
    Pieces,
    Policy,
    Pong,
    Probability,
    Ready,
    Refused,
    Rewound,
    Samples,
    Shutdown,
    SpeakParams,
    Started,
    StartFailed,
    StepStats,
    Submit,
    Text,
    ToEngine,
    ToolCall,
    VoiceMade,
    Words,
)
from voxlane.server.engine_client.packets import PacketPipe

POLICIES: tuple[Policy, ...] = ("deadline", "priority", "fcfs")
CHATS = [name for name, shape in random_models.SHAPES.items() if shape["model_type"] in ("llama", "qwen3")]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROLS = ("<|im_start|>", "<|im_end|>")
LEARNT = 8192
"""Tokens learnt from the pages of this repository; the rest of a vocabulary is made-up words."""

GPU_LIMITS: dict[str, object] = {
    "device": "cuda",
    "max_batch": 256,
    "max_step_tokens": 4096,
    "context_tokens": 8192,
}
DRY_LIMITS: dict[str, object] = {"device": "cpu", "max_batch": 8, "threads": 1, "kv_memory_mib": 64}

DRY_S = 8.0
"""The longest measurement of a dry run, which should take a minute in all."""

STOP_S = 5.0
"""How long an engine may take to end."""

Told = Started | Text | Words | Samples | Pieces | Rewound | ToolCall | Probability | VoiceMade | Finished | Refused
"""An engine's messages about one request."""

Receive = Callable[[Told, float], None]


# ---- the chat model


def write_chat_model(shape: str, folder: Path, device: str = "cpu") -> None:
    """Write a model of a real shape with random weights, a vocabulary and a chat template."""
    config = random_models.SHAPES[shape]
    random_models.write(config, folder, device)
    size = config["vocab_size"]
    assert isinstance(size, int)
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary(size)), encoding="utf-8")
    settings = {"chat_template": TEMPLATE, "eos_token": CONTROLS[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def vocabulary(size: int) -> dict[str, object]:
    """Return a byte-level tokenizer of this size, learnt from our own pages and filled with made-up words."""
    pages = [page.read_text(encoding="utf-8") for page in sorted(REPOSITORY.glob("docs/*.md"))]
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=min(LEARNT, size // 2), initial_alphabet=alphabet, show_progress=False, special_tokens=[]
    )
    learner.train_from_iterator(pages, trainer)
    data: dict[str, dict[str, object]] = json.loads(learner.to_str())
    words = data["model"]["vocab"]
    assert isinstance(words, dict)
    made_up = ("Ġ" + "".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4))
    while len(words) < size - len(CONTROLS):
        word = next(made_up)
        words.setdefault(word, len(words))
    data["model"]["ignore_merges"] = True  # a word that is a token becomes that token
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": len(words) + number, "content": text, **flags} for number, text in enumerate(CONTROLS)]
    return {**data, "added_tokens": added}


# ---- an engine


class Engine:
    """An engine process. Its messages go to the receiver named by the request's id before the slash."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.stats: list[StepStats] = []
        self.receivers: dict[str, Receive] = {}
        self.ready: Ready | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._pipe: PacketPipe | None = None
        self._began: asyncio.Future[Ready] | None = None
        self._gone = ""  # why the engine ended

    async def start(self) -> Ready:
        """Start the process and wait until it is ready; raise RuntimeError if it cannot start."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._began = asyncio.get_running_loop().create_future()
        with theirs:
            command = (sys.executable, "-m", "voxlane.engine.process", str(theirs.fileno()))
            self._process = await asyncio.create_subprocess_exec(
                *command, pass_fds=(theirs.fileno(),), env=module_environment()
            )
        self._pipe = PacketPipe(ours, self._receive, self._lost)
        self.send(Configure(self.config))
        self.ready = await self._began
        return self.ready

    def send(self, *messages: ToEngine) -> None:
        """Send messages, in order; raise RuntimeError if the engine has ended."""
        assert self._pipe is not None
        if self._gone:
            raise RuntimeError(f"the {self.config.policy} engine is lost: {self._gone}")
        for message in messages:
            self._pipe.send(message)

    async def stop(self) -> None:
        """End the process."""
        if self._process is not None and not self._gone:
            self.send(Shutdown())
            try:
                await asyncio.wait_for(self._process.wait(), STOP_S)
            except TimeoutError:
                print(f"the {self.config.policy} engine does not stop", flush=True)
                self._process.kill()
                await self._process.wait()
        if self._pipe is not None:
            self._pipe.close()

    def cpu_s(self) -> float:
        """Return the processor time of the engine, all threads."""
        assert self._process is not None
        return processor_s(self._process.pid)

    async def until(self, condition: Callable[[], bool], most_s: float) -> bool:
        """Wait until a condition holds that depends on messages; return whether it does."""
        give_up = time.monotonic() + most_s
        while not condition() and time.monotonic() < give_up:  # noqa: ASYNC110  # conditions look at the clock, too
            await asyncio.sleep(0.002)
        return condition()

    def _lost(self, reason: str) -> None:
        if self._began is not None and not self._began.done():
            self._began.set_exception(RuntimeError(f"the engine is lost: {reason}"))
        self._gone = reason

    def _receive(self, message: FromEngine) -> None:
        assert self._began is not None
        match message:
            case Ready():
                self._began.set_result(message)
            case StartFailed(reason):
                self._began.set_exception(RuntimeError(reason))
            case StepStats():
                self.stats.append(message)
            case Loading() | Pong():
                pass
            case _:
                receiver = self.receivers.get(message.request_id.partition("/")[0])
                if receiver is not None:
                    receiver(message, time.monotonic())


# ---- sound


@dataclass(frozen=True, slots=True)
class Sound:
    """A person's speech, at the engine's sample rate."""

    words: str
    samples: NDArray[np.int16]

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return len(self.samples) / LISTEN_RATE

    def piece(self, start_s: float, stop_s: float) -> bytes:
        """Return the bytes from one moment to another, with silence around the words."""
        first, last = round(start_s * LISTEN_RATE), round(stop_s * LISTEN_RATE)
        part = self.samples[max(first, 0) : max(last, 0)]
        quiet = np.zeros(max(0, min(0, last) - first), np.int16)
        rest = np.zeros(max(0, last - first) - len(quiet) - len(part), np.int16)
        return np.concatenate([quiet, part, rest]).tobytes()


async def spoken(engine: Engine, texts: Sequence[str]) -> list[Sound]:
    """Return texts in the engine's own voice, each with another seed, without the silence around them."""
    assert engine.ready is not None
    parts: dict[str, list[bytes]] = {f"voice/{number}": [] for number in range(len(texts))}
    ended: dict[str, str] = {}  # the reason

    def take(message: Told, now: float) -> None:
        match message:
            case Samples(name, _, _, pcm):
                parts[name].append(pcm)
            case Finished(name, _, reason):
                ended[name] = reason
            case Refused(name, detail=detail):
                ended[name] = detail
            case _:
                pass

    engine.receivers["voice"] = take
    for number, (name, text) in enumerate(zip(parts, texts, strict=True)):
        submit = Submit(name, "tts", speak=SpeakParams(seed=number))
        engine.send(submit, Append(name, text=text), EndInput(name))
    await engine.until(lambda: len(ended) == len(texts), 60.0)
    if set(ended.values()) != {"eos"} or len(ended) < len(texts):
        raise RuntimeError(f"{len(ended)} of {len(texts)} texts were said: {set(ended.values())}")
    return [
        Sound(text, _trimmed(b"".join(pieces), engine.ready.speak_rate))
        for text, pieces in zip(texts, parts.values(), strict=True)
    ]


def _trimmed(pcm: bytes, rate: int) -> NDArray[np.int16]:
    sound = np.asarray(resample(decode_pcm16(pcm), rate, LISTEN_RATE))
    loud = np.flatnonzero(np.abs(sound) > 0.02)
    return quantise(sound[loud[0] : loud[-1] + 1])


def steps_of(stats: Sequence[StepStats]) -> dict[str, float]:
    """Return the engine's step figures over these reports."""
    steps = max(1, sum(one.steps for one in stats))
    return {
        "steps": steps,
        "step_ms": round(1e3 * sum(one.busy_s for one in stats) / steps, 2),
        "longest_step_ms": round(1e3 * max((one.longest_step_s for one in stats), default=0.0), 1),
        "rows": round(sum(one.rows for one in stats) / steps, 1),
        "schedule_ms": round(1e3 * sum(one.schedule_s for one in stats) / steps, 3),
        "lane_wait_ms": round(1e3 * max((one.lane_wait_s for one in stats), default=0.0), 2),
        "preemptions": sum(one.preemptions for one in stats),
    }


# ---- running


@dataclass(slots=True)
class Options:
    """The options of these benchmarks."""

    policies: list[Policy]
    shape: str
    asr_model: str
    tts_model: str
    dry: bool
    json: str
    seconds: float
    limits: dict[str, object] = field(default_factory=dict)

    def engine(self, policy: Policy, folder: Path, **changes: object) -> Engine:
        """Return an engine, not yet started."""
        config = replace(
            EngineConfig(model=str(folder), asr_model=self.asr_model, tts_model=self.tts_model, max_waiting=4096),
            **{**self.limits, "policy": policy, **changes},  # type: ignore[arg-type]
        )
        return Engine(config)


def parser(page: str | None, seconds: float = 0.0, *, policies: bool = True) -> argparse.ArgumentParser:
    """Return a command line with the common options; --seconds and --policies only where they apply."""
    found = command_line(page)
    found.set_defaults(policies="", seconds=seconds)
    if policies:
        found.add_argument("--policies", default="", help=f"comma-separated ({','.join(POLICIES)})")
    if seconds:
        found.add_argument("--seconds", type=float, default=seconds, help="measured for each figure (%(default)g)")
    found.add_argument("--shape", default="qwen3-0.6b", choices=CHATS, help="of the chat model (%(default)s)")
    found.add_argument("--asr-model", default="moonshine-tiny-en", help="a name or a folder (%(default)s)")
    found.add_argument("--tts-model", default="hibari", help="a name or a folder (%(default)s)")
    found.add_argument("--step-budget-ms", type=float, default=8.0, help="of `deadline` on the GPU (%(default)g)")
    found.add_argument("--dry-run", action="store_true", help="on a CPU with a tiny chat model, in a minute")
    found.add_argument("--json", default="", help="file for the figures; in $OUT by default, if that is set")
    return found


def read_options(chosen: argparse.Namespace, name: str) -> Options:
    """Return the options of the command line."""
    out = os.environ.get("OUT", "")
    dry_policies = "deadline,fcfs" if chosen.dry_run else ",".join(POLICIES)
    policies = [POLICIES[POLICIES.index(one)] for one in (chosen.policies or dry_policies).split(",")]
    return Options(
        policies=policies,
        shape="tiny" if chosen.dry_run else chosen.shape,
        asr_model=chosen.asr_model,
        tts_model=chosen.tts_model,
        dry=chosen.dry_run,
        json=chosen.json or (f"{out}/{name}.json" if out else ""),
        seconds=min(chosen.seconds, DRY_S) if chosen.dry_run else chosen.seconds,
        limits=DRY_LIMITS if chosen.dry_run else {**GPU_LIMITS, "step_budget_ms": chosen.step_budget_ms},
    )


@contextlib.contextmanager
def chat_folder(options: Options) -> Iterator[Path]:
    """Yield a folder with the chat model."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_chat_model(options.shape, folder, "cuda" if options.limits["device"] == "cuda" else "cpu")
        yield folder


@contextlib.asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[Engine]:
    """Run an engine, and print how long its start took."""
    begin = time.monotonic()
    try:
        ready = await engine.start()
        told = f"{ready.device}; {ready.weights}, {ready.kv_blocks} blocks of {ready.block_tokens} tokens"
        print(f"{engine.config.policy}: ready after {time.monotonic() - begin:.1f} s: {told}", flush=True)
        yield engine
    finally:
        await engine.stop()
