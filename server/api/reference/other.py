"""Descriptions of all endpoints beside chat and audio: models, client secrets, health, and the description itself."""

from __future__ import annotations

from typing import get_args

from voxlane.server.api.assets import TYPES
from voxlane.server.api.client_secrets import ClientSecretBody
from voxlane.server.api.reference.parts import (
    JSON,
    READING,
    Errors,
    Facts,
    Schema,
    answer,
    body_schemas,
    choice,
    either,
    fixed,
    flag,
    listing,
    media,
    number,
    operation,
    or_null,
    record,
    ref,
    request_body,
    string,
    whole,
)
from voxlane.server.engine_client.engine_client import State
from voxlane.server.errors import Draining, EngineNotReady, ModelNotFound, NotFound
from voxlane.server.room.estimate import Measure
from voxlane.server.room.meter import RoomState

_SESSION_TYPES = ("realtime", "transcription")

_SECRETS = """A page or a phone connects to `/v1/realtime` with the secret instead of the key, as often as it likes
until the secret expires; a conversation that has begun goes on. The secret opens nothing else. It lives in this
process: another server, or this one after a restart, does not know it."""

_SECRET_EXAMPLES: dict[str, Schema] = {
    "Ten minutes, as it is": {},
    "A minute, for a session set up beforehand": {
        "expires_after": {"anchor": "created_at", "seconds": 60},
        "session": {"type": "realtime", "instructions": "Be brief.", "audio": {"output": {"voice": "alloy"}}},
    },
    "Only to be transcribed": {"session": {"type": "transcription"}},
}


def paths(facts: Facts) -> Schema:
    """Return the endpoints."""
    return {**_models(facts), **_secrets(), **_health(), **_description()}


def schemas(facts: Facts) -> dict[str, Schema]:
    """Return the schemas of requests and answers."""
    message = {
        "message": string("For a person."),
        "type": string("OpenAI's kind of error."),
        "param": or_null(string("Which parameter is wrong.")),
        "code": string("For a program."),
    }
    model = {
        "id": string("Its name."),
        "object": fixed("model"),
        "created": whole("Always 0."),
        "owned_by": fixed("voxlane"),
        "voxlane": either("", *_tasks()),
    }
    return {
        "Error": record({"error": record(message)}),
        "Model": record(model),
        "ModelList": record({"object": fixed("list"), "data": listing(ref("Model"))}),
        **body_schemas("ClientSecretRequest", ClientSecretBody),
        "ClientSecret": record(
            {
                "value": string("The secret: `ek_` and 43 characters."),
                "expires_at": whole("When, in seconds since 1970."),
                "session": record(
                    {"id": string(), "object": string(), "type": choice("", _SESSION_TYPES)},
                    description="The whole session as a connection finds it, in OpenAI's words.",
                )
                | {"additionalProperties": True},
            }
        ),
        "Health": record(
            {
                "status": choice("Only `ready` is good.", (*get_args(State), "draining")),
                "version": string(),
                "model": string("The model that chats; empty if there is none."),
                "asr_model": string("The model that listens."),
                "tts_model": string("The model that speaks."),
                "speech_model": string("The model that answers speech with speech."),
                "open_requests": whole("How many the engine has.", 0),
                "room": ref("Room"),
            }
        ),
        "Alive": record(
            {
                "status": fixed("alive"),
                "version": string(),
                "key_needed": flag("Whether requests to `/v1` need a key."),
            }
        ),
        "Ready": record(
            {
                "status": fixed("ready"),
                "version": string(),
                "at": string("The name of this server at its balancer, as in `server.at`."),
                "room": ref("Room"),
            }
        ),
        "Room": record(
            {
                "state": choice("A full server is ready for clients that resume.", get_args(RoomState)),
                "percent": whole("The measured room for conversations: 100 when idle, 0 when no more may begin.", 0),
                "more": whole("How many more conversations may begin, as estimated.", 0),
                "conversations": whole("How many there are.", 0),
                "tightest": choice("The measure that limits it.", get_args(Measure)),
                "uses": {
                    "type": "object",
                    "additionalProperties": {"type": "number"},
                    "description": "Each measured value, divided by that at which the server is full.",
                },
            }
        ),
        "Index": record(
            {
                "name": fixed("voxlane"),
                "version": string(),
                "status": string("As in `/healthz`."),
                "endpoints": {"type": "object", "additionalProperties": string(), "description": "What each does."},
            }
        ),
    }


def _tasks() -> tuple[Schema, ...]:
    chat = {
        "task": fixed("chat"),
        "architecture": string(),
        "parameters": whole("How many."),
        "context_tokens": whole("Prompt and answer together."),
        "weights": string("How they are stored."),
        "pages": string("How the KV cache is stored."),
        "device": string(),
        "sampling": record(
            {
                "temperature": number("0 is greedy."),
                "top_k": whole("0: all."),
                "top_p": number("1: all."),
                "min_p": number("0: all."),
                "repetition_penalty": number("1: none."),
            },
            description="What is taken for parameters that a request leaves out.",
        ),
    }
    adapter = {"adapter": string("The LoRA adapter that was merged into it; absent if there is none.")}
    asr = {"task": fixed("asr"), "languages": listing(string())}
    tts = {
        "task": fixed("tts"),
        "voices": listing(string(), "The default one first."),
        "sample_rate": whole("In Hz."),
    }
    speech = {
        "task": fixed("speech"),
        "context_tokens": whole("Tokens, frames and rows of sound together."),
        "sample_rate": whole("In Hz."),
        "clip_seconds": number("The longest clip that it writes down."),
    }
    several = {
        "languages": listing(string(), "Those that can be asked for; absent if there is one."),
        "instructions": flag("Whether it can be told how to speak."),
    }
    return (
        record(chat | adapter, optional=adapter),
        record(asr),
        record(speech),
        record(tts | several, optional=several),
    )


def _models(facts: Facts) -> Schema:
    every = operation(
        "listModels",
        "Models",
        "What is served",
        "The model that chats under each of its names, the one that listens, the one that speaks.",
        {"200": answer("The models.", **{JSON: media(ref("ModelList"))})},
        (EngineNotReady,),
    )
    parameter = {
        "name": "name",
        "in": "path",
        "required": True,
        "schema": string("A name from the list; it may hold slashes."),
        "example": facts.model or "some-model",
    }
    one = operation(
        "getModel",
        "Models",
        "One of them",
        "As in the list.",
        {"200": answer("The model.", **{JSON: media(ref("Model"))})},
        (ModelNotFound, EngineNotReady),
        parameters=[parameter],
    )
    return {"/v1/models": {"get": every}, "/v1/models/{name}": {"get": one}}


def _secrets() -> Schema:
    post = operation(
        "createClientSecret",
        "Conversations",
        "A secret for a client that must not see the key, OpenAI's protocol",
        _SECRETS,
        {"200": answer("The secret; it is told only once.", **{JSON: media(ref("ClientSecret"))})},
        (*READING, Draining, EngineNotReady),
        request=request_body(JSON, "ClientSecretRequest", _SECRET_EXAMPLES),
    )
    return {"/v1/realtime/client_secrets": {"post": post}}


def _health() -> Schema:
    """Return the endpoints for monitoring."""
    text = media(string("Prometheus' text format."))
    health = {
        "200": answer("Requests are served.", **{JSON: media(ref("Health"))}),
        "503": answer("They are not; `status` tells why.", **{JSON: media(ref("Health"))}),
    }
    alive = {"200": answer("The process lives.", **{JSON: media(ref("Alive"))})}
    ready = {"200": answer("New requests and conversations are served.", **{JSON: media(ref("Ready"))})}
    said: dict[str, tuple[str, Schema, Errors]] = {
        "/livez": ("200 as long as the process lives", alive, ()),
        "/readyz": ("200 when new requests are served", ready, (Draining, EngineNotReady)),
        "/healthz": ("The state and the models; 200 when requests are served", health, ()),
    }
    found: Schema = {
        path: {"get": operation(path[1:], "Health", summary, "Needs no key.", answers, errors, public=True)}
        for path, (summary, answers, errors) in said.items()
    }
    metrics = {"200": answer("The metrics.", **{"text/plain": text})}
    keys = "Needs no key, but for the metrics of tenants: a tenant's key shows its own, `VOXLANE_API_KEY` shows all."
    found["/metrics"] = {"get": operation("metrics", "Health", "Prometheus metrics", keys, metrics, public=True)}
    return found


def _description() -> Schema:
    document = answer("The document.", **{JSON: media({"type": "object", "required": ["openapi", "paths"]})})
    page = answer("The page.", **{"text/html": media(string())})
    both = {JSON: media(ref("Index")), "text/html": media(string())}
    index = answer("The list; a browser gets the page to talk on.", **both)
    said = {
        "/": ("index", "What is here", "A short list of the endpoints.", index),
        "/openapi.json": ("openapi", "This description", "OpenAPI 3.1, for programs.", document),
        "/docs": ("docs", "This description, to read", "A page without scripts and without requests elsewhere.", page),
    }
    found: Schema = {
        path: {
            "get": operation(identifier, "Description", summary, f"{text} Needs no key.", {"200": told}, public=True)
        }
        for path, (identifier, summary, text, told) in said.items()
    }
    found["/client/{name}"] = {"get": _client()}
    return found


def _client() -> Schema:
    parameter = {
        "name": "name",
        "in": "path",
        "required": True,
        "schema": string("A file of the client; `demo/` holds those of the page alone."),
        "example": "index.js",
    }
    kinds = {kind: media(string()) for kind in TYPES.values()}
    return operation(
        "clientFile",
        "Description",
        "The browser client, file by file",
        'For pages of this server: `import { VoiceClient } from "/client/index.js"`. Needs no key.',
        {"200": answer("The file.", **kinds)},
        (NotFound,),
        public=True,
        parameters=[parameter],
    )
