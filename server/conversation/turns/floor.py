"""The person's side of a conversation: which voice opens a turn, holds a reply, interrupts it, and ends the turn.

It follows one ear and the engine's transcript, decides what each silence means, and tells the assistant's side
(answers.py) when to prepare, answer, hold, release or stop. Pure: the clock is an argument.
"""

from __future__ import annotations

from math import inf

from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    Finished,
    FromEngine,
    Priority,
    Probability,
    Refused,
    Started,
    Words,
)
from voxlane.server.conversation.effects import Effect, Send, SendToEngine
from voxlane.server.conversation.hearing.audibility import Audibility
from voxlane.server.conversation.hearing.ear import Confirmed, Dropped, Ear, Onset, Silent, Voiced
from voxlane.server.conversation.hearing.echo_guard import EchoGuard
from voxlane.server.conversation.replies.answers import Answers, fault_of
from voxlane.server.conversation.replies.history import turn_item
from voxlane.server.conversation.server_events import (
    Fault,
    HardToHear,
    InputCleared,
    SpeechStarted,
    SpeechStopped,
    TurnDone,
    UserWords,
)
from voxlane.server.conversation.turns import interruption
from voxlane.server.conversation.turns.end_of_turn import (
    Habits,
    PauseEvidence,
    SentenceEnding,
    end_wait_s,
    ending,
    worth_preparing,
)
from voxlane.server.conversation.turns.overlap import Overlap, VoiceSoFar, playing
from voxlane.server.conversation.turns.pending_turns import PendingTurns
from voxlane.server.conversation.turns.phrases import spell
from voxlane.server.conversation.turns.probes import Probes
from voxlane.server.conversation.turns.silence import LOOK_S, Lull, Meaning, meaning, turning_points
from voxlane.server.conversation.turns.user_turn import RATE, UserSpeech
from voxlane.server.conversation.values import SessionConfig

SHORTEST_S = 0.1
"""The shortest sound that a client can commit as a turn."""

ROUNDING_S = 0.005
"""How much later than the exact moment to wake, so that rounding causes no useless wake-up."""

MAY_SPEAK_S = 0.15
"""A turn whose silence is long enough ends at most so much later, if the last sound may be the person going on."""

MUTE_S = 1.0
"""Without any sound for this long the turn counts as silent: the microphone is off, or the line is broken."""


class Floor:
    """The turn that the person is speaking, and the turns before it that wait for words or answers."""

    def __init__(
        self,
        name: str,
        config: SessionConfig,
        ear: Ear,
        answers: Answers,
        *,
        listens: bool,
        probes: bool,
        echo: EchoGuard | None = None,
    ) -> None:
        self.config = config
        self._name = name
        self._ear = ear
        self._answers = answers
        self._echo = echo
        self._listens = listens
        self._probes = Probes(name, enabled=probes)
        self._turn: UserSpeech | None = None  # the turn being spoken
        self.pending = PendingTurns(name, self, answers)  # turns that are over and not yet answered
        self.audibility = Audibility()
        self._turns = 0
        self.lull = Lull()  # time since sound last came
        self._ignored = False  # the ear hears a voice that opened no turn
        self._failed = False  # the engine could not transcribe that voice; it opens no turn before it pauses
        self._muted = False  # the turn is silent only because no sound comes
        self._gathered = 0  # samples in buffer mode, which the ear never hears
        self._habits = Habits()
        self._paused_at = 0  # sample at which the last pause in a turn began
        self.steady = False  # in the last sound no voice began, ended, paused or went on

    @property
    def hearing(self) -> bool:
        """Whether the person is speaking."""
        return self._turn is not None and self._turn.confirmed

    @property
    def suspected(self) -> bool:
        """Whether the person may be speaking."""
        return self._turn is not None

    @property
    def undecided(self) -> bool:
        """Whether a voice cuts into a reply and has not taken the floor."""
        return self._turn is not None and self._turn.held

    def next_turn(self) -> int:
        """Return the number of a new turn."""
        self._turns += 1
        return self._turns

    @property
    def turns(self) -> int:
        """Number of turns so far."""
        return self._turns

    def restore(self, turns: int, heard: int) -> None:
        """Go on from saved counters: the number of turns, and of samples that were heard before."""
        self._turns, self._gathered = turns, heard

    def give_up(self, now: float) -> list[Effect]:
        """End every open turn, and the reply at its playback position: the conversation ends here."""
        turn, self._turn = self._turn, None
        effects: list[Effect] = []
        if turn is not None:
            effects = [SendToEngine(Cancel(turn.asr_id)), *self._probes.cancel(turn)]
            effects += [Send(TurnDone(turn.number, "interrupted"))] if turn.confirmed else []
        effects += [*self.pending.give_up(), *self._answers.cut(now)]
        for epoch in list(self._answers.asides):
            effects += self._answers.cancel_aside(epoch, now) or []
        return effects

    def reconfigure(self, config: SessionConfig, now: float) -> list[Effect]:
        """Change the configuration; end a turn that the new mode would never end."""
        before, self.config = self.config, config
        turn = self._turn
        if turn is None or before.turns.mode == config.turns.mode:
            return []
        if turn.quiet:
            return self._drop_turn(now)
        if turn.manual:
            return []
        return self._end_turn(now) if turn.confirmed else self._drop_turn(now)

    def end(self, now: float) -> list[Effect]:
        """End the turn because the client says so."""
        return self._end_turn(now) if self._turn is not None else []

    def wake_at(self, now: float) -> float | None:
        """Return when to consider the silence again, None if sound has to come first."""
        turn, rest = self._turn, inf
        if turn is not None and not turn.manual:
            rest = self._rest_of_silence(turn) if turn.silent else max(0.0, MUTE_S - self.lull.seconds)
        first = None if rest == inf else now + min(LOOK_S, rest + ROUNDING_S)
        for at in (self.pending.idle_at(), self.pending.answer_at()):
            if at is not None and (first is None or max(now, at) + ROUNDING_S < first):
                first = max(now, at) + ROUNDING_S
        return first

    def _rest_of_silence(self, turn: UserSpeech) -> float:
        """Return after how many more seconds the meaning of a silence may change; from LOOK_S on, any such number."""
        silence = self._silence_s()
        end_wait_s = self._least_end_wait_s(turn)
        if silence + LOOK_S >= end_wait_s:  # else no evidence makes the turn end before the next look
            end_wait_s = self._end_wait_s(turn)
        waits = [*turning_points(end_wait_s, self.config), end_wait_s + MAY_SPEAK_S * self._ear.may_speak]
        return min((wait - silence for wait in waits if silence < wait < inf), default=inf)

    # ---- the person's voice

    def hear(self, pcm: bytes, now: float) -> list[Effect]:
        """Process microphone sound."""
        self.lull.seconds, self.steady = 0.0, False
        if not self._listens:
            return []
        if self.config.turns.mode == "buffer":
            return self._gather(pcm, now)
        self._ear.guarded, self._ear.threshold = self._answers.talking, self.config.turns.threshold
        effects: list[Effect] = []
        if self._ignored and not self._failed and self._turn is None and self._heeds_voices:
            self._ignored = False
            self._ear.rest()  # a voice that goes on is a new onset, with its pre-roll
        if self._turn is not None and self._muted:
            self._muted, self._turn.silent = False, False
        if self._echo is not None:
            pcm = self._echo.hear(pcm, self._answers.reply, now)
        events = self._ear.feed(pcm)
        self.steady = not events
        for event in events:
            match event:
                case Onset(at=at):
                    effects += self._onset(at, now)
                case Confirmed():
                    effects += self._confirm(now)
                case Dropped(faint=faint) if self._turn is not None and not self._turn.manual:
                    effects += self._drop_turn(now)
                    if faint and self.audibility.miss(now):
                        effects.append(Send(HardToHear()))
                case Silent() | Dropped() if self._turn is None:
                    self._failed = False
                case Silent(since=since) if self._turn is not None:
                    self._turn.silent, self._paused_at = True, since
                case Voiced() if self._turn is not None and self._turn.asked:
                    effects += self._end_turn(now)  # the voice goes on, so it was meant; the rest is a turn of its own
                case Voiced(at=at) if self._turn is not None:
                    self._turn.silent = False
                    self._habits.paused((at - self._paused_at) / RATE)
                    self._turn.went_on((at - self._paused_at) / RATE)
                    effects += self._answers.withdraw()
                case _:
                    pass
        return effects + self._pass_on()

    def _gather(self, pcm: bytes, now: float) -> list[Effect]:
        """Process sound in buffer mode: all of it belongs to the turn."""
        effects: list[Effect] = []
        if self._turn is None:
            effects = self._open_turn(self._ear.heard, now, Priority.HIGH, manual=True, quiet=True)
        turn = self._turn
        assert turn is not None
        turn.gathered += len(pcm) // 2
        turn.keep(pcm, self._answers.most_sound(self.config))
        self._gathered += len(pcm) // 2
        return effects if turn.failed else [*effects, SendToEngine(Append(turn.asr_id, audio=pcm))]

    def _pass_on(self) -> list[Effect]:
        """Send the engine the sound of the turn that it does not have."""
        turn = self._turn
        if turn is None or turn.quiet or turn.fed >= self._ear.heard:
            return []
        audio = self._ear.since(turn.fed)
        turn.fed = self._ear.heard
        turn.keep(audio, self._answers.most_sound(self.config))
        return [SendToEngine(Append(turn.asr_id, audio=audio))]

    def _onset(self, at: int, now: float) -> list[Effect]:
        reply, talks = self._answers.reply, self._answers.talking
        if self._turn is not None or not self._heeds_voices:
            self._ignored = True
            return []
        if not (talks and self.config.interruptible) or reply is None:
            beside = not self.config.interruptible and (talks or self._answers.thinking)
            return self._open_turn(at, now, Priority.HIGH, beside=beside)
        opened = self._open_turn(at, now, Priority.CRITICAL, over=reply.epoch)
        return [*self._follow(now), *opened]

    def _follow(self, now: float) -> list[Effect]:
        """Lower, hold or release the reply that a voice cuts into, by what is known of the voice so far."""
        turn, ear, reply = self._turn, self._ear, self._answers.reply
        if turn is None or not turn.held:
            return []
        voice = VoiceSoFar(ear.strong_for / RATE, ear.faded_for / RATE, ear.excess_db, turn.text)
        wanted = playing(voice, self.config.barge_in, held=reply is not None and reply.stage == "held")
        return interruption.follow(turn, self._answers, wanted, now)

    @property
    def _heeds_voices(self) -> bool:
        """Whether a voice opens a turn now."""
        return self.config.turns.mode == "auto"

    def _open_turn(
        self,
        at: int,
        now: float,
        priority: Priority,
        *,
        over: int | None = None,
        manual: bool = False,
        quiet: bool = False,
        beside: bool = False,
    ) -> list[Effect]:
        number, late_s = self.next_turn(), (self._ear.heard - at) / RATE
        name, item = f"{self._name}/hear{number}", turn_item(self._name, number)
        turn = UserSpeech(number, item, name, at, max(0, at - int(self.config.turns.pre_roll_s * RATE)))
        turn.first = turn.fed
        turn.manual, turn.quiet, turn.beside = manual, quiet, beside
        if over is not None:
            turn.held, turn.overlap = True, Overlap(over, late_s * 1e3, now - late_s)
        self._turn = turn
        return [self.pending.listen(turn, priority)]

    def _confirm(self, now: float) -> list[Effect]:
        turn = self._turn
        if turn is None or turn.confirmed:
            return []
        turn.confirmed = True
        effects: list[Effect] = [Send(SpeechStarted(turn.number, (turn.onset + self._gathered) / RATE))]
        if turn.held or turn.beside or not (self._answers.thinking or self._answers.talking):
            return effects
        # The turn before counts as unanswered: the person goes on before they hear a word of the answer, or began to
        # speak before its first sound.
        self.pending.owed = self.pending.owed or (self.config.replies and self._answers.reply is not None)
        self._habits.cut_off()
        return effects + self._answers.cut(now)

    def _commit(self, turn: UserSpeech, now: float) -> list[Effect]:
        """Give the person the floor: first announce the person's speech, then end the reply."""
        return [*self._confirm(now), *interruption.commit(turn, self._answers, now)]

    def _drop_turn(self, now: float) -> list[Effect]:
        """Discard the turn: the sound was not speech, or held no words."""
        turn, self._turn = self._turn, None
        if turn is None:
            return []
        turn.faint = self._ear.faint
        effects: list[Effect] = [
            SendToEngine(Cancel(turn.asr_id)),
            *self._probes.cancel(turn),
            *self._answers.withdraw(),
        ]
        if turn.held:
            effects += interruption.release(turn, self._answers, now)
        return effects + self.pending.end_wordless(turn, now) if turn.confirmed else effects

    def press(self, now: float) -> list[Effect]:
        """Begin a turn because the client says so."""
        if not self._listens:
            return []
        if (turn := self._turn) is not None:  # the button counts, whatever the detector says
            turn.manual, turn.beside = True, False
            return self._commit(turn, now) if turn.held else [*self._confirm(now), *self._answers.cut(now)]
        effects = self._answers.cut(now)
        self._ear.rest()  # a voice before the button, and its gain, are no part of the turn
        effects += self._open_turn(self._ear.heard, now, Priority.CRITICAL, manual=True)
        return [*effects, *self._confirm(now), *self._pass_on()]

    def typed(self, text: str, now: float) -> list[Effect]:
        """Answer a turn that was typed."""
        return [*self.stop(now), *self.pending.answer_typed(text.strip(), now)] if text.strip() else []

    def stop(self, now: float) -> list[Effect]:
        """Stop speaking at once; a voice that has the reply on hold keeps its turn."""
        return [*self.pending.dismiss(), *self.cut(now)]

    def read_ahead(self) -> list[Effect]:
        """Have the engine prefill the beginning of the next answer's prompt."""
        return self._probes.read_ahead(self._answers.history, self.config)

    # ---- what a silence means

    def _silence_s(self) -> float:
        """Return how long the turn has been silent; while no sound comes, the clock counts."""
        if self._turn is None or not self._turn.silent:
            return 0.0
        return self._ear.silence(self._ear.heard) / RATE + self.lull.seconds

    def _evidence(self, turn: UserSpeech) -> PauseEvidence:
        """Return what is known about the pause in a turn."""
        heard, policy = self._ear.heard, self.config.turns
        asks = not turn.held and policy.min_wait_s < policy.max_wait_s  # else nothing depends on the voice's end
        return turn.evidence(heard - self._ear.silence(heard), heard, self._ear.p_finished if asks else None)

    def _best_evidence(self, turn: UserSpeech) -> PauseEvidence:
        """Return the same as if the voice sounded finished: to find out costs a millisecond."""
        heard = self._ear.heard
        return turn.evidence(heard - self._ear.silence(heard), heard, 1.0)

    def _end_wait_s(self, turn: UserSpeech) -> float:
        """Return how long a silence ends the turn."""
        return end_wait_s(self._evidence(turn), self.config.turns, self._habits.patience)

    def _least_end_wait_s(self, turn: UserSpeech) -> float:
        """Return how long a silence at least lasts before it ends the turn, however the voice sounded."""
        return end_wait_s(self._best_evidence(turn), self.config.turns, self._habits.patience)

    def consider(self, now: float) -> list[Effect]:
        """Act on the sound so far: an interruption, the end of the turn, or time to prepare an answer."""
        turn, config, heard = self._turn, self.config, self._ear.heard
        if turn is None:
            if config.turns.idle_s is None:
                return []
            return self.pending.break_silence((heard + self._gathered) / RATE, now)
        if heard - turn.onset + turn.gathered > (config.turns.max_turn_s + 2.0) * RATE:
            return self._end_turn(now)
        if turn.manual:
            return []
        if not turn.silent and self.lull.seconds >= MUTE_S:  # the microphone was switched off in mid word
            if not turn.confirmed:
                self._ear.rest()
                return self._drop_turn(now)
            self._muted = turn.silent = True
        if turn.held and turn.confirmed and self._answers.asked and not self._answers.busy:
            return self._commit(turn, now)  # an answer to the question that the reply ended with
        if not turn.held and not (turn.confirmed and turn.silent):
            return []  # the person speaks, or may begin to
        silence, policy = self._silence_s(), config.turns
        evidence, strong_s = self._best_evidence(turn), self._ear.strong_for / RATE
        wait_s = end_wait_s(evidence, policy, self._habits.patience)
        if silence >= wait_s or worth_preparing(evidence, policy):  # else it does not matter how the voice sounded
            evidence = self._evidence(turn)
            wait_s = end_wait_s(evidence, policy, self._habits.patience)
        match meaning(turn, silence, self._ear.voiced_for / RATE, wait_s, config, strong_s):
            case Meaning.MEANT if turn.asked:
                return [*self._end_turn(now), *self.pending.close_understood(now)]
            case Meaning.MEANT:
                return self._commit(turn, now)
            case Meaning.WANTS_WORDS:
                return [*self._follow(now), *interruption.ask_last_words(turn)]
            case Meaning.NOTHING:
                self._ear.rest()
                return self._drop_turn(now)
            case Meaning.END if self._ear.may_speak and silence < wait_s + MAY_SPEAK_S:
                return []  # the person may just go on
            case Meaning.END:
                turn.ended_words, turn.p_sound = turn.text, evidence.p_sound
                return self._end_turn(now)
            case Meaning.PAUSE:
                effects = self._probes.ask(turn, turn.text, self._answers.history, config) if evidence.fresh else []
                eager = config.replies and turn.text and worth_preparing(evidence, config.turns)
                return [*effects, *self._prepare(turn)] if eager else effects
        return self._follow(now)

    def _prepare(self, turn: UserSpeech) -> list[Effect]:
        """Begin the answer to a turn that may be over."""
        self._note_said(turn)
        return self._answers.prepare(turn, self.config)

    def _note_said(self, turn: UserSpeech) -> None:
        """Note what of a turn's sound is answered, if the model that answers hears."""
        if self._answers.most_sound(self.config):
            turn.note_said(0 if turn.manual else self._ear.silence(self._ear.heard))
        else:
            turn.said_bytes = 0

    def _end_turn(self, now: float) -> list[Effect]:
        """End the turn; its last words are still to come."""
        turn = self._turn
        assert turn is not None
        if turn.failed:
            self._turn = None
            return [self.pending.remember(turn), Send(TurnDone(turn.number, "failed"))]
        turn.ended_s, turn.faint = now, self._ear.faint
        turn.stopped_s = now - (0.0 if turn.manual else self._silence_s())
        effects: list[Effect] = [] if turn.quiet else self._confirm(now)
        effects += [*self._probes.cancel(turn), SendToEngine(EndInput(turn.asr_id))]
        if not turn.quiet:
            last = self._ear.heard - (0 if turn.manual else self._ear.silence(self._ear.heard))
            effects.append(Send(SpeechStopped(turn.number, (last + self._gathered) / RATE)))
        if turn.held:  # the client ended it before the verdict, so it was meant
            effects += self._commit(turn, now)
        effects.append(self.pending.remember(turn))
        self._note_said(turn)
        if turn.said_bytes and self.config.replies and not (turn.quiet or turn.beside):
            effects += self._answers.prepare(turn, self.config)  # it need not wait for the last words
        self._turn, self._muted = None, False
        self.pending.add(turn)
        self._ear.rest()
        return effects

    # ---- what the client does by itself

    def commit_input(self, ref: str, now: float) -> list[Effect]:
        """End the turn with the sound so far."""
        turn = self._turn
        sound_s = 0.0 if turn is None else (self._ear.heard - turn.onset + turn.gathered) / RATE
        if turn is None or (turn.quiet and sound_s < SHORTEST_S):
            held, least = f"{sound_s * 1e3:.0f} ms", f"{SHORTEST_S * 1e3:.0f} ms"
            reason = f"the input audio buffer holds {held}; a turn has at least {least}"
            return [Send(Fault("input_audio_buffer_commit_empty", reason, retryable=False, ref=ref))]
        return self._end_turn(now)

    def clear_input(self, now: float) -> list[Effect]:
        """Discard the sound so far."""
        effects = self._drop_turn(now)
        self._ear.rest()
        return [*effects, Send(InputCleared())]

    def cut(self, now: float) -> list[Effect]:
        """End the reply because the client asks for it; a voice that has it on hold keeps its turn."""
        if self._turn is not None and self._turn.held:
            return self._commit(self._turn, now)
        return self._answers.cut(now)

    # ---- messages from the engine

    def listens_by(self, request_id: str) -> bool:
        """Return whether a request writes down one of the turns."""
        return any(turn is not None and turn.asr_id == request_id for turn in (self._turn, *self.pending))

    def receive(self, message: Started | Words | Finished | Refused | Probability, now: float) -> list[Effect]:
        """Apply an engine message to its turn; ignore messages of requests that are over."""
        for turn in (self._turn, *self.pending):
            if turn is not None and message.request_id == turn.asr_id:
                return self._understand(turn, message, now)
            if turn is not None and message.request_id == turn.probe_id and isinstance(message, Probability):
                turn.p_end = message.value
        return []

    def _understand(self, turn: UserSpeech, message: FromEngine, now: float) -> list[Effect]:
        match message:
            case Words(settled=settled, tail=tail, covered_s=covered_s):
                turn.covered = turn.first + round(covered_s * RATE)
                changed = turn.understand(settled, tail)
                effects = self._answers.withdraw(unless=turn) if changed else []
                if turn.confirmed and not turn.held and (settled or changed):
                    effects.append(Send(UserWords(turn.number, settled, tail)))
                if settled and turn is self._turn and not turn.held:
                    # Prefill settled words while the person still speaks; little is left to read at the end.
                    effects += self._probes.ask(turn, turn.settled.strip(), self._answers.history, self.config)
                return effects
            case Finished(reason="failed" | "cancelled") | Refused():
                return [Send(fault_of(message)), *self._fail_turn(turn, now)]
            case Finished() if turn.asked and turn is self._turn:
                turn.understood, turn.tail = True, ""
            case Finished() if turn in self.pending:
                turn.understood, turn.tail = True, ""
                self._reconsider(turn)
                return self.pending.close_understood(now)
        return []

    def _reconsider(self, turn: UserSpeech) -> None:
        """Take back the end of a turn whose last words are others than those it was ended on, and sound unfinished."""
        policy = self.config.turns
        if policy.mode != "auto" or not self.config.replies or turn.ended_words is None or self.pending.asked:
            return
        unfinished = ending(turn.text, policy.language) in (SentenceEnding.OPEN, SentenceEnding.NUMBER)
        if unfinished and spell(turn.text) != spell(turn.ended_words):
            evidence = PauseEvidence(turn.text, p_sound=turn.p_sound)
            turn.answer_at_s = turn.stopped_s + end_wait_s(evidence, policy, self._habits.patience)

    def _fail_turn(self, turn: UserSpeech, now: float) -> list[Effect]:
        effects: list[Effect] = [*self._probes.cancel(turn), *self._answers.withdraw()]
        if turn in self.pending:
            return [*effects, *self.pending.fail(turn)]
        if turn.quiet:  # its client learns it with its commit
            turn.failed = True
            return effects
        self._turn = None
        if turn.held:
            effects += interruption.release(turn, self._answers, now)
        self._ignored = self._failed = True  # else the same voice would open a turn and fail 20 times a second
        return [*effects, Send(TurnDone(turn.number, "failed"))] if turn.confirmed else effects

    def lose_engine(self, now: float) -> list[Effect]:
        """Fail every turn that waits for the engine."""
        self._probes.forget()
        effects: list[Effect] = []
        for turn in (self._turn, *self.pending):
            if turn is not None and not turn.understood:
                effects += self._fail_turn(turn, now)
        return [effect for effect in effects if isinstance(effect, Send)]  # a lost engine needs no commands
