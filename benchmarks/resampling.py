"""Our streaming resampler against libsamplerate and soxr: hold-back, speed at 20 ms pieces, and noise.

The other two are measured if they are installed (`pip install samplerate soxr`); voxlane needs neither.

Time: some seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray
from support.command_line import command_line
from support.common import interleaved, machine, spread, table

from voxlane.codecs.resample import Resampler

PAIRS = ((8_000, 16_000), (48_000, 16_000), (24_000, 8_000), (22_050, 16_000), (24_000, 48_000), (44_100, 48_000))
PIECE_MS = 20
SECONDS = 4
TONES = (0.05, 0.425, 0.8, 0.85)
"""Parts of the slower rate's Nyquist frequency. 0.85 at 8 kHz is 3.4 kHz, where telephone speech ends."""

Floats = NDArray[np.float32]
Push = Callable[[Floats], Floats]
Maker = Callable[[int, int], Push]


def _ours(source: int, target: int) -> Push:
    return Resampler(source, target).push


def _libsamplerate(source: int, target: int) -> Push:
    import samplerate

    converter = samplerate.Resampler("sinc_fastest", channels=1)
    return lambda piece: np.asarray(converter.process(piece, target / source), dtype=np.float32)


def _soxr(source: int, target: int) -> Push:
    import soxr

    stream = soxr.ResampleStream(source, target, 1, dtype="float32")
    return lambda piece: np.asarray(stream.resample_chunk(piece), dtype=np.float32)


def makers() -> dict[str, Maker]:
    """Return the resamplers that are installed."""
    found: dict[str, Maker] = {"voxlane": _ours}
    if find_spec("samplerate"):
        found["libsamplerate sinc_fastest"] = _libsamplerate
    if find_spec("soxr"):
        found["soxr HQ"] = _soxr
    return found


def stream(maker: Maker, source: int, target: int, samples: Floats) -> tuple[Floats, float, float]:
    """Return the output, the longest hold-back in ms, and microseconds of this thread's work per piece."""
    push, size = maker(source, target), source * PIECE_MS // 1000
    pieces, received, produced, held = [], 0, 0, 0.0
    spent = 0.0
    for start in range(0, len(samples), size):
        begin = time.thread_time()
        out = push(samples[start : start + size])
        spent += time.thread_time() - begin
        pieces.append(out)
        received, produced = received + size, produced + len(out)
        held = max(held, (received / source - produced / target) * 1000)
    return np.concatenate(pieces), held, spent / len(pieces) * 1e6


def tone(part: float, source: int, target: int, rate: int) -> NDArray[np.float64]:
    """Return a sine at a part of the slower rate's Nyquist frequency."""
    frequency = part * min(source, target) / 2
    return 0.5 * np.sin(2 * np.pi * frequency * np.arange(rate * SECONDS) / rate)


def error_db(maker: Maker, source: int, target: int, part: float) -> float:
    """Return the error of a tone against the ideal one: ripple, images, aliases and rounding together."""
    got, _, _ = stream(maker, source, target, tone(part, source, target, source).astype(np.float32))
    ideal = tone(part, source, target, target)
    middle = slice(len(got) // 4, len(got) * 3 // 4)
    wrong = got[middle] - ideal[: len(got)][middle]
    return float(20 * np.log10(np.std(wrong) / np.std(ideal)))


def main() -> None:
    """Measure and print the table."""
    command_line(__doc__).parse_args()
    samples = {source: np.random.default_rng(0).uniform(-0.5, 0.5, source * SECONDS) for source, _ in PAIRS}
    known = makers()
    rows = []
    for source, target in PAIRS:
        noise = samples[source].astype(np.float32)
        # Named arguments: a closure over the loop's variables would see only the last pair.
        actions = [lambda m=m, s=source, t=target, x=noise: stream(m, s, t, x)[2] for m in known.values()]
        spent = interleaved(3, *actions)
        for (name, maker), microseconds in zip(known.items(), spent, strict=True):
            _, held, _ = stream(maker, source, target, noise)
            errors = [f"{error_db(maker, source, target, part):.0f}" for part in TONES]
            speed = f"{PIECE_MS * 1000 / float(np.median(microseconds)):.0f}x"
            rows.append([f"{source} → {target}", name, f"{held:.2f} ms", spread(microseconds), speed, *errors])
    header = ["rates", "resampler", "hold-back", f"µs per {PIECE_MS} ms", "real time"]
    header += [f"dB at {part:g}" for part in TONES]
    table(f"Streaming resampling ({machine()}); error of a tone at parts of the lower Nyquist frequency", header, rows)


if __name__ == "__main__":
    main()
