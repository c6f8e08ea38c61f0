"""What the agent said, written down by the default recogniser: for the counting canary. An engine of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from voxlane_lab.rates import converted
from voxlane_lab.speech_engine import speech_engine
from voxlane_lab.values import Pcm
from voxlane_lab.waveform import floats_of, quantise

if TYPE_CHECKING:
    from voxlane.engine.api import Words
    from voxlane.server.engine_client.engine_process import EngineProcess


async def understand(sounds: Sequence[tuple[Pcm, int]], progress: Callable[[int, int], None]) -> list[str]:
    """Return the words of each sound, given with its rate."""
    found = []
    async with speech_engine(model="", tts_model="") as engine:
        for number, (pcm, rate) in enumerate(sounds):
            progress(number, len(sounds))
            found.append(await _words(engine, pcm, rate))
    return found


async def _words(engine: EngineProcess, pcm: Pcm, rate: int) -> str:
    from voxlane.engine.api import LISTEN_RATE, ListenParams, Priority, Submit
    from voxlane.server.audio.hearing import hear, whole
    from voxlane.server.audio.transcript import Transcript

    if not len(pcm):
        return ""
    samples = quantise(converted(floats_of(pcm), rate, LISTEN_RATE)).tobytes()
    transcript = Transcript()

    async def take(words: Words) -> None:
        transcript.add(words)

    submit = Submit(secrets.token_hex(8), task="asr", listen=ListenParams(), priority=Priority.HIGH)
    async with engine.submit(submit) as stream:
        await hear(stream, whole(samples), take)
    transcript.finish()
    return transcript.text
