"""qwen-tts and faster-qwen3-tts on a checkpoint, each in a process of its own: the peers of gpu_tts.py.

    PYTHONPATH=… python3 benchmarks/gpu_tts_peers.py PACKAGE CHECKPOINT FILE      # figures as JSON; one at a time

Each has a folder that only its process sees: qwen-tts with the transformers it pins (4.57.3), faster-qwen3-tts with its
qwen-tts-hf. They are left as they are; audio files, which nothing here reads, are stood in for
(tests/support/qwen_tts_peer_imports.py). Both speak as we do: bfloat16, scaled dot-product attention, the checkpoint's
sampling, text read while speaking.

    first    milliseconds from the call until sound can be played. qwen-tts has none before all of it is there.
    frame    milliseconds a frame (80 ms of speech), codec included, over the rest of the utterance
    × real   seconds of speech made in a second, all streams together
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parent.parent / "tests" / "support"
PACKAGES = ("qwen-tts", "faster-qwen3-tts")
TEXT = "The morning train is ten minutes late, so there is time for another cup of coffee."
FRAME_S = 0.08
WHOLE_FRAMES, STREAMED_FRAMES = 13, 40
BATCH = 8
CHUNKS = (1, 12)
"""Frames that faster-qwen3-tts decodes at a time; twelve is its default."""

REPEATS = 3
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Figure:
    """What one way of calling a package takes; the middle one of several calls."""

    peer: str
    streams: int
    chunk: int  # frames; 0: all of them at once
    first_ms: float
    frame_ms: float
    times_real: float


def measure(checkpoint: Path, site: Path, dry: bool = False) -> list[Figure]:
    """Return the figures of each package, which lies in a folder of `site`; one that fails is said so and left out.

    They load side by side, and speak one after the other.
    """
    found: list[Figure] = []
    packages = PACKAGES[: 1 if dry else None]  # the second is nothing without CUDA graphs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        running = {package: _start(package, checkpoint, site / package, folder) for package in packages}
        for package, process in running.items():
            try:
                _, errors = process.communicate(timeout=DEADLINE_S)
                problem = errors[-3000:] if process.returncode else ""
            except subprocess.TimeoutExpired:
                process.kill()
                problem = f"not done after {DEADLINE_S:g} s: {process.communicate()[1][-300:]}"
            if problem:
                print(f"{package} FAILED: {problem}", flush=True)
            file = folder / f"{package}.json"
            if file.exists():
                found += [Figure(**one) for one in json.loads(file.read_text(encoding="utf-8"))]
    return found


def _start(package: str, checkpoint: Path, site: Path, folder: Path) -> subprocess.Popen[str]:
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    environment = {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join((str(site), str(SUPPORT)))}
    command = [sys.executable, str(Path(__file__).resolve()), package, str(checkpoint), str(folder / f"{package}.json")]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


# ---- inside a peer's process


def _middle(speak: Callable[[], tuple[float, float, int]], peer: str, streams: int, chunk: int) -> Figure:
    """Return the figures of a call that tells when the first sound came, when all was there, and frames a stream."""
    speak()  # compiles, tunes and captures
    first, total, frames = sorted(speak() for _ in range(REPEATS))[REPEATS // 2]
    rest = (total - first) / (frames - chunk) if chunk else total / frames
    figure = Figure(peer, streams, chunk, 1e3 * first, 1e3 * rest, streams * frames * FRAME_S / total)
    print(figure, flush=True)
    return figure


def _whole(checkpoint: str, device: str) -> list[Callable[[], Figure]]:
    """Return what qwen-tts is asked."""
    import torch
    from qwen_tts import Qwen3TTSModel  # type: ignore[import-not-found]

    where = {"device_map": device, "attn_implementation": "sdpa"} if device != "cpu" else {}
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    model: Any = Qwen3TTSModel.from_pretrained(checkpoint, dtype=dtype, **where)

    def speak(streams: int, frames: int) -> tuple[float, float, int]:
        begin = time.perf_counter()
        sounds, rate = model.generate_custom_voice(
            [TEXT] * streams, ["ryan"] * streams, ["english"] * streams, non_streaming_mode=False,
            max_new_tokens=frames + 1,  # it throws the last one away
        )  # fmt: skip
        total = time.perf_counter() - begin
        assert all(len(sound) == frames * rate * FRAME_S for sound in sounds), [len(sound) for sound in sounds]
        return total, total, frames

    asked = ((1, WHOLE_FRAMES), (BATCH, WHOLE_FRAMES))
    return [
        lambda streams=streams, frames=frames: _middle(  # type: ignore[misc]
            lambda: speak(streams, frames), PACKAGES[0], streams, 0
        )
        for streams, frames in asked
    ]


def _streamed(checkpoint: str, device: str) -> list[Callable[[], Figure]]:
    """Return what faster-qwen3-tts is asked."""
    from faster_qwen3_tts import FasterQwen3TTS  # type: ignore[import-not-found]
    from transformers import MimiConfig

    # Looked for where weights are missing: those of the encoder, which nobody uses.
    MimiConfig.rope_theta = 10_000.0  # type: ignore[attr-defined]
    model: Any = FasterQwen3TTS.from_pretrained(checkpoint, device=device)
    model.warmup()

    def speak(chunk: int) -> tuple[float, float, int]:
        begin, first, speech_s = time.perf_counter(), 0.0, 0.0
        for sound, rate, _ in model.generate_custom_voice_streaming(
            TEXT, "ryan", "english", non_streaming_mode=False, max_new_tokens=STREAMED_FRAMES, chunk_size=chunk
        ):
            first = first or time.perf_counter() - begin
            speech_s += len(sound) / rate
        frames = round(speech_s / FRAME_S)
        assert abs(frames - STREAMED_FRAMES) <= 1, frames
        return first, time.perf_counter() - begin, frames

    return [lambda chunk=chunk: _middle(lambda: speak(chunk), PACKAGES[1], 1, chunk) for chunk in CHUNKS]  # type: ignore[misc]


def main(package: str, checkpoint: str, file: str) -> None:
    """Measure one package; write what was found even if a later call fails."""
    import qwen_tts_peer_imports  # type: ignore[import-not-found]  # noqa: F401  # first: stands in for audio files
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    found: list[Figure] = []
    asked = {PACKAGES[0]: _whole, PACKAGES[1]: _streamed}[package](checkpoint, device)
    with Path(file).with_name("speaking.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for ask in asked:
            found.append(ask())
            Path(file).write_text(json.dumps([asdict(one) for one in found]), encoding="utf-8")


def rows(figures: Sequence[Figure]) -> list[list[str]]:
    """Return the cells of a table."""
    return [
        [
            one.peer,
            str(one.streams),
            f"{one.chunk} frames" if one.chunk else "all",
            f"{one.first_ms:.1f}",
            f"{one.frame_ms:.1f}",
            f"{one.times_real:.2f}",
        ]
        for one in figures
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
