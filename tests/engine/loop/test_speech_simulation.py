"""Chat, listening and speaking under one scheduler and arbitrary commands: nothing lost, doubled, leaked or stuck."""

from __future__ import annotations

import functools

import hypothesis.strategies as st
import numpy as np
import pytest
from examples import examples, sweep
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, precondition, rule
from simulation import expected_text, reason
from speech_simulation import SpeechSimulation, transcript
from voice_loop import SESSIONS, VoiceLoop

from voxlane.engine.api import (
    MAX_UNHEARD_S,
    MAX_UNSAID_CHARS,
    Append,
    Cancel,
    EndInput,
    ListenParams,
    Pause,
    Priority,
    Resume,
    SamplingParams,
    SpeakParams,
    Submit,
)

RATE = 16_000
GRID = 4  # so many different loud sounds


def sound(kind: int, seconds: float) -> np.ndarray:
    """Return a stretch of one of a few sounds; 0 is silence."""
    noise = np.random.default_rng(kind).uniform(-0.9, 0.9, int(seconds * RATE))
    return (noise * (32767 if kind else 0)).astype("<i2")


def said(text: str) -> bytes:
    """Return what the pretended voice makes of a text's clauses."""
    samples = np.repeat(np.array([ord(letter) for letter in text], np.float32) / 256, 10)
    return np.rint(samples * 32767.0).astype("<i2").tobytes()


class SpeechLoop(VoiceLoop):
    """Random commands for all three models against the real core and scheduler."""

    @initialize(
        policy=st.sampled_from(["fcfs", "priority", "deadline"]),
        blocks=st.sampled_from([52, 70, 300]),
        host=st.sampled_from([0, 60]),
        batch=st.integers(1, 5),
        budget=st.sampled_from([0.001, 0.02, 1.0]),
        late=st.booleans(),
    )
    def start(self, policy, blocks, host, batch, budget, late):
        self.simulation = SpeechSimulation(
            blocks=20, host_blocks=10, asr_blocks=blocks, asr_host=host, policy=policy, max_batch=batch,
            max_step_tokens=64, step_budget_s=budget, late=late,
        )  # fmt: skip
        self.audio: dict[str, np.ndarray] = {}
        self.clauses: dict[str, list[str]] = {}
        self.prompts: dict[str, str] = {}
        self.open: set[str] = set()
        self.cancelled: set[str] = set()
        self.count = 0

    def _name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    priorities = st.sampled_from(list(Priority))

    @rule(priority=priorities, session=SESSIONS, partials=st.booleans())
    def listen(self, priority, session, partials):
        name = self._name("a")
        self.audio[name] = np.zeros(0, "<i2")
        self.open.add(name)
        params = ListenParams(partials=partials)
        self.simulation.send(Submit(name, "asr", priority=priority, session=session, listen=params))

    @rule(priority=priorities, session=SESSIONS)
    def speak(self, priority, session):
        name = self._name("t")
        self.clauses[name] = []
        self.open.add(name)
        self.simulation.send(Submit(name, "tts", priority=priority, session=session))

    @rule(priority=priorities, session=SESSIONS, prompt=st.text(alphabet="ABC", min_size=1, max_size=12))
    def chat(self, priority, session, prompt):
        name = self._name("c")
        self.prompts[name] = prompt
        sampling = SamplingParams(max_tokens=6, ignore_eos=True)
        self.simulation.send(
            Submit(name, "complete", text=prompt, sampling=sampling, priority=priority, session=session)
        )

    @precondition(lambda self: self.open)
    @rule(data=st.data(), kind=st.integers(0, GRID), seconds=st.sampled_from([0.0301, 0.1, 0.5, 2.0, 5.0]))
    def append(self, data, kind, seconds):
        name = data.draw(st.sampled_from(sorted(self.open)))
        if name in self.audio:
            piece = sound(kind, seconds)
            self.audio[name] = np.concatenate([self.audio[name], piece])
            self.simulation.send(Append(name, audio=piece.tobytes()))
        else:
            text = ["", " ", "ab ", "one two three, ", "word " * 50][kind]
            self.clauses[name].append(text)
            self.simulation.send(Append(name, text=text))

    @precondition(lambda self: self.count)
    @rule(data=st.data())
    def cancel(self, data):
        name = data.draw(st.sampled_from(sorted([*self.audio, *self.clauses, *self.prompts])))
        if name not in self.simulation.ends:
            self.cancelled.add(name)
            self.open.discard(name)
        self.simulation.send(Cancel(name))
        assert not any(request.id.partition("/")[0] == name for request in self.simulation.scheduler.requests.values())

    @precondition(lambda self: self.count)
    @rule(data=st.data(), pause=st.booleans())
    def pause_or_resume(self, data, pause):
        name = data.draw(st.sampled_from(sorted([*self.audio, *self.clauses, *self.prompts])))
        self.simulation.send(Pause((name,)) if pause else Resume(name))

    @rule(count=st.integers(1, 8))
    def step(self, count):
        before = dict(self.simulation.settled)
        for _ in range(count):
            if self.simulation.core.busy:
                self.simulation.step()
        for name, text in before.items():
            assert self.simulation.settled[name].startswith(text), "settled words changed"

    def teardown(self):
        if not hasattr(self, "simulation"):
            return
        simulation = self.simulation
        simulation.send(*(EndInput(name) for name in self.open))
        simulation.send(*(Resume(name) for name in [*self.audio, *self.clauses, *self.prompts]))
        simulation.run()
        for name in self.cancelled:
            assert reason(simulation.ends[name]) == "cancelled"
        for name, prompt in self.prompts.items():
            if name not in self.cancelled:
                assert simulation.texts[name] == expected_text(prompt, 6)
        for name, audio in self.audio.items():
            if name not in self.cancelled:
                assert reason(simulation.ends[name]) == "eos"
                assert simulation.tails.get(name, "") == ""
                self._check_transcript(name, audio)
        for name, clauses in self.clauses.items():
            if name not in self.cancelled:
                assert reason(simulation.ends[name]) == "eos"
                expected = "".join(clause.strip() for clause in clauses)
                heard = simulation.pcm.get(name, b"")
                assert len(heard) == len(said(expected)) or any(len(clause) > 160 for clause in clauses)
        assert simulation.pool.used == simulation.asr_pool.used == 0
        simulation.core.idle()

    def _check_transcript(self, name: str, audio: np.ndarray) -> None:
        """Whatever was looked at meanwhile, the segments lie where they lie, and their text is what was settled."""
        texts = [segment.text for segment in self.simulation.segments.get(name, [])]
        assert " ".join(" ".join(texts).split()) == " ".join(self.simulation.settled.get(name, "").split())


SpeechLoop.TestCase.settings = settings(
    max_examples=examples(200), stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSpeechLoop = SpeechLoop.TestCase


def floats(audio: np.ndarray) -> np.ndarray:
    return audio.astype(np.float32) / 32768


AUDIO = np.concatenate([sound(1, 3.3), sound(0, 1.5), sound(2, 5.0), sound(3, 9.0), sound(0, 2.0), sound(4, 22.0)])


@functools.cache
def all_of_it() -> str:
    return transcript(floats(AUDIO))


@pytest.mark.parametrize("piece", sweep([161, 10**7, 320, 16_000]))
@pytest.mark.parametrize("blocks", sweep([52, 400]), ids=["tight", "roomy"])
@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_a_stream_without_partials_is_heard_as_the_whole_clip(piece, blocks, late):
    simulation = SpeechSimulation(blocks=8, host_blocks=0, asr_blocks=blocks, late=late)
    for name in ("a", "b"):
        simulation.send(Submit(name, "asr", listen=ListenParams(partials=False)))
        for start in range(0, len(AUDIO), piece):
            simulation.send(Append(name, audio=AUDIO[start : start + piece].tobytes()))
            if start % 16 == 0 and simulation.core.busy:
                simulation.step()
        simulation.send(EndInput(name))
    simulation.run()
    assert simulation.settled["a"] == simulation.settled["b"] == all_of_it()
    assert simulation.ends["a"].stats.audio_s == len(AUDIO) / RATE
    assert simulation.asr_pool.used == 0


def test_with_a_quick_device_jobs_take_turns_and_nobody_is_forgotten():
    """A step under way is not held up by all that is to be listened to, but for a quarter of it."""
    simulation = SpeechSimulation(blocks=40, host_blocks=0, late=True)
    simulation.send(Submit("c", "complete", text="ABC", sampling=SamplingParams(max_tokens=30, ignore_eos=True)))
    simulation.step()
    for number in range(8):
        simulation.send(Submit(f"a{number}", "asr"), Append(f"a{number}", audio=sound(1, 3.0).tobytes()))
    turns = []
    for _ in range(4):
        simulation.step()
        turns.append({name for name, job in simulation.core._jobs.jobs.items() if job.worked == simulation.core._round})
    assert [len(names) for names in turns] == [2, 2, 2, 2]
    assert set.union(*turns) == {f"a{number}" for number in range(8)}


def test_silence_is_heard_as_nothing_and_acknowledged():
    simulation = SpeechSimulation(blocks=8, host_blocks=0)
    simulation.send(Submit("a", "asr"), Append("a", audio=sound(0, 30).tobytes()))
    simulation.run()
    assert simulation.settled["a"] == ""
    simulation.send(EndInput("a"))
    simulation.run()
    assert reason(simulation.ends["a"]) == "eos"
    assert simulation.segments["a"] == []


def test_who_sends_faster_than_can_be_heard_loses_the_request():
    simulation = SpeechSimulation(blocks=8, host_blocks=0)
    simulation.send(Submit("a", "asr"), Append("a", audio=bytes(int(MAX_UNHEARD_S + 1) * RATE * 2)))
    assert reason(simulation.ends["a"]) == "failed"
    simulation.send(Submit("t", "tts"), Append("t", text="a" * (MAX_UNSAID_CHARS + 1)))
    assert reason(simulation.ends["t"]) == "failed"


def test_a_paused_reply_goes_on_at_the_same_sample():
    clauses = ["one, ", "two, ", "three. "]
    simulation = SpeechSimulation(blocks=8, host_blocks=0)
    simulation.send(Submit("t", "tts"), *(Append("t", text=clause) for clause in clauses), EndInput("t"))
    simulation.step()
    simulation.send(Pause(("t",)))
    simulation.run()
    assert simulation.pcm["t"] == said("one,")
    simulation.send(Resume("t"))
    simulation.run()
    assert simulation.pcm["t"] == said("one,two,three.")


def test_a_clause_too_long_for_one_unit_is_said_in_several():
    simulation = SpeechSimulation(blocks=8, host_blocks=0)
    simulation.send(Submit("t", "tts"), Append("t", text="word " * 200), Append("t", text="x" * 500), EndInput("t"))
    units = []
    while simulation.core.busy:
        simulation.step()
        units += [request.unit for request in simulation.scheduler.requests.values()]
    assert simulation.ends["t"].stats.output_tokens >= 10
    letters = len("word " * 200) + 500 - simulation.ends["t"].stats.output_tokens
    assert abs(len(simulation.pcm["t"]) // 20 - letters) < 20
    assert all(unit <= 160 for unit in units)


@pytest.mark.parametrize(
    ("submit", "words"),
    [
        (Submit("x", "tts", speak=SpeakParams(voice="nobody")), "no voice 'nobody'"),
        (Submit("x", "tts", speak=SpeakParams(speed=9.0)), "speed must be"),
        (Submit("x", "tts", speak=SpeakParams(speed=float("nan"))), "speed must be"),
        (Submit("x", "asr", listen=ListenParams(language="tlh")), "language 'tlh'"),
    ],
)
def test_what_a_model_cannot_do_is_refused(submit, words):
    simulation = SpeechSimulation(blocks=8, host_blocks=0)
    simulation.send(submit)
    assert words in simulation.ends["x"].detail


def test_a_critical_listener_is_served_before_a_queue_of_others():
    simulation = SpeechSimulation(blocks=200, host_blocks=0, step_budget_s=0.02)
    sampling = SamplingParams(max_tokens=200, ignore_eos=True)
    for index in range(8):
        simulation.send(Submit(f"c{index}", "complete", text="ABC" * 8, sampling=sampling))
        simulation.send(Submit(f"t{index}", "tts"), Append(f"t{index}", text="word " * 20), EndInput(f"t{index}"))
    for _ in range(5):
        simulation.step()
    simulation.send(Submit("a", "asr", priority=Priority.CRITICAL))
    simulation.send(Append("a", audio=sound(1, 3.0).tobytes()), EndInput("a"))
    steps = 0
    while "a" not in simulation.ends:
        simulation.step()
        steps += 1
    assert steps <= 30  # six pieces of half a second, and a token at a time
    assert not [name for name in simulation.ends if name.startswith("c")]
    simulation.run()
    assert {reason(end) for end in simulation.ends.values()} == {"eos", "length"}


@pytest.mark.parametrize("host", [0, 80], ids=["recompute", "swap"])
def test_a_look_that_gave_its_blocks_away_hears_the_same(host):
    simulation = SpeechSimulation(blocks=8, host_blocks=0, asr_blocks=42, asr_host=host)
    moves = set()
    simulation.listening.on_move = moves.add
    simulation.send(Submit("a", "asr", listen=ListenParams(partials=False)))
    simulation.send(Append("a", audio=AUDIO[-16 * RATE :].tobytes()), EndInput("a"))
    while not any(request.output_tokens > 40 for request in simulation.scheduler.requests.values()):
        simulation.step()
    (look,) = simulation.scheduler.requests.values()
    simulation.send(Pause(("a",)))
    simulation.send(Submit("b", "asr", priority=Priority.CRITICAL, listen=ListenParams(partials=False)))
    simulation.send(Append("b", audio=AUDIO[: 16 * RATE].tobytes()), EndInput("b"))
    simulation.run()
    assert not look.blocks
    simulation.send(Resume("a"))
    simulation.run()
    assert simulation.settled["a"] == transcript(floats(AUDIO[-16 * RATE :]))
    assert simulation.settled["b"] == transcript(floats(AUDIO[: 16 * RATE]))
    assert moves == ({"swap_out", "swap_in"} if host else set())


def test_a_fault_of_one_model_leaves_the_others_alone():
    simulation = SpeechSimulation(blocks=200, host_blocks=0, step_budget_s=1.0)
    simulation.send(
        Submit("c", "complete", text="ABC", sampling=SamplingParams(max_tokens=9, ignore_eos=True)),
        Submit("a", "asr"),
        Append("a", audio=sound(1, 3.0).tobytes()),
        Submit("t", "tts"),
        Append("t", text="one two"),
        EndInput("t"),
    )
    while not any(request.model == "asr" for request in simulation.scheduler.requests.values()):
        simulation.step()
    simulation.listening.fail_next = True
    simulation.run()
    assert reason(simulation.ends["a"]) == "failed"
    assert simulation.texts["c"] == expected_text("ABC", 9)
    assert simulation.pcm["t"] == said("one two")
    assert simulation.asr_pool.used == 0
