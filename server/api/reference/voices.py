"""Descriptions of the endpoints of voices made from recordings: their requests and answers."""

from __future__ import annotations

from voxlane.engine.api import CLIP_SECONDS, MAX_VOICES
from voxlane.server.api import voice_request
from voxlane.server.api.reference.parts import (
    JSON,
    READING,
    WORKING,
    Facts,
    Schema,
    answer,
    enumerated,
    fixed,
    flag,
    form_schemas,
    listing,
    media,
    operation,
    record,
    ref,
    request_body,
    string,
    whole,
)
from voxlane.server.errors import BadAudio, VoiceNotFound

_CREATE = f"""The voice can then be asked for by its name wherever a voice is named. Only a model that can take on
voices makes one: a Qwen3-TTS Base checkpoint.

Only with `consent`: the person who is heard has agreed that their voice is imitated. OpenAI asks for the id of a
recording in which they say so; here it is `true`, and the sender vouches for them.

The recording is heard once and not kept. What is kept lasts as long as the server does, {MAX_VOICES} voices at most; a
name that is given again means the new voice. Known and refused: {enumerated(voice_request.UNSUPPORTED)}."""

_EXAMPLES: dict[str, Schema] = {
    "A voice": {"name": "narrator", "audio_sample": "@speech.wav", "consent": True},
    "With its manner of speaking": {
        "name": "narrator",
        "audio_sample": "@speech.wav",
        "consent": True,
        "text": "Hello there.",
        "language": "en",
    },
}


def paths(facts: Facts) -> Schema:
    """Return the endpoints."""
    voice = {JSON: media(ref("Voice"))}
    create = operation(
        "createVoice",
        "Audio",
        "A voice from a recording, OpenAI's protocol",
        _CREATE,
        {"200": answer("The voice.", **voice)},
        (*READING, BadAudio, *WORKING),
        request=request_body("multipart/form-data", "VoiceRequest", _EXAMPLES),
    )
    listed = operation(
        "listVoices",
        "Audio",
        "The voices that were made from recordings",
        "Those that a model brings along are told by `/v1/models`.",
        {"200": answer("All of them, the oldest first.", **{JSON: media(ref("VoiceList"))})},
    )
    delete = operation(
        "deleteVoice",
        "Audio",
        "No more of a voice, OpenAI's protocol",
        "What is being said with it is said to its end.",
        {"200": answer("It is gone.", **{JSON: media(ref("VoiceDeleted"))})},
        (VoiceNotFound,),
        parameters=[{"name": "name", "in": "path", "required": True, "schema": string(), "example": "narrator"}],
    )
    return {"/v1/audio/voices": {"get": listed, "post": create}, "/v1/audio/voices/{name}": {"delete": delete}}


def schemas(facts: Facts) -> dict[str, Schema]:
    """Return the schemas of requests and answers."""
    least_s, most_s = CLIP_SECONDS
    told = f"The recording, {least_s:g} to {most_s:g} s; of the formats that can be transcribed, 10 MiB at most."
    return {
        **form_schemas("VoiceRequest", voice_request.VoiceBody, "audio_sample", told),
        "Voice": record(
            {
                "id": string("Its name."),
                "object": fixed("audio.voice"),
                "name": string(),
                "created_at": whole("When, in seconds since 1970."),
                "type": fixed("audio_sample"),
            }
        ),
        "VoiceList": record({"object": fixed("list"), "data": listing(ref("Voice"))}),
        "VoiceDeleted": record(
            {"id": string("Its name."), "object": fixed("audio.voice.deleted"), "deleted": flag("Always true.")}
        ),
    }
