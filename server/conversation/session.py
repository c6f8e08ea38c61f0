"""One conversation as a state machine: events in, effects out. No I/O, no clock, no asyncio.

    listening ──voice──▶ hearing ──silence and sense──▶ thinking ──first frame──▶ speaking ──last sample──▶ listening
                            ▲                                                       │   ▲
                            │                                                 voice ▼   │ it was nothing
                            └────────────── it was meant: history is cut ◀──────── held ┘

A turn is one stretch of the person's speech, or a typed text; it ends exactly once: done, interrupted or failed. A
reply has an epoch; nothing of an epoch is sent after its Interrupted. Engine messages of requests that are over are
dropped in `Floor` and `Answers` as they come in, and nowhere else.
"""

from __future__ import annotations

from voxlane.codecs.limits import LOWEST_RATE
from voxlane.engine.api import (
    ConverseModel,
    Finished,
    FromEngine,
    Pieces,
    Probability,
    Refused,
    Samples,
    Started,
    Text,
    ToolCall,
    Words,
)
from voxlane.server.conversation.client_events import (
    Audio,
    CancelReply,
    ClearInput,
    ClientEvent,
    CommitInput,
    ConfigureSession,
    CutItem,
    DropItem,
    EndTurn,
    PlaceItem,
    Played,
    Respond,
    Say,
    ShowItem,
    StartTurn,
    Stop,
    TextTurn,
    ToolResult,
)
from voxlane.server.conversation.effects import Effect, RequestsLost, Send, Tick
from voxlane.server.conversation.hearing.ear import Ear
from voxlane.server.conversation.hearing.echo_guard import EchoGuard
from voxlane.server.conversation.replies.answers import Answers
from voxlane.server.conversation.replies.editing import edit
from voxlane.server.conversation.replies.history import History, turn_item
from voxlane.server.conversation.replies.saved import SavedHistory, SavedProgress
from voxlane.server.conversation.server_events import Configured, Fault, FloorState
from voxlane.server.conversation.turns.floor import Floor
from voxlane.server.conversation.turns.user_turn import RATE
from voxlane.server.conversation.values import SessionConfig, StateName

PIECE_BYTES = 2 * 1600
"""Sound that is processed at once: 0.1 s."""


class Session:
    """A conversation with one person: `Floor` is the person's side, `Answers` the assistant's."""

    def __init__(
        self,
        name: str,
        config: SessionConfig,
        ear: Ear,
        *,
        speak_rate: int,
        reads_words: bool = False,
        begins_early: bool = False,
        listens: bool = True,
        probes: bool = True,
        history: History | None = None,
        echo_guard: bool = True,
        speech: ConverseModel | None = None,
        chats: bool = True,
    ) -> None:
        """`speech` answers with speech; replies that are only text are the chat model's, if the engine `chats`."""
        self.name = name
        self.answers = Answers(
            name,
            speak_rate,
            reads_words=reads_words,
            begins_early=begins_early,
            history=history,
            speech=speech,
            chats=chats,
        )
        plays = listens and speak_rate >= LOWEST_RATE  # the rate is 0 without a voice
        self._echo = EchoGuard(speak_rate) if echo_guard and plays else None
        self._floor = Floor(name, config, ear, self.answers, listens=listens, probes=probes, echo=self._echo)
        self._state: StateName = "listening"

    @property
    def config(self) -> SessionConfig:
        """The configuration that holds now."""
        return self._floor.config

    @property
    def history(self) -> History:
        """What the person said and heard."""
        return self.answers.history

    def open(self, now: float) -> list[Effect]:
        """Begin: say the greeting, if there is one."""
        if not self.config.greeting:
            return self._floor.read_ahead()
        return self._conclude(self.answers.greet(self.config.greeting, self._floor.next_turn(), self.config, now), now)

    def feed(self, event: ClientEvent | FromEngine | RequestsLost | Tick, now: float) -> list[Effect]:
        """Process an event; return its effects in order."""
        floor, answers = self._floor, self.answers
        floor.lull.observe(now)  # before the event, since sound resets it
        if type(event) is Audio:  # fifty a second
            return self._hear(event.pcm, now)
        effects: list[Effect] = []
        match event:
            case Words() | Probability():
                effects = floor.receive(event, now)
            case Started() | Finished() | Refused() if floor.listens_by(event.request_id):
                effects = floor.receive(event, now)
            case Started() | Text() | Samples() | Pieces() | Finished() | Refused() | ToolCall():
                effects = answers.receive(event, now)
            case Played(epoch, samples):
                reply = answers.reply
                if reply is not None and reply.epoch == epoch and reply.stage in ("live", "held"):
                    reply.played(samples, now)
            case TextTurn(text):
                effects = floor.typed(text, now)
            case Say(text):
                if not (answers.busy or floor.hearing or len(floor.pending)):
                    effects = [*answers.withdraw(), *answers.greet(text, floor.next_turn(), self.config, now)]
            case StartTurn():
                effects = floor.press(now)
            case EndTurn():
                effects = floor.end(now)
            case Stop():
                effects = floor.stop(now)
            case ConfigureSession(config):
                # A prepared reply is withdrawn: the client has not seen it, so it has not begun.
                effects = [Send(Configured(config)), *answers.withdraw(), *floor.reconfigure(config, now)]
                if self._state == "listening":
                    effects += floor.read_ahead()
            case ToolResult(call_id, output):
                effects = answers.tool_result(call_id, output, self.config)
            case PlaceItem() | DropItem() | ShowItem() | CutItem():
                effects = edit(event, floor, answers, now)
            case CommitInput(ref):
                effects = floor.commit_input(ref, now)
            case ClearInput():
                effects = floor.clear_input(now)
            case Respond():
                effects = floor.pending.respond(event, now)
            case CancelReply():
                effects = self._cancel(event, now)
            case RequestsLost():
                effects = [*answers.lose_engine(), *floor.lose_engine(now)]
            case _:
                pass
        return self._conclude(effects, now)

    def _hear(self, pcm: bytes, now: float) -> list[Effect]:
        """Process sound. If it changes nothing, only a silence or a time limit can: nothing else is looked at."""
        if len(pcm) > PIECE_BYTES:  # sent faster than real time: it may hold several turns
            pieces = (Audio(pcm[at : at + PIECE_BYTES]) for at in range(0, len(pcm), PIECE_BYTES))
            return [effect for piece in pieces for effect in self.feed(piece, now)]
        effects = self._floor.hear(pcm, now)
        if not self._floor.steady or not self.answers.idle or self._floor.pending.waits:
            return self._conclude(effects, now)
        considered = self._floor.consider(now)
        return self._settle([*effects, *considered], now) if considered else effects

    def end(self, now: float) -> list[Effect]:
        """End every open turn and the reply: the server goes down."""
        effects = self._floor.give_up(now)
        if self._state != "listening":
            self._state = "listening"
            effects.append(Send(FloorState("listening")))
        return effects

    @property
    def silent(self) -> bool:
        """Whether neither side speaks, and no answer is owed."""
        pending = self._floor.pending
        return self._state == "listening" and not (self._floor.suspected or pending.owed or pending.asked)

    def saved(self, now: float) -> SavedProgress:
        """Return the counters and the reply under way; `history.saved()` has the rest."""
        return self.answers.saved(self._floor.turns, now)

    def restore(self, history: SavedHistory, progress: SavedProgress, position: int, heard_s: float) -> None:
        """Go on with a saved conversation: its reply was played up to `position`, `heard_s` of sound had come."""
        self.history.restore(history)
        self.answers.restore(progress, position)
        self._floor.restore(progress.turns, round(heard_s * RATE))

    def forget_failed(self, turn: int) -> None:
        """Forget the words of a turn that its person was asked to repeat."""
        self.history.drop_unanswered(turn_item(self.name, turn))

    def wake_at(self, now: float) -> float | None:
        """Return when to feed a Tick if nothing else happens, None if that is never needed."""
        first, second = None if self.answers.idle else self.answers.wake_at(now), self._floor.wake_at(now)
        if first is None or second is None:
            return second if first is None else first
        return min(first, second)

    def _cancel(self, event: CancelReply, now: float) -> list[Effect]:
        reply, answers = self.answers.reply, self.answers
        running = reply is not None and reply.stage in ("live", "held") and not reply.all_sent
        if running and reply is not None and event.epoch in (None, reply.epoch):
            return self._floor.cut(now)
        if event.epoch is None:
            effects = self._floor.pending.cancel_asked(now)
        else:
            effects = answers.cancel_aside(event.epoch, now)
        if effects is not None:
            return effects
        reason = "Cancellation failed: no response is under way"
        return [Send(Fault("response_cancel_not_active", reason, retryable=False, ref=event.ref))]

    def _conclude(self, effects: list[Effect], now: float) -> list[Effect]:
        """Add what follows from an event: the state of the floor, frames to send, replies that end or begin."""
        return self._settle([*effects, *self._floor.consider(now)], now)

    def _settle(self, effects: list[Effect], now: float) -> list[Effect]:
        effects += self.answers.advance(self.config, now)
        if self._echo is not None:
            self._echo.note(effects, self.answers.reply)
        effects += self._floor.pending.catch_up(now)
        state = self._name_state()
        if state != self._state:
            self._state = state
            effects.append(Send(FloorState(state)))
            if state == "listening":  # the history is final, and the engine has time
                effects += self._floor.read_ahead()
        return effects

    def _name_state(self) -> StateName:
        reply = self.answers.reply
        if reply is not None and reply.stage == "held":
            return "held"
        if self._floor.hearing and not (self._floor.undecided and self.answers.talking):
            return "hearing"
        if self.answers.talking:
            return "speaking"
        return "thinking" if len(self._floor.pending) or self.answers.thinking else "listening"
