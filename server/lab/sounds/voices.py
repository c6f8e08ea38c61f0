"""Kokoro's English voices, spoken by an engine that the corpus starts for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count

import numpy as np

from voxlane.engine.api import EngineConfig, Samples, SpeakParams, SpokenWord, Submit
from voxlane.server.audio.speaking import speak, whole
from voxlane.server.engine_client.engine_client import Observer
from voxlane.server.engine_client.engine_process import ENGINE_COMMAND, EngineProcess
from voxlane.server.errors import ConfigError
from voxlane.server.lab.sounds.speech import Rendition
from voxlane.server.log import quote

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
        raise ConfigError(f"there is no voice {quote(asked)}: use any, or one of {', '.join(sorted(ENGLISH_VOICES))}")
    return name


@asynccontextmanager
async def kokoro(observers: Sequence[Observer] = (), command: Sequence[str] = ENGINE_COMMAND) -> AsyncIterator[Say]:
    """Start an engine that only speaks; a model that is not here is fetched, as `voxlane say` does."""
    numbers = count()
    config = EngineConfig(model="", asr_model="", tts_model=MODEL, device="cpu")  # a GPU is the server's
    async with EngineProcess(config, command=command, observers=observers) as engine:
        ready = await engine.wait_ready()

        async def say(text: str, voice: str) -> Rendition:
            pcm: list[bytes] = []
            words: list[SpokenWord] = []

            async def take(samples: Samples) -> None:
                pcm.append(samples.pcm)
                words.extend(samples.words)

            request = Submit(request_id=f"corpus{next(numbers)}", task="tts", speak=SpeakParams(voice=voice))
            async with engine.submit(request) as stream:
                await speak(stream, whole(text), take)
            return Rendition(np.frombuffer(b"".join(pcm), "<i2"), ready.speak_rate, tuple(words))

        yield say
