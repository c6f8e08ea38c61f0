"""Text in pieces is read like the whole, and words of a voice without durations get plausible times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_talker import write_talker

from voxlane.engine.api import SpokenWord
from voxlane.engine.text.incremental import MAX_HELD_CHARS, Reader, Said
from voxlane.engine.text.normalise.pronunciations import pronunciations_of
from voxlane.engine.text.normalise.reader import speakable
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.voices.word_timing import WordTimer
from voxlane.server.conversation.replies.ledger import Ledger

TEXT = (
    'It costs $4.50 (or so), "roughly" — by Dr. Who\'s well-known count: 3 of them!\nAnd then naïve café crème... Ok? '
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.open(write_talker(tmp_path_factory.mktemp("words")))


def read(reader: Reader, *pieces: str) -> list[Said]:
    return [said for piece in pieces for said in reader.read(piece)] + reader.finish()


def test_tokens_are_those_of_the_whole_text_said_in_one_go(tokenizer: Tokenizer) -> None:
    words = read(Reader(tokenizer.encode, "auto"), TEXT)
    assert [token for said in words for token in said.tokens] == tokenizer.encode(speakable(TEXT))
    assert "$4.50" in [TEXT[said.start : said.end] for said in words], "four dollars and fifty cents are one word"


@given(st.lists(st.sampled_from(["one ", "two, ", "well-known ", "end. ", "  ", "naïve "])), st.data())
def test_where_it_is_cut_is_not_to_be_heard(words: list[str], data: st.DataObject) -> None:
    text = "".join(words)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]
    letters = Reader(lambda word: [ord(letter) for letter in word], "english")
    whole = Reader(lambda word: [ord(letter) for letter in word], "english")
    assert read(letters, *pieces) == read(whole, text)


@pytest.mark.parametrize(("language", "three"), [("english", " three"), ("german", " 3"), ("auto", " 3")])
def test_names_are_respelled_in_every_language(language: str, three: str) -> None:
    text = "Siobhan's, **SIOBHAN** 3 "
    reader = Reader(lambda word: list(map(ord, word)), language, pronunciations_of(("Siobhan = shiv awn",)))
    words = read(reader, text)
    assert ["".join(map(chr, said.tokens)) for said in words] == ["shiv awn's,", " shiv awn", three]
    assert [text[said.start : said.end] for said in words] == ["Siobhan's,", "SIOBHAN", "3"]


def test_other_languages_are_taken_as_they_stand() -> None:
    def spoken(text: str, language: str) -> list[str]:
        reader = Reader(lambda word: list(map(ord, word)), language)
        return ["".join(map(chr, said.tokens)) for said in read(reader, text)]

    assert spoken("Das sind **3** Äpfel. ", "german") == ["Das", " sind", " 3", " Äpfel."]
    assert spoken("你好，世界。3 个 ", "auto") == ["你好，", "世界。", "3", " 个"]
    assert spoken("The 3 apples", "auto") == ["The", " three", " apples"]
    assert spoken("3 apples", "auto") == ["3", " apples"], "which may be of any language"
    assert spoken("Um, LA and the UN: 3 die. ", "auto") == ["Um,", " LA", " and", " the", " UN:", " three", " die."]
    assert spoken("J'ai 25 ans. The Beatles: 4. ", "auto") == ["J'ai", " 25", " ans.", " The", " Beatles:", " 4."]
    assert spoken("The word 你好 has 2 signs. ", "english") == ["The", " word", " 你好", " has", " two", " signs."]


TELLING = st.sampled_from(["Das ", "Привет ", "여러분 ", "今天"])
WORDS = ["Node ", "20, ", "the ", "1,000 ", "안녕하세요 ", "你好，", "世界", "とても長い文", "Äpfel. ", "用Python写"]


@given(TELLING, st.lists(st.sampled_from(WORDS), max_size=30), st.data())
def test_where_other_languages_are_cut_is_not_to_be_heard(first: str, words: list[str], data: st.DataObject) -> None:
    text = "".join([first, *words])
    places = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]
    spell = [Reader(lambda word: [ord(letter) for letter in word], "auto") for _ in range(2)]
    assert read(spell[0], *pieces) == read(spell[1], text)


def test_a_number_is_read_whole() -> None:
    reader = Reader(lambda word: list(map(ord, word)), "english")
    words = read(reader, "It is 1,", "000 men.")
    assert "".join(chr(token) for said in words for token in said.tokens) == "It is one thousand men."


def test_a_clause_without_spaces_does_not_wait() -> None:
    reader = Reader(lambda word: list(map(ord, word)), "chinese")
    assert len(reader.read("你好，世界。")) == 2
    assert not reader.read("two wor")
    assert len(reader.read("d" * MAX_HELD_CHARS)) == 2, "no word is so long"
    assert len(reader.read("one more wor" + "d" * (MAX_HELD_CHARS - 6))) == 2, "but this may be one"


def test_markup_at_the_very_end_is_read_as_a_whole(tokenizer: Tokenizer) -> None:
    pieces = ("See ", "[the docs](http://x.y/z)")
    words = read(Reader(tokenizer.encode, "auto"), *pieces)
    assert tokenizer.decode(token for said in words for token in said.tokens) == "See the docs"


def test_clauses_without_space_between_them_are_two() -> None:
    reader = Reader(lambda word: list(map(ord, word)), "english")
    assert len(reader.read("Yes.")) == len(reader.read("No.")) == 1


SAID = st.builds(lambda size: Said(0, size, (0,) * size, float(size)), st.integers(1, 9))


@given(st.lists(st.tuples(SAID, st.integers(0, 5000)), max_size=12), st.lists(st.integers(0, 4000), max_size=12))
def test_words_follow_each_other_within_the_samples_there_are(words: list[tuple[Said, int]], chunks: list[int]) -> None:
    """In any order of text and audio the server's ledger accepts the times, and in the end all words were heard."""
    pace, ledger, end, waiting = WordTimer(1000), Ledger(), 0, list(words)
    for chunk in chunks:
        if waiting:
            said, lag = waiting.pop(0)
            pace.add(Said(end, end + said.end, said.tokens, said.letters), ledger.added_samples + lag)
            end += said.end + 1
        ledger.add(ledger.added_samples, chunk, pace.told(ledger.added_samples + chunk))
    ledger.add(ledger.added_samples, 0, pace.finish(ledger.added_samples))
    ledger.sent(ledger.added_samples)
    assert ledger.heard_chars(ledger.added_samples) == max(end - 1, 0)


def test_a_word_is_not_heard_before_it_was_read() -> None:
    pace = WordTimer(1000)
    pace.add(Said(0, 5, (1,), 6.0), 0)
    pace.add(Said(6, 9, (1,), 3.0), 2000)
    assert pace.told(559) == ()
    assert pace.told(560) == (SpokenWord(0, 5, 160, 560),)
    assert pace.told(2359) == ()
    assert pace.finish(2300) == (SpokenWord(6, 9, 560, 2300),)
