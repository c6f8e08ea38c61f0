"""`voxlane talk`: a conversation with a server from the terminal, by microphone and loudspeaker or from file to file.

client.py speaks the protocol, player.py keeps the playback buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from voxlane.codecs.container import decode_audio
from voxlane.codecs.errors import AudioError
from voxlane.codecs.extras import install_command
from voxlane.codecs.pcm import decode_pcm16, encode_pcm16
from voxlane.codecs.resample import resample
from voxlane.codecs.wav import encode_wav
from voxlane.server.client import Event, SentAway, VoiceClient
from voxlane.server.client.player import Player
from voxlane.server.commands.remote import own_words
from voxlane.server.commands.terminal import write_text
from voxlane.server.errors import ConfigError, ConversationFailed

INPUT_RATE, OUTPUT_RATE = 16_000, 24_000
FRAME_S = 0.02
INPUT_FRAME, OUTPUT_FRAME = int(INPUT_RATE * FRAME_S), int(OUTPUT_RATE * FRAME_S)

VOICE_PATH = "/v1/voice"
SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}

PATIENCE_S = 1.5
"""Time without speech after the input file's end before the conversation counts as over."""


@dataclass(frozen=True, slots=True)
class TalkOptions:
    """What the command line asked for."""

    url: str = "http://127.0.0.1:8000"
    source: str = ""  # a sound file instead of the microphone
    target: str = ""  # a WAV file instead of the loudspeaker
    key: str = ""
    config: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.source) != bool(self.target):
            raise ConfigError("--in and --out go together: a file to say, and one for what is heard")
        voice_url(self.url)


def voice_url(url: str) -> str:
    """Return the WebSocket of a server that is named by its address, with or without the path, as `say` takes it."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES or not rest.strip("/"):
        raise ConfigError(f"--url: {url} is not an address that begins with http://, https://, ws:// or wss://")
    host, _, path = rest.partition("/")
    bare = path.strip("/") in ("", "v1")
    return f"{SCHEMES[scheme]}://{host}{VOICE_PATH if bare else f'/{path}'}"


def run_talk(options: TalkOptions) -> int:
    """Converse, and return the exit code."""
    source = _read(Path(options.source)) if options.source else None
    cards = None if options.source else _sound_cards()
    if source is not None and not Path(options.target).resolve().parent.is_dir():
        raise ConfigError(f"{options.target}: there is no such folder")
    try:
        if source is not None:
            heard = asyncio.run(_from_file(options, source))
            Path(options.target).write_bytes(encode_wav(decode_pcm16(heard), OUTPUT_RATE))
        else:
            assert cards is not None
            asyncio.run(_with_cards(options, cards))
    except (OSError, InvalidHandshake, InvalidURI) as error:
        told = own_words(error.response.body or b"") if isinstance(error, InvalidStatus) else None
        raise ConversationFailed(told or f"{options.url}: {error}") from error
    except SentAway as error:
        raise ConversationFailed(error.message) from error
    except ConnectionClosed as error:
        code = error.rcvd.code if error.rcvd is not None else 1006
        raise ConversationFailed(f"the server closed the connection ({code})") from error
    return 0


def _client(options: TalkOptions, player: Player) -> VoiceClient:
    formats = {"codec": "pcm16", "rate": INPUT_RATE}, {"codec": "pcm16", "rate": OUTPUT_RATE}
    return VoiceClient(
        voice_url(options.url),
        key=options.key,
        input_format=formats[0],
        output_format=formats[1],
        config=options.config,
        player=player,
        gathers=True,
    )


# ---- from file to file


def _read(path: Path) -> bytes:
    try:
        samples, rate = decode_audio(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except AudioError as error:
        raise ConfigError(f"{path}: {error}") from error
    return encode_pcm16(resample(samples, rate, INPUT_RATE))


async def _from_file(options: TalkOptions, source: bytes) -> bytes:
    """Send a file in real time; return the sound that a loudspeaker would have played meanwhile."""
    player = Player(OUTPUT_RATE)
    async with _client(options, player) as client:
        screen = Screen()
        watching = asyncio.create_task(_watch(client, screen))
        try:
            return await _say_file(client, player, screen, source, watching)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


async def _say_file(
    client: VoiceClient, player: Player, screen: Screen, source: bytes, watching: asyncio.Task[None]
) -> bytes:
    heard = bytearray()
    loop = asyncio.get_running_loop()
    began, quiet = loop.time(), 0
    frames = _frames(source)
    for number in range(1 << 62):
        await asyncio.sleep(max(0.0, began + number * FRAME_S - loop.time()))
        if watching.done():
            watching.result()
            break
        frame = next(frames, None)
        await client.send_audio(frame if frame is not None else bytes(2 * INPUT_FRAME))
        heard += player.pull(OUTPUT_FRAME)
        await client.send_acks()
        idle = frame is None and screen.state == "listening" and not player.queued
        quiet = quiet + 1 if idle else 0
        if quiet * FRAME_S >= PATIENCE_S:
            break
    return bytes(heard)


def _frames(source: bytes) -> Iterator[bytes]:
    for start in range(0, len(source), 2 * INPUT_FRAME):
        yield source[start : start + 2 * INPUT_FRAME].ljust(2 * INPUT_FRAME, b"\0")


# ---- with a microphone and a loudspeaker


def _sound_cards() -> ModuleType:
    """Return the library of sound cards, or raise an error of one line that says what is missing."""
    without = "use --in FILE --out FILE to talk without a sound card"
    try:
        import sounddevice
    except ImportError as error:
        raise ConfigError(f"sounddevice is not installed ({install_command('talk')}): or {without}") from error
    except OSError as error:  # the wheel for Linux needs the system's PortAudio
        raise ConfigError(f"{error} (apt-get install libportaudio2): or {without}") from error
    for kind in ("input", "output"):
        try:
            sounddevice.query_devices(kind=kind)
        except (ValueError, sounddevice.PortAudioError) as error:
            raise ConfigError(f"there is no sound {kind} device: {without}") from error
    cards: ModuleType = sounddevice
    return cards


async def _with_cards(options: TalkOptions, cards: Any) -> None:
    """Converse until the server or Ctrl-C ends it."""
    player = Player(OUTPUT_RATE)
    lock = threading.Lock()  # the card's thread pulls while ours puts
    loop = asyncio.get_running_loop()
    frames: asyncio.Queue[bytes] = asyncio.Queue(maxsize=100)

    def hear(data: Any, count: int, time: object, status: object) -> None:
        loop.call_soon_threadsafe(_offer, frames, bytes(data))

    def play(data: Any, count: int, time: object, status: object) -> None:
        with lock:
            data[:] = player.pull(count)

    shape: dict[str, Any] = {"channels": 1, "dtype": "int16"}
    async with _client(options, _Locked(player, lock)) as client:
        screen = Screen()
        screen.note("speak; Ctrl-C ends the conversation. Use headphones: a loudspeaker would interrupt itself.")
        watching = asyncio.create_task(_watch(client, screen))
        with (
            cards.RawInputStream(samplerate=INPUT_RATE, blocksize=INPUT_FRAME, callback=hear, **shape),
            cards.RawOutputStream(samplerate=OUTPUT_RATE, blocksize=OUTPUT_FRAME, callback=play, **shape),
        ):
            try:
                while not watching.done():
                    frame = await frames.get()
                    await client.send_audio(frame)
                    await client.send_acks()
                watching.result()
            finally:
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching


def _offer(frames: asyncio.Queue[bytes], frame: bytes) -> None:
    if not frames.full():  # if the connection stalls for two seconds, drop further frames
        frames.put_nowait(frame)


class _Locked(Player):
    """A player that two threads may use."""

    def __init__(self, player: Player, lock: threading.Lock) -> None:
        super().__init__(player.rate)
        self._player = player
        self._lock = lock

    def handle(self, name: str, fields: dict[str, Any]) -> None:
        with self._lock:
            self._player.handle(name, fields)
            self.epoch, self.position = self._player.epoch, self._player.position

    def acks(self) -> list[Any]:
        with self._lock:
            return self._player.acks()


# ---- what a person reads


class Screen:
    """Captions, states and latencies, a line each."""

    def __init__(self) -> None:
        self.state = "listening"

    def note(self, text: str) -> None:
        """Show a line about the conversation."""
        write_text(sys.stderr, f"{text}\n")

    def show(self, event: Event) -> None:
        """Show one event, if there is something to show."""
        match event.name:
            case "state":
                self.state = event["name"]
                self.note(f"  [{self.state}]")
            case "user_turn":
                write_text(sys.stdout, f"you: {event['text']}\n")
            case "reply_done" if event["text"].strip():
                write_text(sys.stdout, f"assistant: {event['text'].strip()}\n")
            case "interrupted":
                write_text(sys.stdout, f"assistant: {event['heard'].strip()} …\n")
            case "latency":
                self.note(_latency(event))
            case "barge_in" if not event["committed"]:
                self.note(f"  [went on after {event['verdict_ms']:.0f} ms]")
            case "hard_to_hear":
                self.note("  [you are hard to hear: speak up, or come closer to the microphone]")
            case "tool_call":
                self.note(f"  [wants {event['name']}: there are no tools here]")
            case "error":
                self.note(f"  [{event['code']}: {event['message']}]")
            case "go_away":
                self.note(f"  [the server closes in {event['seconds']:.0f} s: {event['reason']}]")


def _latency(event: Event) -> str:
    parts = (
        ("turn end", "turn_end_ms"),
        ("words", "words_ms"),
        ("first token", "first_token_ms"),
        ("first sample", "first_sample_ms"),
        ("first frame", "first_frame_ms"),
    )
    shown = [f"{name} {event[key]:.0f}" for name, key in parts if event[key] >= 0]
    return f"  [ms after the last sound: {', '.join(shown)}]"


async def _watch(client: VoiceClient, screen: Screen) -> None:
    async for event in client:
        screen.show(event)
        if event.name == "tool_call":
            await client.tool_result(event["call_id"], "this tool is not available")
