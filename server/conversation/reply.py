"""One reply: chat deltas become clauses, clauses become sound, and sound leaves in frames just ahead of the listener.

A reply can be prepared without a trace, go live, be held, go on with the very next sample, and be cut to what was
heard. Pure: the clock is an argument, and what it wants done it returns. It knows one reply; the floor is session.py's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Literal

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
from voxlane.server.conversation.cleaning import ReplyCleaner
from voxlane.server.conversation.effects import Effect, Send, Tell
from voxlane.server.conversation.history import characters_of
from voxlane.server.conversation.ledger import Ledger
from voxlane.server.conversation.server_events import (
    Hold,
    Interrupted,
    Release,
    ReplyStarted,
    ReplyText,
    SpeechDone,
    Thought,
)
from voxlane.server.conversation.server_events import Speech as SpeechFrame
from voxlane.server.conversation.speech import WORD_BY_WORD, ClauseCutter
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
    ) -> None:
        self.epoch = epoch
        self.turn = turn
        self.item = item  # the id under which it is remembered; "": it is not
        self.tag = tag
        self.chat_id = f"{session}/chat{epoch}"
        self.tts_id = f"{session}/say{epoch}"
        self.stage: Stage = "tentative" if tentative else "live"
        self.text = ""
        self.calls: list[ToolUse] = []
        self.thought: Thought | None = None  # when the chat model is done
        self.prompt_characters = 0  # of what the model was asked, less what its template adds
        self._cost = (0, 0, 0)  # until then: tokens of the prompt, of these cached, and written
        self.ledger = Ledger()
        self.first_token_s: float | None = None
        self.first_sample_s: float | None = None
        self.first_frame_s: float | None = None
        self._session = session
        self._config = config
        self._rate = rate
        self._frame = int(FRAME_S * rate)
        self._cleaner = ReplyCleaner(spoken=config.speaks)
        self._cutter = ClauseCutter(WORD_BY_WORD if reads_words else None)
        self._saying = False  # the engine has a request for its sound
        self._chat_done = False
        self._sound_done = False
        self._unsent = bytearray()
        self._sent = 0  # samples
        self._words: deque[SpokenWord] = deque()  # of samples not yet sent
        self._begins_s = begins_s  # when the listener is done with what came before it
        self._anchor: tuple[int, float | None] = (0, None)  # (sample, when it was played); None: playing has stopped
        self._told_done = False

    # ---- what the engine brings

    def begin(self, messages: tuple[ChatMessage, ...]) -> list[Effect]:
        """Ask the chat model."""
        config = self._config
        self.prompt_characters = characters_of(messages, config.tools)
        sampling = replace(
            sampling_of(config.temperature),
            max_tokens=config.max_tokens,
            seed=config.seed,
            loop_tokens=limits.SPOKEN_LOOP_TOKENS if config.speaks else limits.WRITTEN_LOOP_TOKENS,
        )
        submit = Submit(
            self.chat_id,
            "chat",
            messages=messages,
            sampling=sampling,
            priority=Priority.HIGH,
            session=self._session,
            tenant=self._session,  # what is cached of it tells no other conversation what was said here
            epoch=self.epoch,
            tools=config.tools,
            tool_choice=config.tool_choice,
        )
        opening: list[Effect] = [] if self.stage == "tentative" else [self._started()]
        return [*opening, Tell(submit)]

    def begin_with(self, text: str, now: float) -> list[Effect]:
        """Say a text that no model has to think about."""
        return [self._started(), *self.add_text(text, now), *self.end_text()]

    def _started(self) -> Effect:
        return Send(ReplyStarted(self.epoch, self.turn, self.item, self.tag))

    def prompt_read(self, tokens: int, cached: int) -> None:
        """Take it that the chat model begins."""
        self._cost = (tokens, cached, 0)

    def add_text(self, text: str, now: float, tokens: int = 0) -> list[Effect]:
        """Take more of its words, and how many tokens they are all together."""
        self._cost = (*self._cost[:2], tokens)
        if self.first_token_s is None:
            self.first_token_s = now
        effects = self._add_words(self._cleaner.push(text))
        return [*effects, *self._end_early()] if self._cleaner.over else effects

    def _add_words(self, text: str) -> list[Effect]:
        """Show and say more words."""
        if not text:
            return []
        self.text += text
        effects: list[Effect] = [] if self.stage == "tentative" else [Send(ReplyText(self.epoch, text))]
        for clause in self._cutter.push(text):
            effects += self._say(clause.text)
        return effects

    def _end_early(self) -> list[Effect]:
        """Take it that the chat model is done, though it goes on: what it writes now is no reply."""
        return [Tell(Cancel(self.chat_id)), *self._end_with(Thought(self.epoch, "stop", *self._cost))]

    def end_thought(self, reason: str, stats: RequestStats) -> list[Effect]:
        """Take it that the chat model is done, and how."""
        return self._end_with(
            Thought(self.epoch, reason, stats.prompt_tokens, stats.cached_tokens, stats.output_tokens)
        )

    def _end_with(self, thought: Thought) -> list[Effect]:
        words = self._add_words(self._cleaner.finish())
        self.thought = thought
        return [*words, *([] if self.stage == "tentative" else [Send(thought)]), *self.end_text()]

    def end_text(self) -> list[Effect]:
        """Take it that there will be no more words."""
        self._chat_done = True
        effects = self._add_words(self._cleaner.finish())
        for clause in self._cutter.finish():
            effects += self._say(clause.text)
        if self._saying:
            effects.append(Tell(EndInput(self.tts_id)))
        else:
            self._sound_done = True
        return effects

    def add_samples(self, samples: Samples, now: float) -> None:
        """Take more of its sound."""
        if self.first_sample_s is None:
            self.first_sample_s = now
        self.ledger.add(samples.offset, len(samples.pcm) // SAMPLE_BYTES, samples.words)
        self._unsent += samples.pcm
        self._words.extend(samples.words)

    def end_samples(self) -> None:
        """Take it that all of its sound is here."""
        self._sound_done = True

    # ---- who has the floor

    def go_live(self) -> list[Effect]:
        """Let out what was prepared."""
        assert self.stage == "tentative"
        self.stage = "live"
        effects = [self._started()]
        if self.text:
            effects.append(Send(ReplyText(self.epoch, self.text)))
        return [*effects, Send(self.thought)] if self.thought is not None else effects

    def hold(self, now: float) -> list[Effect]:
        """Stop where it is, and keep everything; the caller pauses the requests that are `running`."""
        assert self.stage == "live"
        self._anchor = (self.position(now), None)
        self.stage = "held"
        return [Send(Hold(self.epoch))]

    def release(self, now: float) -> list[Effect]:
        """Go on with the very next sample and token."""
        assert self.stage == "held"
        self.stage = "live"
        self._anchor = (self._anchor[0], now if self._sent else None)
        return [Send(Release(self.epoch)), *(Tell(Resume(request_id)) for request_id in self.running)]

    def interrupt(self, now: float) -> list[Effect]:
        """End it here; the client throws away what it has queued."""
        assert self.stage in ("live", "held")
        position = self.position(now)
        self.stage = "over"
        effects: list[Effect] = [Send(Interrupted(self.epoch, self.heard(position), position)), *self._cancel()]
        if self.thought is None and any(self._cost):  # the engine's own count would come after the end
            effects.insert(0, Send(Thought(self.epoch, "cancelled", *self._cost)))
        return effects

    def withdraw(self) -> list[Effect]:
        """End it before anybody knew of it."""
        assert self.stage == "tentative"
        self.stage = "over"
        return self._cancel()

    def break_off(self) -> list[Effect]:
        """Take it that the engine will bring no more: what is here is all there is."""
        self._chat_done = self._sound_done = True
        return self._cancel()

    # ---- the listener

    @property
    def speaks(self) -> bool:
        """Whether it is said aloud."""
        return self._config.speaks

    @property
    def silent(self) -> bool:
        """Whether nothing of it was sent: a person who goes on speaking does not interrupt it."""
        return self._sent == 0

    @property
    def generated(self) -> bool:
        """Whether all its words and sound are here."""
        return self._chat_done and self._sound_done

    def position(self, now: float) -> int:
        """Return the sample that is being played, as far as the client has told and the clock says since."""
        sample, since = self._anchor
        return sample if since is None else min(self._sent, sample + max(0, int((now - since) * self._rate)))

    def played(self, samples: int, now: float) -> None:
        """Take what the client says it has played; it cannot have played what was not sent, nor unplay anything."""
        self.ledger.played(min(samples, self._sent))
        known = self.ledger.played_samples
        self._anchor = (known, None if self.stage == "held" else now)

    def played_to(self, sample: int) -> None:
        """Take it that the client has played so far, be that less than the clock says."""
        self._anchor = (max(self.ledger.played_samples, min(sample, self._sent)), None)

    def heard(self, position: int) -> str:
        """Return the words heard up to a sample; all of a reply that is only text."""
        if not self._config.speaks:
            return self.text
        return self.text[: self.ledger.heard_chars(position)]

    def pump(self, now: float) -> list[Effect]:
        """Return the frames that may leave now: as far ahead of the listener as the buffer goes."""
        if self.stage != "live":
            return []
        effects: list[Effect] = []
        most = int(self._config.buffer_s * self._rate)
        while self._unsent and self._sent - self.position(now) < most:
            size = min(self._frame, len(self._unsent) // SAMPLE_BYTES)
            if size < self._frame and not self._sound_done and self._sent - self.position(now) > 0:
                break  # a short frame is for the end, or for a listener who waits
            effects.append(Send(self._next_frame(size, now)))
        if self.generated and not self._unsent and not self._told_done:
            self._told_done = True
            if self._config.speaks:
                if self._words:  # whose times were known only when all of the sound had left
                    effects.append(Send(SpeechFrame(self.epoch, self._sent, b"", tuple(self._words))))
                    self._words.clear()
                effects.append(Send(SpeechDone(self.epoch, self._sent)))
        return effects

    @property
    def told(self) -> bool:
        """Whether all of it was sent: what is left is up to the listener."""
        return self._told_done

    def over_at(self, now: float) -> float:
        """Return when the listener will be done with what was sent."""
        return now + (self._sent - self.position(now)) / self._rate

    def finished(self, now: float) -> bool:
        """Return whether all of it was sent and played."""
        return self.stage == "live" and self._told_done and self.position(now) >= self._sent

    def wake_at(self, now: float) -> float | None:
        """Return when `pump` or `finished` will have something new to say, None if nothing but the engine can."""
        if self.stage != "live" or self._anchor[1] is None:
            return None
        ahead = self._sent - self.position(now)
        if self._unsent:
            # Half a frame later than the very first moment, so that rounding does not wake for nothing.
            return now + max(0.0, (ahead - self._config.buffer_s * self._rate) / self._rate) + FRAME_S / 2
        return now + ahead / self._rate + FRAME_S / 2 if self._told_done else None

    def _next_frame(self, size: int, now: float) -> SpeechFrame:
        if self.first_frame_s is None:
            self.first_frame_s = now
        if self._anchor[1] is None or (self._sent and self.position(now) >= self._sent):
            begins_s = now if self._sent or self._begins_s is None else max(now, self._begins_s)
            self._anchor = (self._sent, begins_s)  # the listener begins, or has waited for this
        stop = self._sent + size
        words = []
        while self._words and self._words[0].start_sample < stop:
            words.append(self._words.popleft())
        frame = SpeechFrame(self.epoch, self._sent, bytes(self._unsent[: size * SAMPLE_BYTES]), tuple(words))
        del self._unsent[: size * SAMPLE_BYTES]
        self._sent = stop
        self.ledger.sent(size)
        return frame

    def _say(self, clause: str) -> list[Effect]:
        if not self._config.speaks:
            return []
        effects: list[Effect] = []
        if not self._saying:
            self._saying = True
            config = self._config
            how = (config.voice, config.speed, config.seed or 0, config.voice_language, config.voice_instructions)
            speak = SpeakParams(*how, live=True)
            effects.append(
                Tell(
                    Submit(
                        self.tts_id,
                        "tts",
                        speak=speak,
                        priority=Priority.HIGH,
                        session=self._session,
                        epoch=self.epoch,
                    )
                )
            )
        return [*effects, Tell(Append(self.tts_id, text=clause))]

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of its requests in the engine that may still run."""
        chat = () if self._chat_done else (self.chat_id,)
        return (*chat, self.tts_id) if self._saying and not self._sound_done else chat

    def _cancel(self) -> list[Effect]:
        """Return a cancel for every request that it ever began."""
        requests = [self.chat_id, self.tts_id] if self._saying else [self.chat_id]
        return [Tell(Cancel(request_id)) for request_id in requests]
