"""GET /v1/models and /v1/models/{name}: the models this server runs, the chat model under each of its names."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from voxlane.engine.api import MODEL_DECIDES
from voxlane.server.api.service import Service, service_of
from voxlane.server.audio.voices import served_name
from voxlane.server.errors import ModelNotFound
from voxlane.server.http.reply import json_response
from voxlane.server.log import quote


async def list_models(request: Request) -> Response:
    """Answer GET /v1/models."""
    return json_response({"object": "list", "data": list(_models(service_of(request)).values())})


async def get_model(request: Request) -> Response:
    """Answer GET /v1/models/{name}."""
    found = _models(service_of(request)).get(request.path_params["name"])
    if found is None:
        raise ModelNotFound(f"{quote(request.path_params['name'])} was asked for.", param="model")
    return json_response(found)


def _models(service: Service) -> dict[str, dict[str, object]]:
    """Return every model by name: those that chat, and those that listen, speak, or do all of it."""
    ready = service.ready
    chat: dict[str, object] = {
        "task": "chat",
        "architecture": ready.architecture,
        "parameters": ready.parameters,
        "context_tokens": ready.context_tokens,
        "weights": ready.weights,
        "pages": ready.pages,
        "device": ready.device,
        "sampling": {name: getattr(ready.sampling, name) for name in MODEL_DECIDES},
    }
    if ready.adapter:
        chat["adapter"] = served_name(ready.adapter)
    found = dict.fromkeys(service.model_names, chat)
    if ready.asr_model:
        found.setdefault(served_name(ready.asr_model), {"task": "asr", "languages": ready.asr_languages})
    if ready.speech.name:
        speech = {
            "task": "speech",
            "context_tokens": ready.speech.context_tokens,
            "sample_rate": ready.speak_rate,
            "clip_seconds": ready.speech.heard_s,
        }
        found.setdefault(served_name(ready.speech.name), speech)
    if ready.tts_model:
        voice: dict[str, object] = {"task": "tts", "voices": ready.voices, "sample_rate": ready.speak_rate}
        if ready.speak_languages:  # those that can be asked for
            voice |= {"languages": ready.speak_languages, "instructions": ready.instructed}
        found.setdefault(served_name(ready.tts_model), voice)
    return {
        name: {"id": name, "object": "model", "created": 0, "owned_by": "voxlane", "voxlane": details}
        for name, details in found.items()
    }
