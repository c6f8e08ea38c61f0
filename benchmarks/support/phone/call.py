"""Voice to voice, and onset to silence: a soft phone through Asterisk beside a WebSocket of the native dialect.

The server is `voxlane serve` with the default models. On the one side a client speaks to it directly, as in
voice_to_voice.py and barge_in.py. On the other side baresip rings Asterisk, which connects with `chan_websocket` and
mu-law; SIP and RTP are real (server/exchange). Both sides take turns, each time in a new conversation,
in one run.

Voice to voice is the time from the last sample of a question to the first sound of the answer at the client or the
phone. For interruptions the server greets with a long story. The time runs from the first sample of the interrupting
word: until the lowered or the stopped voice is heard (a voice that may be a murmur lowers the reply first), and until
the voice is silent for good. A phone's jitter buffer is not counted, nor is a sound card of the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from support.common import machine, table
from support.conversation import FRAME, RATE, person, server, spoken
from support.figures import percentile
from support.phone.line_tap import LineTap

from voxlane.codecs.g711 import decode_mulaw
from voxlane.server.exchange.asterisk import MULAW, TelephoneExchange
from voxlane.server.exchange.errors import CallRefused, CallSilent, ExchangeError
from voxlane.server.exchange.packages import installed
from voxlane.server.exchange.soft_phone import Phone

Clip = NDArray[np.int16]

TURNS, INTERRUPTIONS = 10, 20
QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue in the morning?",
    "Can you tell me something about the moon?",
    "How do I make a good cup of tea?",
    "What should I cook for dinner tonight?",
)
CUTS = (
    "Stop, that is enough.",
    "No, I meant something else.",
    "Wait a moment, please.",
    "What about the weather tomorrow?",
    "Sorry, can you repeat that?",
)
STORY = (
    "Once upon a time there was an old lighthouse at the end of the world. Every evening the keeper climbed the stairs,"
    " lit the lamp and wrote down the names of the ships. One night a ship came that had no name at all, and the keeper"
    " went down to the beach to ask the captain where he came from and where he wanted to go."
)
LOUD = 0.01  # of full scale: sound above it is no silence
FOR_GOOD_S = 0.6  # silence that lasts so long ends the reply
SETTLES_S = 1.0  # from the answer of a call to a question
ANSWER_S = 60.0
FRAME_S = FRAME / RATE


@dataclass(slots=True)
class Side:
    """The times of one side in milliseconds."""

    name: str
    answer_ms: list[float] = field(default_factory=list)
    lower_ms: list[float] = field(default_factory=list)
    silent_ms: list[float] = field(default_factory=list)
    failed: int = 0  # turns without an answer, and interruptions that did not end the reply


def silence_after(began: float, sound: Sequence[tuple[float, float]]) -> float | None:
    """Return when the sound that was heard at a moment ended for good; `sound` are begin and end of its stretches.

    None if it goes on for as long as was listened.
    """
    joined: list[list[float]] = []
    for begin, end in sound:
        if joined and begin - joined[-1][1] < FOR_GOOD_S:
            joined[-1][1] = end
        else:
            joined.append([begin, end])
    return next((end for begin, end in joined if end > began and begin < began + FOR_GOOD_S), began)


# ---- the native client


async def _ask(url: str, clip: Clip, side: Side) -> None:
    async with person(url, max_tokens=60) as somebody:
        await asyncio.sleep(SETTLES_S)
        somebody.speak(clip)
        if await somebody.wait("audio", 0, ANSWER_S) is None:
            side.failed += 1
            return
        await asyncio.sleep(0.3)
        first = next((at for at, level in somebody.output if at > somebody.stopped_s and level > LOUD * 32768), None)
        if first is not None:
            side.answer_ms.append((first - somebody.stopped_s) * 1e3)


async def _interrupt(url: str, clip: Clip, delay_s: float, side: Side) -> None:
    async with person(url, max_tokens=60) as somebody:
        if await somebody.wait("audio", 0, ANSWER_S) is None:
            side.failed += 1
            return
        await asyncio.sleep(delay_s)
        since = len(somebody.events)
        somebody.speak(clip)
        over = await somebody.wait("interrupted", since, 6.0)
        await asyncio.sleep(FOR_GOOD_S)
        began = somebody.began_s - FRAME_S  # a frame is sent when its last sample was spoken
        if over is None:
            side.failed += 1
            return
        told = [at for at, event in somebody.events[since:] if event.name in ("duck", "hold")]
        played = [at for at, _ in somebody.output if told and at > told[0]]
        if played:
            side.lower_ms.append((played[0] - began) * 1e3)
        loud = [(at, at + FRAME_S) for at, level in somebody.output if level > LOUD * 32768]
        silent = silence_after(began, loud)
        if silent is not None:
            side.silent_ms.append((silent - began) * 1e3)


# ---- the phone


@contextlib.contextmanager
def _ringing(exchange: TelephoneExchange) -> Iterator[Phone]:
    with Phone(exchange) as phone:
        phone.dial(MULAW)
        yield phone
        if phone.closed is None:
            phone.hang_up()


def _ask_by_phone(exchange: TelephoneExchange, clip: Clip, side: Side) -> None:
    with _ringing(exchange) as phone:
        time.sleep(SETTLES_S)
        began, _ = phone.say(clip / 32768, RATE).wait()
        asked = began + len(clip) / RATE
        try:
            side.answer_ms.append((phone.wait_for_sound(asked, ANSWER_S, LOUD) - asked) * 1e3)
        except CallSilent as error:
            side.failed += 1
            print(f"  {error}", file=sys.stderr)


def _interrupt_by_phone(exchange: TelephoneExchange, tap: LineTap, clip: Clip, delay_s: float, side: Side) -> None:
    with _ringing(exchange) as phone:
        phone.wait_for_sound(timeout_s=ANSWER_S)
        time.sleep(delay_s)
        began, ended = phone.say(clip / 32768, RATE).wait()
        with contextlib.suppress(CallSilent):  # the answer to the interruption
            phone.wait_for_sound(ended + 0.2, 4.0)
        time.sleep(0.2)
        heard = phone.heard()
        silent = silence_after(began, heard.stretches(LOUD))
        cut = [number for number, at in enumerate(tap.sent.flushes) if at > began]
        if silent is None or silent > ended + FOR_GOOD_S or not cut:
            side.failed += 1
            return
        side.silent_ms.append((silent - began) * 1e3)
        first = tap.sent.flushes[cut[0]] - FRAME_S
        lowered = _found(bytes(tap.sent.sounds[cut[0] + 1]), heard.between(first, first + 1.0))
        if lowered is not None:
            side.lower_ms.append(min(first + lowered - began, silent - began) * 1e3)


def _found(data: bytes, heard: NDArray[np.float32]) -> float | None:
    """Return the second at which mu-law sound begins to be heard; None if it is silent, or not there."""
    sound = decode_mulaw(data)
    for start in range(0, len(sound) - 159, 160):
        needle = sound[start : start + 160]
        if np.abs(needle).max() < LOUD / 10 or len(heard) < 160:
            continue  # silence is found anywhere
        windows = np.lib.stride_tricks.sliding_window_view(heard, 160)
        places = np.flatnonzero((windows == needle).all(axis=1))
        return (float(places[0]) - start) / 8000 if len(places) else None
    return None


# ---- both


def _row(name: str, direct: list[float], phone: list[float]) -> list[str]:
    cells = [name]
    for values in (direct, phone):
        some = values or [float("nan")]
        cells += [f"{percentile(some, share):.0f}" for share in (0.5, 0.95)] + [str(len(values))]
    medians = [percentile(values or [float("nan")], 0.5) for values in (direct, phone)]
    return [*cells, f"{medians[1] - medians[0]:+.0f}", f"{medians[1] / medians[0]:.2f}"]


def _measure_answers(folder: Path, direct: Side, phone: Side, count: int) -> None:
    with _served(folder, "") as url, _connected(url) as (exchange, _):
        clips = [spoken(url, question) for question in QUESTIONS]
        for number in range(count):
            clip = clips[number % len(clips)]
            asyncio.run(_ask(url, clip, direct))
            _ask_by_phone(exchange, clip, phone)
            print(f"\r  {number + 1} of {count} questions", end="", file=sys.stderr, flush=True)


def _measure_interruptions(folder: Path, direct: Side, phone: Side, count: int) -> None:
    chance = random.Random(1)
    with _served(folder, STORY) as url, _connected(url) as (exchange, tap):
        clips = [spoken(url, cut) for cut in CUTS]
        for number in range(count):
            clip, delay_s = clips[number % len(clips)], chance.uniform(1.0, 4.0)
            asyncio.run(_interrupt(url, clip, delay_s, direct))
            _interrupt_by_phone(exchange, tap, clip, delay_s, phone)
            print(f"\r  {number + 1} of {count} interruptions", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _served(folder: Path, greeting: str) -> Iterator[str]:
    config = folder / "voxlane.toml"
    config.write_text(f'[voice]\ngreeting = "{greeting}"\n[phone]\nsilence_s = 0\n', encoding="utf-8")
    with server("--config", str(config)) as url:
        yield url


@contextlib.contextmanager
def _connected(url: str) -> Iterator[tuple[TelephoneExchange, LineTap]]:
    with LineTap(url) as tap, TelephoneExchange(f"{tap.url.replace('http', 'ws', 1)}/v1/phone") as exchange:
        yield exchange, tap


def report(turns: int = TURNS, interruptions: int = INTERRUPTIONS) -> None:
    """Measure and print the table; say why there is none where Asterisk cannot be had."""
    direct, phone = Side("direct"), Side("Asterisk")
    try:
        installed()
        with tempfile.TemporaryDirectory() as folder:
            _measure_answers(Path(folder), direct, phone, turns)
            _measure_interruptions(Path(folder), direct, phone, interruptions)
    except (ExchangeError, CallRefused) as error:
        print(f"  skipped: {error}")
        return
    print(file=sys.stderr)
    rows = [
        _row("last sound of a question to first of the answer", direct.answer_ms, phone.answer_ms),
        _row("first sample of a word to the reply lowered", direct.lower_ms, phone.lower_ms),
        _row("first sample of a word to silence", direct.silent_ms, phone.silent_ms),
    ]
    header = ["", "direct p50", "p95", "n", "Asterisk p50", "p95", "n", "difference", "ratio"]
    table(f"a true call beside a WebSocket, {machine()}: milliseconds", header, rows)
    print(f"  without an answer, or not interrupted: direct {direct.failed}, Asterisk {phone.failed}")
