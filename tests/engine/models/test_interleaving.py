"""The order of text and sound in LFM2-Audio's turns, against a slow reading of the rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine.models.lfm2_audio.config import AUDIO_START, CODES, END_OF_TURN, TEXT_END
from voxlane.engine.models.lfm2_audio.interleaving import Turn

TOKENS = st.one_of(st.sampled_from([AUDIO_START, TEXT_END, END_OF_TURN]), st.just(500))
FIRST_CODES = st.sampled_from([0, 1, CODES])
CHOICES = st.lists(st.tuples(TOKENS, FIRST_CODES), max_size=60)


def kinds(turn: Turn, choices: list[tuple[int, int]]) -> Iterator[str]:
    """Yield "text" or "sound" for every step; each step takes its pair's token or code."""
    for token, code in choices:
        if turn.ended:
            return
        yield "sound" if turn.sound else "text"
        turn = turn.after_frame(code) if turn.sound else turn.after_token(token)


def interleaved_by_rule(texts: int, frames: int, choices: list[tuple[int, int]]) -> Iterator[str]:
    """Yield the same: a run is counted down in every step, and is never counted anew when sound ends early."""
    kind, run, complete = "text", texts, False
    for token, code in choices:
        yield kind
        run -= 1
        if kind == "text":
            if token == END_OF_TURN:
                return
            complete = complete or token == TEXT_END
            if complete or run == 0:
                kind, run = "sound", frames
        else:
            if run == 0 and not complete:
                kind, run = "text", texts
            if code == CODES:
                kind = "text"


def sequential_by_rule(choices: list[tuple[int, int]]) -> Iterator[str]:
    """Yield the same where the model itself decides."""
    kind = "text"
    for token, code in choices:
        yield kind
        if kind == "text" and token == END_OF_TURN:
            return
        kind = "sound" if (token == AUDIO_START if kind == "text" else code != CODES) else "text"


@settings(max_examples=examples(200))
@given(st.integers(1, 7), st.integers(1, 13), CHOICES)
def test_interleaved_turns_follow_the_rule(texts: int, frames: int, choices: list[tuple[int, int]]) -> None:
    assert list(kinds(Turn.interleaved(texts, frames), choices)) == list(interleaved_by_rule(texts, frames, choices))


@settings(max_examples=examples(200))
@given(st.integers(1, 7), st.integers(1, 13), st.data())
def test_sound_that_ends_early_leaves_the_rest_of_its_run_to_the_text(
    texts: int, frames: int, data: st.DataObject
) -> None:
    """Where a run of sound is complete with the frame that ends it, the text has a whole run of its own."""
    spoken = data.draw(st.integers(1, frames))  # the last of them is the end
    choices = [(500, 0)] * (texts + spoken - 1) + [(500, CODES)] + [(500, 0)] * (2 * frames + texts)
    rest = frames - spoken or texts
    wanted = ["text"] * texts + ["sound"] * spoken + ["text"] * rest + ["sound"] * frames + ["text"]
    assert list(kinds(Turn.interleaved(texts, frames), choices))[: len(wanted)] == wanted


@settings(max_examples=examples(200))
@given(CHOICES)
def test_sequential_turns_follow_the_rule(choices: list[tuple[int, int]]) -> None:
    assert list(kinds(Turn.sequential(), choices)) == list(sequential_by_rule(choices))


def test_a_conversation_is_six_tokens_and_twelve_frames_in_turn() -> None:
    steps = list(kinds(Turn.interleaved(6, 12), [(500, 0)] * 40))
    assert steps == ["text"] * 6 + ["sound"] * 12 + ["text"] * 6 + ["sound"] * 12 + ["text"] * 4


def test_after_the_text_the_rest_is_sound_and_then_the_end() -> None:
    turn = Turn.interleaved(6, 12).after_token(500).after_token(TEXT_END)
    for _ in range(50):
        assert turn.sound
        turn = turn.after_frame(3)
    turn = turn.after_frame(CODES)
    assert not turn.sound
    assert turn.after_token(END_OF_TURN).ended


def test_what_is_not_due_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="a token is due"):
        Turn.sequential().after_frame(0)
    with pytest.raises(AssertionError, match="a frame is due"):
        Turn.sequential().after_token(AUDIO_START).after_token(1)
