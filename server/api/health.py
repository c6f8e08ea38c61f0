"""GET /livez, /readyz, /healthz and /metrics: the server's state."""

from __future__ import annotations

import contextlib
from typing import Annotated, Literal

from msgspec import Meta
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from voxlane.server.api.bodies import JsonReply
from voxlane.server.api.endpoint import JSON, Answer, endpoint
from voxlane.server.api.service import service_of
from voxlane.server.audio.voices import served_name
from voxlane.server.config import VERSION
from voxlane.server.engine_client.engine_client import State
from voxlane.server.errors import Draining, EngineNotReady, Unauthorized
from voxlane.server.http.middleware import check_key
from voxlane.server.http.reply import error_response, json_response
from voxlane.server.room.meter import RoomFacts


class Alive(JsonReply, kw_only=True):
    """The process lives."""

    status: Literal["alive"] = "alive"
    version: str = VERSION
    key_needed: Annotated[bool, Meta(description="Whether requests to `/v1` need a key.")]


class ReadyReply(JsonReply, kw_only=True):
    """New requests and conversations are served."""

    status: Literal["ready"] = "ready"
    version: str = VERSION
    at: Annotated[str, Meta(description="The name of this server at its balancer, as in `server.at`.")]
    room: RoomFacts


class Health(JsonReply, kw_only=True):
    """The server's state and its models."""

    status: Annotated[State | Literal["draining"], Meta(description="Only `ready` is good.")]
    version: str = VERSION
    model: Annotated[str, Meta(description="The model that chats; empty if there is none.")]
    asr_model: Annotated[str, Meta(description="The model that listens.")]
    tts_model: Annotated[str, Meta(description="The model that speaks.")]
    speech_model: Annotated[str, Meta(description="The model that answers speech with speech.")]
    open_requests: Annotated[int, Meta(ge=0, description="How many the engine has.")]
    room: RoomFacts


@endpoint(
    "livez",
    "Health",
    "200 as long as the process lives",
    "Needs no key.",
    {200: Answer("The process lives.", {JSON: Alive})},
)
async def livez(request: Request) -> Response:
    """Answer 200: the process lives and its event loop turns, whatever the engine does.

    `key_needed` tells a page whether it may ask for more without a key.
    """
    return json_response(Alive(key_needed=service_of(request).tenants.key_needed))


@endpoint(
    "readyz",
    "Health",
    "200 when new requests are served",
    "Needs no key.",
    {200: Answer("New requests and conversations are served.", {JSON: ReadyReply})},
    (Draining, EngineNotReady),
)
async def readyz(request: Request) -> Response:
    """Answer 200 when requests and conversations are served, else 503 with the reason and when to ask again.

    A full server is ready: a client that resumes its conversation must find it. `room` tells that it is full, and why.
    `at` tells which server it is.
    """
    service = service_of(request)
    if service.request_limit.closed:
        return error_response(Draining())
    if not service.engine.connected:
        return error_response(service.engine.not_ready())
    return json_response(ReadyReply(at=service.config.server.at, room=service.room.report.facts))


@endpoint(
    "healthz",
    "Health",
    "The state and the models; 200 when requests are served",
    "Needs no key.",
    {
        200: Answer("Requests are served.", {JSON: Health}),
        503: Answer("They are not; `status` tells why.", {JSON: Health}),
    },
)
async def healthz(request: Request) -> Response:
    """Answer 200 when requests can be served, 503 with the state otherwise."""
    service = service_of(request)
    health = Health(
        status="draining" if service.request_limit.closed else service.engine.state,
        model=service.chat_model,
        asr_model=service.asr_model,
        tts_model=served_name(service.config.engine.tts_model),
        speech_model=served_name(service.config.engine.speech_model),
        open_requests=service.engine.open_streams,
        room=service.room.report.facts,
    )
    return json_response(health, 200 if health.status == "ready" else 503)


@endpoint(
    "metrics",
    "Health",
    "Prometheus metrics",
    "Needs no key, but for the metrics of tenants: a tenant's key shows its own, `VOXLANE_API_KEY` shows all.",
    {200: Answer("The metrics.", {"text/plain": Annotated[str, Meta(description="Prometheus' text format.")]})},
)
async def metrics(request: Request) -> Response:
    """Answer with the metrics. Those of tenants need a key: a tenant's shows its own, VOXLANE_API_KEY shows all."""
    service = service_of(request)
    tenant: str | None = ""
    with contextlib.suppress(Unauthorized):
        account = check_key(request.scope, service.tenants)
        tenant = None if account is service.tenants.default else account.name
    return Response(service.metrics.text(tenant), headers={"content-type": CONTENT_TYPE_LATEST})
