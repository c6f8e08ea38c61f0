"""Text to speech: time to the first sample of a sentence in a warm engine, and the real-time factor.

The peer is the voice's own package (hibari), which speaks the same sentence on the same threads, in turn with ours.
Texts become phonemes in the engine's thread, clause by clause: the processor time of that is measured with replies of
training/partner_dialogues/, after others of them.

Time: some 20 s on two cores.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import hibari
import numpy as np
from support.command_line import command_line
from support.common import THREADS, engine, interleaved, machine, seconds, spread, table
from support.speech import run

from voxlane.engine.api import Append, EndInput, Samples, Submit
from voxlane.engine.loop.core import Core
from voxlane.engine.models.hibari.model import Hibari
from voxlane.server.conversation.replies.clauses import ClauseCutter

REPEATS, CLAUSES = 15, 1000
BAR_MS = 60.0
SENTENCE = "The meeting was moved to Thursday morning at the same place."
PARAGRAPH = (
    "Sure, I can help with that. The library opens at nine in the morning and closes at six in the evening, "
    "except on Sundays, when it stays closed. If you want to return a book while nobody is there, use the box next "
    "to the main entrance; it is emptied every day. Would you like me to renew anything for you?"
)


def worked(action: Callable[[], object]) -> float:
    """Return the seconds of processor time that an action takes in this thread."""
    begin = time.thread_time()
    action()
    return time.thread_time() - begin


def replies() -> list[str]:
    """Return the different clauses of the dialogues' replies in a random order, always the same."""
    paths = sorted(Path(__file__).parent.joinpath("training/partner_dialogues").glob("*.jsonl"))
    turns = [turn for path in paths for line in path.open(encoding="utf-8") for turn in json.loads(line)["turns"]]
    texts = {turn[1] for turn in turns if turn[0] == "assistant" and isinstance(turn[1], str)}
    found = sorted({clause for text in texts for clause in clauses(text)})
    random.Random(1).shuffle(found)
    return found


def clauses(text: str) -> list[str]:
    """Return a text cut into clauses, as a reply is."""
    cutter = ClauseCutter()
    return [clause.text for clause in (*cutter.push(text), *cutter.finish())]


class Ours:
    """Our engine, warm."""

    def __init__(self) -> None:
        assembly = engine(model="", tts_model="hibari")
        self.core: Core = assembly.core
        self.rate = assembly.ready.speak_rate

    def first(self, text: str) -> float:
        """Return the seconds until the first sample."""
        begin = time.perf_counter()
        self._submit(text)
        while True:
            if any(isinstance(message, Samples) for message in self.core.step()):
                first = time.perf_counter() - begin
                run(self.core)
                return first

    def factor(self, text: str) -> float:
        """Return the seconds of work per second of speech."""
        begin = time.perf_counter()
        self._submit(text)
        messages = run(self.core)
        spent = time.perf_counter() - begin
        spoken = sum(len(message.pcm) // 2 for message in messages if isinstance(message, Samples))
        return spent * self.rate / spoken

    def _submit(self, text: str) -> None:
        self.core.handle([Submit("say", "tts"), *(Append("say", text=part) for part in clauses(text)), EndInput("say")])


class Package:
    """The voice's own package."""

    def __init__(self) -> None:
        self._tts = hibari.Hibari(threads=THREADS)
        self._tts("Ready.")

    def phonemes(self, text: str) -> float:
        """Return the seconds of work until a text is phonemes."""
        return worked(lambda: self._tts.phonemize(text))

    def first(self, text: str) -> float:
        """Return the seconds until the whole sentence is there: the package gives no earlier sample."""
        return seconds(lambda: self._tts(text))

    def factor(self, text: str) -> float:
        """Return the seconds of work per second of speech."""
        begin = time.perf_counter()
        samples = np.asarray(self._tts(text))
        return float((time.perf_counter() - begin) * hibari.SAMPLE_RATE / samples.size)


def main() -> None:
    """Measure and print the table; lower is better."""
    command_line(__doc__).parse_args()
    ours, peer = Ours(), Package()
    first, first_peer = interleaved(REPEATS, lambda: ours.first(SENTENCE), lambda: peer.first(SENTENCE))
    factor, factor_peer = interleaved(5, lambda: ours.factor(PARAGRAPH), lambda: peer.factor(PARAGRAPH))
    early, early_peer = interleaved(5, lambda: ours.first(PARAGRAPH), lambda: peer.first(PARAGRAPH))
    reading, texts = Hibari(), replies()
    reading.warm_up_reading()
    for text in texts[:-CLAUSES]:
        reading.prepare(text)
    mine, others = iter(texts[-CLAUSES:]), iter(texts[-CLAUSES:])
    read, read_peer = interleaved(
        CLAUSES, lambda: worked(lambda: reading.prepare(next(mine))), lambda: peer.phonemes(next(others))
    )
    rows = []
    for name, our, other, scale, digits in (
        ("first sample of ten words, ms", first, first_peer, 1e3, 0),
        ("first sample of a paragraph, ms", early, early_peer, 1e3, 0),
        ("phonemes of a clause, µs", read, read_peer, 1e6, 0),
        ("real-time factor", factor, factor_peer, 1.0, 3),
    ):
        ratio = statistics.median(our) / statistics.median(other)
        rows.append(
            [name, spread([v * scale for v in our], digits), spread([v * scale for v in other], digits), f"{ratio:.2f}"]
        )
    table(f"speaking, {machine()}", ["", "voxlane", "hibari alone", "ratio"], rows)
    met = "met" if statistics.median(first) * 1e3 <= BAR_MS else "missed"
    rate = ours.rate / statistics.median(factor)
    print(f"  bar: first sample within {BAR_MS:.0f} ms: {met}; {rate:,.0f} samples a second")


if __name__ == "__main__":
    main()
