"""Kokoro's English voices, spoken by an engine that the corpus starts for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count

import numpy as np

from voxlane_lab.errors import LabError, quote
from voxlane_lab.sounds.speech import Rendition
from voxlane_lab.speech_engine import speech_engine
from voxlane_lab.values import WordSpan

MODEL = "kokoro-82m"
"""The model of the corpus. voxlane's own default has one voice; a corpus needs many."""

VOICES = (
    "af_heart", "am_michael", "bf_emma", "bm_george", "af_bella", "am_fenrir",
    "bf_isabella", "bm_fable", "af_sarah", "am_puck", "af_aoede", "am_adam",
)  # fmt: skip
"""The voices of `any`: six women and six men, American and British."""

ENGLISH_VOICES = frozenset(VOICES) | {
    "af_alloy", "af_jessica", "af_kore", "af_nicole", "af_nova", "af_river", "af_sky", "am_echo", "am_eric", "am_liam",
    "am_onyx", "am_santa", "bf_alice", "bf_lily", "bm_daniel", "bm_lewis",
}  # fmt: skip
"""The voices that a scenario may name."""

SCHEME = "kokoro:"
ANY_VOICE = "any"

Say = Callable[[str, str], Awaitable[Rendition]]
"""Takes a text and a voice."""

OpenVoices = Callable[[], AbstractAsyncContextManager[Say]]
"""Starts whatever speaks, for as long as it is needed."""


def voice_named(asked: str, seed: int = 0) -> str:
    """Return the voice that a scenario means: `kokoro:am_adam`, `am_adam`, or `any`, which the seed decides."""
    if asked == ANY_VOICE:
        return VOICES[seed % len(VOICES)]
    name = asked.removeprefix(SCHEME)
    if name not in ENGLISH_VOICES:
        raise LabError(f"there is no voice {quote(asked)}: use any, or one of {', '.join(sorted(ENGLISH_VOICES))}")
    return name


@asynccontextmanager
async def kokoro() -> AsyncIterator[Say]:
    """Start an engine that only speaks; a model that is not here is fetched, as `voxlane say` does."""
    async with speech_engine(model="", asr_model="", tts_model=MODEL) as engine:
        from voxlane.engine.api import Samples, SpeakParams, Submit
        from voxlane.server.audio.speaking import speak, whole

        ready, numbers = await engine.wait_ready(), count()

        async def say(text: str, voice: str) -> Rendition:
            pcm: list[bytes] = []
            words: list[WordSpan] = []

            async def take(samples: Samples) -> None:
                pcm.append(samples.pcm)
                words.extend(WordSpan(one.start, one.end, one.start_sample, one.end_sample) for one in samples.words)

            request = Submit(request_id=f"corpus{next(numbers)}", task="tts", speak=SpeakParams(voice=voice))
            async with engine.submit(request) as stream:
                await speak(stream, whole(text), take)
            return Rendition(np.frombuffer(b"".join(pcm), "<i2"), ready.speak_rate, tuple(words))

        yield say
