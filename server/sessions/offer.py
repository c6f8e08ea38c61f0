"""What a server offers to conversations: its models, voices and limits, and the settings that it can follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date

from voxlane.engine.api import Ready as EngineReady
from voxlane.engine.api import has_phonemes
from voxlane.server import limits
from voxlane.server.audio.voices import find_voice, language_named, names, sayable, served_name
from voxlane.server.config import VoiceConfig
from voxlane.server.conversation.replies.history import History
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.engine_client.engine_client import EngineClient
from voxlane.server.engine_client.remote_chat import RemoteChat
from voxlane.server.errors import InvalidRequest, ModelNotFound
from voxlane.server.protocols.dialect import Bounds, Capabilities
from voxlane.server.protocols.sound import codecs
from voxlane.server.sessions.speech_model_settings import for_speech_model


def dated(instructions: str, today: date) -> str:
    """Return instructions with the day in the place of {date}, as "Tuesday, 17 November 2026"."""
    return instructions.replace("{date}", f"{today:%A}, {today.day} {today:%B %Y}")


class ServerOffer:
    """What one server offers. It follows the engine, which may be replaced while the server runs."""

    def __init__(
        self,
        config: VoiceConfig,
        engine: EngineClient,
        remote: RemoteChat | None,
        server: str,
        today: Callable[[], date],
    ) -> None:
        """`remote` answers in the place of the engine's chat model; `server` is the name that clients are told."""
        self._config = config
        self._engine = engine
        self._remote = remote
        self._server = server
        self._today = today

    @property
    def defaults(self) -> SessionConfig:
        """Return the default configuration of a conversation."""
        return SessionConfig(
            instructions=dated(self._config.instructions, self._today()),
            greeting=self._config.greeting,
            pronunciations=self._sayable,
        )

    @property
    def _sayable(self) -> tuple[str, ...]:
        ready = self._engine.ready
        if ready is not None and ready.speech.name and not ready.tts_model:
            return ()  # no voice is given a text
        return sayable(self._config.pronunciations, respells_only=ready is not None and ready.respells_only)

    @property
    def bounds(self) -> Bounds:
        """Return the limits that clients are told."""
        return Bounds(
            frame_bytes=limits.VOICE_FRAME_BYTES,
            frames_per_s=limits.VOICE_FRAMES_PER_SECOND,
            bytes_per_s=limits.VOICE_BYTES_PER_SECOND,
            audio_rate=limits.VOICE_AUDIO_RATE,
            audio_burst_s=limits.VOICE_AUDIO_BURST_SECONDS,
            idle_s=self._config.idle_s,
            session_s=self._config.session_s,
            resume_s=self._config.resume_s,
        )

    def capabilities(self, ready: EngineReady) -> Capabilities:
        """Return what this server can do."""
        chat = self._remote.model if self._remote is not None else served_name(ready.model)
        speech = served_name(ready.speech.name)
        return Capabilities(
            server=self._server,
            chat_model=speech or chat,
            asr_model=served_name(ready.asr_model),
            tts_model=speech or served_name(ready.tts_model),
            languages=ready.asr_languages,
            voices=() if speech else ready.voices,
            codecs=codecs(),
            one_pace=ready.one_pace or bool(speech),
            voice_languages=() if speech else ready.speak_languages,
            instructed=ready.instructed and not speech,
            phonemes=not ready.respells_only,
            speech_model=speech,
            tools=not speech,
            written_tools=not speech or bool(chat),
            pronounced=not speech,
        )

    @property
    def ready(self) -> EngineReady:
        """Return the engine's description; raise EngineNotReady before the first one."""
        if self._engine.ready is None:
            raise self._engine.not_ready()
        return self._engine.ready

    def check_models(self) -> None:
        """Raise an error if no conversation can begin now."""
        if not (self.chats(self.ready) or self.ready.speech.name):
            raise ModelNotFound("This server has no model that converses.")
        if not self._engine.connected:
            raise self._engine.not_ready()

    def chats(self, ready: EngineReady) -> bool:
        """Return whether a model answers with text: the engine's, or a remote server's."""
        return bool(ready.model) or self._remote is not None

    def new_history(self, ready: EngineReady) -> History:
        """Return an empty history, sized for the models that answer."""
        speech = ready.speech
        if speech.name:
            context = min(speech.context_tokens, ready.context_tokens if ready.model else speech.context_tokens)
            tokens = self._config.history_tokens or min(limits.HISTORY_TOKENS["gpu"], context // 2)
            return History(tokens, context, speech.rows_s)
        if self._remote is not None:
            return History(self._config.history_tokens or limits.HISTORY_TOKENS["remote"])
        usual = limits.HISTORY_TOKENS["cpu" if ready.device.startswith("cpu") else "gpu"]
        tokens = self._config.history_tokens or min(usual, ready.context_tokens // 2)
        return History(tokens, ready.context_tokens)

    def checked(self, config: SessionConfig, *, any_voice: bool = False) -> SessionConfig:
        """Return a configuration adapted to this server; raise InvalidRequest if it cannot be followed.

        With `any_voice` an unknown voice name means the default voice.
        """
        ready = self.ready
        if ready.speech.name:
            chats = self.chats(ready)
            config = for_speech_model(config, ready, any_voice=any_voice, chats=chats, usual=self._sayable)
        voice = find_voice(config.voice, ready.voices) if config.voice else ""
        if voice is None and any_voice:
            voice = ""
        if voice is None:
            known = f"The voices are {names(ready.voices)}." if ready.voices else "No voice has been made yet."
            raise InvalidRequest(known, param="voice")
        if ready.one_pace and config.speed != 1:
            raise InvalidRequest("This server's voice has one pace: speed must be 1.", param="speed")
        language = language_named(config.voice_language)
        if language and language not in ready.speak_languages:
            known = names(ready.speak_languages) if ready.speak_languages else "nothing else than it is used to"
            raise InvalidRequest(f"voice_language: this server's voice can speak {known}.", param="voice_language")
        if config.voice_instructions and not ready.instructed:
            reason = "voice_instructions: this server's voice cannot be told how to speak."
            raise InvalidRequest(reason, param="voice_instructions")
        if ready.respells_only and has_phonemes(config.pronunciations):
            reason = "pronunciations: this server's voice takes respellings in plain letters, not phonemes."
            raise InvalidRequest(reason, param="pronunciations")
        speaks = config.speaks and bool(ready.tts_model or ready.speech.name)
        return replace(config, voice=voice, voice_language=language, speaks=speaks)

    def adapted(self, config: SessionConfig) -> SessionConfig:
        """Return another server's configuration as this one can follow it."""
        try:
            return self.checked(config, any_voice=True)
        except InvalidRequest:  # this server's voice can do less
            plain = replace(config, speed=1.0, voice_language="", voice_instructions="", pronunciations=())
            if self.ready.speech.name:
                plain = replace(plain, tools=())
            return self.checked(plain, any_voice=True)
