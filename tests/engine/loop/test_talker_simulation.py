"""The laws of a codec language model's voice, on a pretended one: whatever happens on the way, it sounds the same."""

from __future__ import annotations

import re

import pytest
import talker_simulation
from examples import examples, sweep
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from simulation import expected_text, reason
from talker_simulation import CONFIG, ENDLESS, FRAME_SAMPLES, RATE, TalkerSimulation, offline, pcm_of
from voice_loop import SESSIONS, VoiceLoop

from voxlane.engine.api import (
    MAX_UNSAID_CHARS,
    Append,
    Cancel,
    EndInput,
    Pause,
    Priority,
    Resume,
    Rewind,
    SamplingParams,
    SpeakParams,
    Submit,
)
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.voices.word_timing import LETTERS_PER_S

PIECES = ("Well, ", "a" * 90, "that is ", "$4.50 ", "un", "believable. ", " ", "", "A word or two more. ", "ok")


class TalkerLoop(VoiceLoop):
    """Random commands against the real core, scheduler and job."""

    @initialize(
        policy=st.sampled_from(["fcfs", "priority", "deadline"]),
        blocks=st.sampled_from([50, 70, 400]),
        host=st.sampled_from([0, 60]),
        slots=st.integers(1, 4),
        batch=st.integers(1, 5),
        budget=st.sampled_from([0.001, 0.02, 1.0]),
        late=st.booleans(),
    )
    def start(self, policy, blocks, host, slots, batch, budget, late):
        self.simulation = TalkerSimulation(
            tts_blocks=blocks, tts_host=host, slots=slots, policy=policy, max_batch=batch, max_step_tokens=64,
            step_budget_s=budget, late=late,
        )  # fmt: skip
        self.submits: dict[str, Submit] = {}
        self.texts: dict[str, str] = {}
        self.prompts: dict[str, str] = {}
        self.open: set[str] = set()
        self.cancelled: set[str] = set()

    @rule(
        priority=st.sampled_from(list(Priority)),
        session=SESSIONS,
        seed=st.sampled_from([0, 1, 2, 3, ENDLESS]),
        clip=st.sampled_from(["", "", "00", "42", "24"]),
        text=st.sampled_from(["", "Yes. "]),
    )
    def speak(self, priority, session, seed, clip, text):
        name = f"t{len(self.submits)}"
        submit = Submit(
            name, "tts", text=text, priority=priority, session=session, speak=SpeakParams(seed=seed), tenant=clip
        )
        self.submits[name], self.texts[name] = submit, text
        self.open.add(name)
        self.simulation.send(submit)

    @rule(session=SESSIONS, prompt=st.text(alphabet="ABC", min_size=1, max_size=12))
    def chat(self, session, prompt):
        name = f"c{len(self.prompts)}"
        self.prompts[name] = prompt
        sampling = SamplingParams(max_tokens=6, ignore_eos=True)
        self.simulation.send(Submit(name, "complete", text=prompt, sampling=sampling, session=session))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), piece=st.sampled_from(PIECES))
    def append(self, data, piece):
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.texts[name] += piece
        self.simulation.send(Append(name, text=piece))
        if name in self.simulation.ends:  # it has spoken as long as it may
            self.open.discard(name)

    @precondition(lambda self: self.submits)
    @rule(data=st.data(), what=st.sampled_from([Pause, Resume, Cancel]))
    def command(self, data, what):
        name = data.draw(st.sampled_from(sorted(self.submits)))
        if what is Cancel and name not in self.simulation.ends:
            self.cancelled.add(name)
            self.open.discard(name)
        self.simulation.send(Pause((name,)) if what is Pause else what(name))

    @precondition(lambda self: self.submits)
    @rule(data=st.data(), part=st.floats(0, 1.1))
    def rewind(self, data, part):
        name = data.draw(st.sampled_from(sorted(self.submits)))
        sample = int(part * len(self.simulation.pcm.get(name, b"")) / 2)
        self.simulation.send(Rewind(name, sample))

    @rule(count=st.integers(1, 12))
    def step(self, count):
        for _ in range(count):
            if self.simulation.core.busy:
                self.simulation.step()

    def teardown(self):
        if not hasattr(self, "simulation"):
            return
        simulation = self.simulation
        simulation.send(*(EndInput(name) for name in self.open))
        simulation.send(*(Resume(name) for name in [*self.submits, *self.prompts]))
        simulation.run()
        for name, prompt in self.prompts.items():
            assert simulation.texts[name] == expected_text(prompt, 6)
        for name, submit in self.submits.items():
            if name in self.cancelled:
                assert reason(simulation.ends[name]) == "cancelled"
            else:
                self._check(submit, self.texts[name])
        assert simulation.pool.used == simulation.tts_pool.used == 0
        assert simulation.talker.slots.free == simulation.talker.slots.count
        simulation.core.idle()

    def _check(self, submit: Submit, text: str) -> None:
        simulation, name = self.simulation, submit.request_id
        ends, samples = offline(submit, text)
        assert reason(simulation.ends[name]) == ends
        assert simulation.pcm.get(name, b"") == pcm_of(samples)
        assert simulation.ends[name].stats.audio_s == len(samples) / RATE
        if samples:
            ledger = simulation.ledgers[name]
            ledger.sent(len(samples))
            assert ledger.heard_text(text) == ""
            ledger.played(len(samples))
            all_told = ledger.heard_text(text).split() == text.split()
            assert all_told == (ends == "eos"), "a spoken word was not told, or a word was told that was not spoken"


TalkerLoop.TestCase.settings = settings(
    max_examples=examples(50), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestTalkerLoop = TalkerLoop.TestCase


def speak(simulation: TalkerSimulation, name: str, text: str, *, end: bool = True, **settings: object) -> Submit:
    submit = Submit(name, "tts", **settings)
    simulation.send(submit, Append(name, text=text), *([EndInput(name)] if end else []))
    return submit


STEADY = SpeakParams(seed=ENDLESS)
LONG = "a good many words that take their time to be said, one after the other, "
BRIEF = "a good many words, all of which one utterance can say"


def test_the_first_packet_is_one_frame_and_later_ones_grow_with_the_buffer():
    simulation = TalkerSimulation()
    simulation.talker.step_s = 0.002
    speak(simulation, "t", BRIEF, speak=STEADY)
    simulation.step()
    (packet,) = simulation.spoken
    assert (packet.offset, len(packet.pcm)) == (0, 2 * FRAME_SAMPLES)
    simulation.run()
    chunks = simulation.talker.chunks[:-1]  # what is left at the end is as much as there is
    assert chunks == sorted(chunks)
    assert {1, 2, 4, 8} <= set(chunks)


def test_a_reply_that_is_wanted_later_lets_another_begin_first():
    simulation = TalkerSimulation(max_batch=1)
    speak(simulation, "later", BRIEF, speak=STEADY, deadline_s=5.0)
    speak(simulation, "now", BRIEF, speak=STEADY)
    while not simulation.spoken:
        simulation.step()
    assert simulation.spoken[0].request_id == "now"
    simulation.run()


def test_replies_that_begin_together_are_decoded_one_after_the_other_as_chunks_grow():
    simulation = TalkerSimulation(max_batch=8, step_budget_s=1.0)
    simulation.talker.step_s = simulation.talker.token_s = 0.001
    for number in range(8):
        speak(simulation, f"t{number}", LONG * 2, speak=STEADY)
    together = []
    while not any(request.not_needed_before_s for request in simulation.scheduler.requests.values()):
        before = len(simulation.talker.chunks)
        simulation.step()
        together.append(simulation.talker.chunks[before:])
    assert together[0] == [1] * 8
    assert max(map(sum, together)) == 8, together


def test_who_falls_behind_gets_every_frame_at_once():
    simulation = TalkerSimulation()
    simulation.talker.step_s = 0.1
    speak(simulation, "t", BRIEF, speak=STEADY)
    simulation.run()
    assert set(simulation.talker.chunks[:-1]) == {1}


def test_a_machine_too_slow_for_its_budget_still_makes_frames_of_several_replies_at_once():
    simulation = TalkerSimulation(step_budget_s=0.06)
    simulation.talker.step_s, simulation.talker.token_s = 0.4, 0.001
    for number in range(4):
        speak(simulation, f"t{number}", BRIEF, speak=STEADY)
    simulation.run()
    assert simulation.steps < 2 * 60  # of sixty frames each


def test_a_reply_without_text_waits_and_keeps_its_blocks():
    simulation = TalkerSimulation()
    submit = speak(simulation, "t", "One ", end=False, speak=STEADY)
    simulation.run()
    assert not simulation.core.busy
    (request,) = simulation.scheduler.requests.values()
    assert request.blocks
    before = len(simulation.pcm["t"])
    assert before == 2 * FRAME_SAMPLES * len("One"), "a frame for every token, all of them sent"
    simulation.clock.now += 60
    simulation.send(Append("t", text="two."), EndInput("t"))
    simulation.step()
    simulation.step()
    assert len(simulation.pcm["t"]) > before
    simulation.run()
    assert simulation.pcm["t"] == pcm_of(offline(submit, "One two.")[1])


def test_who_waits_for_text_makes_room_for_who_can_speak():
    simulation = TalkerSimulation(tts_blocks=50)
    submits = {name: speak(simulation, name, LONG + LONG, end=False) for name in ("old", "young")}
    simulation.run()
    simulation.send(EndInput("young"))
    simulation.run()
    assert simulation.pcm["young"] == pcm_of(offline(submits["young"], LONG + LONG)[1])
    simulation.send(EndInput("old"))
    simulation.run()
    assert simulation.pcm["old"] == pcm_of(offline(submits["old"], LONG + LONG)[1])


def test_who_is_far_ahead_leaves_the_step_to_others_and_goes_on_when_they_are_done():
    simulation = TalkerSimulation()
    simulation.talker.step_s = 0.001
    speak(simulation, "t", BRIEF, speak=STEADY)
    while simulation.core.busy and len(simulation.pcm.get("t", b"")) < 2 * 2.1 * RATE:
        simulation.step()
    sampling = SamplingParams(max_tokens=30, ignore_eos=True)
    simulation.send(Submit("c", "complete", text="ABC", sampling=sampling))
    before = simulation.pcm["t"]
    while "c" not in simulation.ends:
        simulation.step()
    assert simulation.pcm["t"] == before
    simulation.run()
    assert len(simulation.pcm["t"]) == 2 * 60 * FRAME_SAMPLES
    assert simulation.ends["t"].stats.preemptions == 0


def test_listeners_who_have_enough_are_served_together():
    simulation = TalkerSimulation(max_batch=16, step_budget_s=1.0)
    simulation.talker.step_s, simulation.talker.token_s = 0.005, 0.0001
    sampling = SamplingParams(max_tokens=3000, ignore_eos=True)
    simulation.send(Submit("c", "complete", text="ABC", sampling=sampling))  # so that there is always other work
    for number in range(8):
        simulation.clock.now += 0.05
        speak(simulation, f"t{number}", LONG * 3, speak=STEADY)
        simulation.step()
    rows: list[int] = []
    launch = simulation.talker.launch

    def count(load):
        rows.append(len(load.rows))
        return launch(load)

    simulation.talker.launch = count
    while len(simulation.pcm["t0"]) < 2 * 4 * RATE:
        simulation.step()
    late = rows[len(rows) // 2 :]
    assert sum(late) / len(late) > 5, rows


def test_a_place_in_the_codec_is_waited_for():
    simulation = TalkerSimulation(slots=1)
    submits = [speak(simulation, name, "One two three. ", speak=STEADY) for name in ("a", "b")]
    while "a" not in simulation.ends:
        simulation.step()
        assert "a" in simulation.ends or "b" not in simulation.pcm
    simulation.run()
    for submit in submits:
        assert simulation.pcm[submit.request_id] == pcm_of(offline(submit, "One two three. ")[1])


def test_who_came_later_does_not_overtake_who_waits_for_a_place():
    simulation = TalkerSimulation(slots=1)
    for name in ("first", "second"):
        speak(simulation, name, "One two. ", speak=STEADY)
    simulation.step()
    while "first" not in simulation.ends:
        simulation.step()
    speak(simulation, "third", "One two. ", speak=STEADY)
    simulation.run()
    assert list(simulation.pcm) == ["first", "second", "third"]


@pytest.mark.parametrize("priority", sweep([Priority.CRITICAL, Priority.HIGH]))
@pytest.mark.parametrize("late", [False, True])
def test_a_lower_reply_gives_its_place_to_a_higher_one_and_goes_on_in_another(late, priority):
    simulation = TalkerSimulation(slots=3, max_batch=4, step_budget_s=1.0, late=late)
    submits = {name: speak(simulation, name, LONG, speak=STEADY) for name in ("low", "lower")}
    submits["equal"] = speak(simulation, "equal", LONG, speak=STEADY, priority=priority)
    for _ in range(10):
        simulation.step()
    submits["now"] = speak(simulation, "now", LONG, speak=STEADY, priority=priority)
    steps = 0
    while "now" not in simulation.pcm:
        simulation.step()
        steps += 1
    assert steps == (2 if late else 1)  # the one under way, if any, and its own
    simulation.run()
    assert next(iter(simulation.ends)) == "equal", "it kept its own"
    assert simulation.pcm == {name: pcm_of(offline(submit, LONG)[1]) for name, submit in submits.items()}


@pytest.mark.parametrize("priority", sweep([Priority.CRITICAL, Priority.HIGH]))
@pytest.mark.parametrize("late", [False, True])
def test_a_higher_reply_that_ran_out_of_text_has_its_place_again_with_the_next_word(late, priority):
    """Lower ones have it meanwhile."""
    simulation = TalkerSimulation(slots=2, max_batch=4, step_budget_s=1.0, late=late)
    submits = {"high": speak(simulation, "high", "", end=False, speak=STEADY, priority=priority)}
    submits |= {name: speak(simulation, name, LONG * 3, speak=STEADY) for name in ("low", "lower", "lowest")}
    words = ("One ", "two ", "three ", "four ")

    def has_place() -> bool:
        owners = simulation.talker.slots._owners.values()
        assert len(owners) == 2
        return any(job.submit.request_id == "high" for job in owners)

    for _ in range(10):
        simulation.step()
    for word in words:
        assert not has_place()
        simulation.send(Append("high", text=word))
        simulation.step()
        assert has_place()
        before = simulation.pcm.get("high", b"")
        for _ in range(15):
            simulation.step()
        assert len(simulation.pcm["high"]) > len(before), "it lost it before it had said a word"
    simulation.send(EndInput("high"))
    simulation.run()
    texts = dict.fromkeys(submits, LONG * 3) | {"high": "".join(words)}
    assert simulation.pcm == {name: pcm_of(offline(submit, texts[name])[1]) for name, submit in submits.items()}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("paused", [True, False], ids=["paused", "without text"])
def test_who_has_no_use_for_its_place_gives_it_up_and_goes_on_in_another(paused, late):
    simulation = TalkerSimulation(slots=2, late=late)
    first = "One two three. " if paused else "One "
    submits = {name: speak(simulation, name, first, end=False, speak=STEADY) for name in ("a", "b")}
    simulation.send(Submit("silent", "tts"))  # nothing to say: it needs none
    for _ in range(5):
        simulation.step()
    if paused:
        simulation.send(Pause(("a",)), Pause(("b",)))
    submits["c"] = speak(simulation, "c", "Hello there. ", priority=Priority.CRITICAL, speak=STEADY)
    simulation.run()
    assert "c" in simulation.ends
    for name in ("a", "b"):
        simulation.send(Resume(name), Append(name, text="four. "), EndInput(name))
    simulation.run()
    texts = {"a": first + "four. ", "b": first + "four. ", "c": "Hello there. "}
    assert simulation.pcm == {name: pcm_of(offline(submit, texts[name])[1]) for name, submit in submits.items()}


def test_what_one_utterance_has_no_time_for_the_next_one_says():
    simulation = TalkerSimulation()
    text = LONG * 5
    submit = speak(simulation, "t", text, speak=STEADY)
    simulation.run()
    ends, samples = offline(submit, text)
    assert reason(simulation.ends["t"]) == ends == "eos"
    assert simulation.pcm["t"] == pcm_of(samples)
    assert len(samples) / RATE > len(text) / LETTERS_PER_S, "faster than a voice speaks"
    words = [word for packet in simulation.spoken for word in packet.words]
    assert [text[word.start : word.end] for word in words] == text.split()


def test_what_was_never_said_is_never_told():
    simulation = TalkerSimulation()
    text = "First " + "a" * 300
    speak(simulation, "t", text, speak=STEADY)
    simulation.run()
    assert reason(simulation.ends["t"]) == "length", "a word as long as that has no place anywhere"
    assert [text[word.start : word.end] for packet in simulation.spoken for word in packet.words] == ["First"]


def test_a_long_text_is_cut_where_a_sentence_ends(monkeypatch):
    monkeypatch.setattr(talker_simulation, "SAMPLING", SpeechSampling(max_frames=520))
    monkeypatch.setattr(talker_simulation, "LIMIT", 600)
    simulation = TalkerSimulation()
    text = (LONG + "and so on. ") * 9  # 84 letters each; half of what there is time for is 312
    speak(simulation, "t", text, speak=STEADY)
    simulation.run()
    said = [stream.utterance.rows(0, stream.utterance.available)[0] for stream in simulation.talker.streams]
    assert [row.count(ord(".")) for row in said] == [4, 4, 1]
    assert all(row[row.index(CONFIG.text.eos) - 1] == ord(".") for row in said)
    assert reason(simulation.ends["t"]) == "eos"


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("blocks", "fits"), [(4, False), (5, True)])
def test_a_clip_that_leaves_no_room_for_speech_is_refused(blocks, fits, late):
    simulation = TalkerSimulation(tts_blocks=blocks, late=late)
    speak(simulation, "t", "Hello there.", tenant="92", speak=STEADY)
    simulation.run()
    end = simulation.ends["t"]
    assert reason(end) == "length" if fits else end.code == "too_long"


@pytest.mark.parametrize(
    ("submit", "words"),
    [
        (Submit("x", "tts", speak=SpeakParams(speed=1.5)), "speed: .* 1 and not 1.5"),
        (Submit("x", "tts", speak=SpeakParams(speed=float("nan"))), "speed"),
        (Submit("x", "tts", text="a" * (MAX_UNSAID_CHARS + 1)), "characters"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(submit, words):
    simulation = TalkerSimulation()
    simulation.send(submit)
    assert re.search(words, simulation.ends["x"].detail)


def test_text_faster_than_it_can_be_said_ends_the_request():
    simulation = TalkerSimulation()
    simulation.send(Submit("t", "tts"), Append("t", text="a" * (MAX_UNSAID_CHARS + 1)))
    assert reason(simulation.ends["t"]) == "failed"


def test_a_fault_ends_the_replies_that_were_in_it_and_nothing_else():
    simulation = TalkerSimulation(step_budget_s=1.0)
    speak(simulation, "t", LONG)
    simulation.send(Submit("c", "complete", text="ABC", sampling=SamplingParams(max_tokens=9, ignore_eos=True)))
    simulation.step()
    simulation.talker.fail_next = True
    simulation.run()
    assert reason(simulation.ends["t"]) == "failed"
    assert simulation.texts["c"] == expected_text("ABC", 9)
    assert simulation.talker.slots.free == simulation.talker.slots.count


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", sweep([KeyError, ValueError, AttributeError, AssertionError, MemoryError]))
@pytest.mark.parametrize("text", ["Well, secret! ", "Well, secret!ly"], ids=["in its midst", "at its end"])
def test_a_text_that_cannot_be_read_costs_only_its_own_reply(text, error, late, monkeypatch, caplog):
    def picky(spoken: str) -> list[int]:
        if "!" in spoken:
            raise error(f"cannot read {spoken}")
        return letters(spoken)

    letters = talker_simulation._letters
    simulation = TalkerSimulation(slots=2, late=late)
    monkeypatch.setattr(talker_simulation, "_letters", picky)
    good = speak(simulation, "good", LONG, speak=STEADY)
    for name in ("bad", "worse"):
        speak(simulation, name, "Some words first. ", end=False, speak=STEADY)
    for _ in range(5):
        simulation.step()
    simulation.send(*(Append(name, text=text) for name in ("bad", "worse")), EndInput("bad"), EndInput("worse"))
    simulation.run()
    assert {name: reason(end) for name, end in simulation.ends.items()} == {
        "good": "eos", "bad": "failed", "worse": "failed"
    }  # fmt: skip
    monkeypatch.setattr(talker_simulation, "_letters", letters)
    assert simulation.pcm["good"] == pcm_of(offline(good, LONG)[1])
    assert simulation.tts_pool.used == 0
    assert simulation.talker.slots.free == simulation.talker.slots.count
    assert error.__name__ in caplog.text
    assert "secret" not in caplog.text
