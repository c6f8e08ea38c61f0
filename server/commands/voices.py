"""`voxlane voices`: the voices of a running server, and new ones from recordings.

The server keeps the voices and checks the recordings.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from voxlane.engine.api import CLIP_TEXT_CHARS
from voxlane.server.commands.remote import Remote
from voxlane.server.commands.terminal import write_text
from voxlane.server.errors import ConfigError, ServerFailed

VOICES = "/v1/audio/voices"


def run_list(remote: Remote) -> int:
    """Print the server's voices, the default one first; those made from recordings are marked."""
    models, made = asyncio.run(_ask_for_voices(remote))
    try:
        lines = _described(models, made)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, OSError) as error:
        raise remote.stranger() from error
    if not lines:
        print("no voice has been made yet: voxlane voices add NAME --from clip.wav --consent", file=sys.stderr)
    write_text(sys.stdout, "".join(lines))
    return 0


def _described(models: dict[str, Any], made: dict[str, Any]) -> list[str]:
    """Return a line for each voice; an answer that is not from a voxlane server may raise any error."""
    ours = [model["voxlane"] for model in models["data"]]
    speaking = [model for model in ours if model.get("task") == "tts"]
    if not speaking:
        raise ServerFailed("It has no voices to choose from: it has no engine.tts_model")
    dates = {voice["name"]: int(voice["created_at"]) for voice in made["data"]}
    lines = []
    for number, name in enumerate(speaking[0]["voices"]):
        notes = "" if number else " (default)"
        if name in dates:
            notes += time.strftime(" (from a recording, %Y-%m-%d %H:%M)", time.localtime(dates[name]))
        lines.append(f"{name}{notes}\n")
    return lines


async def _ask_for_voices(remote: Remote) -> tuple[dict[str, Any], dict[str, Any]]:
    return await remote.ask("GET", "/v1/models"), await remote.ask("GET", VOICES)


def run_add(remote: Remote, name: str, clip: Path, *, transcript: str, language: str, consent: bool) -> int:
    """Have a voice made from a recording, and say how to use it."""
    if not consent:
        raise ConfigError(
            f"--consent is needed: with it you say that the person who is heard in {clip} has agreed that their voice "
            "is imitated"
        )
    if len(transcript) > CLIP_TEXT_CHARS:
        raise ConfigError(
            f"--transcript has {len(transcript)} characters: give at most {CLIP_TEXT_CHARS}, only what is said in "
            f"{clip}, or leave it out"
        )
    try:
        sound = clip.read_bytes()
    except OSError as error:
        raise ConfigError(f"{clip}: {error.strerror}") from error
    fields = {"name": name, "consent": "true", "text": transcript, "language": language}
    given = {key: value for key, value in fields.items() if value}
    asyncio.run(remote.ask("POST", VOICES, data=given, files={"audio_sample": (clip.name, sound)}))
    write_text(sys.stdout, f"{name} can be asked for by its name as long as the server runs.\n")
    return 0


def run_remove(remote: Remote, name: str) -> int:
    """Have the server forget a voice."""
    if not name:
        raise ConfigError("NAME: a voice has one")
    asyncio.run(remote.ask("DELETE", f"{VOICES}/{quote(name, safe='')}"))
    return 0
