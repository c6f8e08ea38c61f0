"""GET /v1/models and /v1/models/{name}: the one model this server runs, under each of its names."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from voxlane.server.api.reply import json_response
from voxlane.server.errors import ModelNotFound
from voxlane.server.log import quote
from voxlane.server.service import Service, service_of


async def list_models(request: Request) -> Response:
    """Answer GET /v1/models."""
    service = service_of(request)
    return json_response({"object": "list", "data": [_model(service, name) for name in service.model_names]})


async def get_model(request: Request) -> Response:
    """Answer GET /v1/models/{name}."""
    service = service_of(request)
    name: str = request.path_params["name"]
    if name not in service.model_names:
        raise ModelNotFound(f"{quote(name)} was asked for.", param="model")
    return json_response(_model(service, name))


def _model(service: Service, name: str) -> dict[str, object]:
    ready = service.link.ready
    assert ready is not None
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "voxlane",
        "voxlane": {
            "architecture": ready.architecture,
            "parameters": ready.parameters,
            "context_tokens": ready.context_tokens,
            "weights": ready.weights,
            "pages": ready.pages,
            "device": ready.device,
        },
    }
