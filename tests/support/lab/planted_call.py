"""A call with a planted agent on the virtual clock: what the person says is a track, what the ear gets is measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from voxlane_lab.agents.planted import planted
from voxlane_lab.agents.voice import AgentVoice
from voxlane_lab.dialects.choice import make_dialect
from voxlane_lab.dialects.dialect import DialectOptions, LabDialect
from voxlane_lab.line import EchoPath
from voxlane_lab.scenario import Echo
from voxlane_lab.values import TICK_S, USER_RATE, USER_TICK, Message, Pcm, Run

VOICE = AgentVoice.synthetic(1)
PLACES = {"native": "/v1/voice", "realtime": "/v1/realtime", "twilio": "/twilio", "pcm": "/pcm"}
AUDIBLE = 10 ** (-50 / 20) * 32768

Span = tuple[float, float]
"""Seconds: from, until."""


@cache
def voice_track(*spans: Span, seconds: float, noise_db: float | None = None) -> Pcm:
    """Return a microphone's sound: a voice that is heard in these spans, and noise all the time."""
    time_s = np.arange(round(seconds * USER_RATE)) / USER_RATE
    tone = sum(np.sin(2 * np.pi * 140 * number * time_s) / number for number in range(1, 12))
    syllables = 0.6 + 0.4 * np.sin(2 * np.pi * 4.3 * time_s)
    heard = np.zeros(len(time_s), bool)
    for first, end in spans:
        heard[round(first * USER_RATE) : round(end * USER_RATE)] = True
    sound = 2500 * tone * syllables * heard
    if noise_db is not None:
        sound = sound + np.random.default_rng(1).normal(0, 10 ** (noise_db / 20) * 32768, len(time_s))
    return np.clip(np.rint(sound), -32768, 32767).astype(np.int16)


@dataclass(frozen=True, slots=True)
class PlantedCall:
    """A call that is over."""

    dialect: LabDialect
    agent: Pcm  # what the loudspeaker played
    runs: list[Run]
    sent: list[Message]  # by the agent

    @property
    def spans(self) -> list[Span]:
        """When the agent was audible, in seconds; pauses under 50 ms are none."""
        size = self.dialect.speaker.rate // 100
        frames = self.agent[: len(self.agent) // size * size].reshape(-1, size).astype(np.float64)
        found: list[Span] = []
        for number in np.flatnonzero(np.sqrt((frames**2).mean(axis=1)) > AUDIBLE):
            at_s = float(number) / 100
            if found and at_s - found[-1][1] < 0.05:
                found[-1] = (found[-1][0], at_s + 0.01)
            else:
                found.append((at_s, at_s + 0.01))
        return found


def hold_planted(
    fault: str,
    dialect: str,
    microphone: Pcm,
    *,
    counts: bool = False,
    greets: bool = False,
    echo: Echo | None = None,
) -> PlantedCall:
    """Hold a call whose microphone has this sound, and an echo of the loudspeaker."""
    agent = planted(fault, dialect, VOICE, counts=counts, greets=greets)
    client = make_dialect(dialect, DialectOptions(f"ws://127.0.0.1{PLACES[dialect]}"))
    played: list[Pcm] = []
    runs: list[Run] = []
    sent: list[Message] = []
    size = round(TICK_S * client.speaker.rate)
    room = EchoPath(echo, client.speaker.rate, np.random.default_rng(1))
    heard: Pcm = microphone[:0]
    upward = [*client.open(0.0)]
    for tick in range(len(microphone) // USER_TICK):
        at_s = tick * TICK_S
        if tick and client.ready:
            upward += client.say(heard, at_s)
        upward += client.due(at_s)
        downward = [answer for message in upward for answer in agent.receive(message)] + agent.tick()
        sent += downward
        upward = [reply for message in downward for reply in client.receive(message, at_s)]
        pulled = client.speaker.pull(size)
        played.append(pulled.pcm)
        own = microphone[tick * USER_TICK : (tick + 1) * USER_TICK]
        heard = np.rint(own + room.hear(pulled.pcm)).astype(np.int16)
        runs += [Run(tick * size + run.at, run.response, run.offset, run.samples) for run in pulled.runs]
    assert client.failure == ""
    return PlantedCall(client, np.concatenate(played), runs, sent)
