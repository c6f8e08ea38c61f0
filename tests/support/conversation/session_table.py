"""A session with a client, an engine and a clock, driven one event at a time."""

from __future__ import annotations

from session_simulation import SPEAK_RATE, Client, ScriptedEar, ScriptedEngine, sound

from voxlane.engine.api import Submit
from voxlane.server.conversation.client_events import Audio, TextTurn
from voxlane.server.conversation.effects import SendToEngine, Tick
from voxlane.server.conversation.server_events import ReplyStarted
from voxlane.server.conversation.session import Session
from voxlane.server.conversation.turns.policies import BargePolicy
from voxlane.server.conversation.values import SessionConfig

FRAME_S = 0.02

PAUSES = SessionConfig(barge_in=BargePolicy(hold="pause"))
"""Every voice puts the reply on hold."""


class Table:
    """A session, its client, its engine and a clock, driven one event at a time."""

    def __init__(self, config: SessionConfig | None = None, session: dict | None = None, **engine) -> None:
        self.ear = ScriptedEar()
        self.session = Session("s", config or SessionConfig(), self.ear, speak_rate=SPEAK_RATE, **session or {})
        self.engine = ScriptedEngine(**engine)
        self.client = Client()
        self.now = 100.0
        self.log: list = []

    def feed(self, event) -> list:
        effects = self.session.feed(event, self.now)
        self.log += effects
        return self.client.apply(effects, self.engine)

    def speak(self, kind: str, frames: int) -> list:
        """Send sound in real time of the test's clock; the engine keeps up."""
        events = []
        for _ in range(frames):
            self.now += FRAME_S
            events += self.feed(Audio(sound(kind, 1)))
            events += self.work(3)
        return events

    def work(self, most: int = 1000) -> list:
        """Let the engine send up to `most` messages."""
        events = []
        for _ in range(most):
            ready = self.engine.ready()
            if not ready:
                break
            events += self.feed(self.engine.bring(ready[0]))
        return events

    def wait(self, seconds: float) -> list:
        """Let time pass in silence, with a Tick whenever `wake_at` asks for one."""
        events, until = [], self.now + seconds
        while True:
            at = self.session.wake_at(self.now)
            assert at is None or at > self.now, "a tick that would not help"
            if at is None or at > until:
                break
            self.now = at
            events += self.feed(Tick())
            events += self.work()
        self.now = until
        return events

    def of(self, *kinds: type) -> list:
        return [event for event in self.client.events if isinstance(event, kinds)]


def ask(table: Table) -> None:
    table.speak("v", 40)
    table.speak("s", 60)
    table.work()


def begin_reply(table: Table) -> ReplyStarted:
    table.feed(TextTurn("hello"))
    table.work()
    table.wait(0.7)
    return table.of(ReplyStarted)[-1]


def hear_no_engine(table: Table, kind: str, frames: int) -> None:
    """Send sound while the engine sends nothing."""
    for _ in range(frames):
        table.now += FRAME_S
        table.feed(Audio(sound(kind, 1)))


def submits(table: Table, task: str) -> list[Submit]:
    """Return the requests of a task that the session has sent so far."""
    told = [effect.message for effect in table.log if isinstance(effect, SendToEngine)]
    return [message for message in told if isinstance(message, Submit) and message.task == task]
