"""`voxlane say`: a text spoken to a file, to stdout or to the loudspeaker, with an engine of its own that only speaks.

Formats are written by speech_file.py; files and players are in sinks.py.
"""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
import math
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from voxlane.codecs.encode import SpeechFormat, formats
from voxlane.codecs.extras import install_command
from voxlane.engine.api import (
    BadPronunciation,
    EngineConfig,
    Priority,
    Ready,
    Samples,
    SpeakParams,
    Submit,
    read_pronunciations,
)
from voxlane.server import limits
from voxlane.server.audio.speaking import speak, whole
from voxlane.server.audio.speech_file import SpeechFile
from voxlane.server.audio.voices import find_voice, language_named, names
from voxlane.server.commands.sinks import Give, SinkOpener, find_sink
from voxlane.server.commands.terminal import own_engine, read_pipe
from voxlane.server.engine_client.engine_process import ENGINE_COMMAND, EngineProcess
from voxlane.server.errors import ConfigError

if TYPE_CHECKING:
    from voxlane.server.commands.remote import Remote

SUFFIXES: dict[str, SpeechFormat] = {
    ".wav": "wav",
    ".pcm": "pcm",
    ".raw": "pcm",
    ".mp3": "mp3",
    ".opus": "opus",
    ".ogg": "opus",
    ".flac": "flac",
    ".aac": "aac",
}


@dataclass(frozen=True, slots=True)
class SayOptions:
    """What the command line asked for."""

    output: str = ""  # "": the loudspeaker; "-": stdout
    format: SpeechFormat | None = None
    voice: str = ""
    speed: float = 1.0
    seed: int = 0
    language: str = ""
    instructions: str = ""
    pronunciations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            read_pronunciations(self.pronunciations)
        except BadPronunciation as error:
            raise ConfigError(f"--pronounce: {error}") from error
        least, most = limits.SPEEDS
        if not (math.isfinite(self.speed) and least <= self.speed <= most):
            raise ConfigError(f"--speed must be between {least:g} and {most:g}")
        if not 0 <= self.seed <= limits.LARGEST_SEED:
            raise ConfigError(f"--seed must be between 0 and {limits.LARGEST_SEED}")
        if not self.output and self.kind != "wav":
            raise ConfigError("--format is for files: use -o FILE")
        if self.kind not in formats():
            raise ConfigError(f"writing {self.kind} needs PyAV: {install_command('opus')}")

    @property
    def kind(self) -> SpeechFormat:
        """Return the format that is asked for, or the one of the file's name."""
        if self.format is not None:
            return self.format
        if self.output in ("", "-"):
            return "wav"
        suffix = Path(self.output).suffix.lower()
        if suffix not in SUFFIXES:
            raise ConfigError(f"{self.output}: which format? Use --format or one of {' '.join(SUFFIXES)}")
        return SUFFIXES[suffix]


def run_say(
    config: EngineConfig, options: SayOptions, text: str | None, *, engine_command: Sequence[str] = ENGINE_COMMAND
) -> int:
    """Say the text, or what comes through stdin, and return the exit code."""
    _check_text(text)
    open_sink = find_sink(options.output, options.kind)
    asyncio.run(_say(_speaking_only(config), options, text, open_sink, engine_command))
    return 0


def run_say_there(remote: Remote, options: SayOptions, text: str | None) -> int:
    """Have a running server say the text, or what comes through stdin, and return the exit code."""
    _check_text(text)
    open_sink = find_sink(options.output, options.kind)
    asyncio.run(_say_there(remote, options, text, open_sink))
    return 0


def run_list_voices(config: EngineConfig, *, engine_command: Sequence[str] = ENGINE_COMMAND) -> int:
    """Print the voices, the default one first."""

    async def ask() -> tuple[str, ...]:
        async with own_engine(_speaking_only(config), engine_command) as link:
            return (await link.wait_ready()).voices

    for number, voice in enumerate(asyncio.run(ask())):
        print(voice if number else f"{voice} (default)")
    return 0


def _check_text(text: str | None) -> None:
    if text is None and sys.stdin.isatty():
        raise ConfigError("there is nothing to say: give a TEXT, or pipe one in")
    if text is not None and not text.strip():
        raise ConfigError("there is nothing to say: the text is empty")


async def _say_there(remote: Remote, options: SayOptions, text: str | None, open_sink: SinkOpener) -> None:
    """Have the server say a whole text in one request."""
    if text is None:
        text = "".join([piece async for piece in _from_stdin()])
    body: dict[str, object] = {"input": text, "response_format": options.kind, "speed": options.speed}
    wishes = {"voice": options.voice, "language": options.language, "instructions": options.instructions}
    if options.pronunciations:
        body["pronunciations"] = list(options.pronunciations)
    body |= {"seed": options.seed} | {name: wish for name, wish in wishes.items() if wish}
    async with remote.stream("POST", "/v1/audio/speech", json=body) as answer:
        if not answer.headers.get("content-type", "").startswith("audio/"):
            raise remote.stranger()
        async with open_sink() as give:
            size = 0
            async for piece in answer.aiter_bytes():
                await give(piece)
                size += len(piece)
            if not size and options.kind != "pcm":  # every other format has a header, even without sound
                raise remote.stranger()


def _speaking_only(config: EngineConfig) -> EngineConfig:
    if not config.tts_model:
        hint = "; serve engine.speech_model, and say it with --url" if config.speech_model else ""
        raise ConfigError(f"engine.tts_model is empty: there is no model to speak{hint}")
    alone: EngineConfig = dataclasses.replace(config, model="", asr_model="", speech_model="")
    return alone


async def _say(
    config: EngineConfig, options: SayOptions, text: str | None, open_sink: SinkOpener, command: Sequence[str]
) -> None:
    async with own_engine(config, command) as link:
        ready = await link.wait_ready()
        voice = _voice(options.voice, ready)
        async with open_sink() as give:
            await _speak(link, ready, options, voice, text, give)


async def _speak(
    link: EngineProcess, ready: Ready, options: SayOptions, voice: str, text: str | None, give: Give
) -> None:
    file = SpeechFile(options.kind, ready.speak_rate)

    async def take(samples: Samples) -> None:
        await give(file.push(samples.pcm))

    submit = Submit(
        request_id=secrets.token_hex(8),
        task="tts",
        speak=SpeakParams(
            voice=voice,
            speed=options.speed,
            seed=options.seed,
            language=language_named(options.language),
            instructions=options.instructions,
            live=text is None,
            pronunciations=options.pronunciations,
        ),
        priority=Priority.HIGH,
    )
    async with link.submit(submit) as stream:
        await speak(stream, _from_stdin() if text is None else whole(text), take)
    await give(file.finish())


def _voice(asked: str, ready: Ready) -> str:
    if not ready.voices:
        raise ConfigError(
            "this model has no voice of its own: serve it, make one with `voxlane voices add`, and say it with --url"
        )
    found = find_voice(asked, ready.voices) if asked else ""
    if found is None:
        raise ConfigError(f"--voice must be one of {names(ready.voices)}")
    return found


async def _from_stdin() -> AsyncIterator[str]:
    """Yield text as it comes: the output of a slow program is spoken while it writes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        async for data in read_pipe(sys.stdin.fileno()):
            yield decoder.decode(data)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise ConfigError("stdin: not UTF-8 text") from error
