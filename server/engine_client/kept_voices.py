"""Voices that clients made from recordings, kept so that a restarted engine gets them again. Pure.

The server keeps the profile that the engine computed, never the recording, for as long as it runs. A restarted engine
is sent all of them before the first request.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import structs

from voxlane.engine.api import MAX_VOICES, ForgetVoice, KeepVoice, Ready


@dataclass(frozen=True, slots=True)
class KeptVoice:
    """One voice."""

    name: str
    profile: bytes
    made_s: int  # Unix time


class KeptVoices:
    """All kept voices, in the order in which they were made."""

    def __init__(self, most: int = MAX_VOICES) -> None:
        self._most = most
        self._voices: dict[str, KeptVoice] = {}

    def __len__(self) -> int:
        return len(self._voices)

    def __contains__(self, name: str) -> bool:
        return name in self._voices

    def room_for(self, name: str) -> bool:
        """Return whether a voice of this name can be kept; it replaces one of the same name."""
        return name in self._voices or len(self._voices) < self._most

    def all(self) -> list[KeptVoice]:
        """Return all voices, oldest first."""
        return list(self._voices.values())

    def keep(self, voice: KeptVoice) -> KeepVoice:
        """Keep a voice; return the command for the engine."""
        assert self.room_for(voice.name), "call room_for first"
        self._voices.pop(voice.name, None)
        self._voices[voice.name] = voice
        return KeepVoice(voice.name, voice.profile)

    def forget(self, name: str) -> ForgetVoice:
        """Forget a voice; return the command for the engine."""
        self._voices.pop(name, None)
        return ForgetVoice(name)

    def commands(self) -> list[KeepVoice]:
        """Return the commands for a new engine."""
        return [KeepVoice(voice.name, voice.profile) for voice in self._voices.values()]

    def offered(self, ready: Ready) -> Ready:
        """Return the engine's description with these voices after its own."""
        return structs.replace(ready, voices=(*ready.voices, *self._voices)) if self._voices else ready
