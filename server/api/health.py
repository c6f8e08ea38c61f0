"""GET /livez, /readyz, /healthz, /metrics and /: the server's state, and a list of its endpoints."""

from __future__ import annotations

import contextlib

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from voxlane.server.api.reference.openapi import endpoints, facts_of
from voxlane.server.api.service import VERSION, service_of
from voxlane.server.audio.voices import served_name
from voxlane.server.errors import Draining, Unauthorized
from voxlane.server.http.middleware import check_key
from voxlane.server.http.reply import error_response, json_response


async def livez(request: Request) -> Response:
    """Answer 200: the process lives and its event loop turns, whatever the engine does.

    `key_needed` tells a page whether it may ask for more without a key.
    """
    return json_response({"status": "alive", "version": VERSION, "key_needed": service_of(request).tenants.key_needed})


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
    at = service.config.server.at
    return json_response({"status": "ready", "version": VERSION, "at": at, "room": service.room.report.facts})


async def healthz(request: Request) -> Response:
    """Answer 200 when requests can be served, 503 with the state otherwise."""
    service = service_of(request)
    state = "draining" if service.request_limit.closed else service.engine.state
    body = {
        "status": state,
        "version": VERSION,
        "model": service.chat_model,
        "asr_model": service.asr_model,
        "tts_model": served_name(service.config.engine.tts_model),
        "speech_model": served_name(service.config.engine.speech_model),
        "open_requests": service.engine.open_streams,
        "room": service.room.report.facts,
    }
    return json_response(body, 200 if state == "ready" else 503)


async def metrics(request: Request) -> Response:
    """Answer with the metrics. Those of tenants need a key: a tenant's shows its own, VOXLANE_API_KEY shows all."""
    service = service_of(request)
    tenant: str | None = ""
    with contextlib.suppress(Unauthorized):
        account = check_key(request.scope, service.tenants)
        tenant = None if account is service.tenants.default else account.name
    return Response(service.metrics.text(tenant), headers={"content-type": CONTENT_TYPE_LATEST})


async def index(request: Request) -> Response:
    """Answer GET / with the endpoints."""
    return json_response(
        {
            "name": "voxlane",
            "version": VERSION,
            "status": service_of(request).engine.state,
            "endpoints": endpoints(facts_of(service_of(request))),
        }
    )
