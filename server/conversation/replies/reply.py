"""One reply: chat deltas become clauses, clauses become sound, and sound is sent in frames just ahead of playback.

A reply can be prepared without a trace, go live, be held, go on with the very next sample, and be cut to what was
heard. Pure: the clock is an argument, and methods return effects. floor.py decides who has the floor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from msgspec import structs

from voxlane.engine.api import (
    Append,
    Cancel,
    ChatMessage,
    EndInput,
    Priority,
    RequestStats,
    Resume,
    Samples,
    SpeakParams,
    SpokenWord,
    Submit,
    ToolUse,
    sampling_of,
)
from voxlane.server import limits
from voxlane.server.conversation.effects import Effect, Send, SendToEngine
from voxlane.server.conversation.replies.clauses import WORD_BY_WORD, ClauseCutter
from voxlane.server.conversation.replies.cleaning import ReplyCleaner
from voxlane.server.conversation.replies.history import characters_of
from voxlane.server.conversation.replies.ledger import Ledger
from voxlane.server.conversation.replies.saved import SavedReply
from voxlane.server.conversation.server_events import (
    Duck,
    Hold,
    Interrupted,
    Release,
    ReplyStarted,
    ReplyText,
    SpeechDone,
    Thought,
)
from voxlane.server.conversation.server_events import Speech as SpeechFrame
from voxlane.server.conversation.turns.overlap import DUCK_GAIN, Playing
from voxlane.server.conversation.values import SessionConfig

FRAME_S = 0.04
SAMPLE_BYTES = 2

Stage = Literal["tentative", "live", "held", "over"]


class Reply:
    """A reply under way, from its first token to its last sample."""

    def __init__(
        self,
        epoch: int,
        turn: int,
        session: str,
        config: SessionConfig,
        rate: int,
        *,
        tentative: bool = False,
        item: str = "",
        tag: str = "",
        begins_s: float | None = None,
        reads_words: bool = False,
        begins_early: bool = False,
    ) -> None:
        self.epoch = epoch
        self.turn = turn
        self.item = item  # its id in the history; "": an aside, not remembered
        self.tag = tag
        self.chat_id = f"{session}/chat{epoch}"
        self.tts_id = f"{session}/say{epoch}"
        self.stage: Stage = "tentative" if tentative else "live"
        self.ducked = False  # it is live, and its client plays it with a lower gain
        self.text = ""
        self.calls: list[ToolUse] = []
        self.pieces: list[tuple[int, ...]] = []  # of a speech-to-speech model's reply, as Pieces tells them
        self.thought: Thought | None = None  # set when the chat model is done
        self.prompt_characters = 0  # of the prompt, without what the template adds
        self._cost = (0, 0, 0)  # tokens so far: prompt, cached of these, written
        self._wasted = (0, 0, 0)  # the same of a first answer that came to nothing
        self.ledger = Ledger()
        self.first_token_s: float | None = None
        self.first_sample_s: float | None = None
        self.first_frame_s: float | None = None
        self._session = session
        self._config = config
        self._rate = rate
        self._frame = int(FRAME_S * rate)
        self._messages: tuple[ChatMessage, ...] = ()  # the prompt
        self._cleaner = ReplyCleaner(spoken=config.speaks)
        self._cutter = ClauseCutter(WORD_BY_WORD if reads_words else None)
        self._begins_early = begins_early
        self._begun = 0  # characters of the next clause that the voice has
        self._saying = False  # the engine has a TTS request for it
        self._chat_done = False
        self._sound_done = False
        self._unsent = bytearray()
        self._sent = 0  # samples
        self._words: deque[SpokenWord] = deque()  # words in samples not yet sent
        self._begins_s = begins_s  # when the client has played the reply before it
        self._anchor: tuple[int, float | None] = (0, None)  # (sample, when it was played); None: playback is stopped
        self._all_sent = False

    # ---- messages from the engine

    def begin(self, messages: tuple[ChatMessage, ...]) -> list[Effect]:
        """Ask the chat model."""
        self._messages = messages
        opening: list[Effect] = [] if self.stage == "tentative" else [self._started()]
        return [*opening, self._ask()]

    def _ask(self) -> Effect:
        config = self._config
        self.prompt_characters = characters_of(self._messages, () if config.tool_choice == "none" else config.tools)
        sampling = structs.replace(
            sampling_of(config.temperature),
            max_tokens=config.max_tokens,
            seed=config.seed,
            loop_tokens=limits.SPOKEN_LOOP_TOKENS if config.speaks else limits.WRITTEN_LOOP_TOKENS,
        )
        submit = Submit(
            self.chat_id,
            "chat",
            messages=self._messages,
            sampling=sampling,
            priority=Priority.HIGH,
            session=self._session,
            tenant=self._session,  # its prefix cache is separate: no other conversation can find out what was said here
            epoch=self.epoch,
            tools=config.tools,
            tool_choice=config.tool_choice,
        )
        return SendToEngine(submit)

    def _ask_again(self) -> Effect:
        """Ask the chat model once more, now without tools: then it cannot write a call that is none."""
        self._config = replace(self._config, tool_choice="none")
        self._wasted, self._cost, self.first_token_s = self._cost, (0, 0, 0), None
        self._cleaner = ReplyCleaner(spoken=self._config.speaks)
        self.chat_id += "/again"
        return self._ask()

    def begin_with(self, text: str, now: float) -> list[Effect]:
        """Say a given text, without the chat model."""
        return [self._started(), *self.add_text(text, now), *self.end_text()]

    def _started(self) -> Effect:
        return Send(ReplyStarted(self.epoch, self.turn, self.item, self.tag))

    def prompt_read(self, tokens: int, cached: int) -> None:
        """Note that the chat model begins to write, and the size of its prompt."""
        self._cost = (tokens, cached, 0)

    def add_text(self, text: str, now: float, tokens: int = 0) -> list[Effect]:
        """Add text from the chat model; `tokens` is the number written so far."""
        self._cost = (*self._cost[:2], tokens)
        if self.first_token_s is None:
            self.first_token_s = now
        effects = self._add_words(self._cleaner.push(text))
        return [*effects, *self._end_early()] if self._cleaner.over else effects

    def _add_words(self, text: str) -> list[Effect]:
        """Send text to the client and its complete clauses to the voice."""
        if not text:
            return []
        self.text += text
        effects: list[Effect] = [] if self.stage == "tentative" else [Send(ReplyText(self.epoch, text))]
        for clause in self._cutter.push(text):
            effects += self._say_rest(clause.text)
        if self._begins_early and (more := self._cutter.begun()[self._begun :]):
            self._begun += len(more)
            effects += self._say(more, goes_on=True)
        return effects

    def _end_early(self) -> list[Effect]:
        """End the reply's text and cancel the chat request: what the model writes now is not the reply."""
        return [SendToEngine(Cancel(self.chat_id)), *self._end_with(self._thought("stop"))]

    def end_thought(self, reason: str, stats: RequestStats) -> list[Effect]:
        """Note that the chat model is done, and how; ask it again if all that it wrote was removed."""
        self._cost = (stats.prompt_tokens, stats.cached_tokens, stats.output_tokens)
        words = self._add_words(self._cleaner.finish())
        nothing = not self.text.strip() and not self.calls
        if nothing and self._config.tools and self._config.tool_choice == "auto":
            return [*words, self._ask_again()]
        return [*words, *self._end_with(self._thought(reason))]

    def _thought(self, reason: str) -> Thought:
        prompt, cached, written = (sum(pair) for pair in zip(self._cost, self._wasted, strict=True))
        return Thought(self.epoch, reason, prompt, cached, written)

    def _end_with(self, thought: Thought) -> list[Effect]:
        words = self._add_words(self._cleaner.finish())
        self.thought = thought
        return [*words, *([] if self.stage == "tentative" else [Send(thought)]), *self.end_text()]

    def end_text(self) -> list[Effect]:
        """Note that no more text comes."""
        self._chat_done = True
        effects = self._add_words(self._cleaner.finish())
        for clause in self._cutter.finish():
            effects += self._say_rest(clause.text)
        if self._saying:
            effects.append(SendToEngine(EndInput(self.tts_id)))
        else:
            self._sound_done = True
        return effects

    def add_samples(self, samples: Samples, now: float) -> None:
        """Add synthesised samples."""
        if self.first_sample_s is None:
            self.first_sample_s = now
        self.ledger.add(samples.offset, len(samples.pcm) // SAMPLE_BYTES, samples.words)
        self._unsent += samples.pcm
        self._words.extend(samples.words)

    def add_pieces(self, pieces: Iterable[tuple[int, ...]]) -> None:
        """Add pieces of a speech-to-speech model's answer: each is a token or a frame that it has made."""
        self.pieces += pieces
        self._cost = (*self._cost[:2], len(self.pieces))

    def end_samples(self) -> None:
        """Note that no more samples come."""
        self._sound_done = True

    # ---- the floor

    def go_live(self) -> list[Effect]:
        """Show the client a prepared reply."""
        assert self.stage == "tentative"
        self.stage = "live"
        effects = [self._started()]
        if self.text:
            effects.append(Send(ReplyText(self.epoch, self.text)))
        return [*effects, Send(self.thought)] if self.thought is not None else effects

    @property
    def playing(self) -> Playing:
        """How the client plays it."""
        if self.stage == "held":
            return Playing.HELD
        return Playing.DUCKED if self.ducked else Playing.FULL

    def duck(self) -> list[Effect]:
        """Go on with a lower gain."""
        assert self.stage == "live"
        self.ducked = True
        return [Send(Duck(self.epoch, DUCK_GAIN))]

    def hold(self, now: float) -> list[Effect]:
        """Stop where it is, and keep everything; the caller pauses the requests that are `running`."""
        assert self.stage == "live"
        self._anchor = (self.position(now), None)
        self.stage, self.ducked = "held", False
        return [Send(Hold(self.epoch))]

    def release(self, now: float) -> list[Effect]:
        """Go on with the very next sample and token, at full loudness."""
        if self.ducked:
            self.ducked = False
            return [Send(Release(self.epoch))]
        assert self.stage == "held"
        self.stage = "live"
        self._anchor = (self._anchor[0], now if self._sent else None)
        return [Send(Release(self.epoch)), *(SendToEngine(Resume(request_id)) for request_id in self.running)]

    def interrupt(self, now: float) -> list[Effect]:
        """End it here; the client discards what it has queued."""
        assert self.stage in ("live", "held")
        position = self.position(now)
        self.stage = "over"
        effects: list[Effect] = [Send(Interrupted(self.epoch, self.heard(position), position)), *self._cancel()]
        if self.thought is None and any(self._cost + self._wasted):  # the engine's own count would come after the end
            effects.insert(0, Send(self._thought("cancelled")))
        return effects

    def withdraw(self) -> list[Effect]:
        """End a prepared reply that the client never saw."""
        assert self.stage == "tentative"
        self.stage = "over"
        return self._cancel()

    def break_off(self) -> list[Effect]:
        """Note that the engine sends no more of it; what has come is still sent."""
        self._chat_done = self._sound_done = True
        return self._cancel()

    # ---- the listener

    @property
    def speaks(self) -> bool:
        """Whether it has sound, not only text."""
        return self._config.speaks

    @property
    def silent(self) -> bool:
        """Whether no sound of it was sent yet."""
        return self._sent == 0

    @property
    def has_no_room(self) -> bool:
        """Whether an answer that ends for its length was never begun: the chat model refuses such a prompt."""
        return False

    @property
    def generated(self) -> bool:
        """Whether all its text and sound have come."""
        return self._chat_done and self._sound_done

    def position(self, now: float) -> int:
        """Return the sample being played, by the client's last report and the clock since then."""
        sample, since = self._anchor
        return sample if since is None else min(self._sent, sample + max(0, int((now - since) * self._rate)))

    def played(self, samples: int, now: float) -> None:
        """Note how much the client has played; clamp it to what was sent and to earlier reports."""
        self.ledger.played(min(samples, self._sent))
        known = self.ledger.played_samples
        self._anchor = (known, None if self.stage == "held" else now)

    def played_to(self, sample: int) -> None:
        """Note that playback stopped at `sample`, even if the clock says more was played."""
        self._anchor = (max(self.ledger.played_samples, min(sample, self._sent)), None)

    def heard(self, position: int) -> str:
        """Return the text heard up to a sample; all of it if the reply is text only."""
        if not self._config.speaks:
            return self.text
        return self.text[: self.ledger.heard_chars(position)]

    @property
    def said(self) -> str:
        """The text that is heard once all of it was played: all of it."""
        return self.text

    def saved(self, now: float) -> SavedReply:
        """Return what another server needs to know of it."""
        ends, middles = self.ledger.word_marks
        position = self.position(now)
        return SavedReply(self.epoch, self.turn, self.item, self.text, self.speaks, ends, middles, position)

    def pump(self, now: float) -> list[Effect]:
        """Return the frames to send now: at most `buffer_s` ahead of playback."""
        if self.stage != "live":
            return []
        effects: list[Effect] = []
        most = int(self._config.buffer_s * self._rate)
        while self._unsent and self._sent - self.position(now) < most:
            size = min(self._frame, len(self._unsent) // SAMPLE_BYTES)
            if size < self._frame and not self._sound_done and self._sent - self.position(now) > 0:
                break  # a short frame is sent only at the end, or during an underrun
            effects.append(Send(self._next_frame(size, now)))
        if self.generated and not self._unsent and not self._all_sent:
            self._all_sent = True
            if self._config.speaks:
                if self._words:  # words whose times were known only after all samples were sent
                    effects.append(Send(SpeechFrame(self.epoch, self._sent, b"", tuple(self._words))))
                    self._words.clear()
                effects.append(Send(SpeechDone(self.epoch, self._sent)))
        return effects

    @property
    def all_sent(self) -> bool:
        """Whether all of it was sent."""
        return self._all_sent

    def over_at(self, now: float) -> float:
        """Return when everything sent will have been played."""
        return now + (self._sent - self.position(now)) / self._rate

    def finished(self, now: float) -> bool:
        """Return whether all of it was sent and played."""
        return self.stage == "live" and self._all_sent and self.position(now) >= self._sent

    def wake_at(self, now: float) -> float | None:
        """Return when `pump` or `finished` may change, None if only a message from the engine can change them."""
        if self.stage != "live" or self._anchor[1] is None:
            return None
        ahead = self._sent - self.position(now)
        if self._unsent:
            # Half a frame later than the exact moment, so that rounding causes no useless wake-up.
            return now + max(0.0, (ahead - self._config.buffer_s * self._rate) / self._rate) + FRAME_S / 2
        return now + ahead / self._rate + FRAME_S / 2 if self._all_sent else None

    def _next_frame(self, size: int, now: float) -> SpeechFrame:
        if self.first_frame_s is None:
            self.first_frame_s = now
        if self._anchor[1] is None or (self._sent and self.position(now) >= self._sent):
            begins_s = now if self._sent or self._begins_s is None else max(now, self._begins_s)
            self._anchor = (self._sent, begins_s)  # playback begins, or resumes after an underrun
        stop = self._sent + size
        words = []
        while self._words and self._words[0].start_sample < stop:
            words.append(self._words.popleft())
        frame = SpeechFrame(self.epoch, self._sent, bytes(self._unsent[: size * SAMPLE_BYTES]), tuple(words))
        del self._unsent[: size * SAMPLE_BYTES]
        self._sent = stop
        self.ledger.sent(size)
        return frame

    def _say_rest(self, clause: str) -> list[Effect]:
        begun, self._begun = self._begun, 0
        return self._say(clause[begun:])

    def _say(self, clause: str, *, goes_on: bool = False) -> list[Effect]:
        if not self._config.speaks:
            return []
        effects: list[Effect] = []
        if not self._saying:
            self._saying = True
            config = self._config
            how = (config.voice, config.speed, config.seed or 0, config.voice_language, config.voice_instructions)
            speak = SpeakParams(*how, live=True, pronunciations=config.pronunciations)
            effects.append(
                SendToEngine(
                    Submit(
                        self.tts_id,
                        "tts",
                        speak=speak,
                        priority=Priority.HIGH,
                        session=self._session,
                        tenant=self._session,
                        epoch=self.epoch,
                    )
                )
            )
        return [*effects, SendToEngine(Append(self.tts_id, text=clause, goes_on=goes_on))]

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of its requests in the engine that may still run."""
        chat = () if self._chat_done else (self.chat_id,)
        return (*chat, self.tts_id) if self._saying and not self._sound_done else chat

    def _cancel(self) -> list[Effect]:
        """Return a cancel for every request that it ever began."""
        requests = [self.chat_id, self.tts_id] if self._saying else [self.chat_id]
        return [SendToEngine(Cancel(request_id)) for request_id in requests]
