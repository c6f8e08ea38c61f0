"""qwen-tts and faster-qwen3-tts on a checkpoint, each in a process of its own: the peers of gpu_tts.py.

    PYTHONPATH=… python3 -m support.tts.peers PACKAGE CHECKPOINT FILE      # figures as JSON; one at a time

Each has a folder that only its process sees: qwen-tts with the transformers it pins (4.57.3), faster-qwen3-tts with its
qwen-tts-hf. They are unchanged; stand-ins replace their packages for audio files, which are not used here
(tests/support/models/qwen_tts_peer_imports.py). Both speak as ours does: bfloat16, scaled dot-product attention, the
checkpoint's sampling, text read while speaking.

    first    milliseconds from the call until sound can be played; qwen-tts has none before the end
    frame    milliseconds a frame (80 ms of speech), codec included, over the rest of the utterance
    × real   seconds of speech made in a second, all streams together
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from support.command_line import BENCHMARKS, REPOSITORY, command_line

SUPPORT = REPOSITORY / "tests" / "support" / "models"
PACKAGES = ("qwen-tts", "faster-qwen3-tts")
TEXT = "The morning train is ten minutes late, so there is time for another cup of coffee."
FRAME_S = 0.08
WHOLE_FRAMES, STREAMED_FRAMES = 8, 25
BATCH = 8
CHUNKS = (1, 12)
"""Frames that faster-qwen3-tts decodes at a time; twelve is its default."""

REPEATS = 3
DEADLINE_S = 120.0
LOCK = "speaking.lock"
"""Loading processes share this lock; a speaking one holds it alone."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The figures of one way to call a package; the median of several calls."""

    peer: str
    streams: int
    chunk: int  # frames; 0: all of them at once
    first_ms: float
    frame_ms: float
    times_real: float


Figures = dict[str, list[Figure]]  # by checkpoint


@contextlib.contextmanager
def loading(checkpoints: Mapping[str, Path], site: Path, *, dry: bool = False) -> Iterator[Callable[[], Figures]]:
    """Start each package (a folder of `site`) on each checkpoint; yield a call that measures them.

    They load at the same time, also beside other processes. The call waits until all have loaded; then they speak one
    after the other. A failure is printed, and the package is left out.
    """
    packages = PACKAGES[: 1 if dry else None]  # the second needs CUDA graphs
    with tempfile.TemporaryDirectory() as name, (Path(name) / LOCK).open("w") as lock:
        folder = Path(name)
        fcntl.flock(lock, fcntl.LOCK_SH)
        running = {
            (size, package): _start(package, checkpoint, site / package, folder / f"{size} {package}.json")
            for size, checkpoint in checkpoints.items()
            for package in packages
        }

        def speak() -> Figures:
            fcntl.flock(lock, fcntl.LOCK_UN)
            return _figures(running, folder)

        try:
            yield speak
        finally:
            for process in running.values():
                if process.poll() is None:
                    process.kill()
                    process.wait()


def _figures(running: Mapping[tuple[str, str], subprocess.Popen[bytes]], folder: Path) -> Figures:
    found: Figures = {size: [] for size, _ in running}
    give_up = time.monotonic() + DEADLINE_S
    for (size, package), process in running.items():
        try:
            problem = "it failed" if process.wait(max(0.1, give_up - time.monotonic())) else ""
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            problem = f"not done after {DEADLINE_S:g} s"
        file = folder / f"{size} {package}.json"
        if problem:
            errors = file.with_suffix(".errors").read_text(encoding="utf-8", errors="replace")
            print(f"{package}, {size} FAILED: {problem}: {errors[-3000:]}", flush=True)
        if file.exists():
            found[size] += [Figure(**one) for one in json.loads(file.read_text(encoding="utf-8"))]
    return found


def _start(package: str, checkpoint: Path, site: Path, file: Path) -> subprocess.Popen[bytes]:
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    environment = {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(map(str, (site, BENCHMARKS, SUPPORT)))}
    command = [sys.executable, "-m", "support.tts.peers", package, str(checkpoint), str(file)]
    with file.with_suffix(".errors").open("w") as errors:  # an unread pipe would block it while it loads
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)


# ---- inside a peer's process


def _middle(speak: Callable[[], tuple[float, float, int]], peer: str, streams: int, chunk: int) -> Figure:
    """Return the figures of a call that returns the times of the first sound and of the end, and frames a stream."""
    speak()  # compiles, tunes and captures
    first, total, frames = sorted(speak() for _ in range(REPEATS))[REPEATS // 2]
    rest = (total - first) / (frames - chunk) if chunk else total / frames
    figure = Figure(peer, streams, chunk, 1e3 * first, 1e3 * rest, streams * frames * FRAME_S / total)
    print(figure, flush=True)
    return figure


def _whole(checkpoint: str, device: str) -> list[Callable[[], Figure]]:
    """Return the measurements of qwen-tts."""
    import torch
    from qwen_tts import Qwen3TTSModel

    where = {"device_map": device, "attn_implementation": "sdpa"} if device != "cpu" else {}
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    model: Any = Qwen3TTSModel.from_pretrained(checkpoint, dtype=dtype, **where)

    def speak(streams: int, frames: int) -> tuple[float, float, int]:
        begin = time.perf_counter()
        sounds, rate = model.generate_custom_voice(
            [TEXT] * streams, ["ryan"] * streams, ["english"] * streams, non_streaming_mode=False,
            max_new_tokens=frames + 1,  # it drops the last one
        )  # fmt: skip
        total = time.perf_counter() - begin
        assert all(len(sound) == frames * rate * FRAME_S for sound in sounds), [len(sound) for sound in sounds]
        return total, total, frames

    asked = ((1, WHOLE_FRAMES), (BATCH, WHOLE_FRAMES))
    return [partial(_middle, partial(speak, streams, frames), PACKAGES[0], streams, 0) for streams, frames in asked]


def _streamed(checkpoint: str, device: str) -> list[Callable[[], Figure]]:
    """Return the measurements of faster-qwen3-tts."""
    from faster_qwen3_tts import FasterQwen3TTS
    from transformers import MimiConfig

    # It is read where weights are missing: those of the encoder, which is not used.
    MimiConfig.rope_theta = 10_000.0
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

    return [partial(_middle, partial(speak, chunk), PACKAGES[1], 1, chunk) for chunk in CHUNKS]


def main(package: str, checkpoint: str, file: str) -> None:
    """Measure one package; write the figures after each call, in case a later one fails."""
    with Path(file).with_name(LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # no process speaks while another loads
        import qwen_tts_peer_imports  # noqa: F401  # first: stands in for audio files
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        found: list[Figure] = []
        asked = {PACKAGES[0]: _whole, PACKAGES[1]: _streamed}[package](checkpoint, device)
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process speaks at a time
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
    parser = command_line(__doc__)
    for name in ("package", "checkpoint", "file"):
        parser.add_argument(name, metavar=name.upper())
    main(**vars(parser.parse_args()))
