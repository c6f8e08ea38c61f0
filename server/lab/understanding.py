"""What the agent said, written down by the default recogniser: for the counting canary. An engine of its own."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Sequence

from voxlane.codecs.pcm import decode_pcm16, encode_pcm16
from voxlane.codecs.resample import resample
from voxlane.engine.api import LISTEN_RATE, EngineConfig, ListenParams, Priority, Submit, Words
from voxlane.server.audio.hearing import hear, whole
from voxlane.server.audio.transcript import Transcript
from voxlane.server.engine_client.engine_process import EngineProcess
from voxlane.server.lab.values import Pcm


async def understand(sounds: Sequence[tuple[Pcm, int]], progress: Callable[[int, int], None]) -> list[str]:
    """Return the words of each sound, given with its rate."""
    config = dataclasses.replace(EngineConfig(), model="", tts_model="", device="cpu")  # a GPU is the server's
    found = []
    async with EngineProcess(config) as link:
        await link.wait_ready()
        for number, (pcm, rate) in enumerate(sounds):
            progress(number, len(sounds))
            found.append(await _words(link, pcm, rate))
    return found


async def _words(link: EngineProcess, pcm: Pcm, rate: int) -> str:
    if not len(pcm):
        return ""
    samples = encode_pcm16(resample(decode_pcm16(pcm.astype("<i2").tobytes()), rate, LISTEN_RATE))
    transcript = Transcript()

    async def take(words: Words) -> None:
        transcript.add(words)

    submit = Submit(secrets.token_hex(8), task="asr", listen=ListenParams(), priority=Priority.HIGH)
    async with link.submit(submit) as stream:
        await hear(stream, whole(samples), take)
    transcript.finish()
    return transcript.text
