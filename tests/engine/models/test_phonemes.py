"""Words read alone have the phonemes that hibari's library gives them in their clause."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import hibari.g2p
import pytest
from examples import examples
from hibari.g2p.tagger import Tagger as LibraryTagger
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine.models.phonemes import KEPT_CHARS, Tagger, WordReader, kept
from voxlane.engine.text.normalise.pronunciations import pronunciations_of
from voxlane.engine.text.normalise.reader import ReadWord, spoken_words
from voxlane.server.conversation.replies.clauses import ClauseCutter

DIALOGUES = Path(__file__).parents[3] / "benchmarks" / "training" / "partner_dialogues"
BRITISH = pytest.mark.parametrize("british", [False, True])
NAMES = pronunciations_of(("Siobhan = /ʃɪˈvɔːn/", "Anne-Marie = /ˈænməɹˈiː/", "Nguyen = win", "GmbH = G M B H"))


class WholeClause:
    """What the library says when it is given the whole clause at once."""

    def __init__(self, *, british: bool) -> None:
        self.library = hibari.g2p.G2P(british=british)
        vocabulary = Path(hibari.g2p.ASSETS, "vocab.json").read_text("utf-8")
        self.vocabulary: dict[str, int] = json.loads(vocabulary)
        self.reader = WordReader(self.library, self.vocabulary, british=british)
        self._british = british

    def read(self, words: Sequence[ReadWord]) -> list[tuple[int, ...]]:
        """Return the phonemes of each word."""
        tokens = self.library.tokenize(" ".join(word.text for word in words))
        self._give(tokens, words)
        readings = [""]
        for token in self.library.phonemize_tokens(tokens):
            readings[-1] += token.phonemes or ""
            if token.whitespace:
                readings.append("")
        last = words[-1].text.lstrip("(")
        if len(last) == 2 and last[0] in string.ascii_letters and last[1] == "." and not readings[-1].endswith("."):
            readings[-1] += "."
        return [tuple(self.vocabulary[one] for one in reading if one in self.vocabulary) for reading in readings]

    def _give(self, tokens: Iterable[Any], words: Sequence[ReadWord]) -> None:
        """Give tokens the phonemes of their words, the first of each word all of them."""
        place, said = 0, False
        for token in tokens:
            phonemes = words[place].phonemes
            if phonemes and (said or any(map(str.isalnum, token.text))) and set(token.text) - set(' ;:,.!?—…"“”()'):
                for ours, theirs in (("O", "Q"),) if self._british else (("ː", ""), ("ɒ", "ɑ"), ("Q", "O")):
                    phonemes = phonemes.replace(ours, theirs)
                stop = token.text[len(token.text.rstrip(".,;:!?…—")) :]
                token.phonemes, token.rating, said = ("" if said else phonemes) + stop, 5, True
            if token.whitespace:
                place, said = place + 1, False

    def check(self, text: str) -> None:
        """Assert that words read alone have the same phonemes."""
        words = spoken_words(text, NAMES)
        if words:
            assert [sound.ids for sound in self.reader.read(words)] == self.read(words), text


@cache
def whole_clause(british: bool) -> WholeClause:
    return WholeClause(british=british)


@pytest.fixture(scope="module", autouse=True)
def forget() -> Iterator[None]:
    """Give back the memory of both accents after the last test."""
    yield
    whole_clause.cache_clear()
    our_tagger.cache_clear()


def clauses(text: str) -> list[str]:
    cutter = ClauseCutter()
    return [clause.text for clause in (*cutter.push(text), *cutter.finish())]


def replies() -> list[str]:
    """Return the clauses of the dialogues' replies."""
    lines = [line for path in DIALOGUES.glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    turns = [turn for line in lines for turn in json.loads(line)["turns"]]
    texts = {turn[1] for turn in turns if turn[0] == "assistant" and isinstance(turn[1], str)}
    found = sorted({clause for text in texts for clause in clauses(text)})
    assert len(found) > 7000
    return found


@BRITISH
def test_a_part_of_the_replies(british: bool) -> None:
    for text in replies()[british::40]:
        whole_clause(british).check(text)


@BRITISH
def test_all_replies(british: bool) -> None:
    for text in replies():
        whole_clause(british).check(text)


@BRITISH
def test_every_letter_at_the_end(british: bool) -> None:
    for letter in string.ascii_letters:
        for text in (f"{letter}.", f"Plan {letter}.", f"He is ({letter}.", f"It is {letter}", f"as {letter}, is"):
            whole_clause(british).check(text)


LOOKING_AHEAD = ["a", "A", "am", "an", "by", "I", "in", "In", "the", "The", "to", "To", "used", "live", "read", "that"]
AHEAD = ["", "to", "apple.", "bread", "(or", "— no", "Siobhan", "A.", "US", "TO go", "hmm", "you're", "'em", "...", "x"]


@BRITISH
def test_words_that_depend_on_the_next(british: bool) -> None:
    for word in LOOKING_AHEAD:
        for mark in ("", ",", ".", "?"):
            for after in AHEAD:
                whole_clause(british).check(f"They {word}{mark} {after}")


WORDS = st.sampled_from(
    [*LOOKING_AHEAD, *AHEAD, "Siobhan's", "Nguyen", "Anne-Marie's", "GmbH", "vitamins A and C", "don't", "U.S.", "NASA",
     "zxqvy", "twenty-two", "O'Neill", "rock'n'roll", "McDonald", "café", "’tis", "it’s", "won't.", "dogs'", "walked",
     "houses", "3rd", "$9.99", "10:30", "a.b@c.de", "(", ")", "—", "…", "!", "e.g.", "e-mail", "iPhone", "WiFi", "OK?",
     "Mr. B."]
)  # fmt: skip


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(WORDS | st.text(st.characters(codec="utf-8"), max_size=5), max_size=9), st.booleans())
def test_any_text(words: list[str], british: bool) -> None:
    whole_clause(british).check(" ".join(words))


def test_a_kept_word_is_read_once_and_a_long_one_is_not_kept() -> None:
    asked: list[tuple[str, int]] = []

    def length(word: str, more: int) -> int:
        asked.append((word, more))
        return len(word) + more

    keeping, long = kept(length), "x" * (KEPT_CHARS + 1)
    assert [keeping(word, more) for word in ("ab", long) for more in (1, 2, 1)] == [3, 4, 3, 42, 43, 42]
    assert asked == [("ab", 1), ("ab", 2), (long, 1), (long, 2), (long, 1)]


def test_a_name_is_read_anew_each_time() -> None:
    """Else the time of a clause would tell that another person said the name."""
    network, asked = whole_clause(False).library.oov, []

    def oov(word: str) -> str:
        asked.append(word)
        return str(network(word))

    library = hibari.g2p.G2P(oov=oov)
    reader = WordReader(library, whole_clause(False).vocabulary, british=False)
    for _ in range(2):
        reader.read(spoken_words("Ask Zqxvy again, Siobhan.", NAMES))
    assert asked == ["Zqxvy", "Zqxvy"]


def test_the_weights_are_tenths_whose_sums_fit() -> None:
    weights = whole_clause(False).library.tagger.weights
    assert all(round(10 * weight) / 10 == weight for row in weights.values() for weight in row.values())
    assert 10 * 15 * max(abs(weight) for row in weights.values() for weight in row.values()) < 2**15


def test_the_library_decides_between_equal_sums() -> None:
    """0.2 + 0.1 is more than 0.3 to the library; of sums that are equal to it, too, the last in the alphabet wins."""
    model = {"tags": ["JJ", "NN", "VB"], "tagdict": {}, "vocab": ["so"]}
    for bias, word, tag in (
        ({"NN": 0.2, "VB": 0.3}, {"NN": 0.1}, "NN"),
        ({"NN": 0.2, "VB": 0.2}, {"JJ": 0.1}, "VB"),
        ({"NN": -0.2, "VB": -0.3}, {"JJ": -0.1}, "JJ"),
    ):
        library = LibraryTagger({**model, "weights": {"b": bias, "w=so": word}})
        assert Tagger(library)(["so"]) == library(["so"]) == [tag]


@cache
def our_tagger() -> Tagger:
    return Tagger(whole_clause(False).library.tagger)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from(["so", "we", "play", "that", "well", ",", "'s", "x-y", "-", "Q", "2027", "7up", "zq"])))
def test_parts_of_speech(tokens: list[str]) -> None:
    assert our_tagger()(tokens) == whole_clause(False).library.tagger(tokens)
