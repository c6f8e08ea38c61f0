"""The speech in the package: all that the shipped scenarios need, and packed so that nobody hears it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import numpy as np
import pytest

from voxlane_lab.errors import LabError
from voxlane_lab.sounds import packing
from voxlane_lab.sounds.corpus import Corpus
from voxlane_lab.sounds.intervals import loudness_db, spoken_intervals
from voxlane_lab.sounds.make_shipped import needed
from voxlane_lab.sounds.packing import packed, unpacked
from voxlane_lab.sounds.shipped import FILE, PackedClip, read, shipped, write
from voxlane_lab.sounds.speech import Wanted
from voxlane_lab.values import USER_RATE

MOST_BYTES = 8_000_000
SAME_DB, SAME_S = 0.5, 0.02


def spoken(seed: int, seconds: float = 0.7) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """Return a sound whose pitch and loudness change as a voice's do."""
    chance = np.random.default_rng(seed)
    time_s = np.arange(round(seconds * USER_RATE)) / USER_RATE
    pitch = np.cumsum(120 + 40 * np.sin(5 * time_s + seed)) / USER_RATE
    voice = sum(np.sin(2 * np.pi * number * pitch) / number for number in range(1, 20))
    shape = np.abs(np.sin(9 * time_s)) ** 2
    return np.rint(3_000 * shape * (voice + chance.normal(0, 0.1, len(time_s)))).astype(np.int16)


def test_what_the_shipped_scenarios_need_is_there() -> None:
    corpus = Corpus(Path("nowhere"))
    assert [one.words for one in needed() if corpus.name(one) not in shipped()] == []
    assert FILE.stat().st_size < MOST_BYTES


def test_nothing_is_there_that_nobody_needs() -> None:
    corpus = Corpus(Path("nowhere"))
    assert shipped().keys() - {corpus.name(one) for one in needed()} == set()


@pytest.mark.parametrize("number", range(0, 400, 40))
def test_a_clip_is_as_it_says(number: int) -> None:
    """Its voiced intervals, which were found before it was packed, are found in it; so is its loudness."""
    small = list(shipped().values())[number % len(shipped())]
    sound = small.sound() / 32767
    assert abs(loudness_db(sound, small.voiced) + 23) < SAME_DB
    first, end = spoken_intervals(sound)[0][0], spoken_intervals(sound)[-1][1]
    assert abs(first - small.voiced[0][0]) < SAME_S * USER_RATE
    assert abs(end - small.voiced[-1][1]) < SAME_S * USER_RATE


def test_the_users_corpus_needs_no_engine(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "none")
    wanted = needed()[0]
    clip = corpus.speech(wanted)
    assert clip.words == wanted.words
    assert not (tmp_path / "none").exists()
    with pytest.raises(LabError, match="not prepared"):
        corpus.speech(Wanted(("This is in no scenario.",), "af_heart"))


def test_what_others_say_is_not_replaced(tmp_path: Path) -> None:
    def never() -> AbstractAsyncContextManager[Callable[..., object]]:
        raise AssertionError

    with pytest.raises(LabError, match="not prepared"):
        Corpus(tmp_path, never).speech(needed()[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("samples", [1, 319, 320, 321, 11_200])
def test_packing_adds_little(samples: int) -> None:
    pcm = spoken(1)[-samples:]
    again = unpacked(*packed(pcm), samples)
    assert len(again) == samples
    noise = again.astype(float) - pcm
    assert (noise**2).mean() <= max(1.0, (pcm.astype(float) ** 2).mean() / 100)


def test_silence_stays_silence() -> None:
    pcm = np.concatenate([spoken(1), np.zeros(4_000, np.int16), spoken(2)])
    small = PackedClip.of(pcm, ())
    sound = small.sound()
    assert not sound[len(spoken(1)) : len(spoken(1)) + 4_000].any()
    assert sound[: len(spoken(1))].any()


def test_a_file_gives_what_was_written(tmp_path: Path) -> None:
    clips = {
        "one": PackedClip.of(spoken(1), ((10, 900), (1_200, 9_000))),
        "two": PackedClip.of(spoken(2, 0.11), ()),
        "three": PackedClip.of(np.zeros(700, np.int16), ((1, 2),)),
    }
    write(tmp_path / "clips.npz", clips)
    again = read(tmp_path / "clips.npz")
    assert again.keys() == clips.keys()
    for name, clip in again.items():
        assert (clip.voiced, clip.silent, clip.samples) == (clips[name].voiced, clips[name].silent, clips[name].samples)
        assert np.array_equal(clip.sound(), clips[name].sound())


def test_the_sum_of_two_frames_is_exact() -> None:
    """So the samples are the same on every machine: the order of the additions does not matter."""
    most = 127 * packing._STEPS.max() * np.abs(packing._WAVES).sum(axis=0).max()
    assert 2 * most < 2**53
