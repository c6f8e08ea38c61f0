"""The voice's own front end changes nothing, and returns one group of phonemes for each word.

Word times depend on the latter: the nth group between spaces is the nth word.
"""

from __future__ import annotations

from voxlane.engine.text.normalise.reader import spoken_words

TEXTS = [
    "On Nov 15, 2026, at 7:10 p.m., Dr. Smith paid $1.10 for 5 km, i.e. 3.1 mi.",
    "Mail bob.smith@example.com or see https://example.com/docs; call (555) 123-4567!",
    "World War II ended in 1945 (not 1946) — the U.S. Army, NASA and the FBI agree…",
    "# Title\n- **one** of 10-20%\n- 1/2 of `x_y` in C++ & JSON\n\n| a | b |\n|---|---|\n| 1 | 2 |",
    "It's -3 °C; 21st, 1990s, v1.2.3, 192.168.0.1, #1, @me, GPT-4, x² = 4, 5'11\".",
    "well-known state-of-the-art naïve café, y'all: the API's GPUs don't stop?",
]


def test_nothing_is_left_to_normalise_and_each_word_has_its_phonemes() -> None:
    from hibari import g2p

    voice = g2p.G2P(oov=lambda word: "x")
    for text in TEXTS:
        words = [word.text for word in spoken_words(text)]
        said = " ".join(words)
        assert g2p.normalize(said) == said, text
        phonemes = voice(said, normalize_text=False).split(" ")
        assert len(phonemes) == len(words), text
        assert all(phonemes), text
