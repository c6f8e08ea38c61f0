"""POST /v1/audio/transcriptions and /v1/audio/translations: an upload in, its words out, whole or as events.

Files are decoded by decoding.py, parameters read by transcription_request.py, transcripts written by transcript.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from voxlane.engine.api import LISTEN_RATE, ListenParams, RequestStats, Submit, Words
from voxlane.server.api import transcription_request
from voxlane.server.api.bodies import JsonReply, TokenCounts
from voxlane.server.api.disconnect import unless_disconnected
from voxlane.server.api.endpoint import (
    EVENTS,
    JSON,
    MULTIPART,
    READING,
    WORKING,
    Answer,
    Schema,
    Sent,
    endpoint,
    enumerated,
)
from voxlane.server.api.outgoing import EVENT_STREAM, Outgoing
from voxlane.server.api.service import ASR_ALIASES, Service, service_of
from voxlane.server.api.transcription_request import TranscriptionRequest
from voxlane.server.api.upload import read_form, to_samples
from voxlane.server.audio.hearing import hear, whole
from voxlane.server.audio.transcript import (
    VTT_HEADER,
    DurationUsage,
    Transcript,
    VerboseTranscription,
    cues,
    srt,
    verbose,
    vtt,
)
from voxlane.server.audio.voices import served_name
from voxlane.server.errors import BadAudio, InvalidRequest, ModelNotFound, VoxlaneError
from voxlane.server.http.middleware import account_of
from voxlane.server.http.reply import error_body, json_response, to_json
from voxlane.server.http.request_limit import Share
from voxlane.server.log import quote
from voxlane.server.tenants.accounts import Account

FILE = "file"


class Transcription(JsonReply):
    """The words of a recording."""

    text: str
    usage: DurationUsage


class TranscriptDelta(JsonReply, tag_field="type", tag="transcript.text.delta"):
    """More words."""

    delta: Annotated[str, Meta(description="The next words; they will not change.")]


class TranscriptUsage(TokenCounts, tag_field="type", tag="tokens"):
    """How much the model read and wrote."""


class TranscriptDone(JsonReply, tag_field="type", tag="transcript.text.done"):
    """The end of the words."""

    text: Annotated[str, Meta(description="All of it.")]
    usage: TranscriptUsage


_TRANSCRIPTION = f"""WAV is always read; MP3, FLAC, Ogg, WebM, M4A and AAC where PyAV is installed.

Known and refused, unless set to what happens anyway: {enumerated(transcription_request.UNSUPPORTED)}.

With `stream`, the answer is server-sent events: each is a `TranscriptEvent`, the last is `data: [DONE]`."""

_TRANSCRIPTION_EXAMPLES: dict[str, Schema] = {
    "The words": {"file": "@speech.wav"},
    "With the time of each word": {
        "file": "@speech.wav",
        "language": "en",
        "response_format": "verbose_json",
        "timestamp_granularities[]": ["word", "segment"],
    },
    "Subtitles": {"file": "@speech.wav", "response_format": "vtt"},
    "As events": {"file": "@speech.wav", "stream": True},
}

_TRANSLATION = """Only a model that can translate does: a multilingual Whisper whose decoder was not cut down, as
`whisper-base`. Others answer 404, with the model's name. The files are those of `/v1/audio/transcriptions`."""

_TRANSLATION_EXAMPLES: dict[str, Schema] = {
    "In English": {"file": "@speech.wav"},
    "With the times of its parts": {"file": "@speech.wav", "response_format": "verbose_json"},
}

_WORDS = {
    JSON: (Transcription, VerboseTranscription),
    "text/plain": Annotated[str, Meta(description="Of `text`: the words. Of `srt`: SubRip subtitles.")],
    "text/vtt": Annotated[str, Meta(description="WebVTT subtitles.")],
}
_FILE = (FILE, "The recording.")


@endpoint(
    "createTranscription",
    "Audio",
    "Audio to text, OpenAI's protocol",
    _TRANSCRIPTION,
    {200: Answer("The words, in the format that was asked for.", _WORDS | {EVENTS: TranscriptDelta | TranscriptDone})},
    (*READING, BadAudio, *WORKING),
    request={MULTIPART: Sent(transcription_request.TranscriptionBody, _TRANSCRIPTION_EXAMPLES, _FILE)},
)
async def transcriptions(request: Request) -> TranscriptionResponse:
    """Answer POST /v1/audio/transcriptions."""
    service = service_of(request)
    service.request_limit.check()  # if the request would be refused, do not read its upload
    account = account_of(request.scope)
    service.metrics.tenant_limited(account.name, account.check_audio)
    return TranscriptionResponse(service, request, account)


@endpoint(
    "createTranslation",
    "Audio",
    "Audio in any language to English text, OpenAI's protocol",
    _TRANSLATION,
    {200: Answer("The words, in the format that was asked for.", _WORDS)},
    (*READING, BadAudio, *WORKING),
    request={MULTIPART: Sent(transcription_request.TranslationBody, _TRANSLATION_EXAMPLES, _FILE)},
)
async def translations(request: Request) -> TranscriptionResponse:
    """Answer POST /v1/audio/translations."""
    service = service_of(request)
    service.request_limit.check()
    ready = service.ready
    if not ready.asr_translates:
        model = quote(served_name(ready.asr_model))
        what = f"{model} writes only what is said" if ready.asr_model else "This server does not listen"
        raise ModelNotFound(f"{what}; with a multilingual Whisper as engine.asr_model, as whisper-base, it translates.")
    account = account_of(request.scope)
    service.metrics.tenant_limited(account.name, account.check_audio)
    return TranscriptionResponse(service, request, account, translates=True)


class TranscriptionResponse:
    """The ASGI response to one upload."""

    def __init__(self, service: Service, request: Request, account: Account, *, translates: bool = False) -> None:
        self._service = service
        self._translates = translates
        self._request = request
        self._account = account

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the upload, transcribe it, and answer; if the client leaves, cancel its request."""
        service = self._service
        with service.audio.share() as share:
            limits = service.config.limits
            form = await read_form(self._request, FILE, limits.audio_body_bytes, limits.audio_body_s, share)
            ask = self._read(form.fields)
            service.check_priority(ask.priority, self._account)
            service.check_model(ask.model, list(filter(None, self._models)), ASR_ALIASES, "listens")
            if form.file is None:
                raise InvalidRequest(f"{FILE} must be an audio file.", param=FILE)
            # Admitted only with its whole upload: a client that sends half of one must not take a place.
            with service.request_limit.admit():
                outgoing = Outgoing(send, limits.write_s, EVENT_STREAM)
                await unless_disconnected(receive, self._run(ask, form.file, share, scope, outgoing))

    @property
    def _models(self) -> tuple[str, str]:
        """The names of the model that listens, and of the one that answers speech with speech if it may listen."""
        ready = self._service.ready
        return served_name(ready.asr_model), "" if self._translates else served_name(ready.speech.name)

    def _read(self, fields: Sequence[tuple[str, str]]) -> TranscriptionRequest:
        """Return what a form asks for."""
        if self._translates:
            return transcription_request.parse_translation(fields, self._service.ready.asr_languages)
        only_writes = self._answers_speech(dict(fields).get("model"))
        return transcription_request.parse(fields, self._service.ready.asr_languages, only_writes=only_writes)

    def _answers_speech(self, model: str | None) -> bool:
        """Return whether a request names the model that answers speech with speech."""
        listens, answers = self._models
        return model is not None and model == answers != listens

    async def _run(
        self, ask: TranscriptionRequest, file: bytearray, share: Share, scope: Scope, outgoing: Outgoing
    ) -> None:
        most_s = None
        if self._answers_speech(ask.model):
            most_s = min(self._service.config.limits.audio_s, self._service.ready.speech.heard_s)
        samples = await to_samples(file, self._service.decoder, share, LISTEN_RATE, FILE, most_s)
        seconds = len(samples) / 2 / LISTEN_RATE
        self._service.metrics.tenant_audio.labels(self._account.name).inc(seconds)
        self._account.count_audio(seconds)
        if ask.stream:
            await self._stream(ask, samples, outgoing)
            return
        transcript = Transcript()
        await self._hear(ask, samples, transcript, None)
        answer = _whole(ask, transcript, len(samples) / 2 / LISTEN_RATE)
        await answer(scope, self._request.receive, outgoing.write)

    async def _hear(
        self, ask: TranscriptionRequest, samples: bytes | bytearray, transcript: Transcript, events: Outgoing | None
    ) -> RequestStats:
        heard = self._service.metrics.audio.labels("heard")

        async def take(words: Words) -> None:
            heard.inc(max(0.0, words.heard_s - transcript.heard_s))
            await tell(transcript.add(words))

        async def tell(delta: str) -> None:
            if delta and events is not None:
                await events.event(to_json(TranscriptDelta(delta=delta)))

        submit = Submit(
            request_id=f"transcription-{secrets.token_hex(12)}",
            task="asr",
            listen=ListenParams(
                ask.language,
                partials=ask.stream,
                word_times=ask.words,
                hot_words=ask.hot_words,
                translate=ask.translate,
            ),
            priority=ask.priority,
            deadline_s=ask.deadline_s,
            tenant=self._account.cache_salt(ask.cache_salt),
            by_speech_model=self._answers_speech(ask.model),
        )
        async with self._service.engine.submit(submit) as stream:
            stats = await hear(stream, whole(samples), take)
        await tell(transcript.finish())
        return stats

    async def _stream(self, ask: TranscriptionRequest, samples: bytes | bytearray, events: Outgoing) -> None:
        transcript = Transcript()
        try:
            stats = await self._hear(ask, samples, transcript, events)
            done = TranscriptDone(text=transcript.text, usage=TranscriptUsage.of(stats))
            await events.event(to_json(done))
            await events.event(b"[DONE]")
        except VoxlaneError as error:
            if not events.started:
                raise
            await events.event(to_json(error_body(error)))
        await events.end()


def _whole(ask: TranscriptionRequest, transcript: Transcript, duration_s: float) -> Response:
    all_cues = [cue for segment in transcript.segments for cue in cues(segment)]
    usage = DurationUsage(seconds=round(duration_s, 3))
    match ask.response_format:
        case "json":
            return json_response(Transcription(text=transcript.text, usage=usage))
        case "verbose_json":
            body = verbose(transcript, duration_s, segments=ask.segments, words=ask.words)
            body.usage = usage
            if ask.translate:
                body.task, body.language = "translate", "english"
            return json_response(body)
        case "text":
            return Response(f"{transcript.text}\n", media_type="text/plain")
        case "srt":
            return Response(srt(all_cues), media_type="text/plain")
        case "vtt":
            return Response(VTT_HEADER + vtt(all_cues), media_type="text/vtt")
