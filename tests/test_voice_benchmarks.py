"""The people of the GPU benchmarks in virtual time: what they send, and what they hold against the engine."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from simulation import Simulation

from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    Finished,
    Pause,
    Priority,
    Refused,
    RequestStats,
    Resume,
    Samples,
    SamplingParams,
    Submit,
    Text,
    Words,
)
from voxlane.engine.build import asr_tts, assemble
from voxlane.engine.schedule.cost import Work
from voxlane.engine.text.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import gpu_conversations as conversations
import gpu_sessions
from support.crowd import talkers
from support.engines import pretended, switched
from support.sessions import engine as session_engine
from support.sessions import speakers

RATE, TICK_S = 24_000, 0.01
NOTHING = RequestStats(0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0)


class ScriptedEngine:
    """Hears everything at once, writes a token and says a clause whenever it is asked to."""

    connected, starting = True, False

    def __init__(self, clause_s: float) -> None:
        self.ready = SimpleNamespace(speak_rate=RATE)
        self.receivers: dict[str, Any] = {}
        self.sent: list[Any] = []
        self.paused = False
        self._clause_s = clause_s
        self._queue: list[Any] = []
        self._writing = ""  # the chat request
        self._left = 0  # tokens
        self._offset = 0

    def send(self, *messages: Any) -> None:
        self.sent += messages
        for message in messages:
            match message:
                case Submit(name, "chat"):
                    self._writing, self._left, self._offset = name, message.sampling.max_tokens, 0
                case Submit(name, "tts") if message.speak.voice:
                    self._queue.append(Refused(name, 0, "bad_request", "there is no such voice"))
                case Pause():
                    self.paused = True
                case Resume() | Cancel():
                    self.paused = False
                case Append(name, text=text) if text:
                    pcm = bytes(2 * round(self._clause_s * RATE))
                    self._queue.append(Samples(name, 0, self._offset, pcm, ()))
                    self._offset += len(pcm) // 2
                case EndInput(name):
                    if "/hear" in name:
                        self._queue.append(Words(name, 0, "hello there", "", 1.0, covered_s=1e6))
                    self._queue.append(Finished(name, 0, "eos", NOTHING))
                case _:
                    pass

    def send_soon(self, message: Append) -> None:
        self.send(message)

    def step(self, now: float) -> None:
        if self._left and not self.paused:
            self._left -= 1
            self._queue.append(Text(self._writing, 0, " word"))
            if not self._left:
                self._queue.append(Finished(self._writing, 0, "length", NOTHING))
        queue, self._queue = self._queue, []
        for message in queue:
            self.receivers["s"](message, now)


def converse(seconds: float, *, clause_s: float, seed: int) -> tuple[ScriptedEngine, speakers.Speaker]:
    engine = ScriptedEngine(clause_s)
    sound = session_engine.Sound("hello there", np.full(16_000, 900, np.int16))
    speaker = speakers.Speaker(engine, "s", [sound], seed, 0.0)  # type: ignore[arg-type]
    for tick in range(round(seconds / TICK_S)):
        speaker.tick(tick * TICK_S)
        engine.step(tick * TICK_S)
    return engine, speaker


def test_a_conversation_goes_as_the_server_would_lead_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speakers, "CUTS_IN", 0.0)
    engine, speaker = converse(20.0, clause_s=2.0, seed=1)
    turns = speaker.diary.turns
    assert len(turns) >= 2
    assert all(turn.words_right == 1.0 for turn in turns)
    assert not speaker.diary.underruns
    assert gpu_sessions.judge(speaker.diary, 0.0, 20.0) is True
    heard = b"".join(one.audio for one in engine.sent if isinstance(one, Append) and one.request_id == "s/hear1")
    spoken_s = speakers.PRE_ROLL_S + 1.0 + speakers.END_WAIT_S
    assert len(heard) / 2 / 16_000 == pytest.approx(spoken_s, abs=speakers.FRAME_S)
    chats = [one for one in engine.sent if isinstance(one, Submit) and one.task == "chat"]
    roles = [message.role for message in chats[1].messages]
    assert roles == ["system", "user", "assistant", "user"]
    said = "".join(one.text for one in engine.sent if isinstance(one, Append) and one.request_id == "s/say1")
    assert said in speakers.REPLIES


def test_who_cuts_in_is_critical_and_a_cough_lets_the_reply_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speakers, "CUTS_IN", 1.0)
    engine, speaker = converse(40.0, clause_s=3.0, seed=3)
    assert speaker.diary.interrupts
    assert all(waited == 0.0 for _, waited in speaker.diary.interrupts)
    at = [number for number, one in enumerate(engine.sent) if isinstance(one, Pause)]
    critical = [engine.sent[number + 2] for number in at]
    assert all(one.task == "asr" and one.priority is Priority.CRITICAL for one in critical)
    coughs = sum(isinstance(one, Resume) and "/say" in one.request_id for one in engine.sent)
    given_up = sum(isinstance(one, Cancel) and "/say" in one.request_id for one in engine.sent)
    assert coughs
    assert given_up
    assert coughs + given_up >= len(at) - 1
    assert not speaker.diary.underruns


def test_a_listener_who_waits_in_mid_reply_is_counted() -> None:
    _, speaker = converse(20.0, clause_s=0.01, seed=1)
    assert speaker.diary.underruns
    assert gpu_sessions.judge(speaker.diary, 0.0, 20.0) is False


@pytest.mark.parametrize(
    ("audio_s", "interrupt_s", "fine"),
    [(0.29, None, True), (0.31, None, False), (None, None, False), (0.1, 0.024, True), (0.1, 0.026, False)],
)
def test_targets(audio_s: float | None, interrupt_s: float | None, fine: bool) -> None:
    turn = speakers.Turn(1.0, first_audio_s=None if audio_s is None else 1.0 + audio_s)
    cuts = [] if interrupt_s is None else [(2.0, interrupt_s)]
    assert gpu_sessions.judge(speakers.Diary([turn], interrupts=cuts), 0.5, 5.0) is fine
    assert gpu_sessions.judge(speakers.Diary([turn], interrupts=cuts), 3.0, 5.0) is None


def test_made_up_words_are_read_back_as_the_same_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(session_engine.vocabulary(3000)), encoding="utf-8")
    settings = {"chat_template": session_engine.TEMPLATE, "eos_token": session_engine.CONTROLS[1]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer.vocab_size == 3000
    written = [2000, 2500, 2997, 1700]
    assert tokenizer.encode(tokenizer.decode(written)) == written


def test_an_engine_with_another_policy_begins_with_an_empty_cache(capsys: pytest.CaptureFixture[str]) -> None:
    simulation = Simulation(blocks=16, host_blocks=0)
    simulation.send(Submit("a", "complete", text="ABCDEFGHIJ", sampling=SamplingParams(max_tokens=4, ignore_eos=True)))
    switch = switched._switch(simulation.scheduler, "fcfs")
    with pytest.raises(AssertionError, match="idle"):
        switch(0, None)
    simulation.run()
    assert simulation.pool.cached > 0
    switch(0, None)
    simulation.scheduler.check()
    assert (simulation.pool.cached, simulation.pool.free) == (0, 16)
    assert simulation.scheduler.limits.policy == "fcfs"
    assert capsys.readouterr().out == "policy: fcfs\n"


def row(tokens: int, start: int, count: int, **properties: Any) -> Any:
    request = SimpleNamespace(tokens=[0] * tokens, prompt_tokens=2, states=48, **properties)
    return SimpleNamespace(request=request, start=start, count=count, drafts=[7] * properties.get("drafts", 0))


def test_a_pretended_chat_writes_once_its_prompt_is_read() -> None:
    load = SimpleNamespace(rows=[row(20, 0, 16), row(20, 16, 4), row(20, 20, 1)], work=Work(3, 20), encoding=Work())
    assert [len(outcome.choices) for outcome in pretended.Chat(None).run(load)] == [0, 1, 1]


def test_a_pretended_listener_goes_on_where_it_was_and_ends() -> None:
    listener = pretended.Listener(SimpleNamespace(eos_ids={2}))
    rows = [row(2, 0, 2), row(4, 3, 1, drafts=1), row(2, 0, 2, drafts=9)]
    load = SimpleNamespace(rows=rows, work=Work(3, 4), encoding=Work(2))
    told = [[choice.token for choice in outcome.choices] for outcome in listener.run(load)]
    words = pretended.WORDS[:4]
    assert told == [words[:1], words[2:], [*words, 2]]
    (begin, encoded), (also_begin, until) = listener.phases["encode"], listener.phases["device"]
    assert begin == also_begin < encoded < until


def test_pretended_ears_take_the_loud_for_speech() -> None:
    ears = pretended.Ears(torch.device("cpu"))
    hum, quiet = np.full(1024, 0.1, np.float32), np.zeros(512, np.float32)
    streams = [ears.open(), ears.open()]
    assert [probability > 0.5 for probability in streams[0](hum)] == [True, True]
    assert [probability > 0.5 for probability in streams[1](quiet)] == [False]
    assert [probability > 0.5 for probability in streams[0](quiet)] == [False]


def test_the_pretended_device_replaces_names_that_the_engine_has() -> None:
    with mock.patch.dict(vars(asr_tts)), mock.patch.dict(vars(assemble)):
        pretended.pretend()
        assert assemble.Runner is pretended.Chat  # type: ignore[comparison-overlap]


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
