"""Simulated people in conversation with an engine, and the part of the server between them, one Speaker a session.

A person speaks, is answered, listens, sometimes interrupts, thinks, speaks again. The engine gets the commands that the
server would send, with the same priorities and order, through the server's channel, which gathers sound; a script takes
the decisions that need the server's VAD and judgement. Two things are artificial. People speak with the engine's own
voice, and their turns end 250 ms after the last sound. The chat model's random weights write noise: its tokens set the
pace, and each of them adds a token's worth of a real reply to the clauses that are spoken. The clock is an argument.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from support.people import FRAME_S, Listener
from support.sessions.engine import Engine, Sound, Told

from voxlane.engine.api import (
    Append,
    Cancel,
    ChatMessage,
    EndInput,
    Finished,
    Pause,
    Priority,
    Refused,
    Resume,
    Samples,
    SamplingParams,
    SpeakParams,
    Submit,
    Text,
    ToEngine,
    Words,
)
from voxlane.server.conversation.replies.clauses import ClauseCutter
from voxlane.server.engine_client.channel import Channel

PRE_ROLL_S = 0.3
CONFIRM_S = 0.06  # of voice before a turn begins
END_WAIT_S = 0.25  # of silence that ends a turn
PROBE_S = 0.1  # of silence before the chat model is asked whether the turn is over
VERDICT_S = 0.6  # of voice before a held reply is given up
COUGH_S = 0.35  # a shorter voice is no interruption
RELEASE_S = 0.5  # of silence before a held reply goes on
THINK_S = (0.4, 1.6)
CUTS_IN = 0.3  # share of replies that are interrupted
COUGHS = 0.33  # share of interruptions that are only a cough
CHARACTERS_PER_TOKEN = 4.3

INSTRUCTIONS = (
    "You are a friendly assistant on the telephone of a small town's visitor centre. Answer in one to three short "
    "sentences, as one speaks; no lists, no headings. The centre is open from nine to six, on Sundays from ten to "
    "four. Tickets for the museum, the tower and the boats can be bought here. If you do not know something, say so "
    "and offer to find somebody who does. Never invent prices or times."
)
QUESTIONS = (
    "Hello, could you tell me when the museum opens tomorrow morning?",
    "Is there a boat to the island in the afternoon, and how long does it take?",
    "We are four people and a dog. Can we take the dog up the tower?",
    "What would you do with children if it rains all day?",
    "Thank you. And where can we have dinner near the old bridge?",
    "I think I left my umbrella in the museum yesterday. What should I do?",
    "How do we get from the station to the harbour?",
    "Do we need to book the tour, or can we just come?",
)
REPLIES = (
    "The museum opens at nine tomorrow. It is quiet until about eleven, so that would be a good time to come.",
    "Yes, there are boats to the island every hour. The crossing takes about twenty minutes.",
    "I am afraid dogs are not allowed on the tower, but there is a shady place at the foot of it where they may wait.",
    "With children, I would go to the glass workshop. They can watch how bottles are blown, and try it themselves.",
    "There are two good places near the old bridge, the mill and the garden house. Shall I book a table for you?",
    "Let me see. Umbrellas that are found go to the desk at the entrance, so please ask there.",
    "From the station, take the tram with the blue sign. It stops right at the harbour.",
    "For the small tour you can just come. For the long one, it is better to book a day before.",
    "Certainly. Is there anything else you would like to know?",
    "Well, the easiest way is on foot, along the river, and it takes a quarter of an hour.",
)

State = Literal["quiet", "speaking", "heard", "answered"]


@dataclass(slots=True)
class Turn:
    """One turn of the person and its times on the clock."""

    ended_s: float  # when the turn ended
    words_s: float | None = None  # when its last words were recognised
    first_token_s: float | None = None
    first_audio_s: float | None = None
    words_right: float = 0.0  # share of the words that were recognised


@dataclass(slots=True)
class Diary:
    """The events of one session."""

    turns: list[Turn] = field(default_factory=list)
    underruns: list[tuple[float, float]] = field(default_factory=list)  # (when, silence in seconds)
    interrupts: list[tuple[float, float | None]] = field(default_factory=list)  # (when, seconds until it was in force)
    faults: list[tuple[float, str]] = field(default_factory=list)


@dataclass(slots=True)
class Reply(Listener):
    """The assistant's turn, and the listener's position in it."""

    epoch: int
    text: str
    tokens: int
    cutter: ClauseCutter = field(default_factory=ClauseCutter)
    generated: str = ""
    written: int = 0  # tokens
    given: int = 0  # characters
    saying: bool = False
    said: bool = False  # all of its sound has come
    held_s: float | None = None  # since when it is on hold
    refused: bool = False  # the engine has confirmed the hold
    cut_in_s: float | None = None  # when the person will interrupt

    def delta(self, *, final: bool = False) -> list[str]:
        """Return the clauses that are complete with the tokens so far."""
        share = 1.0 if final else min(1.0, self.written / self.tokens)
        upto = round(share * len(self.text))
        piece, self.given = self.text[self.given : upto], upto
        clauses = self.cutter.push(piece)
        return [clause.text for clause in (*clauses, *(self.cutter.finish() if final else ())) if not clause.silent]


class Speaker:
    """One session."""

    def __init__(self, engine: Engine, name: str, sounds: list[Sound], seed: int, begins_s: float) -> None:
        self.diary = Diary()
        self._engine = engine
        self._name = name
        self._sounds = sounds
        self._random = random.Random(seed)
        self._history = [ChatMessage("system", INSTRUCTIONS)]
        self._state: State = "quiet"
        self._next_s = begins_s  # when the person will speak next
        self._turns = 0
        self._sound = sounds[0]
        self._cough = False
        self._began_s = 0.0  # when the voice began; the pre-roll is before that
        self._sent_s = 0.0  # up to when its sound was sent
        self._probed = False
        self._words = ""
        self._tail = ""
        self._reply: Reply | None = None
        self._epoch = 0
        assert engine.ready is not None
        self._rate = engine.ready.speak_rate
        engine.receivers[name] = self.take
        self._channel = Channel(name, engine, lambda message: None, lambda: None)

    # ---- the clock

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self._state == "quiet" and now >= self._next_s:
            self._open(now, Priority.HIGH)
        elif self._state == "speaking":
            self._speak(now)
        elif self._state == "answered":
            self._listen(now)

    def hang_up(self) -> None:
        """Cancel all open requests."""
        turn, epoch = self._turns, self._epoch
        for what in (f"hear{turn}", f"probe{turn}", f"chat{epoch}", f"say{epoch}"):
            self._send(Cancel(f"{self._name}/{what}"))
        self._engine.receivers.pop(self._name, None)

    def _send(self, *messages: ToEngine) -> None:
        for message in messages:
            refused = self._channel.tell(message)
            assert refused is None, "the engine is there and takes everything"

    def _open(self, now: float, priority: Priority, *, cough: bool = False) -> None:
        """Begin a turn, when the server has confirmed the voice: some of it has been said already."""
        self._turns += 1
        self._state, self._cough, self._probed = "speaking", cough, False
        self._sound = self._random.choice(self._sounds)
        self._words = self._tail = ""
        self._began_s, self._sent_s = now - CONFIRM_S, -PRE_ROLL_S
        self._send(Submit(self._asr, "asr", priority=priority, session=self._name))
        self._speak(now)

    @property
    def _asr(self) -> str:
        return f"{self._name}/hear{self._turns}"

    def _speak(self, now: float) -> None:
        """Send the sound since the last call, and find the end of the turn."""
        at_s = now - self._began_s
        stop_s = self._sent_s + int((at_s - self._sent_s) / FRAME_S) * FRAME_S
        voice_s = COUGH_S if self._cough else self._sound.seconds
        if stop_s > self._sent_s:
            audio = self._sound.piece(self._sent_s, min(stop_s, voice_s))
            audio += bytes(round((stop_s - max(self._sent_s, min(stop_s, voice_s))) * 16_000) * 2)
            self._send(Append(self._asr, audio=audio))
            self._sent_s = stop_s
        reply = self._reply
        if reply is not None and self._cough:
            if at_s >= voice_s + RELEASE_S:
                self._release(reply, now)
            return
        if reply is not None and at_s >= VERDICT_S:
            self._give_up(reply, now)
        if not self._probed and at_s >= voice_s + PROBE_S and (self._words or self._tail):
            self._probed = True
            messages = (*self._history, ChatMessage("user", (self._words + self._tail).strip()))
            self._send(Submit(f"{self._name}/probe{self._turns}", "probe", messages, priority=Priority.HIGH))
        if at_s >= voice_s + END_WAIT_S:
            self._state = "heard"
            self.diary.turns.append(Turn(now))
            self._send(Cancel(f"{self._name}/probe{self._turns}"), EndInput(self._asr))

    def _listen(self, now: float) -> None:
        reply = self._reply
        assert reply is not None
        if reply.cut_in_s is not None and now >= reply.cut_in_s:
            self._cut_in(reply, now)
        elif reply.said and now >= reply.heard_until_s:
            self._remember(reply, 1.0)
            self._state, self._next_s = "quiet", now + self._random.uniform(*THINK_S)

    # ---- interruptions

    def _cut_in(self, reply: Reply, now: float) -> None:
        reply.cut_in_s, reply.held_s = None, now
        self.diary.interrupts.append((now, None))
        # Commands are carried out in order: the refusal of the second shows that the first is in force.
        mark = Submit(f"{self._name}/mark", "tts", speak=SpeakParams(voice="nobody"), session=self._name)
        running = (f"{self._name}/chat{reply.epoch}", *((f"{self._name}/say{reply.epoch}",) if reply.saying else ()))
        self._send(Pause(running), mark)
        self._open(now, Priority.CRITICAL, cough=self._random.random() < COUGHS)

    def _release(self, reply: Reply, now: float) -> None:
        """Resume the reply: it was only a cough."""
        assert reply.held_s is not None
        self._send(Cancel(self._asr), Resume(f"{self._name}/chat{reply.epoch}"))
        if reply.saying:
            self._send(Resume(f"{self._name}/say{reply.epoch}"))
        reply.heard_until_s += now - reply.held_s
        reply.held_s, reply.refused, self._state = None, False, "answered"

    def _give_up(self, reply: Reply, now: float) -> None:
        """Give up the reply and give the floor to the person."""
        assert reply.held_s is not None
        self._send(Cancel(f"{self._name}/chat{reply.epoch}"))
        if reply.saying:
            self._send(Cancel(f"{self._name}/say{reply.epoch}"))
        self._remember(reply, 0.5)

    def _remember(self, reply: Reply, share: float) -> None:
        """Add the heard part of the reply to the history, as the chat model wrote it."""
        words = reply.generated.split(" ")
        self._history.append(ChatMessage("assistant", " ".join(words[: max(1, round(share * len(words)))])))
        self._reply = None

    # ---- messages of the engine

    def take(self, message: Told, now: float) -> None:
        """Handle a message; ignore one of a reply or turn that is over."""
        reply = self._reply
        kind = message.request_id.partition("/")[2]
        if isinstance(message, Refused):
            self._refused(message, kind, now)
        elif kind == f"hear{self._turns}":
            self._understand(message, now)
        elif reply is not None and kind in (f"chat{reply.epoch}", f"say{reply.epoch}"):
            if reply.refused and isinstance(message, Text | Samples):  # from the running step
                sent_s, _ = self.diary.interrupts[-1]
                self.diary.interrupts[-1] = (sent_s, now - sent_s)
            self._answer(reply, message, now)

    def _refused(self, message: Refused, kind: str, now: float) -> None:
        if kind != "mark":
            self.diary.faults.append((now, message.detail))
            return
        sent_s, _ = self.diary.interrupts[-1]
        self.diary.interrupts[-1] = (sent_s, now - sent_s)
        if self._reply is not None:
            self._reply.refused = self._reply.held_s is not None

    def _understand(self, message: Told, now: float) -> None:
        match message:
            case Words(settled=settled, tail=tail):
                self._words, self._tail = self._words + settled, tail
            case Finished(reason="eos") if self._state == "heard":
                self._begin_reply(now)
            case Finished(reason=reason) if reason == "failed":
                self.diary.faults.append((now, "a turn was not heard"))
                self._state, self._next_s = "quiet", now
            case _:
                pass

    def _begin_reply(self, now: float) -> None:
        turn = self.diary.turns[-1]
        turn.words_s, turn.words_right = now, words_right(self._sound.words, self._words)
        self._history.append(ChatMessage("user", self._words.strip() or "Hello?"))
        self._epoch += 1
        text = self._random.choice(REPLIES)
        self._reply = Reply(self._epoch, text, round(len(text) / CHARACTERS_PER_TOKEN))
        self._state = "answered"
        sampling = SamplingParams(temperature=0.7, max_tokens=self._reply.tokens, seed=self._epoch, ignore_eos=True)
        self._send(
            Submit(
                f"{self._name}/chat{self._epoch}",
                "chat",
                messages=tuple(self._history),
                sampling=sampling,
                priority=Priority.HIGH,
                session=self._name,
                epoch=self._epoch,
            )
        )

    def _answer(self, reply: Reply, message: Told, now: float) -> None:
        turn, name = self.diary.turns[-1], f"{self._name}/say{reply.epoch}"
        match message:
            case Text(text=text):
                turn.first_token_s = turn.first_token_s or now
                reply.generated += text
                reply.written += 1
                self._say(reply, reply.delta())
            case Samples(pcm=pcm):
                self._play(reply, len(pcm) / 2 / self._rate, now)
            case Finished(request_id, reason="length"):
                self._say(reply, reply.delta(final=True))
                self._send(EndInput(name))
            case Finished(request_id, reason="eos") if request_id == name:
                reply.said = True
            case Finished(request_id, reason=reason):
                self.diary.faults.append((now, f"a reply ended with {reason}"))
                reply.said = True
            case _:
                pass

    def _say(self, reply: Reply, clauses: list[str]) -> None:
        name = f"{self._name}/say{reply.epoch}"
        for clause in clauses:
            if not reply.saying:
                reply.saying = True
                self._send(Submit(name, "tts", priority=Priority.HIGH, session=self._name, epoch=reply.epoch))
            self._send(Append(name, text=clause))

    def _play(self, reply: Reply, seconds: float, now: float) -> None:
        turn = self.diary.turns[-1]
        left_s = reply.play(now if reply.held_s is None else reply.held_s, seconds)
        if turn.first_audio_s is None:
            turn.first_audio_s = now
            if self._random.random() < CUTS_IN:
                reply.cut_in_s = now + self._random.uniform(0.4, max(0.5, len(reply.text) / 18))
        elif left_s < 0:
            self.diary.underruns.append((now, -left_s))


def words_right(said: str, understood: str) -> float:
    """Return the share of the spoken words that were recognised."""
    found = set(_spelt(understood))
    words = _spelt(said)
    return sum(word in found for word in words) / len(words)


def _spelt(text: str) -> list[str]:
    return "".join(char if char.isalpha() or char == "'" else " " for char in text.lower()).split()
