"""Input and output of one request side by side: never too far ahead, errors of either side, nothing left running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from engine_thread import IN_THREAD, EngineThread

from voxlane.engine.api import EngineConfig, ListenParams, Samples, SpeakParams, Submit, Words
from voxlane.server.audio import speaking
from voxlane.server.audio.feeding import Lead, feed_beside
from voxlane.server.audio.hearing import hear
from voxlane.server.audio.hearing import whole as whole_audio
from voxlane.server.audio.speaking import speak, whole
from voxlane.server.audio.transcript import Transcript
from voxlane.server.engine_client.engine_process import EngineProcess
from voxlane.server.errors import EngineLost, InternalError, InvalidRequest, ModelFailed, Overloaded, VoxlaneError
from voxlane.server.limits import SPEECH_CHARACTERS

SECOND = 32_000


async def test_a_lead_is_never_longer_than_allowed() -> None:
    lead = Lead(10)
    for _ in range(10):
        await lead.room_for(1)
    waiting = asyncio.create_task(lead.room_for(3))
    lead.reached(2)
    lead.reached(1)  # an older position changes nothing
    done, _ = await asyncio.wait({waiting}, timeout=0)
    assert not done
    lead.reached(3)
    await waiting


async def test_what_is_larger_than_the_lead_goes_alone() -> None:
    lead = Lead(10)
    await lead.room_for(50)
    waiting = asyncio.create_task(lead.room_for(50))
    lead.reached(49)
    done, _ = await asyncio.wait({waiting}, timeout=0)
    assert not done
    lead.reached(50)
    await waiting


async def test_the_first_error_of_either_side_is_raised_and_ends_the_other() -> None:
    ended: list[str] = []

    async def forever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise Overloaded("cause")

    with pytest.raises(Overloaded, match="cause"):
        await feed_beside(fail(), forever("take"))
    with pytest.raises(Overloaded):
        await feed_beside(forever("feed"), fail())
    assert ended == ["take", "feed"]


async def test_when_the_output_ends_the_input_does() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 7

    async def forever() -> None:
        await asyncio.Event().wait()

    assert await feed_beside(forever(), answer()) == 7


Recording = Callable[..., bytes]


def engine() -> EngineProcess:
    """Return the link to a scripted engine in a thread."""
    return EngineProcess(EngineConfig("m"), command=IN_THREAD, start_child=EngineThread.start)


async def heard(link: EngineProcess, samples: bytes, **listen: object) -> Transcript:
    transcript = Transcript()

    async def take(words: Words) -> None:
        transcript.add(words)

    submit = Submit("r", "asr", listen=ListenParams(**listen))  # type: ignore[arg-type]
    async with link.submit(submit) as stream:
        await hear(stream, whole_audio(samples), take)
    transcript.finish()
    return transcript


async def test_a_long_recording_is_sent_no_further_ahead_than_a_minute(recording: Recording) -> None:
    async with engine() as link:
        await link.wait_ready()
        transcript = await heard(link, recording("lag", 300)[44:])
        assert transcript.text == "most 60"
        assert transcript.heard_s == 300


async def test_no_audio_is_no_text() -> None:
    async with engine() as link:
        await link.wait_ready()
        assert (await heard(link, b"")).text == ""
        assert link.open_streams == 0


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("crash", EngineLost),
        ("fail", ModelFailed),
        ("refuse overloaded", Overloaded),
        ("refuse bad_request", InvalidRequest),
    ],
)
async def test_errors_while_listening(recording: Recording, said: str, error: type[VoxlaneError]) -> None:
    async with engine() as link:
        await link.wait_ready()
        with pytest.raises(error):
            await heard(link, recording(said)[44:])
        assert link.open_streams == 0


async def said(link: EngineProcess, text: AsyncIterator[str]) -> list[Samples]:
    got: list[Samples] = []

    async def take(samples: Samples) -> None:
        got.append(samples)

    async with link.submit(Submit("r", "tts", speak=SpeakParams())) as stream:
        await speak(stream, text, take)
    return got


STORY = "Once upon a time, there was a fox. 🎉 It cost $4.50, they said!\n```\ncode\n```\nThe end. " * 20


async def test_every_character_is_sent_once_and_offsets_are_the_texts_own() -> None:
    async with engine() as link:
        await link.wait_ready()
        got = await said(link, whole(STORY))
    for samples in got:
        for word in samples.words:
            start = word.start_sample * 2 - samples.offset * 2
            spoken = samples.pcm[start : start + 2 * (word.end - word.start)].decode("utf-16-le")
            assert spoken == STORY.replace("🎉", "\u7fff")[word.start : word.end]  # what a sample can hold
    assert got[0].words[0].start == 0
    assert got[-1].words[-1].end == len(STORY.rstrip())
    assert [samples.offset for samples in got[1:]] == [one.offset + len(one.pcm) // 2 for one in got[:-1]]


async def test_text_that_still_comes_is_spoken_before_its_end() -> None:
    heard_something = asyncio.Event()

    async def text() -> AsyncIterator[str]:
        yield "The first sentence is here. And "
        await heard_something.wait()
        yield "the second comes later."

    async with engine() as link:
        await link.wait_ready()

        said: list[str] = []

        async def take(samples: Samples) -> None:
            said.append(samples.pcm.decode("utf-16-le"))
            heard_something.set()

        async with link.submit(Submit("r", "tts")) as stream:
            await speak(stream, text(), take)
    assert "".join(said) == "The first sentence is here. And the second comes later."


async def test_a_text_without_end_is_ended() -> None:
    async with engine() as link:
        await link.wait_ready()
        with pytest.raises(InvalidRequest, match="longer than"):
            await said(link, whole("word " * (SPEECH_CHARACTERS // 5 + 1)))
        assert link.open_streams == 0


@pytest.mark.parametrize(("text", "error"), [("crash", EngineLost), ("fail", ModelFailed), ("limit it", ModelFailed)])
async def test_errors_while_speaking(text: str, error: type[VoxlaneError]) -> None:
    async with engine() as link:
        await link.wait_ready()
        with pytest.raises(error):
            await said(link, whole(text))


async def test_a_slow_listener_pauses_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "PAUSE_BYTES", 1_000_000)
    monkeypatch.setattr(speaking, "RESUME_BYTES", 500_000)
    paused, sizes = asyncio.Event(), []
    async with engine() as link:
        await link.wait_ready()
        async with link.submit(Submit("r", "tts")) as stream:
            pause, resume = stream.pause, stream.resume
            order: list[str] = []
            monkeypatch.setattr(stream, "pause", lambda: (order.append("pause"), paused.set(), pause()))
            monkeypatch.setattr(stream, "resume", lambda: (order.append("resume"), resume()))

            async def take(samples: Samples) -> None:
                await paused.wait()  # nothing is taken until the engine has been told to wait
                sizes.append(len(samples.pcm))

            await speak(stream, whole("flood 100"), take)
    assert sum(sizes) == 100 * 100_000
    assert order[:2] == ["pause", "resume"]


async def test_a_request_that_somebody_else_cancelled_is_our_bug() -> None:
    from voxlane.engine.api import Finished, RequestStats
    from voxlane.server.audio.feeding import checked

    with pytest.raises(InternalError):
        checked(Finished("r", 0, "cancelled", RequestStats(0, 0, 0, 0, 0, 0, 0, 0)))
