"""The corpus of the lab: levels, voiced intervals, exact pauses, the same bytes from a seed, and what is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from examples import examples, sweep
from hypothesis import given, settings
from lab_voices import humming_corpus

from voxlane_lab.errors import LabError
from voxlane_lab.sounds.beds import BEDS, bed_wanted
from voxlane_lab.sounds.corpus import SOUNDS, SPOKEN, Corpus, sound_wanted, standard
from voxlane_lab.sounds.intervals import CEILING, as_sound, loudness_db, voiced_intervals
from voxlane_lab.sounds.noises import NOISES
from voxlane_lab.sounds.speech import Rendition, Wanted, assembled
from voxlane_lab.sounds.voices import ENGLISH_VOICES, VOICES, Say, kokoro, voice_named
from voxlane_lab.values import USER_RATE, Clip, Pcm, WordSpan

MODEL_RATE = 24_000
WORD_S, SPACE_S = 0.2, 0.06
PLAIN = [*NOISES, "dtmf:123", "dtmf:*0#,9", "music:1.5", "typing:3"]
"""Sounds that are made of no speech."""


class Speaker:
    """Says every word as a tone with a space before it; counts what it was asked for."""

    def __init__(self, *, gap_s: float = SPACE_S) -> None:
        self.asked: list[tuple[str, str]] = []
        self.starts = 0
        self._gap_s = gap_s

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Say]:
        self.starts += 1
        yield self.say

    async def say(self, text: str, voice: str) -> Rendition:
        self.asked.append((text, voice))
        return spoken(text, self._gap_s)


def spoken(text: str, gap_s: float = SPACE_S) -> Rendition:
    """Return a tone for every word; the tones of two words have different pitches."""
    gap, size = round(gap_s * MODEL_RATE), round(WORD_S * MODEL_RATE)
    pieces, words, place, sample = [], [], 0, 0
    for number, word in enumerate(text.split()):
        start = text.index(word, place)
        place = start + len(word)
        tone = 0.3 * np.sin(2 * np.pi * (300 + 40 * (number % 7)) * np.arange(size) / MODEL_RATE)
        pieces += [np.zeros(gap), tone]
        words.append(WordSpan(start, place, sample + gap, sample + gap + size))
        sample += gap + size
    sound = np.concatenate([*pieces, np.zeros(gap)])
    return Rendition(np.rint(sound * 32767).astype(np.int16), MODEL_RATE, tuple(words))


def check(clip: Clip) -> None:
    """Assert what is true of every clip."""
    assert clip.pcm.dtype == np.int16
    assert clip.voiced
    assert clip.voiced[0][0] >= 0
    assert clip.voiced[-1][1] <= len(clip.pcm)
    assert all(first < end for first, end in clip.voiced)
    assert all(before[1] < behind[0] for before, behind in pairwise(clip.voiced))
    assert loudness_db(as_sound(clip.pcm), clip.voiced) == pytest.approx(-23, abs=0.5)
    assert np.abs(as_sound(clip.pcm)).max() <= CEILING


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def outside(clip: Clip) -> Pcm:
    """Return the samples that are not voiced."""
    mask = np.ones(len(clip.pcm), bool)
    for first, end in clip.voiced:
        mask[first:end] = False
    return clip.pcm[mask]


# ---- sounds


@pytest.mark.parametrize("name", PLAIN)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(30))
def test_a_sound_from_any_seed(name: str, seed: int) -> None:
    clip = Corpus(Path("nowhere")).sound(name, seed)
    check(clip)
    assert clip.name == name
    assert clip.words == ""
    loudest = np.abs(as_sound(clip.pcm)).max()
    assert np.abs(as_sound(outside(clip))).max(initial=0) < loudest / 10, "what is not voiced is quiet"


@pytest.mark.parametrize("name", PLAIN)
def test_the_same_seed_gives_the_same_bytes(name: str) -> None:
    one, again, other = (Corpus(Path("nowhere")).sound(name, seed) for seed in (5, 5, 6))
    assert one.pcm.tobytes() == again.pcm.tobytes()
    assert one.voiced == again.voiced
    assert name.startswith("dtmf") or one.pcm.tobytes() != other.pcm.tobytes()


def share(sound: np.ndarray, low: float, high: float) -> float:
    """Return the part of a sound's energy between two frequencies."""
    power = np.abs(np.fft.rfft(sound)) ** 2
    frequency = np.fft.rfftfreq(len(sound), 1 / USER_RATE)
    return float(power[(frequency >= low) & (frequency < high)].sum() / power.sum())


def voiced_sound(name: str, seed: int) -> np.ndarray:
    clip = Corpus(Path("nowhere")).sound(name, seed)
    return as_sound(clip.pcm)[clip.voiced[0][0] : clip.voiced[-1][1]]


@pytest.mark.parametrize("seed", sweep(range(8), here=2))
def test_a_cough_begins_with_a_burst_of_noise(seed: int) -> None:
    sound = voiced_sound("cough", seed)
    peak = np.abs(sound).max()
    assert np.abs(sound[: USER_RATE // 50]).max() > peak / 2, "it is loud within 20 ms"
    assert share(sound, 300, 5000) > 0.7
    assert share(sound, 0, 150) < 0.1
    assert 0.15 < len(sound) / USER_RATE < 2.0


@pytest.mark.parametrize("seed", sweep(range(8), here=2))
def test_things_sound_like_what_they_are_made_of(seed: int) -> None:
    assert share(voiced_sound("knock", seed), 60, 1000) > 0.7
    assert share(voiced_sound("door", seed), 40, 800) > 0.5
    assert share(voiced_sound("click", seed), 1000, 8000) > 0.8
    assert share(voiced_sound("throat", seed), 150, 1500) > 0.6
    assert share(voiced_sound("breath", seed), 400, 6000) > 0.7
    assert len(Corpus(Path("nowhere")).sound("typing:4", seed).voiced) > 10


def test_keys_have_the_frequencies_of_their_row_and_column() -> None:
    clip = Corpus(Path("nowhere")).sound("dtmf:15#", 0)
    expected = [(697, 1209), (770, 1336), (941, 1477)]
    assert len(clip.voiced) == 3
    for (first, end), (row, column) in zip(clip.voiced, expected, strict=True):
        tone = as_sound(clip.pcm)[first:end]
        assert share(tone, row - 20, row + 20) == pytest.approx(0.5, abs=0.05)
        assert share(tone, column - 20, column + 20) == pytest.approx(0.5, abs=0.05)
    assert not outside(clip).any()


def test_music_does_not_stop() -> None:
    clip = Corpus(Path("nowhere")).sound("music:5", 3)
    (only,) = clip.voiced
    assert only[1] - only[0] > 4.8 * USER_RATE


@pytest.mark.parametrize(
    "name",
    ["", "laugh", "cough:loud", "dtmf", "dtmf:", "dtmf:,", "dtmf:12x", "dtmf:" + "1" * 65, "mhm:nobody",
     "mhm:zf_xiaoni", "music:-1", "music:nan", "music:long", "typing:601", "television:0"],
)  # fmt: skip
def test_unknown_sounds_are_refused(name: str) -> None:
    with pytest.raises(LabError) as caught:
        sound_wanted(name, 1)
    assert "\n" not in str(caught.value)


# ---- beds


@pytest.mark.parametrize("name", BEDS)
async def test_a_bed(name: str, tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, Speaker())
    await corpus.prepare(bed_wanted(name))
    for samples in (320, 100_000):
        bed = corpus.bed(name, samples, 7)
        assert bed.dtype == np.int16
        assert len(bed) == samples
        assert loudness_db(as_sound(bed), ((0, samples),)) == pytest.approx(-23, abs=0.5)
    assert corpus.bed(name, 320, 7).tobytes() == corpus.bed(name, 320, 7).tobytes()
    assert corpus.bed(name, 320, 7).tobytes() != corpus.bed(name, 320, 8).tobytes()


def test_beds_of_speech_are_never_left_out_silently(tmp_path: Path) -> None:
    for name in ("cafe", "television"):
        assert bed_wanted(name)
        with pytest.raises(LabError, match="not prepared"):
            humming_corpus(tmp_path).bed(name, 16_000, 1)
    with pytest.raises(LabError, match="no bed"):
        humming_corpus(tmp_path).bed("forest", 16_000, 1)
    with pytest.raises(LabError, match="no bed"):
        bed_wanted("forest")


def test_white_is_flat_and_pink_falls() -> None:
    white, pink = (as_sound(Corpus(Path("nowhere")).bed(name, 160_000, 1)) for name in ("white", "pink"))
    assert share(white, 2000, 4000) == pytest.approx(2 * share(white, 1000, 2000), rel=0.1)
    assert share(pink, 2000, 4000) == pytest.approx(share(pink, 1000, 2000), rel=0.1)


# ---- speech


texts = st.lists(st.sampled_from(["one", "two,", "three.", "forty-two"]), min_size=1, max_size=4).map(" ".join)
pauses = st.floats(0.001, 3.0)


@given(first=texts, rest=st.lists(st.tuples(pauses, texts), max_size=4), gap_s=st.sampled_from([0.0, 0.02, 0.06, 0.1]))
@settings(max_examples=examples(100))
def test_pauses_are_exact(first: str, rest: list[tuple[float, str]], gap_s: float) -> None:
    wanted = Wanted((first, *(part for pair in rest for part in pair)), "af_heart")
    clip = assembled(wanted, spoken(wanted.words, gap_s))
    check(clip)
    gaps = [(before[1], behind[0]) for before, behind in pairwise(clip.voiced)]
    assert [start - end for end, start in gaps] == [round(pause * USER_RATE) for pause, _ in rest]
    assert all(not clip.pcm[end:start].any() for end, start in gaps)


def test_gaps_of_the_voice_are_intervals_beside_the_pauses() -> None:
    wanted = Wanted(("one two", 0.9, "three"), "af_heart")
    clip = assembled(wanted, spoken(wanted.words, 0.4))
    gaps = [behind[0] - before[1] for before, behind in pairwise(clip.voiced)]
    assert gaps == [pytest.approx(0.4 * USER_RATE, abs=40), 14_400]


def test_each_part_has_its_own_words() -> None:
    wanted = Wanted(("one two", 0.5, "three"), "af_heart")
    clip = assembled(wanted, spoken(wanted.words))
    lengths = [end - first for first, end in clip.voiced]
    assert lengths[0] == pytest.approx((2 * WORD_S + SPACE_S) * USER_RATE, abs=40)
    assert lengths[1] == pytest.approx(WORD_S * USER_RATE, abs=40)
    first, second = (as_sound(clip.pcm)[start:end] for start, end in clip.voiced)
    assert share(second, 360, 400) > 0.9
    assert share(first, 360, 400) < 0.1
    assert clip.words == "one two three"


def test_words_that_run_into_each_other_are_cut_without_a_click() -> None:
    wanted = Wanted(("one", 0.5, "two"), "af_heart")
    clip = assembled(wanted, spoken(wanted.words, 0.0))
    steps = np.abs(np.diff(as_sound(clip.pcm)))
    (_, end), (start, _) = clip.voiced
    assert steps[end - 3 : start + 3].max() < steps.max() / 5


def test_pauses_before_and_behind() -> None:
    clip = assembled(Wanted((0.25, "one", 0.5), "af_heart"), spoken("one"))
    assert clip.voiced[0][0] == 4000
    assert len(clip.pcm) - clip.voiced[-1][1] == 8000
    assert not outside(clip).any()


def test_parts_without_a_pause_are_one() -> None:
    wanted = Wanted(("one", "two", 0.0, "three", 0.2, 0.3, "four"), "af_heart")
    assert wanted.texts == ("one two three", "four")
    assert wanted.pauses == (0, 8000, 0)
    assert wanted.words == "one two three four"


def test_a_pause_too_short_to_be_noticed_is_an_interval_of_its_own() -> None:
    clip = assembled(Wanted(("one", 0.05, "two"), "af_heart"), spoken("one two"))
    assert len(clip.voiced) == 2


@pytest.mark.parametrize("parts", [(), (0.5,), ("",), ("one", 0.5, " "), ("one", -0.5), ("one", float("nan"))])
def test_what_cannot_be_said_is_refused(parts: tuple[str | float, ...]) -> None:
    with pytest.raises(LabError):
        Wanted(parts, "af_heart")


def test_a_breath_of_the_model_behind_the_last_word_does_not_end_the_turn() -> None:
    words = spoken("one two")
    breath = np.full(MODEL_RATE // 100, 400, np.int16)
    with_breath = Rendition(np.concatenate([words.pcm, np.zeros(MODEL_RATE // 3, np.int16), breath]), MODEL_RATE, ())
    wanted = Wanted(("one two",), "af_heart")
    assert assembled(wanted, with_breath).voiced == assembled(wanted, words).voiced


def test_a_part_that_makes_no_sound_is_refused() -> None:
    silent = Rendition(np.zeros(24_000, np.int16), MODEL_RATE, ())
    for parts in (("...",), ("...", 0.5, "one")):
        with pytest.raises(LabError, match="nothing to hear"):
            assembled(Wanted(parts, "af_heart"), silent)


def test_intervals_of_silence_and_of_a_tone() -> None:
    assert voiced_intervals(np.zeros(1000), 0.1) == ()
    assert voiced_intervals(np.zeros(0), 0.1) == ()
    tone = np.concatenate([np.zeros(333), np.ones(1000), np.zeros(800), np.ones(7), np.zeros(50)])
    assert voiced_intervals(tone, 0.01) == ((333, 1333), (2133, 2140))
    assert voiced_intervals(tone, 0.1) == ((333, 2140),)


# ---- what is kept


SENTENCE = Wanted(("one two", 0.5, "three"), "am_adam")


async def test_prepared_once_and_kept(tmp_path: Path) -> None:
    speaker, steps = Speaker(), []
    corpus = Corpus(tmp_path / "new", speaker)
    wanted = [SENTENCE, Wanted(("four",), "af_heart"), SENTENCE]
    await corpus.prepare(wanted, lambda done, total: steps.append((done, total)))
    assert steps == [(0, 2), (1, 2), (2, 2)]
    assert speaker.asked == [("one two three", "am_adam"), ("four", "af_heart")]
    await corpus.prepare(wanted)
    later = Corpus(tmp_path / "new", speaker)
    await later.prepare(wanted)
    assert speaker.starts == 1
    kept, made = later.speech(SENTENCE), corpus.speech(SENTENCE)
    assert kept.pcm.tobytes() == made.pcm.tobytes()
    assert (kept.voiced, kept.words, kept.name) == (made.voiced, made.words, made.name)
    assert {path.suffix for path in files(tmp_path / "new")} == {".npz"}


async def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    speaker = Speaker()
    await Corpus(tmp_path, speaker).prepare([SENTENCE])
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], whole[:-30], b"PK nonsense"):
        path.write_bytes(damaged)
        with pytest.raises(LabError, match="not prepared"):
            Corpus(tmp_path).speech(SENTENCE)
        await Corpus(tmp_path, speaker).prepare([SENTENCE])
        assert path.read_bytes() == whole


async def test_a_file_of_another_process_is_taken(tmp_path: Path) -> None:
    """Another process makes the second clip while this one is busy with the first."""
    other, second = Speaker(), Wanted(("five",), "af_heart")

    class Busy(Speaker):
        async def say(self, text: str, voice: str) -> Rendition:
            await Corpus(tmp_path, other).prepare([SENTENCE, second])
            return await super().say(text, voice)

    busy = Busy()
    await Corpus(tmp_path, busy).prepare([SENTENCE, second])
    assert [text for text, _ in busy.asked] == ["one two three"]
    assert len(files(tmp_path)) == 2


async def test_a_failure_leaves_nothing_half_written(tmp_path: Path) -> None:
    class Broken(Speaker):
        async def say(self, text: str, voice: str) -> Rendition:
            if self.asked:
                raise LabError("broken")
            return await super().say(text, voice)

    with pytest.raises(LabError, match="broken"):
        await Corpus(tmp_path, Broken()).prepare([SENTENCE, Wanted(("five",), "af_heart")])
    assert [path.suffix for path in files(tmp_path)] == [".npz"]
    assert Corpus(tmp_path).speech(SENTENCE).words == "one two three"


async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="cannot keep sounds"):
        await Corpus(tmp_path / "file" / "lab", Speaker()).prepare([SENTENCE])


def test_another_request_is_another_file(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    others = [
        Wanted(("one two", 0.6, "three"), "am_adam"),
        Wanted(("one", 0.5, "two three"), "am_adam"),
        Wanted(("one two", 0.5, "three"), "af_heart"),
        Wanted(("one two three",), "am_adam"),
    ]
    assert len({corpus._path(one) for one in [SENTENCE, *others]}) == 5


async def test_spoken_sounds(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, Speaker())
    for name in SPOKEN:
        wanted = sound_wanted(f"{name}:bm_george", 1)
        assert wanted == Wanted((SPOKEN[name],), "bm_george")
        await corpus.prepare([wanted])
        clip = corpus.sound(f"{name}:bm_george", 9)
        check(clip)
        assert clip.name == f"{name}:bm_george"
        assert clip.words == SPOKEN[name]
        spoken_by = [sound_wanted(name, seed) for seed in range(len(VOICES))]
        assert [one.voice for one in spoken_by if one] == list(VOICES)


async def test_television_is_a_sound_too(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, Speaker())
    wanted = sound_wanted("television:2", 1)
    assert wanted is not None
    await corpus.prepare([wanted])
    clip = corpus.sound("television:2", 1)
    check(clip)
    assert len(clip.pcm) == 2 * USER_RATE


def test_voices_and_names() -> None:
    assert len(VOICES) >= 10
    assert set(VOICES) <= ENGLISH_VOICES
    assert voice_named("kokoro:am_adam") == voice_named("am_adam") == "am_adam"
    assert {voice_named("any", seed) for seed in range(len(VOICES))} == set(VOICES)
    with pytest.raises(LabError, match="no voice"):
        voice_named("kokoro:nobody")


def test_every_sound_is_described_and_made_or_prepared() -> None:
    prepared = set(standard())
    for name in SOUNDS:
        example = "dtmf:1" if name == "dtmf" else name
        for seed in range(20):
            wanted = sound_wanted(example, seed)
            assert wanted is None or wanted in prepared
    assert all(one in prepared for name in BEDS for one in bed_wanted(name))
    assert {one.voice for one in prepared} <= ENGLISH_VOICES


# ---- the real engine


@pytest.mark.weights
async def test_kokoro_says_it(tmp_path: Path) -> None:
    wanted = Wanted(("I would like", 0.9, "two tickets."), "af_heart")
    starts = []

    def opened() -> AbstractAsyncContextManager[Say]:
        starts.append(1)
        return kokoro()

    corpus = Corpus(tmp_path, opened)
    mhm = sound_wanted("mhm:am_adam", 1)
    assert mhm is not None
    await corpus.prepare([wanted, mhm])
    assert len(starts) == 1
    clip = corpus.speech(wanted)
    check(clip)
    check(corpus.sound("mhm:am_adam", 1))
    (_, end), (start, _) = clip.voiced
    assert start - end == round(0.9 * USER_RATE)
    assert not clip.pcm[end:start].any()
    assert 0.3 * USER_RATE < end - clip.voiced[0][0] < 0.8 * USER_RATE
