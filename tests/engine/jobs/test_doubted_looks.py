"""A recogniser with short windows that repeats itself: the clip is decoded again with all of its 30 seconds.

First a scripted model, then the real one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from speech_simulation import END, PretendListeningModel, PretendVoicing

from voxlane.engine.api import LISTEN_RATE, Append, EndInput, EngineConfig, ListenParams, Submit, Words
from voxlane.engine.audio.torchaudio_import import functional
from voxlane.engine.audio.transcriber import max_tokens
from voxlane.engine.build.assemble import Assembly, assemble
from voxlane.engine.jobs.job import Change
from voxlane.engine.jobs.transcribe import TranscribeJobFactory
from voxlane.engine.memory.blocks import BlockPool
from voxlane.engine.models.hibari.model import Hibari
from voxlane.engine.runners.recogniser import TranscriptionOutcome, transcription_of
from voxlane.engine.runners.sampler import SampledToken
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import Request

PHRASE = [4, 6, 8, 9]
"""Three words, as the pretended model spells them: " c e gh"."""


class ShortWindows(PretendListeningModel):
    short_windows = True


class Listening:
    """A job whose looks write what the test says."""

    def __init__(self, model: PretendListeningModel, *, partials: bool) -> None:
        factory = TranscribeJobFactory(model, BlockPool(400, 16, prefix_cache=False), PretendVoicing)
        self._job = factory.open(Submit("a", "asr", listen=ListenParams(partials=partials)), 0.0)
        self.begun: list[Request] = []
        self.words: list[Words] = []
        self.ended = False

    def hear(self, audio: bytes) -> None:
        self._job.append(Append("a", audio=audio), 0.0)
        while self._job.wants_work:
            self._take(self._job.work(0.0))

    def end(self) -> None:
        self._job.end_input(0.0)
        while self._job.wants_work:
            self._take(self._job.work(0.0))

    def write(self, tokens: Sequence[int]) -> Request:
        """Let the newest look write these tokens and the end, or as many as it may; return it."""
        request = self.begun[-1]
        request.table.append(len(request.tokens))
        left = request.sampling.max_tokens - request.output_tokens
        chosen = [*tokens, END][:left]
        choices = [SampledToken(token, -0.1) for token in chosen]
        self._take(self._job.advance(Row(request, 0, 1, encode=True), TranscriptionOutcome(choices=choices), 0.0))
        return request

    @property
    def settled(self) -> str:
        return "".join(message.settled for message in self.words)

    @property
    def tail(self) -> str:
        return self.words[-1].tail

    def _take(self, change: Change) -> None:
        self.begun += change.begin
        self.words += [message for message in change.messages if isinstance(message, Words)]
        self.ended = self.ended or change.end == "eos"


def loud(seconds: float) -> bytes:
    noise = np.random.default_rng(5).uniform(-0.9, 0.9, int(seconds * LISTEN_RATE))
    return (noise * 32767).astype("<i2").tobytes()


@pytest.mark.parametrize("written", [[*PHRASE, *PHRASE], PHRASE * 20])
@pytest.mark.parametrize(("really", "text"), [(PHRASE, "c e gh"), ([*PHRASE, *PHRASE], "c e gh c e gh")])
def test_a_final_that_repeats_itself_is_decoded_again_with_the_whole_window(
    written: list[int], really: list[int], text: str
) -> None:
    stream = Listening(ShortWindows(), partials=False)
    stream.hear(loud(2.0))
    stream.end()
    first = stream.write(written)
    assert (stream.settled, stream.tail, stream.ended) == ("", "c e gh", False)
    assert len(stream.begun) == 2
    again = stream.write(really)
    short, whole = transcription_of(first).clip, transcription_of(again).clip
    assert len(whole) == ShortWindows.max_samples
    assert np.array_equal(whole[: len(short)], short)
    assert not whole[len(short) :].any()
    assert again.states == ShortWindows().states(len(whole)) > first.states
    assert again.sampling.max_tokens == first.sampling.max_tokens == max_tokens(len(short))
    assert (stream.settled, stream.ended) == (text, True)
    assert len(stream.begun) == 2


def test_what_people_repeat_is_decoded_once() -> None:
    stream = Listening(ShortWindows(), partials=False)
    stream.hear(loud(2.0))
    stream.end()
    stream.write([4, 4, 4])
    assert (stream.settled, stream.ended, len(stream.begun)) == ("c c c", True, 1)


def test_a_model_that_sees_its_usual_window_is_believed() -> None:
    stream = Listening(PretendListeningModel(), partials=False)
    stream.hear(loud(2.0))
    stream.end()
    stream.write([*PHRASE, *PHRASE])
    assert (stream.settled, stream.ended, len(stream.begun)) == ("c e gh c e gh", True, 1)


def test_captions_show_a_repetition_once_and_the_pause_brings_the_whole_look() -> None:
    stream = Listening(ShortWindows(), partials=True)
    stream.hear(loud(1.0))
    stream.write([*PHRASE, *PHRASE])
    assert (stream.settled, stream.tail, len(stream.begun)) == ("", "c e gh", 1)
    stream.hear(bytes(LISTEN_RATE))
    assert len(transcription_of(stream.write([*PHRASE, *PHRASE])).clip) < 2 * LISTEN_RATE
    assert len(transcription_of(stream.write([4, 6, 10])).clip) == ShortWindows.max_samples
    assert (stream.settled, stream.tail) == ("", "c e i")
    stream.end()
    assert (stream.settled, stream.ended, len(stream.begun)) == ("c e i", True, 3)


@pytest.fixture(scope="module")
def whisper() -> Assembly:
    return assemble(EngineConfig(model="", tts_model="", asr_model="whisper-tiny-en"))


@pytest.mark.weights
@pytest.mark.soak
@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("Row, row, row your boat.", 1.1),  # with a short window the model writes "row" until it may write no more
        ("Paris is the capital of France.", 1.0),  # was heard four times
        ("I love you, I love you.", 1.0),
        ("Thank you, thank you.", 1.0),
        ("No, no, no.", 1.0),
        ("Very, very good.", 1.0),
    ],
)
def test_words_are_heard_as_often_as_they_are_said(whisper: Assembly, text: str, speed: float, live: bool) -> None:
    audio, core = spoken(text, speed), whisper.core
    size = LISTEN_RATE // 5 if live else len(audio)  # 100 ms, as a microphone sends them
    messages = core.handle([Submit("a", "asr", listen=ListenParams(partials=live))])
    for start in range(0, len(audio), size):
        messages += core.handle([Append("a", audio=audio[start : start + size])])
        while core.busy:
            messages += core.step()
    messages += core.handle([EndInput("a")])
    while core.busy:
        messages += core.step()
    words = [message for message in messages if isinstance(message, Words)]
    assert plain("".join(message.settled for message in words)) == plain(text)
    assert max(len(plain(message.tail)) for message in words) <= len(plain(text)) + 1  # a caption may be a word off


def spoken(text: str, speed: float) -> bytes:
    """Return a text as the default voice says it."""
    voice = Hibari(threads=1)
    samples = torch.from_numpy(voice.synthesise(voice.prepare(text), speed=speed).samples)
    heard = functional.resample(samples, voice.sample_rate, LISTEN_RATE).numpy()
    return (np.clip(heard, -1, 1) * 32767).astype("<i2").tobytes()


def plain(text: str) -> list[str]:
    """Return the words without case and punctuation."""
    return "".join(letter for letter in text.lower() if letter.isalpha() or letter.isspace()).split()
