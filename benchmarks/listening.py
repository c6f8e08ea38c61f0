"""Speech to text against the libraries that run the same weights: time to the final text of a turn, real-time factor.

Moonshine tiny against the C++ library of the wheel its files come from; Whisper tiny.en against faster-whisper with
8-bit weights; both on the same threads, in turn. "at once" hands over the whole clip; "live" hands it over piece by
piece and takes the time from its end.

Time: a minute and a half on two cores.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.command_line import command_line
from support.common import THREADS, engine, interleaved, machine, seconds, spread, table
from support.speech import PIECE_S, clip, hear_live, hear_whole, recording
from tokenizers import Tokenizer

from voxlane.engine.api import LISTEN_RATE
from voxlane.engine.loop.core import Core
from voxlane.engine.weights import store

REPEATS = 7
TURN_S = 3.0
LIVE_S = 3.3  # ends between two transcriptions of either
BAR = 1.2
Samples = NDArray[np.float32]


class MoonshineLibrary:
    """The peer of our Moonshine."""

    def __init__(self) -> None:
        from moonshine_voice import ModelArch, Transcriber

        self._transcriber: Any = Transcriber(store.resolve("moonshine-tiny-en"), ModelArch.TINY)
        self.text = ""

    def whole(self, samples: Samples) -> float:
        """Return the seconds for a whole clip."""
        values = samples.tolist()
        return seconds(lambda: self._keep(self._transcriber.transcribe_without_streaming(values, LISTEN_RATE)))

    def live(self, samples: Samples) -> float:
        """Return the seconds after the end of a clip that came piece by piece."""
        self._transcriber.start()
        size = int(PIECE_S * LISTEN_RATE)
        for start in range(0, len(samples), size):
            self._transcriber.add_audio(samples[start : start + size].tolist(), LISTEN_RATE)
        return seconds(self._transcriber.stop)

    def _keep(self, transcript: Any) -> None:
        self.text = " ".join(line.text for line in transcript.lines)


class FasterWhisper:
    """The peer of our Whisper."""

    def __init__(self) -> None:
        from faster_whisper import WhisperModel

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file in Path(store.resolve("whisper-tiny-en")).iterdir():
                (folder / file.name).symlink_to(file)
            # It wants the vocabulary in a file of its own.
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            words = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda pair: pair[1])
            (folder / "vocabulary.json").write_text(json.dumps([word for word, _ in words]))
            self._model: Any = WhisperModel(name, device="cpu", cpu_threads=THREADS, compute_type="int8")
        self.text = ""

    def whole(self, samples: Samples) -> float:
        """Return the seconds for a whole clip."""
        return seconds(lambda: self._keep(samples))

    def _keep(self, samples: Samples) -> None:
        segments, _ = self._model.transcribe(
            samples, language="en", beam_size=1, without_timestamps=True, condition_on_previous_text=False
        )
        self.text = " ".join(segment.text.strip() for segment in segments)


def compare(title: str, ours: Core, peer: MoonshineLibrary | FasterWhisper, long: Samples) -> None:
    """Print a table of one model against its peer."""
    turn = clip("two_cities.wav", 0.0, TURN_S)
    cases: list[tuple[str, Callable[[], float], Callable[[], float], float]] = [
        ("3 s turn at once, ms", lambda: hear_whole(ours, turn)[0], lambda: peer.whole(turn), 1e3),
        ("real-time factor", lambda: hear_whole(ours, long)[0], lambda: peer.whole(long), LISTEN_RATE / len(long)),
    ]
    if isinstance(peer, MoonshineLibrary):
        library, live = peer, clip("two_cities.wav", 0.0, LIVE_S)
        cases.insert(1, ("3.3 s turn live, ms", lambda: hear_live(ours, live)[0], lambda: library.live(live), 1e3))
    rows = []
    for name, mine, theirs, scale in cases:
        repeats = 3 if scale < 1 else REPEATS
        our, other = interleaved(repeats, mine, theirs)
        ratio = statistics.median(our) / statistics.median(other)
        digits = 3 if scale < 1 else 0
        verdict = "" if "at once" not in name else ("met" if ratio <= BAR else "missed")
        rows.append(
            [
                name,
                spread([v * scale for v in our], digits),
                spread([v * scale for v in other], digits),
                f"{ratio:.2f}",
                verdict,
            ]
        )
    table(title, ["", "voxlane", "peer", "ratio", f"bar {BAR}"], rows)
    print(f"  ours: {hear_whole(ours, turn)[1]}")
    peer.whole(turn)
    print(f"  peer: {peer.text}")


def main() -> None:
    """Measure and print both tables; lower is better."""
    command_line(__doc__).parse_args()
    print(f"listening, {machine()}")
    long = recording("two_cities.wav")
    moonshine = engine(model="", asr_model="moonshine-tiny-en").core
    compare("Moonshine tiny against its C++ library", moonshine, MoonshineLibrary(), long)
    del moonshine
    whisper = engine(model="", asr_model="whisper-tiny-en").core
    compare("Whisper tiny.en against faster-whisper int8", whisper, FasterWhisper(), long)


if __name__ == "__main__":
    main()
