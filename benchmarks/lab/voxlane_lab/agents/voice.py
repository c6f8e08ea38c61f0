"""What a planted agent says: stories, short answers, and numbers, as sound at 24 kHz with the place of each word. Pure.

Every sample is audible: a faint hum lies under the words, and no pause is longer than 120 ms. So the moment at which an
agent falls silent is the moment at which it stopped, and never a pause between two words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from voxlane_lab.rates import converted
from voxlane_lab.sounds.corpus import Corpus
from voxlane_lab.sounds.speech import Wanted
from voxlane_lab.values import TICK_S, USER_RATE, Interval, Pcm, WordSpan
from voxlane_lab.waveform import floats_of, quantise

AGENT_RATE = 24_000
AGENT_TICK = round(TICK_S * AGENT_RATE)

LEVEL_DB = -20.0  # loudness of the words, in dB of full scale
HUM_DB = -42.0  # loudness of the hum under them
LONGEST_PAUSE_S = 0.12  # between two words; longer pauses are shortened
STORY_S = 20.0  # a long answer has at least this length
NUMBER_PAUSE_S = 0.1  # between two numbers that are counted

SPEAKER = "bf_emma"
"""The Kokoro voice of a planted agent."""

NUMBERS = (
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip

RECALL = "The last number that you heard was"
"""What comes before the number, when the agent is asked how far it has counted."""

GREETING = "Good day, this is the agent. What can I do for you?"

STORIES = (
    (
        "Once there was a lighthouse on a small island far out in the sea.",
        "Its keeper had a clock, a dog, and a boat that leaked a little.",
        "Every evening the keeper climbed the stairs and lit the lamp.",
        "One night a storm came, and the wind blew for seven hours.",
        "A ship had lost its way among the rocks and saw the light.",
        "In the morning the sailors came ashore with bread and apples.",
        "They stayed for a week, repaired the boat, and taught the dog to sing.",
    ),
    (
        "A baker in a mountain village wanted to make the largest loaf of all.",
        "The miller brought the flour on a cart with two slow horses.",
        "The whole village carried water from the well in the square.",
        "The dough rose and rose until it filled the kitchen to the door.",
        "The children made a path through it to bring the baker his hat.",
        "At last the loaf was done, and it fed the valley for a month.",
        "Since then the village has a holiday on which nobody bakes at all.",
    ),
)  # fmt: skip

ANSWERS = (
    "Of course. The answer to your question is a short one, and this is it.",
    "Gladly. I have stopped, I have listened, and this is what I think.",
    "All right. Let me say it in a few words, so that we can go on.",
)


@dataclass(frozen=True, slots=True, eq=False)
class AgentClip:
    """Something the agent can say, at AGENT_RATE, in whole ticks of 20 ms."""

    words: str
    pcm: Pcm
    spans: tuple[WordSpan, ...]  # each word's place in the text and in the sound

    @property
    def ends(self) -> tuple[int, ...]:
        """The sample behind each word."""
        return tuple(span.end_sample for span in self.spans)

    def words_before(self, sample: int) -> int:
        """Return how many words have sounded to their end before a sample."""
        return sum(end <= sample for end in self.ends)

    def text_before(self, sample: int) -> str:
        """Return the text of the words that have sounded to their end before a sample."""
        count = self.words_before(sample)
        return self.words[: self.spans[count - 1].end] if count else ""


@lru_cache(maxsize=128)
def at_rate(clip: AgentClip, rate: int) -> Pcm:
    """Return a clip's sound at another rate. The whole clip is converted, so that any cut of it is exact."""
    return clip.pcm if rate == AGENT_RATE else quantise(converted(floats_of(clip.pcm), AGENT_RATE, rate))


@dataclass(frozen=True, slots=True, eq=False)
class AgentVoice:
    """All that an agent says."""

    stories: tuple[AgentClip, ...]
    answers: tuple[AgentClip, ...]
    count: AgentClip  # the numbers from one to twenty
    recalls: tuple[AgentClip, ...]  # RECALL and a number, from one to twenty
    greeting: AgentClip

    @property
    def clips(self) -> tuple[AgentClip, ...]:
        """Every clip."""
        return (*self.stories, *self.answers, *self.recalls, self.count, self.greeting)

    @classmethod
    @cache
    def synthetic(cls, seed: int = 1) -> Self:
        """Return a voice of tones, a syllable each, that needs no model. It is made once."""
        chance = np.random.default_rng(seed)
        return cls._of(
            [_tones(_story(sentences), chance, STORY_S) for sentences in STORIES],
            [_tones(text, chance, 2.5) for text in ANSWERS],
            [_tones(text, chance, 0.45) for text in NUMBERS],
            _tones(RECALL, chance, 1.5),
            _tones(GREETING, chance, 2.5),
        )

    @classmethod
    def spoken(cls, corpus: Corpus) -> Self:
        """Return a voice of Kokoro's. The corpus must have prepared `spoken_wanted()`."""
        stories = []
        for sentences in STORIES:
            parts = [_spoken(corpus, text) for text in sentences]
            stories.append(_at_least(_joined(parts, " ", 0.1), STORY_S))
        return cls._of(
            stories,
            [_spoken(corpus, text) for text in ANSWERS],
            [_spoken(corpus, text) for text in NUMBERS],
            _spoken(corpus, RECALL),
            _spoken(corpus, GREETING),
        )

    @classmethod
    def counting(cls, corpus: Corpus, seed: int = 1) -> Self:
        """Return a voice of tones that says numbers as Kokoro does; `counting_wanted()` must be prepared."""
        tones = cls.synthetic(seed)
        spoken = cls._of([], [], [_spoken(corpus, text) for text in NUMBERS], _spoken(corpus, RECALL), tones.greeting)
        return replace(tones, count=spoken.count, recalls=spoken.recalls)

    @classmethod
    def _of(
        cls,
        stories: Sequence[AgentClip],
        answers: Sequence[AgentClip],
        numbers: Sequence[AgentClip],
        recall: AgentClip,
        greeting: AgentClip,
    ) -> Self:
        numbers = [AgentClip(one.words, one.pcm, (_span(one.words, len(one.pcm)),)) for one in numbers]
        return cls(
            tuple(map(_finished, stories)),
            tuple(map(_finished, answers)),
            _finished(_joined(numbers, ", ", NUMBER_PAUSE_S)),
            tuple(_finished(_joined([recall, one], " ", 0.05)) for one in numbers),
            _finished(greeting),
        )


def spoken_wanted() -> tuple[Wanted, ...]:
    """Return what the corpus must prepare before `AgentVoice.spoken`."""
    sentences = [sentence for story in STORIES for sentence in story]
    return tuple(Wanted((text,), SPEAKER) for text in (*sentences, *ANSWERS, *NUMBERS, RECALL, GREETING))


def counting_wanted() -> tuple[Wanted, ...]:
    """Return what the corpus must prepare before `AgentVoice.counting`."""
    return tuple(Wanted((text,), SPEAKER) for text in (*NUMBERS, RECALL))


# ---- clips


def _story(sentences: Sequence[str]) -> str:
    return " ".join(sentences)


def _span(words: str, samples: int) -> WordSpan:
    return WordSpan(0, len(words), 0, samples)


def _spread(words: str, samples: int) -> tuple[WordSpan, ...]:
    """Return each word's place, where the sound does not tell: a word takes time as it takes letters."""
    spans = []
    at = 0
    for word in words.split():
        start = words.index(word, at)
        at = start + len(word)
        ends = (start * samples // len(words), at * samples // len(words))
        spans.append(WordSpan(start, at, *ends))
    return tuple(spans)


def _joined(clips: Sequence[AgentClip], between: str, pause_s: float) -> AgentClip:
    """Return clips one after the other."""
    pause = np.zeros(round(pause_s * AGENT_RATE), np.int16)
    words, parts, spans, at = "", [], [], 0
    for number, clip in enumerate(clips):
        words += between if number else ""
        spans += [
            WordSpan(len(words) + one.start, len(words) + one.end, at + one.start_sample, at + one.end_sample)
            for one in clip.spans
        ]
        words += clip.words
        parts += [clip.pcm, pause]
        at += len(clip.pcm) + len(pause)
    return AgentClip(words, np.concatenate(parts[:-1]), tuple(spans))


def _at_least(clip: AgentClip, seconds: float) -> AgentClip:
    """Return a clip, repeated until it is long enough."""
    times = -(-round(seconds * AGENT_RATE) // len(clip.pcm))
    return _joined([clip] * times, " ", LONGEST_PAUSE_S)


def _finished(clip: AgentClip) -> AgentClip:
    """Return a clip with the hum, filled up to whole ticks."""
    samples = -(-len(clip.pcm) // AGENT_TICK) * AGENT_TICK
    sound = np.zeros(samples, np.float32)
    sound[: len(clip.pcm)] = floats_of(clip.pcm)
    return AgentClip(clip.words, quantise(sound + _hum(samples)), clip.spans)


def _hum(samples: int) -> NDArray[np.float32]:
    time_s = np.arange(AGENT_RATE // 150) / AGENT_RATE  # a period
    hum = np.sin(2 * np.pi * 150 * time_s) + np.sin(2 * np.pi * 300 * time_s + 1)
    return np.resize((hum * 10 ** (HUM_DB / 20)).astype(np.float32), samples)


# ---- tones


def _tones(words: str, chance: np.random.Generator, least_s: float) -> AgentClip:
    """Return syllables of two harmonics with random pitches, at least as long as asked."""
    parts: list[NDArray[np.float64]] = []
    total = 0
    while total < least_s * AGENT_RATE:
        syllable = _syllable(chance)
        parts.append(syllable)
        total += len(syllable)
    sound = np.concatenate(parts)
    sound *= 10 ** (LEVEL_DB / 20) / max(1e-9, float(np.sqrt(np.mean(sound**2))))
    return AgentClip(words, quantise(sound), _spread(words, len(sound)))


def _syllable(chance: np.random.Generator) -> NDArray[np.float64]:
    """Return a tone of 120 to 200 ms that rises and falls, and up to 40 ms of silence."""
    samples = int(chance.uniform(0.12, 0.2) * AGENT_RATE)
    time_s = np.arange(samples) / AGENT_RATE
    pitch = chance.uniform(110, 230)
    high = chance.uniform(500, 2400)
    tone = np.sin(2 * np.pi * pitch * time_s) + 0.5 * np.sin(2 * np.pi * high * time_s)
    silence = np.zeros(int(chance.uniform(0.01, 0.04) * AGENT_RATE))
    return np.concatenate([tone * np.sin(np.pi * np.arange(samples) / samples) ** 0.5, silence])


# ---- Kokoro


def _spoken(corpus: Corpus, words: str) -> AgentClip:
    clip = corpus.speech(Wanted((words,), SPEAKER))
    sound = converted(floats_of(_tightened(clip.pcm, clip.voiced)), USER_RATE, AGENT_RATE)
    return AgentClip(words, quantise(sound * np.float32(10 ** (3 / 20))), _spread(words, len(sound)))


def _tightened(pcm: Pcm, voiced: Sequence[Interval]) -> Pcm:
    """Return a clip without silence at its ends and without long pauses."""
    longest = round(LONGEST_PAUSE_S * USER_RATE)
    parts = []
    before = None
    for first, end in voiced:
        if before is not None:
            parts.append(pcm[before : min(first, before + longest)])
        parts.append(pcm[first:end])
        before = end
    return np.concatenate(parts) if parts else pcm
