"""Voices that clients had made from recordings: what an engine is told of them, and a new one told again. Pure.

Of a voice the server holds what the engine made of it, never the recording. It lasts as long as the server does: an
engine that takes the place of a dead one is given all of them before anybody can ask for one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from voxlane.engine.api import MAX_VOICES, ForgetVoice, KeepVoice, Ready


@dataclass(frozen=True, slots=True)
class KeptVoice:
    """One voice."""

    name: str
    profile: bytes
    made_s: int  # Unix time


class KeptVoices:
    """All of them, in the order of their making."""

    def __init__(self, most: int = MAX_VOICES) -> None:
        self._most = most
        self._voices: dict[str, KeptVoice] = {}

    def __len__(self) -> int:
        return len(self._voices)

    def __contains__(self, name: str) -> bool:
        return name in self._voices

    def room_for(self, name: str) -> bool:
        """Return whether a voice of this name can be kept; it takes the place of one that has it."""
        return name in self._voices or len(self._voices) < self._most

    def all(self) -> list[KeptVoice]:
        """Return them, the oldest first."""
        return list(self._voices.values())

    def keep(self, voice: KeptVoice) -> KeepVoice:
        """Keep one; return what the engine is to be told."""
        assert self.room_for(voice.name), "who keeps a voice has asked whether there is room"
        self._voices.pop(voice.name, None)
        self._voices[voice.name] = voice
        return KeepVoice(voice.name, voice.profile)

    def forget(self, name: str) -> ForgetVoice:
        """Let one go; return what the engine is to be told."""
        self._voices.pop(name, None)
        return ForgetVoice(name)

    def told(self) -> list[KeepVoice]:
        """Return what a new engine is to be told."""
        return [KeepVoice(voice.name, voice.profile) for voice in self._voices.values()]

    def offered(self, ready: Ready) -> Ready:
        """Return what an engine says of itself, with these voices after its own."""
        return replace(ready, voices=(*ready.voices, *self._voices)) if self._voices else ready
