"""Corners of listening and speaking in which one request once cost another its time, its words or its engine."""

from __future__ import annotations

import hashlib
import json

import hibari.voices
import numpy as np
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime_errors
from simulation import Clock, reason
from speech_simulation import (
    FRAME,
    PretendListeningModel,
    PretendSynthesiser,
    PretendVoice,
    PretendVoicing,
    SpeechSimulation,
)

from voxlane.engine.api import (
    MAX_UNSAID_CHARS,
    Append,
    EndInput,
    ListenParams,
    Pause,
    Priority,
    Refused,
    Resume,
    SamplingParams,
    SpeakParams,
    Submit,
)
from voxlane.engine.errors import Refusal
from voxlane.engine.jobs.chat import ChatJobFactory
from voxlane.engine.jobs.speak_clauses import SpeakClausesJobFactory
from voxlane.engine.jobs.speech import MAX_CLAUSE_CHARS
from voxlane.engine.jobs.transcribe import TranscribeJob, TranscribeJobFactory
from voxlane.engine.loop.core import WORK_BUDGET_S, Core
from voxlane.engine.loop.trace import Trace
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.models.hibari.model import Hibari
from voxlane.engine.runners.clause_tts import ClauseOutcome, ClausePayload, ClauseTTS
from voxlane.engine.runners.recogniser import TranscriptionOutcome, transcription_of
from voxlane.engine.runners.sampler import SampledToken
from voxlane.engine.schedule.cost import CostModel, Work
from voxlane.engine.schedule.plan import PLAIN, TEXT, Limits, ModelBatch, ModelResources, Row
from voxlane.engine.schedule.request import ClipStates, Request
from voxlane.engine.schedule.scheduler import Scheduler

RATE = 16_000
NOTHING = BlockPool(0, 1, prefix_cache=False)


def loud(seconds: float, seed: int = 1) -> bytes:
    """Return a stretch of noise that is taken for speech."""
    noise = np.random.default_rng(seed).uniform(-0.9, 0.9, int(seconds * RATE))
    return (noise * 32767).astype("<i2").tobytes()


def silence(seconds: float) -> bytes:
    return bytes(int(seconds * RATE) * 2)


def say(name: str, text: str, **submit) -> list:
    """Return the commands of a whole reply."""
    return [Submit(name, "tts", **submit), Append(name, text=text), EndInput(name)]


def rebuild(simulation: SpeechSimulation, *, voice=None, voicing=PretendVoicing, trace: Trace | None = None) -> None:
    """Give a simulation a core with other parts than the usual ones."""
    voice = voice or PretendVoice(simulation.clock)
    simulation.core = Core(
        simulation.scheduler,
        {"chat": simulation.engine, "asr": simulation.listening, "tts": voice},
        {
            "chat": ChatJobFactory(simulation.intake, simulation.letters),
            "asr": TranscribeJobFactory(PretendListeningModel(), simulation.asr_pool, voicing),
            "tts": SpeakClausesJobFactory(voice.model, NOTHING),
        },
        clock=simulation.clock,
        trace=trace,
    )


# ---- faults


class PickyVoice(PretendSynthesiser):
    """Fails at an exclamation mark."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def synthesise(self, prepared, **how):
        if ord("!") in prepared.ids:
            raise self.error
        return super().synthesise(prepared, **how)


FAULTS = [runtime_errors.Fail("node Conv_3: could not allocate"), ValueError("cannot say that"), MemoryError()]


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_a_fault_of_the_model_is_an_outcome_of_its_clause_alone(error):
    model = PickyVoice(error)
    rows = [
        Row(Request(text, "tts", [], 0, BlockTable(NOTHING), model="tts", payload=clause), 0, 0)
        for text in ("one", "!", "two")
        for clause in [ClausePayload(model.prepare(text), "one", 1.0, 0)]
    ]
    outcomes = ClauseTTS(model).run(ModelBatch(rows))
    assert [outcome.failed for outcome in outcomes] == [False, True, False]
    assert [isinstance(outcome, ClauseOutcome) for outcome in outcomes] == [True, False, True]


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_a_clause_that_fails_costs_only_its_own_reply(error):
    simulation = SpeechSimulation(blocks=8, host_blocks=0, step_budget_s=1.0)
    rebuild(simulation, voice=ClauseTTS(PickyVoice(error)))
    simulation.send(*say("good", "one"), *say("bad", "!"))
    simulation.run()
    assert reason(simulation.ends["bad"]) == "failed"
    assert reason(simulation.ends["good"]) == "eos"
    assert simulation.pcm["good"]


class PickyReader(PretendSynthesiser):
    """Cannot read an exclamation mark, and says which text that was."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def prepare(self, text, **how):
        if "!" in text:
            raise self.error(f"cannot read {text}")
        return super().prepare(text, **how)


@pytest.mark.parametrize("error", [ValueError, KeyError, AssertionError])
def test_a_clause_that_cannot_be_read_costs_only_its_own_reply(error, caplog):
    simulation = SpeechSimulation(blocks=8, host_blocks=0, step_budget_s=1.0)
    rebuild(simulation, voice=ClauseTTS(PickyReader(error)))
    simulation.send(*say("good", "one"), *say("bad", "secret!"))
    simulation.run()
    assert reason(simulation.ends["bad"]) == "failed"
    assert reason(simulation.ends["good"]) == "eos"
    assert error.__name__ in caplog.text
    assert "secret" not in caplog.text


@pytest.fixture
def downloaded(tmp_path, monkeypatch):
    """Return a voice that does not come with the package, and the path its file would have."""
    name, entry = next((name, entry) for name, entry in hibari.voices.VOICES.items() if not entry.get("bundled"))
    monkeypatch.setattr(hibari.voices, "cache_dir", lambda: tmp_path)
    return name, tmp_path / entry["file"]


def voice_core(model: Hibari) -> Core:
    resources = ModelResources(NOTHING, BlockPool(0, 1, prefix_cache=False), CostModel())
    factories = {"tts": SpeakClausesJobFactory(model, NOTHING)}
    return Core(Scheduler({"tts": resources}, Limits()), {"tts": ClauseTTS(model)}, factories, clock=Clock())


def test_a_voice_whose_file_is_not_whole_is_refused(downloaded):
    name, path = downloaded
    path.write_bytes(b"half a download")
    (answer,) = voice_core(Hibari()).handle([Submit("t", "tts", speak=SpeakParams(voice=name))])
    assert isinstance(answer, Refused)
    assert answer.code == "bad_request"


def test_a_voice_file_that_is_damaged_later_ends_the_request_and_not_the_engine(downloaded, monkeypatch):
    name, path = downloaded
    path.write_bytes(b"a whole download")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(hibari.voices.VOICES, name, {**hibari.voices.VOICES[name], "sha256": digest})
    core = voice_core(Hibari())
    path.write_bytes(b"half a download")
    messages = core.handle(say("t", "Hello.", speak=SpeakParams(voice=name)))
    while core.busy:
        messages += core.step()
    assert reason(messages[-1]) == "failed"


# ---- time


class Reader(PretendSynthesiser):
    """Notes how long the texts are that it is given to read."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def prepare(self, text, *, voice=None, names=None):
        self.lengths.append(len(text))
        return super().prepare(text, voice=voice)


def test_a_long_text_is_read_in_small_parts():
    model = Reader()
    job = SpeakClausesJobFactory(model, NOTHING).open(Submit("t", "tts"), 0.0)
    job.append(Append("t", text="unknown words " * 285), 0.0)
    for _ in range(12):
        before = len(model.lengths)
        change = job.work(0.0)
        assert len(model.lengths) - before <= 1
        if change.begin:
            break
    assert change.begin
    assert max(model.lengths) <= MAX_CLAUSE_CHARS


def test_pronunciations_that_cannot_be_used_are_refused():
    submit = Submit("t", "tts", speak=SpeakParams(pronunciations=("Ada",)))
    with pytest.raises(Refusal, match="pronunciations: entry 1: write it as"):
        SpeakClausesJobFactory(PretendSynthesiser(), NOTHING).open(submit, 0.0)


def test_the_text_of_a_submission_is_bounded_too():
    simulation = SpeechSimulation(blocks=8, host_blocks=0)
    simulation.send(Submit("t", "tts", text="a" * (MAX_UNSAID_CHARS + 1)))
    assert reason(simulation.ends["t"]) == "refused"


def test_many_streams_with_a_backlog_do_not_make_a_step_long():
    simulation = SpeechSimulation(blocks=8, host_blocks=0)
    piece_s = 0.004

    class SlowVoicing(PretendVoicing):
        def __call__(self, samples):
            simulation.clock.now += piece_s
            return super().__call__(samples)

    rebuild(simulation, voicing=SlowVoicing)
    names = [f"a{number}" for number in range(30)]
    for name in names:
        simulation.send(Submit(name, "asr"), Append(name, audio=silence(10)), EndInput(name))
    simulation.send(Submit("c", "complete", text="ABC", priority=Priority.CRITICAL))
    begin, engine = simulation.clock.now, simulation.engine
    simulation.step()
    step_s = engine.step_s + 3 * engine.token_s
    assert simulation.texts["c"]
    assert simulation.clock.now - begin <= WORK_BUDGET_S + piece_s + step_s + 1e-6
    simulation.run()
    assert {reason(simulation.ends[name]) for name in names} == {"eos"}


@pytest.mark.parametrize(("work_s", "fewest", "most"), [(1e-3, 9, 20), (5e-5, 2, 8)])
def test_between_jobs_that_work_somebody_looks_up_as_often_as_it_takes(monkeypatch, work_s, fewest, most):
    simulation = SpeechSimulation(blocks=8, host_blocks=0)
    for number in range(20):
        simulation.send(Submit(f"a{number}", "asr"), Append(f"a{number}", audio=bytes(2 * FRAME)))
    work, looks = TranscribeJob.work, [0]

    def slowly(job, now):
        simulation.clock.now += work_s
        return work(job, now)

    def receive():
        looks[0] += 1
        return []

    monkeypatch.setattr(TranscribeJob, "work", slowly)
    simulation.core.step(receive)
    assert fewest <= looks[0] <= most


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_stream_that_came_first_is_not_last(policy):
    simulation = SpeechSimulation(blocks=800, host_blocks=0, policy=policy, max_batch=2)
    simulation.send(Submit("a", "asr", listen=ListenParams(partials=False)))
    for name in "cd":
        sampling = SamplingParams(max_tokens=500, ignore_eos=True)
        simulation.send(Submit(name, "complete", text="ABC", sampling=sampling))
    simulation.step()
    simulation.send(Append("a", audio=loud(2)), EndInput("a"))
    while not simulation.ends:
        simulation.step()
    assert list(simulation.ends) == ["a"]


class PunctualVoice(PretendVoice):
    """Notes how late each clause is when it is said."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.late_s: list[float] = []

    def launch(self, load):
        self.late_s += [self.clock.now - row.request.due_s for row in load.rows]
        return super().launch(load)


def test_a_reply_that_was_held_for_a_minute_is_not_a_minute_late():
    simulation = SpeechSimulation(blocks=8, host_blocks=0)
    voice = PunctualVoice(simulation.clock)
    rebuild(simulation, voice=voice)
    simulation.send(Submit("t", "tts"), Append("t", text="one two three, " * 5), Append("t", text="more words. " * 5))
    simulation.step()
    simulation.send(Pause(("t",)))
    simulation.clock.now += 60
    simulation.send(Resume("t"), EndInput("t"))
    simulation.run()
    assert len(voice.late_s) >= 2
    assert max(voice.late_s) < 1


# ---- the scheduler


def new_resources(*, encoder: bool = False) -> ModelResources:
    pool, host = BlockPool(1000, 16, prefix_cache=False), BlockPool(0, 16, prefix_cache=False)
    return ModelResources(
        pool, host, CostModel(), CostModel() if encoder else None, abilities=PLAIN if encoder else TEXT
    )


def work(*rows: int) -> Work:
    """Return the work of rows of so many tokens."""
    total = Work()
    for count in rows:
        total = total.plus(count, count)
    return total


def test_rows_beside_an_encoder_fit_the_budget():
    asr, budget_s = new_resources(encoder=True), 0.06
    for _ in range(200):
        asr.encoder.observe(work(200), 0.055)
        asr.encoder.observe(work(100), 0.03)
        for rows in (1, 2, 3):
            asr.cost.observe(work(*[1] * rows), 0.01 * rows)
    scheduler = Scheduler({"asr": asr}, Limits(step_budget_s=budget_s))

    def add(name: str, tokens: int, states: int, due_s: float) -> None:
        clip, table = ClipStates(states, BlockTable(asr.pool)), BlockTable(asr.pool)
        scheduler.add(Request(name, "asr", list(range(tokens)), tokens, table, model="asr", clip=clip, due_s=due_s))

    for number in range(3):
        add(f"old {number}", 2, states=10, due_s=9.0)
    for _ in range(4):
        for row in scheduler.schedule(0.0).rows:
            row.request.tokens.append(1)
    add("new", 1, states=200, due_s=0.1)
    plan = scheduler.schedule(0.0)
    assert any(row.request.id == "new" for row in plan.rows)
    assert plan.predicted_s <= budget_s or len(plan.rows) == 1


def test_a_prompt_is_read_beside_clauses_that_fill_every_step():
    chat, tts = new_resources(), ModelResources(NOTHING, BlockPool(0, 1, prefix_cache=False), CostModel())
    for _ in range(100):
        chat.cost.observe(work(16), 0.02)
        chat.cost.observe(work(64), 0.05)
        tts.cost.observe(work(100), 0.058)
    scheduler = Scheduler({"chat": chat, "tts": tts}, Limits(step_budget_s=0.06))
    scheduler.add(Request("prompt", "chat", list(range(200)), 200, BlockTable(chat.pool)))
    placed = 0
    for number in range(20):
        table = BlockTable(NOTHING)
        clause = Request(f"clause {number}", "tts", [], 0, table, model="tts", unit=100, due_s=0.1)
        scheduler.add(clause)
        placed += any(row.request.id == "prompt" for row in scheduler.schedule(number * 0.06).rows)
        scheduler.remove(clause)
    assert placed


# ---- what is told


def test_a_trace_has_one_lane_per_request_and_forgets_it(tmp_path):
    simulation, path = SpeechSimulation(blocks=40, host_blocks=0), tmp_path / "trace.json"
    with Trace(path) as trace:
        rebuild(simulation, trace=trace)
        sampling = SamplingParams(max_tokens=9, ignore_eos=True)
        simulation.send(*say("u/say1", "one"), *say("v", "two"))
        simulation.send(Submit("u/chat1", "complete", text="ABC", sampling=sampling))
        simulation.run()
        del simulation.ends["v"]
        del simulation.pcm["v"]
        simulation.send(*say("v", "again"))
        simulation.run()
    lanes = [event for event in json.loads(path.read_text()) if event["name"] == "thread_name" and event["pid"] == 2]
    assert len(lanes) == 4


class Babel(PretendListeningModel):
    """Takes every clip for Welsh."""

    languages = ("en", "cy")
    detects_language = True

    def prompt_tokens(self, language, states=0):
        return [0, 7] if language else [0]

    def after_language(self, token):
        return []

    def language_of(self, token):
        return "cy"


def test_a_language_heard_in_noise_is_not_kept():
    pool = BlockPool(100, 16, prefix_cache=False)
    job = TranscribeJobFactory(Babel(), pool, PretendVoicing).open(Submit("a", "asr"), 0.0)

    def hear(audio: bytes) -> list[Request]:
        job.append(Append("a", audio=audio), 0.0)
        begun = []
        while job.wants_work:
            begun += job.work(0.0).begin
        return begun

    def look(request: Request) -> list[Request]:
        """Bring the language, then an unbelievable word; return the looks that follow."""
        request.table.append(len(request.tokens))
        if transcription_of(request).detects_language:
            job.advance(Row(request, 0, 1, encode=True), TranscriptionOutcome(choices=[SampledToken(7, -3.0)]), 0.0)
        request.table.append(len(request.tokens) - request.table.length)
        job.advance(Row(request, 0, 1), TranscriptionOutcome(choices=[SampledToken(4, -9.0)]), 0.0)
        return job.advance(Row(request, 0, 1), TranscriptionOutcome(choices=[SampledToken(1, -9.0)]), 0.0).begin

    waiting = hear(loud(1) + silence(2))
    assert waiting
    while waiting:
        waiting = look(waiting[-1])
    assert transcription_of(hear(loud(1, seed=2))[-1]).detects_language


def test_an_engine_that_only_hears_silence_reports_once_a_second():
    simulation = SpeechSimulation(blocks=8, host_blocks=0)
    simulation.send(Submit("a", "asr"))
    reports = 0
    for _ in range(50):  # a frame of 20 ms, its step, nothing more to do
        simulation.send(Append("a", audio=silence(0.02)))
        simulation.run()
        reports += len(simulation.core.idle())
        simulation.clock.now += 0.02
    assert reports <= 3
