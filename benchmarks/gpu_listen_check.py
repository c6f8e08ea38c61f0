"""Does a GPU hear what a CPU hears: looks at whole clips, and streams in pieces through the whole engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from gpu_listen_parts import RATE, Bench, Model, make_bench, make_model, noise
from numpy.typing import NDArray
from torch import Tensor

from voxlane.codecs.pcm import encode_pcm16
from voxlane.codecs.wav import decode_wav
from voxlane.engine.api import Append, EndInput, EngineConfig, Submit, Words
from voxlane.engine.kernels.attention.paged import paged_attention
from voxlane.engine.kernels.attention.pages import Pages
from voxlane.engine.loop.core import Core
from voxlane.engine.models.clips import ClipPlaces
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.registry import load_recogniser
from voxlane.engine.runners.recogniser import TranscriptionOutcome
from voxlane.engine.schedule.plan import ModelBatch
from voxlane.engine.schedule.request import Request
from voxlane.engine.weights.files import open_weights

PIECE_SAMPLES = RATE // 10
STREAM_SAMPLES = 5 * RATE  # of each recording: a CPU takes as long as it does to hear it
COPIES = 2
"""Streams of each recording at once, each a piece behind the one before it."""


@dataclass(slots=True)
class Heard:
    """What came of one look."""

    request: Request
    logprobs: list[float] = field(default_factory=list)
    attention: Tensor | None = None
    done: bool = False

    @property
    def tokens(self) -> list[int]:
        """What was written after the prompt."""
        return self.request.tokens[self.request.prompt_tokens :]


def hear(bench: Bench, clips: list[NDArray[np.float32]], drafts: Sequence[Sequence[int]] = ()) -> list[Heard]:
    """Decode clips together, each to its end; drafts are tried in the first step."""
    looks = [Heard(bench.request(str(number), clip, attention=True)) for number, clip in enumerate(clips)]
    guesses = {id(look): list(guess) for look, guess in zip(looks, drafts, strict=False)}
    while live := [look for look in looks if not look.done]:
        rows = [bench.row(look.request, guesses.pop(id(look), ())) for look in live]
        for look, outcome in zip(live, bench.runner.run(ModelBatch(rows=rows)), strict=True):
            assert isinstance(outcome, TranscriptionOutcome)
            assert not outcome.failed
            _advance(bench.model, look, [choice.token for choice in outcome.choices])
            look.logprobs += [choice.logprob or 0.0 for choice in outcome.choices]
            look.attention = outcome.attention if outcome.attention is not None else look.attention
    for look in looks:
        look.request.free()
    return looks


def _advance(model: Model, look: Heard, tokens: list[int]) -> None:
    request = look.request
    for token in tokens:
        if token in model.eos_ids:
            look.done = True
            break
        request.tokens.append(token)
    look.done |= len(request.tokens) >= request.limit
    request.table.rewind(min(request.table.length, len(request.tokens) - 1))


def looks(folder: Path, sounds: list[Path], device: torch.device) -> Iterator[str]:
    """Yield what a real model hears on the CPU and on a device, whole clips and pieces, alone and together."""
    clips, truth, wanted = _heard_on_cpu(folder, sounds)
    for path, look in zip(sounds, wanted, strict=False):
        yield f"looks CPU float32 {path.name}: {truth.text_of(look.tokens).strip()}"
    wide = make_bench(_load(folder, "float32", device), device, streams=len(clips))
    found = hear(wide, clips)
    yield f"looks float32 together: {_alike(wanted, found)}"
    yield f"looks float32, words' times: within {_times_off(truth, wanted, found, clips):.3f} s of the CPU's"
    found = [hear(wide, [clip])[0] for clip in clips]
    yield f"looks float32 one by one: {_alike(wanted, found)}"
    found = hear(wide, clips, [[*look.tokens[:-2], 7] for look in wanted])
    yield f"looks float32 with drafts: {_alike(wanted, found)}"
    if device.type == "cuda":
        with beside(device):
            found = hear(wide, clips)
        yield f"looks float32 beside other work on the device: {_alike(wanted, found)}"


def rounded(folder: Path, sounds: list[Path], device: torch.device) -> Iterator[str]:
    """Yield what the same model hears in bfloat16."""
    clips, truth, wanted = _heard_on_cpu(folder, sounds)
    narrow = make_bench(_load(folder, "bfloat16", device), device, streams=len(clips))
    found = hear(narrow, clips)
    yield f"rounded to bfloat16: {_alike(wanted, found)}"
    for mine, theirs in zip(found, wanted, strict=True):
        if mine.tokens != theirs.tokens:
            yield f"rounded heard {truth.text_of(mine.tokens)!r} for {truth.text_of(theirs.tokens)!r}"


def _heard_on_cpu(folder: Path, sounds: list[Path]) -> tuple[list[NDArray[np.float32]], Model, list[Heard]]:
    recordings = [np.asarray(decode_wav(path.read_bytes())[0], np.float32) for path in sounds]
    clips = [*recordings, *(sound[: 2 * RATE + 777] for sound in recordings)]
    cpu = torch.device("cpu")
    truth = make_bench(_load(folder, "float32", cpu), cpu, streams=len(clips), plain=True)
    return clips, truth.model, hear(truth, clips)


def _load(folder: Path, mode: Mode, device: torch.device) -> Model:
    model = load_recogniser(open_weights(folder), mode, device=device)
    if not isinstance(model, Model):
        raise RuntimeError(f"{folder} is neither a Moonshine nor a Whisper: see gpu_qwen3_asr.py")
    return model


@contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """Keep the current stream busy with products and paged attention, the pieces of which are counted by stream."""
    matrix = torch.randn((4096, 4096), device=device, dtype=torch.bfloat16)
    places = ClipPlaces.of([3000] * 8, 64)
    layout = replace(places.layout(device), query_starts=torch.arange(9, dtype=torch.int32, device=device), max_query=1)
    q = torch.randn((8, 4, 64), device=device, dtype=torch.bfloat16)
    pages = Pages(*torch.randn((2, places.blocks, 4, 64, 64), device=device, dtype=torch.bfloat16))
    busy = True

    def work() -> None:
        while busy:
            for _ in range(20):
                torch.mm(matrix, matrix)
                paged_attention(q, pages, layout, 0.125)
            torch.cuda.current_stream(device).synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        busy = False
        thread.join()


def small(device: torch.device) -> Iterator[str]:
    """Yield whether small random models of both kinds write the same on the CPU and on a device, in float32."""
    # Under an interpreter a second of sound is a minute, and Whisper knows nothing below thirty.
    dry = device.type == "cpu"
    clips = [noise(seconds, seed) for seed, seconds in enumerate((0.1,) if dry else (3.0, 0.3, 10.0, 1.0))]
    for shape in ("moonshine-speck",) if dry else ("whisper-speck", "moonshine-speck"):
        heard = []
        for plain, where in ((True, torch.device("cpu")), (False, device)):
            model = make_model(shape, "float32", where, drawn_on="cpu", context_tokens=4 if dry else 40)
            heard.append(hear(make_bench(model, where, streams=len(clips), plain=plain), clips))
        yield f"small {shape}: {_alike(*heard)}"


def _alike(one: list[Heard], other: list[Heard]) -> str:
    same = [(a, b) for a, b in zip(one, other, strict=True) if a.tokens == b.tokens]
    off = [abs(mine - theirs) for a, b in same for mine, theirs in zip(a.logprobs, b.logprobs, strict=True)]
    return f"{len(same)} of {len(one)} as on the CPU in float32, log-probabilities within {max(off, default=0.0):.1e}"


def _times_off(model: Model, one: list[Heard], other: list[Heard], clips: list[NDArray[np.float32]]) -> float:
    """Return how far apart the words' times are at most, in seconds."""
    worst = 0.0
    for mine, theirs, clip in zip(one, other, clips, strict=True):
        found = [look.attention for look in (mine, theirs) if look.attention is not None]
        if len(found) < 2:  # a text that came to no end
            continue
        words = [model.words_of(mine.tokens, attention, len(clip)) for attention in found]
        worst = max(
            worst, *(abs(a - b) for x, y in zip(*words, strict=True) for a, b in zip(x[1:], y[1:], strict=True))
        )
    return worst


def streams(folder: Path, sounds: list[Path], device: torch.device) -> Iterator[str]:
    """Yield what whole engines hear, one on the CPU and one on a device, of recordings that come in pieces."""
    from voxlane.engine.build.assemble import assemble

    wanted: dict[str, str] = {}
    kinds: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda" if device.type == "cuda" else "cpu")
    for kind in kinds:
        begin = time.monotonic()
        engine = assemble(EngineConfig(model="", tts_model="", asr_model=str(folder), device=kind, weights="float32"))
        ready = time.monotonic()
        found, steps, longest = _listen(engine.core, sounds)
        took = time.monotonic() - ready
        wanted = wanted or found
        same = sum(text == wanted[name] for name, text in found.items())
        yield (
            f"streams {kind}: {same} of {len(found)} as on the CPU; ready in {ready - begin:.1f} s, "
            f"heard in {took:.2f} s, {steps} steps, the longest {longest * 1e3:.1f} ms"
        )
    for path in sounds:
        yield f"streams {path.name}: {wanted[f'{path.name}/0']}"


def _listen(core: Core, sounds: list[Path]) -> tuple[dict[str, str], int, float]:
    left: dict[str, NDArray[np.float32]] = {}
    for path in sounds:
        sound = np.asarray(decode_wav(path.read_bytes())[0], np.float32)[:STREAM_SAMPLES]
        for copy in range(COPIES):
            left[f"{path.name}/{copy}"] = np.concatenate([np.zeros(copy * PIECE_SAMPLES, np.float32), sound])
    messages = core.handle([Submit(name, "asr") for name in left])
    texts = dict.fromkeys(left, "")
    steps, longest = 0, 0.0
    while left or core.busy:
        for name, sound in list(left.items()):
            messages += core.handle([Append(name, audio=encode_pcm16(sound[:PIECE_SAMPLES]))])
            left[name] = sound[PIECE_SAMPLES:]
            if not len(left[name]):
                del left[name]
                messages += core.handle([EndInput(name)])
        while core.busy:  # to the end of it, so that what is looked at does not depend on how fast a device is
            begin = time.monotonic()
            messages += core.step()
            steps, longest = steps + 1, max(longest, time.monotonic() - begin)
    for message in messages:
        if isinstance(message, Words):
            texts[message.request_id] += message.settled
    core.idle()
    return texts, steps, longest
