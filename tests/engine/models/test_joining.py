"""A clause that is joined to its beginning: what was heard stays, every word comes once, and no step is heard."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from voxlane.engine.api import SpokenWord
from voxlane.engine.models.hibari.model import Hibari
from voxlane.engine.models.joining import NEAR_S, SHIFT_S, TAIL, beginning, joined
from voxlane.engine.models.synthesis import SynthesisedClause, TimedWord
from voxlane.server.conversation.replies.ledger import Ledger

RATE = 24_000
LETTERS = "abcdefghij"
WORDS = st.lists(st.text(LETTERS, min_size=1, max_size=6), min_size=3, max_size=8)


def sung(words: list[str], stretch: float, phase: float, gap_s: float) -> SynthesisedClause:
    """Return a tone for each letter, as long as wanted, and a silence behind each word."""
    parts, places, at, source = [np.zeros(240, np.float32)], [], 240, 0
    for word in words:
        tones = [
            0.3 * np.sin(2 * np.pi * (150 + 40 * LETTERS.index(letter)) * np.arange(int(1500 * stretch)) / RATE + phase)
            for letter in word
        ]
        sound = np.concatenate([*tones, np.zeros(int(gap_s * RATE))]).astype(np.float32)
        tone_end = at + sum(map(len, tones))
        places.append(TimedWord(source, source + len(word), at, tone_end))
        parts.append(sound)
        at, source = at + len(sound), source + len(word) + 1
    return SynthesisedClause(np.concatenate(parts), tuple(places))


stretches = st.floats(0.7, 1.4)
gaps = st.sampled_from([0.0, 0.03, 0.15])


@given(words=WORDS, data=st.data(), stretch=st.tuples(stretches, stretches, stretches), gap_s=st.tuples(gaps, gaps))
def test_what_was_heard_stays_and_every_word_comes_once(words, data, stretch, gap_s):
    known = data.draw(st.integers(1, len(words)))
    first = beginning(sung([*words[:known], "ab"], stretch[0], 0.0, gap_s[0]), len(" ".join(words[:known])), RATE)
    assert first is not None
    assert first.words == known
    more = data.draw(st.integers(known, len(words)))
    second = joined(first, sung([*words[:more], "ab"], stretch[1], 1.0, gap_s[1]), RATE)
    longer = beginning(second, len(" ".join(words[:more])), RATE)
    assert longer is not None
    if longer.heard > first.heard:
        assert (longer.sound.samples[: first.heard] == first.sound.samples).all()
        first = longer
    whole = sung(words, stretch[2], 2.0, gap_s[1])
    made = joined(first, whole, RATE)
    assert (made.samples[: first.heard] == first.sound.samples).all()
    assert np.abs(made.samples).max() <= 0.5
    if first.words < len(words):
        assert [(one.source_start, one.source_end) for one in made.words] == [
            (one.source_start, one.source_end) for one in whole.words
        ]
        left_s = (len(whole.samples) - whole.words[first.words - 1].end_sample) / RATE
        near = 2 * NEAR_S + SHIFT_S  # the join may lie that far from the word's end, at another pace
        assert len(made.samples) / RATE == pytest.approx(first.heard / RATE + left_s, abs=near)
    ledger = Ledger()
    ledger.add(0, len(made.samples), tuple(SpokenWord(*_fields(one)) for one in made.words))


def _fields(word: TimedWord) -> tuple[int, int, int, int]:
    return word.source_start, word.source_end, word.start_sample, word.end_sample


def test_the_default_voice_is_joined_without_a_step() -> None:
    voice = Hibari()
    text = "The moon is about as wide as Australia, but much lighter than the earth."
    known = "The moon is about "
    first = beginning(voice.synthesise(voice.prepare(known + TAIL)), len("The moon is "), RATE)
    assert first is not None
    assert 0.3 < first.heard / RATE < 1.0
    whole = voice.synthesise(voice.prepare(text))
    made = joined(first, whole, RATE)
    assert [one.source_end for one in made.words] == [one.source_end for one in whole.words]
    steps = np.abs(np.diff(made.samples))
    at_join = steps[first.heard - 240 : first.heard + 480].max()
    assert at_join < steps.max()
    assert len(made.samples) == pytest.approx(len(whole.samples), rel=0.1)
