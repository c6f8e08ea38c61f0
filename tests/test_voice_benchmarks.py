"""The verdicts of gpu_conversations.py, and the words of a random chat model."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

from voxlane.engine.text.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import gpu_conversations as conversations
from support.crowd import talkers
from support.sessions import engine as session_engine


def test_made_up_words_are_read_back_as_the_same_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(session_engine.vocabulary(3000)), encoding="utf-8")
    settings = {"chat_template": session_engine.TEMPLATE, "eos_token": session_engine.CONTROLS[1]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer.vocab_size == 3000
    written = [2000, 2500, 2997, 1700]
    assert tokenizer.encode(tokenizer.decode(written)) == written


def test_a_row_of_conversations_is_judged_by_every_target() -> None:
    good = {"voice_to_voice": [300.0] * 20, "late": [1.0], "replies": 20}
    assert conversations.verdict(talkers.Diary(**good), 1.0) == "met"  # type: ignore[arg-type]
    assert conversations.verdict(talkers.Diary(**good), 21.0) == "not measurable"  # type: ignore[arg-type]
    assert conversations.verdict(talkers.Diary(), 1.0) == "not measurable"
    for name in ("dry_replies", "stale", "unanswered", "closed", "refused", "missed"):
        assert conversations.verdict(talkers.Diary(**good, **{name: 1}), 1.0) == "missed", name  # type: ignore[arg-type]
    slow = {**good, "voice_to_voice": [300.0] * 18 + [451.0] * 2}
    assert conversations.verdict(talkers.Diary(**slow), 1.0) == "missed"  # type: ignore[arg-type]
    parts = [asdict(talkers.Diary(**good)), asdict(talkers.Diary(stale=2, late=[3.0]))]  # type: ignore[arg-type]
    whole = conversations.together(parts)
    assert (len(whole.voice_to_voice), whole.stale, whole.late) == (20, 2, [1.0, 3.0])


def test_the_lag_between_two_readings_is_a_class_of_the_histogram() -> None:
    before = {0.001: 10.0, 0.01: 10.0, 0.1: 10.0}
    after = {0.001: 60.0, 0.01: 109.0, 0.1: 110.0}
    assert conversations.lag_p99_ms(before, after) == 10.0
    assert math.isnan(conversations.lag_p99_ms(after, after))
