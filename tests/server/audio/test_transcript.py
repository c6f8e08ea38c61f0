"""Transcripts: deltas that add up, subtitles that fit, JSON that JSON can hold."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxlane.engine.api import Segment, Word, Words
from voxlane.server.audio.languages import NAMES, code_of_language, name_of_language
from voxlane.server.audio.transcript import (
    CUE_CHARACTERS,
    CUE_SECONDS,
    Cue,
    SegmentReply,
    Transcript,
    cues,
    srt,
    verbose,
    vtt,
)
from voxlane.server.http.reply import to_json


def words(settled: str, tail: str = "", heard_s: float = 0.0, segments: tuple[Segment, ...] = ()) -> Words:
    return Words("r", 0, settled, tail, heard_s, segments)


def segment(text: str, start: float = 0.0, pace: float = 0.4, language: str = "en") -> Segment:
    said = text.split()
    times = [start + pace * index for index in range(len(said) + 1)]
    spoken = tuple(Word(word, times[index], times[index] + pace * 0.9) for index, word in enumerate(said))
    return Segment(text, start, times[-1], -0.3, len(said), 0.02, language, spoken)


@given(st.lists(st.text(alphabet="ab \n", max_size=6)), st.text(alphabet="ab ", max_size=6))
def test_deltas_are_the_text_and_the_text_is_what_was_heard_without_space_around(pieces: list[str], tail: str) -> None:
    transcript = Transcript()
    deltas = [transcript.add(words(piece, "x")) for piece in pieces]
    deltas.append(transcript.add(words("", tail)))
    deltas.append(transcript.finish())
    assert "".join(deltas) == transcript.text == ("".join(pieces) + tail).strip()
    assert transcript.tail == ""


def test_the_language_is_that_of_most_of_the_speech() -> None:
    assert Transcript().language == ""
    transcript = Transcript()
    transcript.add(words("", segments=(segment("one", language="de"), segment("a b c d", language="en"))))
    assert transcript.language == "en"


@given(st.lists(st.text(alphabet="abc,.", min_size=1, max_size=20), min_size=1, max_size=60), st.floats(0.05, 3))
def test_subtitles_hold_every_word_once_in_order_and_fit_the_screen(said: list[str], pace: float) -> None:
    found = list(cues(segment(" ".join(said), pace=pace)))
    assert " ".join(cue.text for cue in found).split() == said
    for cue, following in pairwise(found):
        assert cue.start_s < cue.end_s <= following.start_s + 1e-9
    for cue in found:
        assert len(cue.text) <= CUE_CHARACTERS or " " not in cue.text
        assert cue.end_s - cue.start_s <= CUE_SECONDS + 1e-9 or " " not in cue.text


def test_a_cut_falls_after_punctuation_if_that_is_not_too_early() -> None:
    text = "This is the first sentence of the two. " + "and this is a very long second one " * 3
    assert next(cues(segment(text, pace=0.1))).text == "This is the first sentence of the two."
    early = "Yes. " + "this is a very long second one " * 4
    assert len(next(cues(segment(early, pace=0.1))).text) > 60


def test_silence_has_no_subtitle_and_a_segment_without_words_has_one() -> None:
    assert list(cues(Segment("  ", 0, 1, -1.0, 0, 0.9, "en"))) == []
    long = Segment("word " * 50, 0, 60, -1.0, 50, 0.0, "en")
    assert [cue.text for cue in cues(long)] == [long.text.strip()]


def test_srt_and_vtt() -> None:
    shown = [Cue(0.0, 1.5, "Hello\n\nthere"), Cue(3661.0004, 3662.9996, "<b> & so on")]
    assert srt(shown, 4) == (
        "4\n00:00:00,000 --> 00:00:01,500\nHello there\n\n5\n01:01:01,000 --> 01:01:03,000\n<b> & so on\n\n"
    )
    assert vtt(shown) == (
        "00:00:00.000 --> 00:00:01.500\nHello there\n\n01:01:01.000 --> 01:01:03.000\n&lt;b&gt; &amp; so on\n\n"
    )


@pytest.mark.parametrize(("with_segments", "with_words"), [(True, False), (False, True), (True, True)])
def test_verbose_has_what_was_asked_for(with_segments: bool, with_words: bool) -> None:
    transcript = Transcript()
    transcript.add(words("one two", segments=(segment("one"), segment("two", 2.0))))
    found = json.loads(to_json(verbose(transcript, 3.0, segments=with_segments, words=with_words)))
    assert (found["text"], found["duration"], found["language"]) == ("one two", 3.0, "english")
    assert ("segments" in found, "words" in found) == (with_segments, with_words)
    if with_words:
        assert found["words"][1] == {"word": "two", "start": 2.0, "end": 2.36}
    if with_segments:
        assert [item["id"] for item in found["segments"]] == [0, 1]
        assert found["segments"][1]["seek"] == 200


def test_an_impossible_segment_still_fits_json() -> None:
    found = json.loads(to_json(SegmentReply.of(0, Segment("", 0, 0, -math.inf, 0, 1.0, "en"))))
    assert found["avg_logprob"] == -9999.0


def test_languages_go_by_their_codes_and_names() -> None:
    for said in ("en", "EN", "en-US", "en_GB", "english", "English"):
        assert code_of_language(said) == "en"
    assert (name_of_language("de"), name_of_language("yue"), name_of_language("")) == ("german", "cantonese", "")
    assert name_of_language("tlh") == "tlh"
    assert [code_of_language(name) for name in NAMES.values()] == list(NAMES)
