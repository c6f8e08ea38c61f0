"""/v1/audio/voices: make a voice from a recording, list voices, delete one.

The shapes are those of OpenAI's custom voices. A recording is decoded, heard and dropped: nothing of it is logged, and
only the voice that the engine makes of it is kept. Parameters are read by voice_request.py.
"""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Literal

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from voxlane.engine.api import CLIP_RATE, CLIP_SECONDS, MAX_VOICES, CloneParams, Finished, Submit, VoiceMade
from voxlane.server import limits
from voxlane.server.api import voice_request
from voxlane.server.api.bodies import JsonReply, wrong
from voxlane.server.api.disconnect import unless_disconnected
from voxlane.server.api.endpoint import JSON, MULTIPART, READING, WORKING, Answer, Schema, Sent, endpoint, enumerated
from voxlane.server.api.service import Service, service_of
from voxlane.server.api.upload import read_form, to_samples
from voxlane.server.api.voice_request import TEXT_RULE, VoiceRequest
from voxlane.server.audio.feeding import checked
from voxlane.server.audio.voices import served_name
from voxlane.server.engine_client.kept_voices import KeptVoice
from voxlane.server.errors import (
    BadAudio,
    ContextTooLong,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    TooLarge,
    VoiceNotFound,
)
from voxlane.server.http.reply import json_response
from voxlane.server.http.request_limit import Share
from voxlane.server.log import quote

FILE = "audio_sample"

PIECE_BYTES = CLIP_RATE * 2
"""One second: fits one packet to the engine."""


class Voice(JsonReply, kw_only=True):
    """A voice that was made from a recording."""

    id: Annotated[str, Meta(description="Its name.")]
    object: Literal["audio.voice"] = "audio.voice"
    name: str
    created_at: Annotated[int, Meta(description="When, in seconds since 1970.")]
    type: Literal["audio_sample"] = "audio_sample"


class VoiceList(JsonReply, kw_only=True):
    """The voices that were made."""

    object: Literal["list"] = "list"
    data: list[Voice]


class VoiceDeleted(JsonReply):
    """A voice that is no more."""

    id: Annotated[str, Meta(description="Its name.")]
    object: Literal["audio.voice.deleted"] = "audio.voice.deleted"
    deleted: Annotated[bool, Meta(description="Always true.")] = True


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

_LEAST_S, _MOST_S = CLIP_SECONDS
_SAMPLE = f"The recording, {_LEAST_S:g} to {_MOST_S:g} s; of the formats that can be transcribed, 10 MiB at most."


@endpoint(
    "listVoices",
    "Audio",
    "The voices that were made from recordings",
    "Those that a model brings along are told by `/v1/models`.",
    {200: Answer("All of them, the oldest first.", {JSON: VoiceList})},
)
async def list_voices(request: Request) -> Response:
    """Answer GET /v1/audio/voices."""
    voices = [_shown(voice) for voice in service_of(request).engine.voices.all()]
    return json_response(VoiceList(data=voices))


@endpoint(
    "deleteVoice",
    "Audio",
    "No more of a voice, OpenAI's protocol",
    "What is being said with it is said to its end.",
    {200: Answer("It is gone.", {JSON: VoiceDeleted})},
    (VoiceNotFound,),
    parameter=("", "narrator"),
)
async def delete_voice(request: Request) -> Response:
    """Answer DELETE /v1/audio/voices/{name}."""
    service, name = service_of(request), request.path_params["name"]
    if name not in service.engine.voices:
        raise VoiceNotFound(f"{quote(name)} was asked for.", param="name")
    service.sessions.forget_voice(name)
    await service.engine.forget_voice(name)
    return json_response(VoiceDeleted(id=name))


@endpoint(
    "createVoice",
    "Audio",
    "A voice from a recording, OpenAI's protocol",
    _CREATE,
    {200: Answer("The voice.", {JSON: Voice})},
    (*READING, BadAudio, *WORKING),
    request={MULTIPART: Sent(voice_request.VoiceBody, _EXAMPLES, (FILE, _SAMPLE))},
)
async def create_voice(request: Request) -> VoiceResponse:
    """Answer POST /v1/audio/voices."""
    service = service_of(request)
    service.request_limit.check()  # if the request would be refused, do not read its upload
    ready = service.ready
    if not ready.clones:
        speaks = ready.tts_model or ready.speech.name
        model = quote(served_name(speaks))
        what = f"{model} has no other voices than its own" if speaks else "This server does not speak"
        raise ModelNotFound(f"{what}; with a Qwen3-TTS Base checkpoint as tts_model it can take on others.")
    return VoiceResponse(service, request)


class VoiceResponse:
    """The ASGI response to one recording."""

    def __init__(self, service: Service, request: Request) -> None:
        self._service = service
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the recording, have the voice made, and keep it; if the client leaves, cancel its request."""
        service, allowed = self._service, self._service.config.limits
        most = min(allowed.audio_body_bytes, limits.VOICE_SAMPLE_BYTES)
        with service.audio.share() as share:
            try:
                form = await read_form(self._request, FILE, most, allowed.audio_body_s, share)
            except TooLarge as error:
                if error.param != "text":
                    raise
                raise wrong("text", TEXT_RULE) from error  # this field has a lower limit than the form's
            ask = voice_request.parse(form.fields, self._own_voices(), service.ready.speak_languages)
            if form.file is None:
                raise InvalidRequest(f"{FILE} must be an audio file.", param=FILE)
            self._check_room(ask.name)
            # Admitted only with its whole upload: a client that sends half of one must not take a place.
            with service.request_limit.admit():
                profile = await unless_disconnected(receive, self._make(ask, form.file, share))
        self._check_room(ask.name)  # other voices may have been made meanwhile
        voice = KeptVoice(ask.name, profile, int(time.time()))
        await service.engine.keep_voice(voice)
        await json_response(_shown(voice))(scope, receive, send)

    def _own_voices(self) -> list[str]:
        """Return the model's own voices; their names are taken."""
        return [name for name in self._service.ready.voices if name not in self._service.engine.voices]

    def _check_room(self, name: str) -> None:
        voices = self._service.engine.voices
        if not voices.room_for(name):
            raise InvalidRequest(f"There are {len(voices)} voices already: delete one first.", param="name")

    async def _make(self, ask: VoiceRequest, file: bytearray, share: Share) -> bytes:
        """Return the voice that the engine makes of a recording."""
        least_s, most_s = CLIP_SECONDS
        samples = await to_samples(file, self._service.decoder, share, CLIP_RATE, FILE, most_s)
        if len(samples) < least_s * PIECE_BYTES:
            raise BadAudio(f"A voice needs at least {least_s:g} s of sound.", param=FILE)
        submit = Submit(
            request_id=f"voice-{secrets.token_hex(12)}",
            task="voice",
            text=ask.text,
            clone=CloneParams(consent=True, language=ask.language),
        )
        try:
            return await self._made(submit, samples)
        except ContextTooLong as error:  # only the engine knows how much text fits a recording
            raise wrong("text", f"{TEXT_RULE}: {error.hint}") from error

    async def _made(self, submit: Submit, samples: bytes | bytearray) -> bytes:
        async with self._service.engine.submit(submit) as stream:
            # Resampled, the longest recording may be a sample longer.
            for start in range(0, min(len(samples), int(CLIP_SECONDS[1]) * PIECE_BYTES), PIECE_BYTES):
                stream.append(audio=bytes(samples[start : start + PIECE_BYTES]))
            stream.end_input()
            profile = b""
            async for output in stream:
                if isinstance(output, VoiceMade):
                    profile = output.profile
                elif isinstance(output, Finished):
                    checked(output)
        if not profile:
            raise InternalError(detail="a voice stream without a voice")
        return profile


def _shown(voice: KeptVoice) -> Voice:
    return Voice(id=voice.name, name=voice.name, created_at=voice.made_s)
