"""The listener with invented voices and a decoder that can be reckoned, by property."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxlane.engine.audio.segmenter import FRAME_SAMPLES, RATE, ListenPolicy, Segmenter
from voxlane.engine.audio.transcriber import (
    DEFAULT_POLICY,
    PHRASE_WORDS,
    Closed,
    DecodeRequest,
    Heard,
    Transcriber,
    is_speech,
    max_tokens,
    unlooped,
    unrepeated,
)

MAX_SAMPLES = 30 * RATE
WORD_FRAMES = 8
"""The invented decoder hears one word per this many voiced frames: four a second."""


class Voice:
    """A detector that reads the probability of speech off the samples, which are made for it."""

    def __init__(self) -> None:
        self._rest = np.zeros(0, np.float32)

    def __call__(self, samples: NDArray[np.float32]) -> list[float]:
        joined = np.concatenate([self._rest, samples])
        whole = len(joined) // FRAME_SAMPLES * FRAME_SAMPLES
        self._rest = joined[whole:]
        return [float(frame[0]) for frame in joined[:whole].reshape(-1, FRAME_SAMPLES)]


def sound(pattern: Sequence[tuple[bool, int]], seed: int = 0) -> NDArray[np.float32]:
    """Return stretches of voice and silence: every sample of a voiced frame is near 0.9, else near 0.1."""
    frames = np.concatenate([np.full(count, 0.9 if voiced else 0.1) for voiced, count in pattern] or [np.zeros(0)])
    chance = np.random.default_rng(seed).uniform(-0.05, 0.05, len(frames))
    return np.repeat((frames + chance).astype(np.float32), FRAME_SAMPLES)


def hear(clip: NDArray[np.float32], forced: Sequence[int]) -> tuple[list[int], list[float]]:
    """Return what is said in a clip: two tokens a word, spelt by its loudness. The newest word is often misheard."""
    frames = clip[: len(clip) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    voiced = frames[frames[:, 0] > 0.5]
    words = [voiced[at : at + WORD_FRAMES, 0] for at in range(0, len(voiced), WORD_FRAMES)]
    tokens: list[int] = []
    for word in words:
        unsure = len(word) < WORD_FRAMES
        tokens += [2 * int(word.sum() * 1e4) + 2 * unsure, 2 * len(tokens) + 1]
    tokens[: len(forced)] = forced
    return tokens, [-0.1] * len(tokens)


def hear_repeating(look: DecodeRequest, clip: NDArray[np.float32]) -> tuple[list[int], list[float]]:
    """Return what a model with short windows hears: some looks write all words again, unless they are whole."""
    tokens, _ = hear(clip, look.forced)
    loops = not look.whole and look.end // FRAME_SAMPLES % 3 > 0
    if loops and len(tokens) < 2 * PHRASE_WORDS:
        tokens = (tokens * max_tokens(len(clip)))[: max_tokens(len(clip))]
    elif loops:
        tokens = [*tokens, *tokens]
    return tokens, [-0.1] * len(tokens)


def starts_word(token: int) -> bool:
    return token % 2 == 0


def listen(
    samples: NDArray[np.float32],
    chunks: Sequence[int],
    *,
    partials: bool,
    busy: Sequence[bool] = (False,),
    policy: ListenPolicy = DEFAULT_POLICY,
    short_windows: bool = False,
) -> tuple[list[Heard], Transcriber]:
    """Return all that is heard when the audio comes in pieces of these sizes, over and over."""
    listener = Transcriber(
        Voice(), starts_word, max_samples=MAX_SAMPLES, partials=partials, policy=policy, short_windows=short_windows
    )
    heard: list[Heard] = []
    at = turn = 0
    while at < len(samples):
        size = chunks[turn % len(chunks)]
        listener.hear(samples[at : at + size])
        at += size
        heard += listener.settled()
        if not busy[turn % len(busy)]:
            heard += looks(listener, 3, short_windows)
        turn += 1
    listener.end()
    heard += listener.settled()
    heard += looks(listener, 10_000, short_windows)
    return heard, listener


def looks(listener: Transcriber, limit: int, short_windows: bool = False) -> list[Heard]:
    heard: list[Heard] = []
    while len(heard) < limit and (look := listener.next_look()):
        assert listener.next_look() == look
        clip = listener.clip(look)
        found = hear_repeating(look, clip) if short_windows else hear(clip, look.forced)
        heard.append(listener.decoded(look, *found))
        assert listener.next_look() != look
    return heard


def closed(heard: list[Heard]) -> list[Closed]:
    return [one.closed for one in heard if one.closed is not None]


patterns = st.lists(st.tuples(st.booleans(), st.integers(1, 90)), max_size=9)
pieces = st.lists(st.integers(150, 9_000), min_size=1, max_size=6)


@settings(deadline=None, max_examples=examples(200))
@given(patterns, pieces, st.lists(st.booleans(), min_size=1, max_size=5), st.booleans())
def test_any_chunking_gives_the_same_finals(
    pattern: list[tuple[bool, int]], chunks: list[int], busy: list[bool], partials: bool
) -> None:
    samples = sound(pattern)
    wanted, _ = listen(samples, [max(1, len(samples))], partials=False)
    found, listener = listen(samples, chunks, partials=partials, busy=busy)
    assert closed(found) == closed(wanted)
    assert listener.done
    assert listener.heard == len(samples)
    assert listener.next_look() is None
    assert listener.settled() == []


@settings(deadline=None, max_examples=examples(200))
@given(patterns, pieces, st.lists(st.booleans(), min_size=1, max_size=5))
def test_what_is_settled_stays_and_is_all_of_the_finals(
    pattern: list[tuple[bool, int]], chunks: list[int], busy: list[bool]
) -> None:
    heard, _ = listen(sound(pattern), chunks, partials=True, busy=busy)
    open_tokens: list[int] = []  # settled of the segment that is still open
    for one in heard:
        open_tokens += one.settled
        if one.closed is not None:
            assert tuple(open_tokens) == one.closed.tokens
            assert not one.tail
            open_tokens = []
        elif one.settled:
            assert starts_word(one.tail[0])
    assert open_tokens == []


@settings(deadline=None, max_examples=examples(200))
@given(patterns, pieces, st.lists(st.booleans(), min_size=1, max_size=5), st.booleans())
def test_repetitions_of_short_windows_are_in_no_final(
    pattern: list[tuple[bool, int]], chunks: list[int], busy: list[bool], partials: bool
) -> None:
    samples = sound(pattern)
    wanted, _ = listen(samples, [max(1, len(samples))], partials=False)
    found, listener = listen(samples, chunks, partials=partials, busy=busy, short_windows=True)
    assert closed(found) == closed(wanted)
    assert [token for one in found for token in one.settled] == [
        token for one in closed(wanted) for token in one.tokens
    ]
    assert listener.done


@settings(deadline=None, max_examples=examples(200))
@given(patterns)
@example([(False, 138), (True, 1), (False, 7), (True, 360)])  # the voice ends right after it was cut
def test_every_voiced_frame_is_in_exactly_one_segment(pattern: list[tuple[bool, int]]) -> None:
    samples = sound(pattern)
    segments = closed(listen(samples, [len(samples) or 1], partials=False)[0])
    assert all(one.end <= other.start for one, other in itertools.pairwise(segments))
    assert all(one.end - one.start <= DEFAULT_POLICY.max_segment_s * RATE for one in segments)
    covered = np.zeros(len(samples), bool)
    for one in segments:
        covered[one.start : one.end] = True
    voiced = samples > 0.5
    runs = np.flatnonzero(np.diff(np.concatenate([[0], voiced.astype(np.int8), [0]])))
    lost = [end - start for start, end in zip(runs[::2], runs[1::2], strict=True) if not covered[start:end].all()]
    assert all(length < DEFAULT_POLICY.min_voiced * FRAME_SAMPLES for length in lost)  # too short to be a voice


@settings(deadline=None, max_examples=10)
@given(st.integers(300, 4_000), st.integers(0, 5))
def test_the_audio_kept_is_bounded(chunk: int, seed: int) -> None:
    listener = Transcriber(Voice(), starts_word, max_samples=MAX_SAMPLES, partials=True)
    samples = sound([(True, 1_000), (False, 400), (True, 40)], seed)
    most = 0
    for at in range(0, len(samples), chunk):
        listener.hear(samples[at : at + chunk])
        listener.settled()
        looks(listener, 3)
        most = max(most, len(listener._audio._kept))
        assert at + chunk - listener.heard <= (DEFAULT_POLICY.max_segment_s + 2) * RATE
    assert most <= 2 * (DEFAULT_POLICY.max_segment_s + 2) * RATE


def test_a_pause_is_looked_at_once_and_closing_there_costs_nothing() -> None:
    listener = Transcriber(Voice(), starts_word, max_samples=MAX_SAMPLES, partials=True)
    samples = sound([(False, 10), (True, 60), (False, 12)])
    for at in range(0, len(samples), 320):
        listener.hear(samples[at : at + 320])
        last = looks(listener, 3)
    assert listener.next_look() is None
    assert listener.settled() == []
    listener.end()
    assert listener.next_look() is None
    assert not listener.done
    (final,) = listener.settled()
    assert final.closed is not None
    assert final.settled == final.closed.tokens[-len(final.settled) :]
    assert listener.done
    assert last == []


def test_a_look_under_way_when_its_segment_closes_is_the_final_one() -> None:
    listener = Transcriber(Voice(), starts_word, max_samples=MAX_SAMPLES, partials=True)
    samples = sound([(True, 60), (False, 12)])
    listener.hear(samples)
    look = listener.next_look()
    assert look is not None
    assert not look.final
    listener.end()
    heard = listener.decoded(look, *hear(listener.clip(look), look.forced))
    assert heard.closed is not None
    assert listener.done


def test_partials_settle_while_the_voice_goes_on() -> None:
    heard, _ = listen(sound([(True, 300)]), [320], partials=True)
    first = next(index for index, one in enumerate(heard) if one.settled)
    assert heard[first].closed is None
    assert len([one for one in heard if one.settled]) > 3


def test_looks_come_at_their_cadence_and_go_on_from_what_is_settled() -> None:
    listener = Transcriber(Voice(), starts_word, max_samples=MAX_SAMPLES, partials=True)
    samples, seen = sound([(True, 250)]), []
    for at in range(0, len(samples), 160):
        listener.hear(samples[at : at + 160])
        while look := listener.next_look():
            seen.append(look)
            tokens, logprobs = hear(listener.clip(look), look.forced)
            listener.decoded(look, tokens, logprobs)
    ends = [round(look.end / RATE, 3) for look in seen]
    assert ends[0] == pytest.approx(DEFAULT_POLICY.first_look_s, abs=0.04)
    assert min(np.diff(ends)) >= DEFAULT_POLICY.look_every_s - 1e-6
    assert max(np.diff(ends)) <= DEFAULT_POLICY.look_every_s + 0.04 + DEFAULT_POLICY.look_share * 8
    assert seen[-1].forced
    assert len(seen[-1].forced) + len(seen[-1].drafts) > 10


def test_speech_without_a_pause_is_cut_where_it_is_quietest() -> None:
    longest = int(DEFAULT_POLICY.max_segment_s * RATE / FRAME_SAMPLES)
    samples = sound([(True, 2 * longest)])
    quiet = (longest - 30) * FRAME_SAMPLES
    samples[quiet - FRAME_SAMPLES : quiet + 2 * FRAME_SAMPLES] = 0.6
    first, second, *_ = closed(listen(samples, [1_000], partials=True)[0])
    assert first.end == second.start == quiet + FRAME_SAMPLES // 2


def test_without_voice_nothing_is_looked_at() -> None:
    heard, listener = listen(sound([(False, 500), (True, 2), (False, 500)]), [777], partials=True)
    assert heard == []
    assert listener.done


def test_wrong_turns_are_refused() -> None:
    listener = Transcriber(Voice(), starts_word, max_samples=MAX_SAMPLES, partials=True)
    listener.hear(sound([(True, 60), (False, 12)]))
    look = listener.next_look()
    assert look is not None
    with pytest.raises(ValueError, match="not the look"):
        listener.decoded(DecodeRequest(look.start + 1, look.end, False, (), ()), [], [])
    listener.decoded(look, *hear(listener.clip(look), ()))
    with pytest.raises(ValueError, match="not the look"):
        listener.decoded(look, [], [])
    with pytest.raises(ValueError, match="were dropped"):
        listener.clip(DecodeRequest(0, 10**6, True, (), ()))
    listener.end()
    listener.end()
    with pytest.raises(ValueError, match="ended"):
        listener.hear(np.zeros(1, np.float32))
    assert Segmenter(DEFAULT_POLICY, MAX_SAMPLES, lambda start, end: []).finish(0) is None


def test_forced_tokens_must_come_back() -> None:
    listener = Transcriber(Voice(), starts_word, max_samples=MAX_SAMPLES, partials=True)
    samples = sound([(True, 250)])
    for at in range(0, len(samples), 320):
        listener.hear(samples[at : at + 320])
        look = listener.next_look()
        if look is not None and look.forced:
            with pytest.raises(ValueError, match="forced"):
                listener.decoded(look, [1, 2, 3], [-0.1] * 3)
            return
        looks(listener, 3)
    pytest.fail("nothing was settled")


def test_a_loop_is_cut_to_its_first_round() -> None:
    assert unlooped([5, 6, *[1, 2, 3] * 6]) == 5
    assert unlooped([5, 6, *[1, 2, 3] * 6, 1]) == 5
    assert unlooped([7] * 40) == 1
    assert unlooped([8, 9] * 4) == 8  # "no, no, no, no," is said
    assert unlooped(list(range(50))) == 50
    assert unlooped([*[4] * 40, 5]) == 41
    assert unlooped([]) == 0


def test_a_looping_hypothesis_is_heard_once() -> None:
    listener = Transcriber(Voice(), starts_word, max_samples=MAX_SAMPLES, partials=False)
    listener.hear(sound([(True, 60)]))
    listener.end()
    look = listener.next_look()
    assert look is not None
    heard = listener.decoded(look, [2, 4, *[6, 7] * 20], [-0.1] * 42)
    assert heard.settled == (2, 4, 6, 7)
    assert heard.closed is not None
    assert len(heard.closed.logprobs) == 4


def test_a_repeated_phrase_is_kept_once() -> None:
    phrase = [2, 3, 4, 6, 7]  # three words
    assert unrepeated([*phrase, *phrase], starts_word, 3) == 5
    assert unrepeated([10, *phrase, *phrase, 2, 3], starts_word, 3) == 6
    assert unrepeated([*phrase, *phrase, 8], starts_word, 3) == 11  # it goes on
    assert unrepeated([2, 3, 4, 2, 3, 4], starts_word, 3) == 6  # two words
    assert unrepeated([2, 3] * 9, starts_word, 3) == 18  # one word, not three
    assert unrepeated([2, 3] * 9, starts_word, 1) == 2
    assert unrepeated([8, 6, 6, 6], starts_word, 1) == 2
    assert unrepeated([], starts_word, 1) == 0


PHRASE = [2, 4, 6, 7]
ENDLESS = [2, 4, *[6, 8] * 40]


def short(*, partials: bool) -> Transcriber:
    return Transcriber(Voice(), starts_word, max_samples=MAX_SAMPLES, partials=partials, short_windows=True)


def write(listener: Transcriber, tokens: Sequence[int]) -> tuple[DecodeRequest, Heard]:
    """Return the next look, and what is heard if it writes these tokens, as many as it may."""
    look = listener.next_look()
    assert look is not None
    tokens = tokens[: max_tokens(look.end - look.start)]
    return look, listener.decoded(look, tokens, [-0.1] * len(tokens))


def test_words_that_people_repeat_are_not_doubted() -> None:
    for written in ([2, 3, 2, 3, 2, 3], [2, 4, 2, 4], [2, 3] * 6, [*PHRASE, *PHRASE, 8]):
        listener = short(partials=False)
        listener.hear(sound([(True, 60)]))
        listener.end()
        assert write(listener, written)[1].settled == tuple(written)
        assert listener.done


def test_a_doubted_look_at_a_voice_that_goes_on_waits_for_more_of_it() -> None:
    listener = short(partials=True)
    listener.hear(sound([(True, 30)]))
    assert write(listener, ENDLESS)[1] == Heard((), (2, 4, 6, 8))
    assert listener.next_look() is None
    listener.hear(sound([(True, 30)]))
    look, heard = write(listener, [2, 4, 6, 10])
    assert not look.whole
    assert heard.tail == (2, 4, 6, 10)


def test_a_stream_that_ends_with_a_doubted_look_is_decoded_whole() -> None:
    listener = short(partials=True)
    listener.hear(sound([(True, 30)]))
    write(listener, ENDLESS)
    listener.end()
    assert listener.settled() == []
    look, heard = write(listener, PHRASE)
    assert look.whole
    assert heard.settled == tuple(PHRASE)
    assert listener.done


def test_a_voice_that_comes_back_during_a_whole_look_gets_another_look() -> None:
    listener = short(partials=True)
    listener.hear(sound([(True, 30), (False, 12)]))
    write(listener, ENDLESS)
    look = listener.next_look()
    assert look is not None
    assert look.whole
    listener.hear(sound([(True, 30)]))
    assert listener.decoded(look, PHRASE, [-0.1] * 4).tail == tuple(PHRASE)
    after = listener.next_look()
    assert after is not None
    assert after.end > look.end
    assert not after.whole


def test_repeated_words_of_partial_looks_never_settle() -> None:
    listener, settled = short(partials=True), []
    for _ in range(20):
        listener.hear(sound([(True, 16)]))
        if listener.next_look():
            settled += write(listener, [*PHRASE, *PHRASE, *PHRASE])[1].settled
    assert settled
    assert len(settled) < len(PHRASE)


def test_hallucinations_are_not_decoded_again() -> None:
    listener = short(partials=False)
    listener.hear(sound([(True, 60)]))
    listener.end()
    look = listener.next_look()
    assert look is not None
    heard = listener.decoded(look, [*PHRASE, *PHRASE], [-1.5] * 8)
    assert heard.closed is not None
    assert heard.settled == ()
    assert listener.done


def test_speech_has_a_bounded_number_of_tokens() -> None:
    assert max_tokens(0) >= 10
    assert max_tokens(30 * RATE) < 448


def test_what_nobody_said_is_not_heard() -> None:
    assert is_speech([-0.02], 0.0)
    assert is_speech([-0.9, -0.8], 0.3)
    assert is_speech([], 0.9)
    assert not is_speech([-0.9, -2.1], 0.0)
    assert not is_speech([-0.7], 0.8)
    listener = Transcriber(Voice(), starts_word, max_samples=MAX_SAMPLES, partials=False)
    listener.hear(sound([(True, 60)]))
    listener.end()
    look = listener.next_look()
    assert look is not None
    heard = listener.decoded(look, [2, 3], [-1.9, -0.9], 0.7)
    assert heard == Heard((), (), Closed(look.start, look.end, (), (), 0.7))
    assert listener.done
