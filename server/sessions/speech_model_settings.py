"""What a conversation may ask of a speech-to-speech model, which has one voice and calls no tools."""

from __future__ import annotations

from dataclasses import replace

from voxlane.engine.api import Ready
from voxlane.server.audio.voices import served_name
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.errors import InvalidRequest
from voxlane.server.log import quote


def for_speech_model(
    config: SessionConfig, ready: Ready, *, any_voice: bool, chats: bool, usual: tuple[str, ...] = ()
) -> SessionConfig:
    """Return a configuration for a speech-to-speech model; raise InvalidRequest for what the model cannot do.

    With `any_voice` every voice name means the model's voice. If the server `chats`, replies that are only text are the
    chat model's. The `usual` pronunciations are the operator's, for texts that a voice is given.
    """
    if not config.speaks:
        _refuse({} if chats else {"tools": (config.tools, _NO_TOOLS)}, ready)
        return config
    if any_voice:
        config = replace(config, voice="")
    refused: dict[str, tuple[object, str]] = {
        "tools": (config.tools, _NO_TOOLS),
        "voice": (config.voice, "has one voice: name none"),
        "speed": (config.speed != 1, "has one pace: speed must be 1"),
        "voice_language": (config.voice_language, "chooses its language itself"),
        "voice_instructions": (config.voice_instructions, "cannot be told how to speak"),
        "pronunciations": (config.pronunciations not in ((), usual), "chooses itself how names are said"),
    }
    _refuse(refused, ready)
    return config


def _refuse(refused: dict[str, tuple[object, str]], ready: Ready) -> None:
    """Raise InvalidRequest for the first setting that was asked for, with its reason."""
    model = quote(served_name(ready.speech.name))
    for name, (asked, reason) in refused.items():
        if asked:
            raise InvalidRequest(f"{name}: the speech-to-speech model {model} {reason}.", param=name)


_NO_TOOLS = "calls no tools"
