"""The saved corpora of the fuzzer still reach what they reached, and a fuzzer with a broken parser notices it."""

from __future__ import annotations

import fuzzing
import pytest
from fuzz_parsers import TARGETS, Target
from fuzzing import Undocumented, for_seconds, fuzz, minimal, read_corpus, read_shares, share_reached

SLACK = 2
"""Percentage points that a change of a parser may cost before the corpora are grown again (tests/fuzz/grow.py)."""


def test_a_corpus_reaches_what_it_reached() -> None:
    shares = read_shares()
    assert shares.keys() == TARGETS.keys()
    reached = {name: share_reached(target, read_corpus(name)) for name, target in TARGETS.items()}
    assert {name: share for name, share in reached.items() if share < shares[name] - SLACK} == {}


def _fragile(data: bytes) -> int:
    if data[:1] == b"b" and data[1:2] == b"u" and data[2:3] == b"g":
        return len(data) // 0
    return len(data)


def test_an_undocumented_exception_is_found_and_shown() -> None:
    target = Target(_fragile, (ValueError,), (b"bu",), (b"bug",), (__file__,))
    with pytest.raises(Undocumented, match=r"ZeroDivisionError for .* \(seed 7\)"):
        fuzz(target, [b"bu"], 7, for_seconds(60))


def _branches(data: bytes) -> str:
    if data.startswith(b"a"):
        if data.startswith(b"ab"):
            return "ab"
        return "a"
    return ""


def test_inputs_that_reach_something_new_are_kept_and_few_of_them_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "BATCH", 64)
    target = Target(_branches, (), (b"x",), (b"a", b"ab"), (__file__,))
    report = fuzz(target, [b"x"], 1, lambda report: len(report.kept) < 2)
    assert {_branches(data) for data in report.kept} == {"a", "ab"}
    assert sorted(map(_branches, minimal(target, [*report.kept, b"x", b"y", b"abc", b"ac"]))) == ["", "a", "ab"]
