"""Planted agents: one that is good, and one for each fault that the lab must find. Pure.

agent = planted("slow_yield", "twilio", AgentVoice.synthetic(1))
for message in messages_of_the_client:
    send(agent.receive(message))
send(agent.tick())  # every 20 ms
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from voxlane_lab.agents.acts import Face
from voxlane_lab.agents.behaviour import CUTS_OFF_AFTER_S, AgentTraits, Behaviour
from voxlane_lab.agents.faces.native import NativeFace
from voxlane_lab.agents.faces.pcm import PcmFace
from voxlane_lab.agents.faces.realtime import RealtimeFace
from voxlane_lab.agents.faces.twilio import TwilioFace
from voxlane_lab.agents.voice import AgentVoice
from voxlane_lab.errors import LabError
from voxlane_lab.values import Message, Pcm

FAULTS = {
    "none": "The good agent: it stops for a turn, ignores a short sound, remembers what was heard, answers once.",
    "talks_over": "It goes on until the person's turn is over, then drops the rest and answers.",
    "stops_for_mhm": "Any sound stops it for good: a murmur, a cough.",
    "pauses_850": "Any sound makes it pause for 850 ms and go on with the next sample. Nothing is wrong with that.",
    "slow_yield": "It stops 1,600 ms after the person began.",
    "stale": "After it has stopped, 500 ms of the old response follow in the person's turn, and 500 ms after it.",
    "keeps_words": "It believes that all it wanted to say was heard.",
    "forgets_words": "It believes that nothing it said was heard.",
    "answers_twice": "It answers, waits for a second, and answers again.",
    "never_answers": "It stops for an interruption, and does not answer.",
    "cuts_off": "It answers after 250 ms of silence: in the middle of a sentence, if the person pauses there.",
}
"""What each agent does."""

TRAITS = {
    "none": AgentTraits(),
    "talks_over": AgentTraits(stops="after"),
    "stops_for_mhm": AgentTraits(stops="sound"),
    "pauses_850": AgentTraits(pauses=True),
    "slow_yield": AgentTraits(stops="late"),
    "stale": AgentTraits(stops="quiet"),
    "keeps_words": AgentTraits(remembers="all"),
    "forgets_words": AgentTraits(remembers="nothing"),
    "answers_twice": AgentTraits(answers=2),
    "never_answers": AgentTraits(answers=0),
    "cuts_off": AgentTraits(answers_after_s=CUTS_OFF_AFTER_S),
}

FACES: dict[str, Callable[[], Face]] = {
    "native": NativeFace,
    "realtime": RealtimeFace,
    "twilio": TwilioFace,
    "pcm": PcmFace,
}
"""Dialect -> the server's side of it."""

SILENCE: Pcm = np.zeros(0, np.int16)


class PlantedAgent:
    """One agent in one call."""

    def __init__(self, face: Face, behaviour: Behaviour) -> None:
        self.ended = False  # the client has said that it is done
        self._face = face
        self._behaviour = behaviour
        self._heard: list[Pcm] = []
        self._opened = False

    def receive(self, message: Message) -> list[Message]:
        """Process a message of the client; return the answers. Raise NotUnderstood if it breaks the dialect's rules."""
        told = self._face.read(message)
        if told.sound is not None:
            self._heard.append(told.sound)
        if told.played is not None:
            self._behaviour.played(*told.played)
        self.ended = self.ended or told.ended
        return [*self._opening(), *told.replies]

    def tick(self) -> list[Message]:
        """Let 20 ms pass; return what is sent."""
        first = self._opening()
        if not self._face.ready or self.ended:
            return first
        heard, self._heard = self._heard, []
        acts = self._behaviour.tick(np.concatenate(heard) if heard else SILENCE)
        return [*first, *(message for act in acts for message in self._face.write(act))]

    def _opening(self) -> list[Message]:
        if self._opened:
            return []
        self._opened = True
        return self._face.opening()


def planted(fault: str, dialect: str, voice: AgentVoice, *, counts: bool = False, greets: bool = False) -> PlantedAgent:
    """Return an agent with a fault, or "none", that speaks a dialect.

    With `counts` its long answer is to count to twenty, and its answer to an interruption is the last number that was
    heard. With `greets` it speaks first.
    """
    if fault not in TRAITS:
        raise LabError(f"there is no such fault; faults are {', '.join(TRAITS)}")
    if dialect not in FACES:
        raise LabError(f"there is no such dialect; dialects are {', '.join(FACES)}")
    return PlantedAgent(FACES[dialect](), Behaviour(TRAITS[fault], voice, counts=counts, greets=greets))
