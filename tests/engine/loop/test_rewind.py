"""Rewind: what is said again is what was said before, whatever happens on the way and whatever is under way."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from examples import sweep
from noise_talker import noise_codec, noise_talker
from numpy.typing import NDArray
from simulation import Clock, reason
from speech_simulation import PretendSynthesiser
from talker_simulation import ENDLESS, FRAME_SAMPLES, TalkerSimulation, offline, pcm_of

from voxlane.engine.api import (
    Append,
    EndInput,
    Finished,
    FromEngine,
    Pause,
    Resume,
    Rewind,
    Rewound,
    Samples,
    SpeakParams,
    Submit,
    ToEngine,
)
from voxlane.engine.jobs.speak_codec import CodecVoiceFacts, SpeakCodecJobFactory
from voxlane.engine.loop.core import Core
from voxlane.engine.memory.blocks import BlockPool
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.qwen3_tts.codec import Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.models.qwen3_tts.prompt import open_utterance
from voxlane.engine.models.synthesis import Prepared, SynthesisedClause, TimedWord
from voxlane.engine.runners.codec_tts import CodecTTS
from voxlane.engine.runners.cuda.codec_tts import CudaCodecTTS
from voxlane.engine.schedule.cost import CostModel
from voxlane.engine.schedule.plan import SPEECH_FRAMES, Limits, ModelResources
from voxlane.engine.schedule.scheduler import Scheduler
from voxlane.engine.text.incremental import Reader
from voxlane.engine.voices.prompt import VoicePrompt

from .test_speech_beside import CLAUSES, Later, begin, build

STEADY = SpeakParams(seed=ENDLESS)
LONG = "a good many words that take their time to be said, one after the other, "
BRIEF = "a good many words, all of which one utterance can say"


def say(simulation: TalkerSimulation, submit: Submit, text: str, *more: ToEngine) -> Submit:
    simulation.send(submit, Append(submit.request_id, text=text), *more)
    return submit


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("host", sweep([60, 0]))
def test_a_reply_that_goes_back_sounds_as_if_it_had_not(host, late):
    """Four, of several utterances each, short of blocks and places; held, let go on, and told more on the way."""
    random = Random(host + late)
    simulation = TalkerSimulation(tts_blocks=40, tts_host=host, slots=2, max_batch=3, late=late)
    simulation.talker.step_s = 0.02
    texts = dict.fromkeys("abcd", LONG)
    submits = {
        name: say(simulation, Submit(name, "tts", speak=SpeakParams(seed=seed), tenant=clip), LONG)
        for name, seed, clip in zip("abcd", (1, ENDLESS, 2, ENDLESS), ("", "", "24", "42"), strict=True)
    }
    for _ in range(150):
        for _ in range(random.randint(1, 8)):
            if simulation.core.busy:
                simulation.step()
        name = random.choice("abcd")
        match random.randrange(6):
            case 0 if len(texts[name]) < 5 * len(LONG):
                texts[name] += LONG
                simulation.send(Append(name, text=LONG))
            case 1:
                simulation.send(Pause((name,)))
            case 2 | 3:
                simulation.send(*map(Resume, "abcd"))
            case _:
                simulation.send(Rewind(name, random.randrange(len(simulation.pcm.get(name, b"")) // 2 + 1)))
    simulation.send(*map(Resume, "abcd"), *map(EndInput, "abcd"))
    simulation.run()
    for name, submit in submits.items():
        ends, samples = offline(submit, texts[name])
        assert reason(simulation.ends[name]) == ends == "eos"
        assert simulation.pcm[name] == pcm_of(samples)
        words = [word for packet in simulation.spoken if packet.request_id == name for word in packet.words]
        assert [texts[name][word.start : word.end] for word in words] == texts[name].split()


def test_going_back_computes_nothing_again_that_is_there():
    simulation = TalkerSimulation(late=True)
    submit = say(simulation, Submit("t", "tts", speak=STEADY), BRIEF, EndInput("t"))
    for _ in range(20):
        simulation.step()
    (before,) = simulation.scheduler.requests.values()
    frames, computed = len(simulation.pcm["t"]) // (2 * FRAME_SAMPLES), before.computed
    (rewound,) = simulation.send(Rewind("t", 5 * FRAME_SAMPLES + 3))
    assert rewound == Rewound("t", 0, 5 * FRAME_SAMPLES)
    (request,) = simulation.scheduler.requests.values()
    assert (request.pending, request.decoding) == (1, True)
    assert computed - request.computed >= frames - 5
    assert simulation.send(Rewind("t", 10_000), Rewind("nobody", 0)) == [rewound], "only 5 frames are left"
    simulation.run()
    assert simulation.pcm["t"] == pcm_of(offline(submit, BRIEF)[1])


@pytest.mark.parametrize("paused", [False, True])
def test_who_goes_back_without_a_place_gets_one(paused: bool) -> None:
    """It had said all its text, and a stream that waits for text now has the only row."""
    simulation = TalkerSimulation(slots=1)
    for name in "ab":
        say(simulation, Submit(name, "tts", speak=STEADY), "One ")
        simulation.run()
    pcm = dict(simulation.pcm)
    hold, release = ([Pause(("a",))], [Resume("a")]) if paused else ([], [])
    simulation.send(*hold, Rewind("a", 0), *release)
    assert simulation.pcm["a"] == b""
    simulation.run()
    assert simulation.pcm == pcm


class Listener:
    """Keeps what it is told, and forgets what is void."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.pcm = b""
        self.words: list[tuple[int, int, int, int]] = []
        self.end: FromEngine | None = None

    def take(self, messages: list[FromEngine]) -> None:
        for message in messages:
            match message:
                case Rewound(sample=sample):
                    self.pcm = self.pcm[: 2 * sample]
                    self.words = [word for word in self.words if word[3] <= sample]
                case Samples(offset=offset, pcm=pcm, words=words):
                    assert 2 * offset == len(self.pcm), "a gap, or something that was under way"
                    self.pcm += pcm
                    self.words += [(word.start, word.end, word.start_sample, word.end_sample) for word in words]
                case Finished():
                    self.end = message


def core_of(talker: type[CodecTTS], model: Qwen3TTS, codec: Qwen3TTSCodec) -> Core:
    """Return an engine of random weights; on the device's talker a step is under way whenever commands come."""
    size, blocks, sizes = 8, 64, model.talker
    cache = KVCache(sizes.spec.pages, blocks, size, torch.float32)
    pool = BlockPool(blocks, size, prefix_cache=False)
    resources = ModelResources(pool, BlockPool(0, size, prefix_cache=False), CostModel(), abilities=SPEECH_FRAMES)
    more: dict[str, Any] = {"slots": 2, "max_rows": 2}
    if talker is CudaCodecTTS:
        more |= {"device": torch.device("cpu"), "max_tokens": 256}
    engine = talker(model, codec, cache, **more)
    facts = CodecVoiceFacts(model.end_code, codec.frame_samples, codec.sample_rate, 256, engine.slots)

    def manner(submit: Submit) -> VoicePrompt:
        opening = partial(open_utterance, model.config, [1, 2, 3], language="english")
        reader = Reader(lambda text: [5 + ord(letter) % 120 for letter in text], "english")
        return VoicePrompt(opening, None, SpeechSampling(max_frames=16), submit.speak.seed, reader)

    scheduler = Scheduler({"tts": resources}, Limits(max_batch=2, step_budget_s=10.0))
    return Core(scheduler, {"tts": engine}, {"tts": SpeakCodecJobFactory(facts, pool, manner)}, clock=Clock())


def spoken_on(core: Core, random: Random | None) -> Listener:
    """Return what is heard of a text; with `random` it goes back now and then."""
    listener = Listener(core)
    listener.take(
        core.handle([Submit("t", "tts", speak=SpeakParams(seed=4)), Append("t", text=BRIEF[:24]), EndInput("t")])
    )
    back = 5
    while core.busy:
        listener.take(core.step())
        if random is not None and back and random.random() < 0.2 and listener.end is None:
            back -= 1
            listener.take(core.handle([Rewind("t", random.randrange(len(listener.pcm) // 2 + 1))]))
    core.idle()
    return listener


def test_on_real_pages_and_a_real_codec() -> None:
    """What goes back on the device's talker is what never did on the host's."""
    models = noise_talker(), noise_codec()
    once, often = spoken_on(core_of(CodecTTS, *models), None), spoken_on(core_of(CudaCodecTTS, *models), Random(3))
    sound, again = (np.frombuffer(listener.pcm, "<i2").astype(np.int32) for listener in (once, often))
    assert len(sound) == len(again) > 48 * 16
    assert np.abs(sound - again).max() <= 2  # steps of 16-bit samples: chunks are cut otherwise
    assert reason(once.end) == reason(often.end)


class Words(PretendSynthesiser):
    """Tells where every letter is, and sounds otherwise with another seed."""

    def synthesise(
        self, prepared: Prepared, *, voice: str | None = None, speed: float = 1.0, seed: int = 0
    ) -> SynthesisedClause:
        sound: NDArray[np.float32] = super().synthesise(prepared).samples + np.float32(seed / 1000)
        words = (TimedWord(place, place + 1, 10 * place, 10 * place + 10) for place in range(len(sound) // 10))
        return SynthesisedClause(sound, tuple(words))


@pytest.mark.parametrize("beside", [False, True])
def test_a_voice_of_clauses_goes_back_to_the_very_sample(beside: bool) -> None:
    def spoken(random: Random | None) -> Listener:
        thread = Later()
        listener = Listener(build(Words(), thread if beside else None))
        core, back = listener.core, 12
        listener.take(begin(core))
        while core.busy:
            if thread.asked and (random is None or random.random() < 0.5):
                thread.work()
            listener.take(core.step())
            if random is not None and back and random.random() < 0.5 and listener.end is None:
                back -= 1
                listener.take(core.handle([Rewind("t", random.randrange(len(listener.pcm) // 2 + 1))]))
        core.idle()
        return listener

    once = spoken(None)
    assert len(once.pcm) == 2 * 10 * sum(map(len, CLAUSES))
    for seed in range(8):
        often = spoken(Random(seed))
        assert (often.pcm, often.words, reason(often.end)) == (once.pcm, once.words, "eos")
