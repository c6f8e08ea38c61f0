"""The two streams of an utterance, without any model; what they mean is compared in test_qwen3_tts.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from qwen3_tts_cases import CONFIGS, ROLE

from voxlane.engine.models.qwen3_tts.config import Qwen3TTSConfig
from voxlane.engine.models.qwen3_tts.prompt import NOTHING, SPEAKER, Clone, PromptError, Utterance, open_utterance

CONFIG = {name: Qwen3TTSConfig.from_dict(config) for name, config in CONFIGS.items()}
VOICE = torch.zeros(64)
FRAME = (1, 2, 3, 4, 5, 6)


def clone(*, whole_text: bool = False, text: tuple[int, ...] = (), frames: int = 0) -> Utterance:
    voice = Clone(VOICE, text, (FRAME,) * frames)
    return open_utterance(CONFIG["clones"], ROLE, clone=voice, whole_text=whole_text)


def test_a_streamed_prompt_row_by_row() -> None:
    codec, words = CONFIG["clones"].codec, CONFIG["clones"].text
    utterance = clone()
    head = len(ROLE) + 5
    assert utterance.available == head  # what comes before the text can be computed before it
    assert not utterance.frame_due(head)
    utterance.append([20, 21])
    text, codes = utterance.rows(0, utterance.available)
    assert text == [*ROLE, *[words.pad] * 4, words.bos, 20]
    firsts = [NOTHING] * 3 + [codec.nothink, codec.think_bos, codec.think_eos, SPEAKER, codec.pad, codec.bos]
    assert codes == [(first, *(NOTHING,) * 5) for first in firsts]
    assert utterance.frame_due(head + 1)
    for _ in range(4):
        utterance.add(FRAME)
    assert utterance.available == head + 2  # the third frame's text has not come
    assert [utterance.text_for(frame) for frame in range(3)] == [21, None, None]
    utterance.end()
    assert utterance.rows(head, head + 5) == ([20, 21, words.eos, words.pad, words.pad], [codes[-1], *[FRAME] * 4])
    assert [utterance.text_for(frame) for frame in range(3)] == [21, words.eos, words.pad]


def test_whole_text_stands_in_the_head() -> None:
    codec, words = CONFIG["clones"].codec, CONFIG["clones"].text
    utterance = clone(whole_text=True, text=(30,), frames=1)
    start = utterance.available - 1
    utterance.append([20])
    assert not utterance.frame_due(utterance.available)
    utterance.end()
    text, codes = utterance.rows(start, utterance.available)
    assert text == [30, 20, words.eos, words.pad, words.pad]
    assert [row[0] for row in codes] == [codec.pad, codec.pad, codec.pad, codec.bos, FRAME[0]]
    assert utterance.frame_due(utterance.available)
    assert utterance.text_for(0) == words.pad


@given(
    st.lists(st.lists(st.integers(5, 149), max_size=4), max_size=6), st.integers(0, 9), st.booleans(), st.integers(0, 7)
)
def test_pieces_and_frames_in_any_order_are_the_same_rows(
    pieces: list[list[int]], frames: int, whole_text: bool, clip: int
) -> None:
    """What is available never changes, however text and frames come; and what a rewind drops can be said again."""
    at_once, utterance = (clone(whole_text=whole_text, text=(9,) * bool(clip), frames=clip) for _ in range(2))
    spoken = [tuple((number + group) % 48 for group in range(6)) for number in range(frames)]
    at_once.append([token for piece in pieces for token in piece])
    at_once.end()
    for frame in spoken:
        at_once.add(frame)
    wanted = at_once.rows(0, at_once.available)
    waiting = list(spoken)
    for piece in [*pieces, None]:
        known = utterance.rows(0, utterance.available)
        assert known == tuple(part[: utterance.available] for part in wanted)
        if piece is None:
            utterance.end()
        else:
            utterance.append(piece)
        while waiting and utterance.frame_due(utterance.available):
            utterance.add(waiting.pop(0))
    assert not waiting
    utterance.rewind(frames // 2)
    for frame in spoken[frames // 2 :]:
        utterance.add(frame)
    assert utterance.frames == spoken
    assert utterance.rows(0, utterance.available) == wanted


def open_for(checkpoint: str, **arguments: object) -> Callable[[], object]:
    return lambda: open_utterance(CONFIG[checkpoint], ROLE, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (open_for("clones"), "voice"),
        (open_for("clones", clone=Clone(VOICE), speaker="ryan"), "speaker"),
        (open_for("clones", clone=Clone(VOICE), instructions=[1]), "instructions"),
        (open_for("clones", clone=Clone(torch.zeros(65))), "voice"),
        (open_for("clones", clone=Clone(VOICE, (1,), ())), "voice"),
        (open_for("clones", clone=Clone(VOICE, (1,), ((1, 2),))), "voice"),
        (open_for("clones", clone=Clone(VOICE, (1,), ((1, 2, 3, 4, 5, 48),))), "voice"),
        (open_for("clones", clone=Clone(VOICE), language="klingon"), "language"),
        (lambda: clone().append([160]), "text"),
        (open_for("designs", instructions=[-1]), "instructions"),
        (open_for("voices"), "speaker"),
        (open_for("voices", speaker="nobody"), "speaker"),
        (open_for("designs", speaker="ryan"), "speaker"),
        (open_for("designs", clone=Clone(VOICE)), "voice"),
        (lambda: open_utterance(CONFIG["designs"], [1, 2]), "role"),
    ],
)
def test_what_a_checkpoint_cannot_do_is_named(ask: Callable[[], object], named: str) -> None:
    with pytest.raises(PromptError, match=f"^{named}: "):
        ask()


def test_text_after_the_end_is_refused() -> None:
    utterance = clone()
    utterance.end()
    utterance.end()
    with pytest.raises(PromptError, match="ended"):
        utterance.append([20])
