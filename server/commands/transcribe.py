"""`voxlane transcribe`: audio files, or audio from a pipe, to text, with an engine of its own that only listens.

Files are decoded by decoding.py, transcripts are written by transcript.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec import structs, to_builtins

from voxlane.codecs.limits import HIGHEST_RATE, LOWEST_RATE
from voxlane.codecs.pcm import decode_pcm16, encode_pcm16
from voxlane.codecs.resample import Resampler
from voxlane.engine.api import LISTEN_RATE, EngineConfig, ListenParams, Loading, Priority, Submit, Words
from voxlane.server.audio.decoding import AudioDecoder
from voxlane.server.audio.hearing import hear, whole
from voxlane.server.audio.transcript import VTT_HEADER, SegmentReply, Transcript, cues, srt, verbose, vtt
from voxlane.server.commands.progress import Progress
from voxlane.server.commands.terminal import own_engine, read_pipe, write_text
from voxlane.server.engine_client.engine_process import ENGINE_COMMAND, EngineProcess
from voxlane.server.errors import ConfigError, VoxlaneError
from voxlane.server.http.reply import to_json

LONGEST_SECONDS = 4 * 3600.0
"""Longest recording: decoded, each hour of 48 kHz takes 1.4 GB for a moment."""

DECODE_SECONDS = 600.0
"""Time to decode one: this is the person's own machine and file."""

STDIN = "-"

Shape = Literal["text", "json", "srt", "vtt"]


@dataclass(frozen=True, slots=True)
class TranscribeOptions:
    """What the command line asked for."""

    files: tuple[str, ...] = ()
    shape: Shape = "text"
    stream: bool = False
    language: str = ""
    raw_rate: int | None = None  # stdin is bare PCM of this rate, transcribed while it comes

    def __post_init__(self) -> None:
        if len(self.sources) > 1 and self.shape in ("srt", "vtt"):
            raise ConfigError(f"--{self.shape} takes one FILE: subtitles of several would run into one another")
        if self.sources.count(STDIN) > 1:
            raise ConfigError("stdin can be read only once")
        if self.raw_rate is not None and self.sources != (STDIN,):
            raise ConfigError("--raw reads from stdin: give no FILE")
        if self.raw_rate is not None and not LOWEST_RATE <= self.raw_rate <= HIGHEST_RATE:
            raise ConfigError(f"--raw must be a sample rate from {LOWEST_RATE} to {HIGHEST_RATE}")
        for name in self.sources:
            if name != STDIN and (not Path(name).exists() or Path(name).is_dir()):
                raise ConfigError(f"{name}: no such file")

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the inputs."""
        return self.files or (STDIN,)


def run_transcribe(
    config: EngineConfig, options: TranscribeOptions, *, engine_command: Sequence[str] = ENGINE_COMMAND
) -> int:
    """Print what is said in each file, and return the exit code."""
    if options.sources == (STDIN,) and sys.stdin.isatty():
        raise ConfigError("there is nothing to hear: give a FILE, or pipe audio in")
    if not config.asr_model:
        raise ConfigError("engine.asr_model is empty: there is no model to listen")
    config = dataclasses.replace(config, model="", tts_model="", speech_model="")
    return asyncio.run(_transcribe(config, options, engine_command))


async def _transcribe(config: EngineConfig, options: TranscribeOptions, command: Sequence[str]) -> int:
    failed = 0
    async with own_engine(config, command) as link, AudioDecoder(LONGEST_SECONDS, 1, DECODE_SECONDS) as decoder:
        assert link.ready is not None
        if options.language and options.language not in link.ready.asr_languages:
            known = ", ".join(link.ready.asr_languages)
            raise ConfigError(f"--language must be one of {known}: the model understands nothing else")
        for name in options.sources:
            try:
                await _one(link, decoder, options, name)
            except VoxlaneError as error:
                # Go on with the other files.
                failed += 1
                print(f"voxlane: {'stdin' if name == STDIN else name}: {error.message}", file=sys.stderr)
                if error.retryable:
                    await link.wait_ready()
    return 1 if failed else 0


async def _one(link: EngineProcess, decoder: AudioDecoder, options: TranscribeOptions, name: str) -> None:
    """Transcribe one file, or stdin."""
    printer = Printer(options, name)
    transcript = Transcript()
    submit = Submit(
        request_id=secrets.token_hex(8),
        task="asr",
        listen=ListenParams(options.language, partials=options.stream, word_times=options.shape != "text"),
        priority=Priority.HIGH,
    )
    with Progress(sys.stderr) as progress, _interrupt_ends(options.raw_rate is not None) as stop:
        if options.raw_rate is not None:
            audio, seconds = _live(options.raw_rate, stop), 0.0
        else:
            samples = await decoder.decode(await asyncio.to_thread(_read, name))
            audio, seconds = whole(samples), len(samples) / 2 / LISTEN_RATE

        async def take(words: Words) -> None:
            before = len(transcript.segments)
            delta = transcript.add(words)
            if options.stream:
                printer.more(transcript, delta, before)
            elif seconds:
                done = f"{_minutes(words.heard_s)} of {_minutes(seconds)}  {Path(name).name}"
                progress.loading(Loading(done, words.heard_s / seconds))

        async with link.submit(submit) as stream:
            await hear(stream, audio, take)
    delta = transcript.finish()
    if options.stream:
        printer.more(transcript, delta, len(transcript.segments))
    printer.end(transcript, seconds or transcript.heard_s)


class Printer:
    """Writes one transcript to stdout, as it grows or whole."""

    def __init__(self, options: TranscribeOptions, name: str) -> None:
        self._shape = options.shape
        self._stream = options.stream
        self._named = name if len(options.sources) > 1 else ""
        self._cues = 0
        self._started = False

    def more(self, transcript: Transcript, delta: str, before: int) -> None:
        """Write what is new: the text `delta`, or the segments from number `before` on."""
        self._begin()
        match self._shape:
            case "text":
                write_text(sys.stdout, delta)
            case "json":
                for number, segment in enumerate(transcript.segments[before:], before):
                    found = {"file": self._named} if self._named else {}
                    self._line({**found, **structs.asdict(SegmentReply.of(number, segment))})
            case "srt" | "vtt":
                new = [cue for segment in transcript.segments[before:] for cue in cues(segment)]
                write_text(sys.stdout, srt(new, self._cues + 1) if self._shape == "srt" else vtt(new))
                self._cues += len(new)

    def end(self, transcript: Transcript, seconds: float) -> None:
        """Write what is left to write once all is heard."""
        self._begin()
        if self._stream:
            if self._shape == "text":
                write_text(sys.stdout, "\n")
        elif self._shape == "text":
            write_text(sys.stdout, f"{transcript.text}\n")
        elif self._shape == "json":
            found = {"file": self._named} if self._named else {}
            self._line({**found, **to_builtins(verbose(transcript, seconds, segments=True, words=True))})
        else:
            self.more(transcript, "", 0)

    def _begin(self) -> None:
        if not self._started:
            self._started = True
            if self._shape == "vtt":
                write_text(sys.stdout, VTT_HEADER)
            if self._shape == "text" and self._named:
                write_text(sys.stdout, f"{self._named}: ")

    def _line(self, value: dict[str, object]) -> None:
        write_text(sys.stdout, to_json(value).decode() + "\n")


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(error.strerror or str(error)) from error


async def _live(rate: int, stop: asyncio.Event) -> AsyncIterator[bytes | bytearray]:
    """Yield bare PCM from stdin as the engine hears it, while it comes."""
    resampler = Resampler(rate, LISTEN_RATE)
    rest = b""
    async for data in read_pipe(sys.stdin.fileno(), stop):
        data = rest + data
        rest = data[len(data) // 2 * 2 :]
        if samples := encode_pcm16(resampler.push(decode_pcm16(data[: len(data) // 2 * 2]))):
            yield samples
    if samples := encode_pcm16(resampler.flush()):
        yield samples


@contextlib.contextmanager
def _interrupt_ends(live: bool) -> Iterator[asyncio.Event]:
    """While listening live, let the first Ctrl-C end the audio, so that the last words are still written."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_interrupt() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    if live:
        loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        yield stop
    finally:
        if live:
            loop.remove_signal_handler(signal.SIGINT)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
