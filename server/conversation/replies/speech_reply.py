"""One reply of a speech-to-speech model: one request, which takes what was said and gives text and sound. Pure."""

from __future__ import annotations

from msgspec import structs

from voxlane.engine.api import (
    Append,
    Cancel,
    ChatMessage,
    EndInput,
    Priority,
    RequestStats,
    Samples,
    Submit,
    ToEngine,
    sampling_of,
)
from voxlane.server.conversation.effects import Effect, Send, SendToEngine
from voxlane.server.conversation.replies.reply import Reply
from voxlane.server.conversation.server_events import ReplyText
from voxlane.server.conversation.turns.user_turn import RATE

PIECE_BYTES = 2 * RATE
"""Bytes of sound per message to the engine: a second."""


class SpeechReply(Reply):
    """A reply under way, from what was said to its last sample."""

    def begin(self, messages: tuple[ChatMessage, ...]) -> list[Effect]:
        """Ask the model to answer the last message, which is the person's."""
        *before, said = messages
        config = self._config
        seed = self.epoch if config.seed is None else config.seed
        submit = Submit(
            self.chat_id,
            "converse",
            messages=tuple(before),
            text="" if said.sound else said.content,
            sampling=structs.replace(sampling_of(config.temperature), max_tokens=config.max_tokens, seed=seed),
            priority=Priority.HIGH,
            session=self._session,
            tenant=self._session,
            epoch=self.epoch,
        )
        opening: list[Effect] = [] if self.stage == "tentative" else [self._started()]
        sound = (said.sound[at : at + PIECE_BYTES] for at in range(0, len(said.sound), PIECE_BYTES))
        commands: list[ToEngine] = [
            submit,
            *(Append(self.chat_id, audio=piece) for piece in sound),
            EndInput(self.chat_id),
        ]
        return [*opening, *map(SendToEngine, commands)]

    def add_text(self, text: str, now: float, tokens: int = 0) -> list[Effect]:
        """Add text as it is written: the places of words in the sound are places in this text."""
        if self.first_token_s is None:
            self.first_token_s = now
        self.text += text
        return [] if self.stage == "tentative" else [Send(ReplyText(self.epoch, text))]

    def add_samples(self, samples: Samples, now: float) -> None:
        """Add samples, unless the client wants text only."""
        if self.speaks:
            super().add_samples(samples, now)

    def end_thought(self, reason: str, stats: RequestStats) -> list[Effect]:
        """Note that the answer is complete, and how it ended."""
        self._cost = (stats.prompt_tokens, stats.cached_tokens, stats.output_tokens)
        self._chat_done = self._sound_done = True
        self.thought = self._thought(reason)
        return [] if self.stage == "tentative" else [Send(self.thought)]

    @property
    def said(self) -> str:
        """The text of which there is sound: an answer that the engine had to end has more text than sound."""
        heard = self.heard(self._sent)
        return heard if any(letter.isalnum() for letter in self.text[len(heard) :]) else self.text

    @property
    def has_no_room(self) -> bool:
        """Whether an answer that ends for its length was never begun: the sound was read only after its request."""
        return not self.pieces

    def _cancel(self) -> list[Effect]:
        return [SendToEngine(Cancel(self.chat_id))]
