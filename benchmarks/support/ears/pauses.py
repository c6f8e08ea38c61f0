"""Does a pause inside a sentence end the turn, and how soon does a complete sentence end it?

Sixty turns with a place to pause and thirty short ones are said by Kokoro's voices, and sentences of the recordings are
cut where a word ends. Each clip stops at the place, or at its end. The real ear, recogniser and chat model give the
evidence; from it follows the silence that ends the turn. A pause is a cut-off if it is longer than that.

The words of a pause are known WORDS_S after its beginning on two idle cores: no decision on them comes earlier.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from support.common import table
from support.ears import turns
from support.ears.corpus import KEPT, RATE, VOICES, Sound, say, silence
from support.figures import percentile
from support.pictures.drawing import BLUE, FAINT, INK, PALE, RED, RULE, sheet, text
from support.speech import pieces, recording, run

from voxlane.engine.api import (
    Append,
    ChatMessage,
    EndInput,
    EngineConfig,
    ListenParams,
    Priority,
    Probability,
    Submit,
    Words,
)
from voxlane.engine.build.assemble import assemble
from voxlane.engine.loop.core import Core
from voxlane.server.conversation.hearing.ear import Ear, Silent
from voxlane.server.conversation.turns.end_of_turn import PauseEvidence, end_wait_s
from voxlane.server.conversation.turns.policies import Eagerness, TurnPolicy
from voxlane.server.conversation.values import INSTRUCTIONS

PAUSES_S = (0.3, 0.6, 0.9, 1.2, 1.6)
BARS = (1, 3, 5, 10, 15)
WORDS_S = 0.4
STALE_S = 0.25
"""When the rule of before could end a turn: on words that were up to half a second old."""

TAIL_S = 1.0
RECORDED = ("two_cities.wav", "beckett.wav", "endgame_nagg_nell.wav")
PICTURE = Path(__file__).parents[3] / "docs" / "img" / "pauses.svg"

Rule = Callable[["Place", Eagerness], float]


@dataclass(frozen=True, slots=True)
class Place:
    """A place at which a voice stops, and the evidence there."""

    complete: bool
    recorded: bool
    said: str
    heard: str
    p_words: float
    p_sound: float
    stale: str  # the words STALE_S after the pause began
    p_stale: float


def clips(voices: int) -> Iterator[tuple[bool, bool, str, Sound]]:
    """Yield (complete, recorded, text, sound) of every clip; each turn is said by so many voices."""
    for number, paused in enumerate(turns.PAUSED):
        first, whole = turns.halves(paused)[0], turns.whole(paused)
        for turn in range(voices):
            spoken = say(whole, VOICES[(number + 3 * turn) % len(VOICES)])
            end = spoken.words[len(first.split()) - 1][2]
            after = spoken.words[len(first.split())][1]
            yield False, False, first, faded(spoken.sound[: round((end + min(0.02, (after - end) / 2)) * RATE)])
            yield True, False, whole, spoken.sound
    for number, short in enumerate(turns.SHORT):
        for turn in range(voices):
            yield True, False, short, say(short, VOICES[(number + 3 * turn) % len(VOICES)]).sound


def recorded_clips(core: Core) -> Iterator[tuple[bool, bool, str, Sound]]:
    """Yield sentences of the recordings, whole and cut after their middle word, as a recogniser times the words."""
    for name in RECORDED:
        sound = recording(name)
        core.handle([Submit(name, "asr", listen=ListenParams(partials=False, word_times=True))])
        core.handle([*(Append(name, audio=piece) for piece in pieces(sound, 10.0)), EndInput(name)])
        heard = [message for message in run(core) if isinstance(message, Words)]
        words = [word for message in heard for segment in message.segments for word in segment.words]
        first = 0
        for last, word in enumerate(words):
            if not word.text.rstrip().endswith((".", "?", "!")):
                continue
            sentence, first = words[first : last + 1], last + 1
            if len(sentence) < 6:
                continue
            begin, middle = max(0, round((sentence[0].start_s - 0.1) * RATE)), sentence[len(sentence) // 2]
            spoken = " ".join(one.text.strip() for one in sentence)
            half = " ".join(one.text.strip() for one in sentence[: len(sentence) // 2 + 1])
            yield True, True, spoken, faded(sound[begin : quietest(sound, word.end_s)])
            yield False, True, half, faded(sound[begin : round(middle.end_s * RATE)])


def quietest(sound: Sound, at_s: float) -> int:
    """Return the quietest sample around the end of a sentence: word times are exact to 0.2 s."""
    first, window = round((at_s - 0.1) * RATE), RATE // 10
    around = sound[first : first + round(0.7 * RATE)].astype(np.float64) ** 2
    return first + int(np.convolve(around, np.ones(window), "valid").argmin()) + window // 2


def faded(sound: Sound) -> Sound:
    """Return a clip that ends without a click."""
    sound = sound.copy()
    sound[-160:] *= np.linspace(1, 0, min(160, len(sound)), dtype=np.float32)
    return sound


class Judge:
    """The evidence at the end of a clip, by the real ear, recogniser and chat model."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._asked = 0

    def place(self, complete: bool, recorded: bool, said: str, sound: Sound) -> Place | None:
        """Return the evidence, or None if the ear hears no pause."""
        ear, since, p_sound = Ear(), -1, 0.5
        stream = np.concatenate([silence(0.5), sound, silence(TAIL_S)]).astype(np.float32)
        for piece in pieces(stream, 0.02):
            since = next((event.since for event in ear.feed(piece) if isinstance(event, Silent)), since)
            p_sound = ear.p_finished if ear.p_finished is not None else p_sound
        if since < 0:
            return None
        told = self._transcripts(stream)
        heard = told[-1][0]
        stale = next((words for words, at_s in reversed(told) if at_s <= since / RATE + STALE_S), "")
        return Place(complete, recorded, said, heard, self._probe(heard), p_sound, stale, self._probe(stale))

    def _transcripts(self, stream: Sound) -> list[tuple[str, float]]:
        """Return every transcript of a stream, and how many seconds of the stream had come by then."""
        name, settled, told = self._name(), "", [("", 0.0)]
        self._core.handle([Submit(name, "asr")])
        for count, piece in enumerate(pieces(stream, 0.1)):
            self._core.handle([Append(name, audio=piece)])
            for message in run(self._core):
                if isinstance(message, Words):
                    settled += message.settled
                    told.append(((settled + message.tail).strip(), 0.1 * (count + 1)))
        self._core.handle([EndInput(name)])
        run(self._core)
        return told

    def _name(self) -> str:
        self._asked += 1
        return f"pause{self._asked}"

    def _probe(self, words: str) -> float:
        if not words:
            return 0.5
        system = ChatMessage("system", INSTRUCTIONS.replace("{date}", "Tuesday, 17 November 2026"))
        messages = (system, ChatMessage("user", words))
        self._core.handle([Submit(self._name(), "probe", messages=messages, priority=Priority.HIGH)])
        return next(message.value for message in run(self._core) if isinstance(message, Probability))


def gather(voices: int, chat: str, listener: str) -> list[Place]:
    """Return the evidence of every clip; it is kept, since it takes minutes."""
    path = KEPT / f"places-{voices}-{chat}-{listener}.json"
    if path.is_file():
        return [Place(**one) for one in json.loads(path.read_text())]
    core = assemble(EngineConfig(chat, asr_model=listener, tts_model="")).core
    judge = Judge(core)
    everything = [*clips(voices), *recorded_clips(core)]
    found = []
    for number, clip in enumerate(everything):
        if (place := judge.place(*clip)) is not None:
            found.append(place)
        if number % 25 == 24:
            print(f"  {number + 1} of {len(everything)} clips", flush=True)
    path.write_text(json.dumps([asdict(place) for place in found]))
    return found


# ---- the rules


def ours(place: Place, eagerness: Eagerness) -> float:
    """Return the silence that ends a turn by the words and the voice together."""
    evidence = PauseEvidence(place.heard, True, place.p_words, place.p_sound)
    return max(WORDS_S, end_wait_s(evidence, TurnPolicy(eagerness=eagerness)))


def by_words(place: Place, eagerness: Eagerness) -> float:
    """Return the same by the chat model's probability alone."""
    return max(WORDS_S, end_wait_s(PauseEvidence(place.heard, True, place.p_words), TurnPolicy(eagerness=eagerness)))


def by_sound(place: Place, eagerness: Eagerness) -> float:
    """Return the same by the voice alone; no words are awaited."""
    return end_wait_s(PauseEvidence("", True, None, place.p_sound), TurnPolicy(eagerness=eagerness))


_BEFORE: dict[Eagerness, tuple[float, float]] = {
    "high": (0.25, 1.2), "medium": (0.4, 1.8), "low": (0.8, 2.5), "auto": (0.25, 2.2),
}  # fmt: skip


def before(place: Place, eagerness: Eagerness) -> float:
    """Return the same by the rule of version 0.1: linear in the probability, half of it given by a question mark."""

    def wait(words: str, p_words: float) -> float:
        shortest, longest = _BEFORE[eagerness]
        question = 0.5 if re.search(r"\?\W*$", words) else 0.0
        return longest + (shortest - longest) * (question + (1 - question) * p_words)

    early = wait(place.stale, place.p_stale)
    return max(STALE_S, early) if early <= WORDS_S else max(WORDS_S, wait(place.heard, place.p_words))


def cut_off(places: Sequence[Place], rule: Rule, eagerness: Eagerness) -> list[float]:
    """Return the share, in percent, of pauses of each length that end a turn."""
    waits = [rule(place, eagerness) for place in places if not place.complete]
    return [100 * sum(wait < pause for wait in waits) / max(1, len(waits)) for pause in PAUSES_S]


def ends(places: Sequence[Place], rule: Rule, eagerness: Eagerness) -> tuple[float, float]:
    """Return the median and the 95th percentile of the silence that ends a complete turn, in ms."""
    waits = [rule(place, eagerness) * 1e3 for place in places if place.complete]
    return percentile(waits, 0.5), percentile(waits, 0.95)


RULES: dict[str, Rule] = {"before": before, "words alone": by_words, "voice alone": by_sound, "both": ours}


@cache
def _silences() -> tuple[float, ...]:
    return (0.3, 0.45, 0.6, 0.8, 1.0, 1.2, 1.6)


def report(voices: int = 2, chat: str = "qwen2.5-coder-0.5b-instruct", listener: str = "whisper-tiny-en") -> None:
    """Print the tables and draw the curve."""
    places = gather(voices, chat, listener)
    for title, recorded in (("said by Kokoro's voices", False), ("recordings", True)):
        some = [place for place in places if place.recorded is recorded]
        halves = sum(not place.complete for place in some)
        rows = []
        for eagerness in ("high", "medium", "low", "auto"):
            for name, rule in RULES.items():
                shares, (median, late) = cut_off(some, rule, eagerness), ends(some, rule, eagerness)
                rows.append([eagerness, name, *(f"{share:.0f}" for share in shares), f"{median:.0f}", f"{late:.0f}"])
        for wait in _silences():
            shares = [100.0 * (wait < pause) for pause in PAUSES_S]
            rows.append(
                ["", f"silence of {wait:g} s", *(f"{share:.0f}" for share in shares), *[f"{wait * 1e3:.0f}"] * 2]
            )
        rows.append(["", "bar", *(f"≤ {bar}" for bar in BARS), "≤ 450", "≤ 800"])
        header = ["eagerness", "rule", *(f"{pause:g} s" for pause in PAUSES_S), "end, median ms", "p95"]
        table(f"{title}: percent of {halves} pauses that end a turn; {len(some) - halves} complete turns", header, rows)
    PICTURE.write_text(draw([place for place in places if not place.recorded]))


def draw(places: Sequence[Place]) -> str:
    """Return the picture: cut-offs at pauses of 1.2 s against the time after which complete turns end."""
    left, top, width, height, most_ms, most = 70, 60, 560, 300, 1600.0, 100.0

    def at(ms: float, share: float) -> tuple[float, float]:
        return left + width * min(ms, most_ms) / most_ms, top + height * (1 - share / most)

    parts = [
        text(left, 30, "Cut off or kept waiting", size=17, fill=INK, weight=600),
        text(left, 48, "pauses of 1.2 s that end a turn, against the median silence that ends a complete one"),
    ]
    for share in (0, 25, 50, 75, 100):
        x, y = at(0, share)
        parts += [f'<line x1="{x}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="{RULE}"/>']
        parts += [text(x - 8, y + 4, f"{share} %", anchor="end")]
    for ms in (0, 400, 800, 1200, 1600):
        parts.append(text(at(ms, 0)[0], top + height + 20, f"{ms} ms", anchor="middle"))
    silences = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(wait * 1e3, 100.0 * (wait < 1.2)) for wait in _silences()))
    parts.append(f'<polyline points="{silences}" fill="none" stroke="{FAINT}" stroke-dasharray="4 4"/>')
    parts.append(text(at(620, 0)[0], at(0, 100)[1] - 8, "silence alone", fill=FAINT))
    for (name, rule), colour in zip(RULES.items(), (RED, PALE, FAINT, BLUE), strict=True):
        points = [
            at(ends(places, rule, eagerness)[0], cut_off(places, rule, eagerness)[3])
            for eagerness in ("high", "medium", "low")
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
        x, y = points[-1]
        parts.append(text(x + 8, y - 6, name, fill=colour, weight=600))
    return sheet(left + width + 90, top + height + 40, parts)
