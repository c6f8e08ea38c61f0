"""POST /v1/audio/speech: a text in, sound out as it is made, as a file or as a stream of events.

Parameters are read by speech_request.py, formats are written by speech_file.py.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from typing import Annotated

from msgspec import Meta
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from voxlane.codecs.encode import formats
from voxlane.codecs.errors import CodecMissing
from voxlane.engine.api import RequestStats, Samples, Submit
from voxlane.server.api import speech_request
from voxlane.server.api.bodies import JsonReply, TokenCounts
from voxlane.server.api.disconnect import unless_disconnected
from voxlane.server.api.endpoint import EVENTS, JSON, READING, WORKING, Answer, Binary, Facts, Schema, Sent, endpoint
from voxlane.server.api.outgoing import EVENT_STREAM, Outgoing
from voxlane.server.api.service import TTS_ALIASES, Service, service_of
from voxlane.server.api.speech_request import SpeechRequest
from voxlane.server.audio.speakers import Speaker, speaker_named, speakers_of
from voxlane.server.audio.speaking import is_one_clause, longest_s, speak, whole
from voxlane.server.audio.speech_file import CONTENT_TYPES, SpeechFile
from voxlane.server.audio.voices import sayable
from voxlane.server.errors import UnsupportedParameter, VoxlaneError
from voxlane.server.http.body import read_object
from voxlane.server.http.middleware import account_of
from voxlane.server.http.reply import error_body, to_json
from voxlane.server.tenants.accounts import Account


class SpeechAudioDelta(JsonReply, tag_field="type", tag="speech.audio.delta"):
    """More of the file."""

    audio: Annotated[str, Meta(description="Base64 of the next bytes of the file.")]


class SpeechAudioDone(JsonReply, tag_field="type", tag="speech.audio.done"):
    """The end of the file."""

    usage: TokenCounts


_SPEECH = """The sound is sent while it is made, as a file or, with `stream_format` `sse`, as server-sent events: each
is a `SpeechEvent`. `/v1/models` tells the voices; OpenAI's names are taken for ours where there is one alike, and for
the default voice otherwise."""

_EXAMPLES: dict[str, Schema] = {
    "A sentence": {"input": "Hello! It is good to hear you.", "response_format": "wav"},
    "Slower, as events of bare samples": {
        "input": "Take your time.",
        "voice": "alloy",
        "speed": 0.8,
        "response_format": "pcm",
        "stream_format": "sse",
    },
}


def _as_here(schema: Schema, facts: Facts) -> None:
    """Write this server's limit and formats into the schema of a request."""
    properties = schema["properties"]
    properties["input"]["maxLength"] = facts.limits.speech_characters
    properties["response_format"] |= {"enum": list(formats()), "default": speech_request.usual_format(formats())}


@endpoint(
    "createSpeech",
    "Audio",
    "Text to audio, OpenAI's protocol",
    _SPEECH,
    {
        200: Answer(
            "The sound, in the format that was asked for.",
            {**{CONTENT_TYPES[kind]: Binary for kind in formats()}, EVENTS: SpeechAudioDelta | SpeechAudioDone},
        )
    },
    (*READING, *WORKING),
    request={JSON: Sent(speech_request.SpeechBody, _EXAMPLES, adapt=_as_here)},
)
async def speech(request: Request) -> SpeechResponse:
    """Answer POST /v1/audio/speech."""
    service = service_of(request)
    service.request_limit.check()
    limits = service.config.limits
    body = await read_object(request, limits)
    speakers = speakers_of(service.ready)
    speaker = speaker_named(body.get("model"), speakers)
    ask = speech_request.parse(
        body,
        limits.speech_characters,
        speaker.voices,
        formats(),
        speaker.languages,
        instructed=speaker.instructed,
        one_pace=speaker.one_pace,
        respells_only=speaker.respells_only,
        one_voice=speaker.answers_speech,
        pronunciations=sayable(service.config.voice.pronunciations, respells_only=speaker.respells_only),
    )
    account = account_of(request.scope)
    service.check_priority(ask.priority, account)
    service.metrics.tenant_limited(account.name, account.check_audio)
    service.check_model(ask.model, [one.name for one in speakers], TTS_ALIASES, "speaks")
    return SpeechResponse(service, ask, account, speaker)


class SpeechResponse:
    """The ASGI response to one text."""

    def __init__(self, service: Service, ask: SpeechRequest, account: Account, speaker: Speaker) -> None:
        self._service = service
        self._ask = ask
        self._account = account
        self._speaker = speaker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak; if the client leaves, cancel its request in the engine."""
        with self._service.request_limit.admit():
            await unless_disconnected(receive, self._run(send))

    async def _run(self, send: Send) -> None:
        kind = EVENT_STREAM if self._ask.events else CONTENT_TYPES[self._ask.response_format]
        outgoing = Outgoing(send, self._service.config.limits.write_s, kind)
        try:
            # In a thread: an encoder, and PyAV's import, take longer than an event loop may wait.
            file = await asyncio.to_thread(self._open_file)
            stats = await self._speak(file, outgoing)
            await self._send(await asyncio.to_thread(file.finish), outgoing)
            if self._ask.events:
                await outgoing.event(to_json(SpeechAudioDone(usage=TokenCounts.of(stats))))
        except CodecMissing as error:
            raise UnsupportedParameter(f"{error}.", param="response_format") from error
        except VoxlaneError as error:
            if not (outgoing.started and self._ask.events):
                raise
            await outgoing.event(to_json(error_body(error)))
        await outgoing.end()

    def _open_file(self) -> SpeechFile:
        ask = self._ask
        # A clause comes whole from a voice that speaks by clauses: to wait for its end costs nothing.
        at_once = not self._speaker.one_pace and is_one_clause(ask.text)
        most_s = longest_s(ask.text, ask.speak.speed)
        return SpeechFile(ask.response_format, self._service.ready.speak_rate, most_seconds=most_s, at_once=at_once)

    async def _speak(self, file: SpeechFile, outgoing: Outgoing) -> RequestStats:
        metrics, rate = self._service.metrics, self._service.ready.speak_rate
        loop = asyncio.get_running_loop()
        began = loop.time()
        submit = Submit(
            request_id=f"speech-{secrets.token_hex(12)}",
            task="tts",
            speak=self._ask.speak,
            priority=self._ask.priority,
            deadline_s=self._ask.deadline_s,
            tenant=self._account.cache_salt(""),
            by_speech_model=self._speaker.answers_speech,
        )

        async def take(samples: Samples) -> None:
            if not samples.offset and samples.pcm:
                metrics.first_audio.observe(loop.time() - began)
            seconds = len(samples.pcm) / 2 / rate
            metrics.audio.labels("spoken").inc(seconds)
            metrics.tenant_audio.labels(self._account.name).inc(seconds)
            self._account.count_audio(seconds)
            await self._send(await asyncio.to_thread(file.push, samples.pcm), outgoing)

        async with self._service.engine.submit(submit) as stream:
            return await speak(stream, whole(self._ask.text), take)

    async def _send(self, data: bytes, outgoing: Outgoing) -> None:
        if not data:
            return
        if self._ask.events:
            audio = base64.b64encode(data).decode()
            await outgoing.event(to_json(SpeechAudioDelta(audio=audio)))
        else:
            await outgoing.body(data)
