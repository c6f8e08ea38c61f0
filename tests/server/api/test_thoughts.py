"""Thoughts are told from answers, wherever the output is cut, and nothing else is lost."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from voxlane.engine.api import Text, TokenLogprob
from voxlane.server.api.thoughts import ReasoningText, ThoughtSplitter


def piece(text: str) -> Text:
    """Return a piece of output that is one token."""
    return Text("r", 0, text, (TokenLogprob(text.encode(), -1.0),))


def split(*pieces: str) -> tuple[str, str, bytes]:
    """Return the thought, the answer, and the tokens whose log-probabilities are told."""
    splitter, told, last = ThoughtSplitter(), [], None
    for text in pieces:
        last = piece(text)
        told += splitter.push(last)
    told += splitter.finish(last)
    texts = [part for part in told if isinstance(part, Text)]
    return (
        "".join(part.text for part in told if isinstance(part, ReasoningText)),
        "".join(part.text for part in texts),
        b"".join(token.data for part in texts for token in part.logprobs),
    )


def slowly(output: str) -> tuple[str, str]:
    """Return the thought and the answer of a whole output."""
    found = re.fullmatch(r"\s*<think>\s*(.*?)(?:</think>\s*(.*))?", output, re.DOTALL)
    return ("", output) if found is None else (found[1], found[2] or "")


@pytest.mark.parametrize(
    ("output", "thought", "answer"),
    [
        ("", "", ""),
        (" Hello.\n", "", " Hello.\n"),
        ("<think>\nHm.\n</think>\n\nParis.\n", "Hm.\n", "Paris.\n"),
        ("<think>\n\n</think>\n\nParis.", "", "Paris."),
        ("\n<think>Hm.</think>Paris. <think>No.</think>", "Hm.", "Paris. <think>No.</think>"),
        ("<think>I will never stop </thi", "I will never stop </thi", ""),
        ("<think>One </b> two</think>", "One </b> two", ""),
        ("<thinker>", "", "<thinker>"),
        ("<thin", "", "<thin"),
        ("  <", "", "  <"),
        ("a <think>b</think>", "", "a <think>b</think>"),
        ("Reasons.</think> Paris.", "", "Reasons.</think> Paris."),
    ],
)
def test_what_is_a_thought(output: str, thought: str, answer: str) -> None:
    for pieces in ([output], list(output)):
        assert split(*pieces)[:2] == (thought, answer) == slowly(output)


PARTS = st.sampled_from(["<think>", "</think>", "<", "</", "think>", " ", "\n", "a", "Well. ", "é", "<thi", "nk>"])


@given(st.lists(PARTS, max_size=12).map("".join), st.data())
def test_where_it_is_cut_makes_no_difference(output: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=6)))
    pieces = [output[start:end] for start, end in zip([0, *places], [*places, len(output)], strict=True)]
    thought, answer, tokens = split(*pieces)
    assert (thought, answer) == slowly(output)
    assert tokens.endswith(answer.encode())  # a token may begin in the thought


@given(st.text("ab<>/think \n", max_size=30))
def test_tokens_of_an_answer_are_told_with_it(output: str) -> None:
    _, answer, tokens = split(*output)
    assert tokens == answer.encode()


def test_an_answer_is_passed_on_as_it_comes() -> None:
    splitter, more = ThoughtSplitter(), piece(" there")
    assert splitter.push(piece("Hello")) == [piece("Hello")]
    (same,) = splitter.push(more)
    assert same is more
    assert splitter.finish(more) == []
