"""A small random Qwen3-TTS in the engine: what streams out is what the model says and its codec sounds, offline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from qwen3_tts_stage import Stage
from simulation import Clock
from small_talker import write_talker

from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    EngineConfig,
    Finished,
    FromEngine,
    Pause,
    Refused,
    Resume,
    Samples,
    SpeakParams,
    Submit,
    ToEngine,
)
from voxlane.engine.build.assemble import assemble
from voxlane.engine.errors import ModelError
from voxlane.engine.jobs.speak_codec import CodecVoiceFacts, SpeakCodecJobFactory
from voxlane.engine.loop.core import Core
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.qwen3_tts.codec import CodecState, Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.models.qwen3_tts.prompt import PromptError
from voxlane.engine.runners import codec_streams
from voxlane.engine.runners.codec_streams import MAX_CHUNK
from voxlane.engine.runners.codec_tts import CodecTTS, FrameOutcome, UtteranceStream
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.cost import CostModel
from voxlane.engine.schedule.plan import SPEECH_FRAMES, Limits, ModelBatch, ModelResources, Row
from voxlane.engine.schedule.request import Request
from voxlane.engine.schedule.scheduler import Scheduler
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.voices.cloned import Voices
from voxlane.engine.voices.prompt import VoicePrompts
from voxlane.engine.weights.files import open_weights

SAMPLING = SpeechSampling(max_frames=10)
ALIKE = 2 / 32767  # of the loudest there is: two steps of 16-bit samples
TEXTS = (
    "Congratulations! ",
    "Sixty-thousand, two, three and four: that is $4.50 in all. ",
    "Notwithstanding its length, a sentence like this, so that there is text left when others are through. ",
    "Nevertheless... ",
)  # the first word of each lasts longer than ten frames: nothing goes on after them
MANNERS = (
    SpeakParams(seed=1),
    SpeakParams(seed=2, language="english"),
    SpeakParams(voice="ryan", seed=3, instructions="Whisper, and take your time."),
)
EIGHT = {f"r{number}": (TEXTS[number % 4], MANNERS[number % 3]) for number in range(8)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_talker(tmp_path_factory.mktemp("talker") / "endless")


@pytest.fixture(scope="module")
def model(folder: Path) -> Qwen3TTS:
    return Qwen3TTS.load(open_weights(folder), "float32")


@pytest.fixture(scope="module")
def codec(folder: Path) -> Qwen3TTSCodec:
    return Qwen3TTSCodec.load(open_weights(folder / "speech_tokenizer"))


@pytest.fixture(scope="module")
def manners(folder: Path, model: Qwen3TTS) -> VoicePrompts:
    return VoicePrompts(model.config, Tokenizer.open(folder), SAMPLING, Voices(model.config, torch.device("cpu")))


class House:
    """An engine of one talker, a clock that is told, and what came out of it."""

    def __init__(
        self,
        model: Qwen3TTS,
        codec: Qwen3TTSCodec,
        manners: VoicePrompts,
        *,
        blocks: int = 64,
        host: int = 0,
        limit: int = 256,
        max_batch: int = 8,
    ) -> None:
        sizes, size = model.talker, 8
        cache = KVCache(sizes.spec.pages, blocks, size, torch.float32, host_blocks=host)
        self.pool = BlockPool(blocks, size, prefix_cache=False)
        resources = ModelResources(
            self.pool,
            BlockPool(host, size, prefix_cache=False),
            CostModel(),
            swap_block_s=1e-9,
            abilities=SPEECH_FRAMES,
        )
        self.scheduler = Scheduler({"tts": resources}, Limits(max_batch=max_batch, step_budget_s=10.0))
        self.talker = CodecTTS(model, codec, cache, slots=8, max_rows=8)
        facts = CodecVoiceFacts(model.end_code, codec.frame_samples, codec.sample_rate, limit, self.talker.slots)
        self.clock = Clock()
        self.core = Core(
            self.scheduler,
            {"tts": self.talker},
            {"tts": SpeakCodecJobFactory(facts, self.pool, manners.of)},
            clock=self.clock,
        )
        self.pcm: dict[str, bytes] = {}
        self.ends: dict[str, FromEngine] = {}

    def send(self, *commands: ToEngine) -> None:
        self._take(self.core.handle(commands))

    def step(self) -> None:
        self._take(self.core.step())
        self.scheduler.check()
        self.clock.now += 0.01

    def run(self, *, until: Iterable[str] = ()) -> None:
        wanted = set(until)
        while self.core.busy and not (wanted and wanted <= self.ends.keys()):
            self.step()

    def say(self, name: str, text: str, speak: SpeakParams) -> None:
        self.send(Submit(name, "tts", speak=speak, session=name), Append(name, text=text), EndInput(name))

    def _take(self, messages: list[FromEngine]) -> None:
        for message in messages:
            if isinstance(message, Samples):
                assert message.offset * 2 == len(self.pcm.get(message.request_id, b""))
                self.pcm[message.request_id] = self.pcm.get(message.request_id, b"") + message.pcm
            elif isinstance(message, Finished | Refused):
                self.ends[message.request_id] = message

    def sound(self, name: str) -> np.ndarray:
        return np.frombuffer(self.pcm[name], "<i2") / 32767.0


def offline(model: Qwen3TTS, codec: Qwen3TTSCodec, manners: VoicePrompts, text: str, speak: SpeakParams) -> np.ndarray:
    """Return what the model says, frame by frame and alone, as its codec sounds all of it at once."""
    manner = manners.of(Submit("", "tts", speak=speak))
    utterance = manner.open()
    for said in (*manner.reader.read(text), *manner.reader.finish()):
        utterance.append(said.tokens)
    utterance.end()
    stage = Stage(model)
    part = stage.enter(utterance, manner.sampling, manner.seed)
    stage.speak([part], SAMPLING.max_frames)
    frames = torch.tensor([part.frames])
    return codec.decode(frames, codec.state(1, frames.shape[1]), torch.tensor([0]))[0].numpy()


@pytest.fixture(scope="module")
def wanted(model: Qwen3TTS, codec: Qwen3TTSCodec, manners: VoicePrompts) -> dict[str, np.ndarray]:
    return {name: offline(model, codec, manners, *request) for name, request in EIGHT.items()}


def assert_alike(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.abs(expected).std() > 0.01  # a dead codec would agree with anything,
    assert np.abs(expected).max() < 1  # and so would one that is too loud
    np.testing.assert_allclose(found, expected, rtol=0, atol=ALIKE)


@pytest.mark.parametrize(("blocks", "host"), [(64, 0), (14, 0), (14, 20)], ids=["roomy", "recompute", "swap"])
def test_eight_mixed_requests_are_each_what_the_model_says_offline(
    model: Qwen3TTS, codec: Qwen3TTSCodec, manners: VoicePrompts, wanted: dict[str, np.ndarray], blocks: int, host: int
) -> None:
    """They come in one by one, wait for each other's blocks, and two of them are interrupted on the way."""
    house = House(model, codec, manners, blocks=blocks, host=host)
    for number, (name, (text, speak)) in enumerate(EIGHT.items()):
        house.say(name, text, speak)
        for _ in range(number % 3):
            house.step()
    house.send(Pause(("r1", "r2")))
    house.run()
    assert house.ends.keys() == EIGHT.keys() - {"r1", "r2"}
    house.send(Resume("r2"), Resume("r1"))
    house.run()
    assert len({expected.tobytes() for expected in wanted.values()}) == 8
    for name, expected in wanted.items():
        assert_alike(house.sound(name), expected)
    preempted = sum(end.stats.preemptions for end in house.ends.values() if isinstance(end, Finished))
    assert (preempted > 0) == (blocks == 14)
    assert house.pool.used == 0
    assert house.talker.slots.free == house.talker.slots.count


@pytest.mark.parametrize("cuts", [(5,), (1, 4, 11, 12), tuple(range(1, 40))], ids=["two", "five", "letters"])
def test_text_in_pieces_sounds_like_the_whole(
    model: Qwen3TTS, codec: Qwen3TTSCodec, manners: VoicePrompts, wanted: dict[str, np.ndarray], cuts: tuple[int, ...]
) -> None:
    """Cut between words and inside them; the voice has said all it can before each piece, and waited."""
    text, speak = EIGHT["r1"]
    house = House(model, codec, manners)
    house.send(Submit("t", "tts", speak=speak))
    if len(cuts) < 10:  # a cut inside a number changes how it is read
        cuts = tuple(text.rfind(" ", 0, 8 + cut) + 1 for cut in cuts)
    else:
        text = text.replace("$4.50", "money")
    for start, stop in zip((0, *cuts), (*cuts, len(text)), strict=True):
        house.send(Append("t", text=text[start:stop]))
        house.run()
    house.send(EndInput("t"))
    house.run()
    assert_alike(house.sound("t"), offline(model, codec, manners, text, speak))


def test_cancelling_frees_everything_at_once(
    model: Qwen3TTS, codec: Qwen3TTSCodec, manners: VoicePrompts, wanted: dict[str, np.ndarray]
) -> None:
    house = House(model, codec, manners)
    for name, request in EIGHT.items():
        house.say(name, *request)
    house.step()
    house.step()
    house.send(*(Cancel(name) for name in EIGHT))
    assert house.pool.used == 0
    assert house.talker.slots.free == house.talker.slots.count
    assert not house.core.busy
    house.say("next", *EIGHT["r1"])  # in a slot that another request has used
    house.run()
    assert_alike(house.sound("next"), wanted["r1"])


def test_the_context_ends_it_and_everything_made_is_sent(
    model: Qwen3TTS, codec: Qwen3TTSCodec, manners: VoicePrompts, wanted: dict[str, np.ndarray]
) -> None:
    house = House(model, codec, manners, limit=15)
    house.say("r0", *EIGHT["r0"])
    house.run()
    end = house.ends["r0"]
    assert isinstance(end, Finished)
    assert end.reason == "length"
    assert end.stats.output_tokens == 15 - 8  # role, no language, voice, bos
    assert_alike(house.sound("r0"), wanted["r0"][: len(house.sound("r0"))])
    house.send(Submit("x", "tts", speak=SpeakParams(instructions="very " * 10)))
    refused = house.ends["x"]
    assert isinstance(refused, Refused)
    assert refused.code == "too_long"


@pytest.mark.parametrize(
    ("speak", "words"),
    [
        (SpeakParams(voice="nobody"), "voice: there is no voice 'nobody'; there are ryan"),
        (SpeakParams(language="klingon"), "language: 'klingon' is not one of auto, english"),
        (SpeakParams(instructions="x" * 2001), "instructions: 2001 characters"),
        (SpeakParams(speed=0.5), "speed"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(
    model: Qwen3TTS, codec: Qwen3TTSCodec, manners: VoicePrompts, speak: SpeakParams, words: str
) -> None:
    house = House(model, codec, manners)
    house.send(Submit("x", "tts", speak=speak))
    end = house.ends["x"]
    assert isinstance(end, Refused)
    assert words in end.detail


class ByHand:
    """One stream on a talker, stepped without a scheduler."""

    def __init__(self, house: House, stream: UtteranceStream) -> None:
        self.house = house
        self.stream = stream
        stream.slot = house.talker.slots.take()
        self.table = BlockTable(house.pool)
        self.samples: list[np.ndarray] = []

    def speak(self, frames: int) -> None:
        utterance = self.stream.utterance
        while utterance.spoken < frames:
            start, stop = self.table.length, utterance.available
            request = Request("", "tts", [0] * stop, 0, self.table, model="tts", payload=self.stream)
            self.table.append(stop - start)
            (spoken,) = self.house.talker.run(ModelBatch(rows=[Row(request, start, stop - start)]))
            assert isinstance(spoken, FrameOutcome)
            if spoken.frame is None:  # not caught up: the same again
                self.table.rewind(stop - 1)
                continue
            utterance.add(spoken.frame)
            self.stream.decoded += len(spoken.samples) // self.house.talker.codec.frame_samples
            self.samples.append(spoken.samples)


def open_stream(manners: VoicePrompts, lead: tuple[tuple[int, ...], ...] = ()) -> UtteranceStream:
    manner = manners.of(Submit("", "tts", speak=SpeakParams(seed=9)))
    utterance = manner.open()
    utterance.append([65, 66, 67])
    utterance.end()
    return UtteranceStream(utterance, manner.sampling, manner.seed, lead=lead)


def test_a_stream_goes_back_to_a_frame_and_says_the_same_again(
    model: Qwen3TTS, codec: Qwen3TTSCodec, manners: VoicePrompts
) -> None:
    hand = ByHand(House(model, codec, manners), open_stream(manners))
    hand.stream.chunk = 2
    hand.speak(11)
    frames, sound = hand.stream.utterance.frames, np.concatenate(hand.samples)
    for frame in (7, 4, 0):
        hand.stream.rewind(frame)
        hand.table.rewind(hand.stream.utterance.available - 1)
        hand.samples = [sound[: frame * codec.frame_samples]]
        hand.speak(11)
        assert hand.stream.utterance.frames == frames
        whole = np.concatenate(hand.samples)
        assert_alike(
            whole, codec.decode(torch.tensor([frames]), codec.state(1, 11), torch.tensor([0]))[0].numpy()[: len(whole)]
        )


def test_speech_goes_on_from_the_frames_of_a_clip(model: Qwen3TTS, codec: Qwen3TTSCodec, manners: VoicePrompts) -> None:
    lead = tuple(tuple((7 * frame + group) % 256 for group in range(codec.groups)) for frame in range(11))
    hand = ByHand(House(model, codec, manners), open_stream(manners, lead))
    hand.speak(5)
    everything = torch.tensor([[*lead, *hand.stream.utterance.frames]])
    whole = codec.decode(everything, codec.state(1, everything.shape[1]), torch.tensor([0]))[0].numpy()
    assert_alike(np.concatenate(hand.samples), whole[11 * codec.frame_samples :])


def test_a_clip_is_heard_a_few_frames_a_step_and_only_once(
    model: Qwen3TTS, codec: Qwen3TTSCodec, manners: VoicePrompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clips that one row is kept for; the second comes twice, then the first again."""
    monkeypatch.setattr(codec_streams, "LEADS", 1)
    clips = [tuple((clip + frame,) * codec.groups for frame in range(4 * MAX_CHUNK + 3)) for clip in (1, 2)]
    house, decode = House(model, codec, manners), codec.decode
    sizes: list[int] = []

    def count(codes: torch.Tensor, state: CodecState, rows: torch.Tensor) -> torch.Tensor:
        if state is house.talker.state:
            sizes.append(codes.shape[1])
        return decode(codes, state, rows)

    monkeypatch.setattr(codec, "decode", count)
    heard = []
    for lead in (clips[0], clips[1], clips[1], clips[0]):
        hand = ByHand(house, open_stream(manners, lead))
        hand.speak(8)
        everything = torch.tensor([[*lead, *hand.stream.utterance.frames]])
        whole = decode(everything, codec.state(1, everything.shape[1]), torch.tensor([0]))[0].numpy()
        assert_alike(np.concatenate(hand.samples), whole[len(lead) * codec.frame_samples :])
        heard.append(sum(sizes) - 8)
        assert max(sizes) <= MAX_CHUNK
        sizes.clear()
    assert heard == [len(clips[0]), len(clips[0]), 0, len(clips[0])]


def test_no_step_is_longer_at_the_end_of_a_reply_whose_place_was_anothers(
    model: Qwen3TTS, codec: Qwen3TTSCodec, manners: VoicePrompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is caught up in pieces, even where its next frame is its last or is followed by nothing for a while."""
    house, steps = House(model, codec, manners), []
    hand, decode = ByHand(house, open_stream(manners)), codec.decode
    stream = hand.stream
    hand.speak(3 * MAX_CHUNK + 2)
    sound = np.concatenate(hand.samples)
    run = house.talker.run

    def counted(load: ModelBatch) -> list[Outcome]:
        steps.append(0)
        return run(load)

    def count(codes: torch.Tensor, state: CodecState, rows: torch.Tensor) -> torch.Tensor:
        if state is house.talker.state:
            steps[-1] += codes.shape[0] * codes.shape[1]
        return decode(codes, state, rows)

    monkeypatch.setattr(house.talker, "run", counted)
    monkeypatch.setattr(codec, "decode", count)
    house.talker.slots.release(stream.slot)
    other = ByHand(house, open_stream(manners))
    other.stream.slot, stream.slot = stream.slot, house.talker.slots.take()
    stream.stale = True
    other.speak(1)
    steps.clear()
    hand.speak(stream.utterance.spoken + 1)
    assert steps == [MAX_CHUNK, MAX_CHUNK, MAX_CHUNK, 2 + 1]
    frames = torch.tensor([stream.utterance.frames])
    whole = decode(frames, codec.state(1, frames.shape[1]), torch.tensor([0]))[0].numpy()
    assert_alike(np.concatenate(hand.samples), whole)
    assert np.array_equal(np.concatenate(hand.samples)[: len(sound)], sound)


def test_sound_that_is_no_number_is_a_fault_of_its_own_reply_only(
    model: Qwen3TTS, codec: Qwen3TTSCodec, manners: VoicePrompts, wanted: dict[str, np.ndarray]
) -> None:
    house = House(model, codec, manners)
    house.say("r0", *EIGHT["r0"])
    house.say("r1", *EIGHT["r1"])
    while len(house.pcm) < 2:
        house.step()
    house.talker.state.numbers[0] = torch.nan
    house.run()
    assert {name: end.reason for name, end in house.ends.items() if isinstance(end, Finished)} == {
        "r0": "failed",
        "r1": "length",  # as it is without the other
    }
    assert_alike(house.sound("r1"), wanted["r1"])
    house.say("next", *EIGHT["r2"])  # in its place
    house.run()
    assert_alike(house.sound("next"), wanted["r2"])


def test_a_refusal_names_a_few_of_many_voices(folder: Path, model: Qwen3TTS) -> None:
    config = replace(model.config, speakers={f"v{number}": number for number in range(20)})
    many = VoicePrompts(config, Tokenizer.open(folder), SAMPLING, Voices(config, torch.device("cpu")))
    with pytest.raises(PromptError, match=r"there are v0, .*, v11 and 8 more$"):
        many.of(Submit("", "tts", speak=SpeakParams(voice="nobody")))


def test_the_engine_says_whose_voices_it_has(folder: Path) -> None:
    """The whole part, as an engine loads it: packed weights, pages, rehearsal."""
    config = EngineConfig(model="", asr_model="", tts_model=str(folder), tts_memory_mib=4)
    assembly = assemble(config)
    ready = assembly.ready
    assert (ready.tts_model, ready.speak_rate, ready.voices) == (str(folder), 24_000, ("ryan",))
    assert (ready.speak_languages, ready.instructed, ready.clones) == (("english",), True, False)
    messages = assembly.core.handle([Submit("t", "tts", text="Well.", speak=SpeakParams(seed=3)), EndInput("t")])
    while not any(isinstance(message, Samples) for message in messages):
        messages += assembly.core.step()
    assembly.core.handle([Cancel("t")])
    assembly.core.idle()


def test_a_broken_checkpoint_is_one_line(tmp_path: Path) -> None:
    broken = write_talker(tmp_path / "broken")
    (broken / "speech_tokenizer" / "config.json").unlink()
    with pytest.raises(ModelError, match="speech_tokenizer"):
        assemble(EngineConfig(model="", asr_model="", tts_model=str(broken)))
