"""GET /v1/models and /v1/models/{name}: the models this server runs, the chat model under each of its names."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from voxlane.engine.api import MODEL_DECIDES
from voxlane.server.api.bodies import JsonReply
from voxlane.server.api.endpoint import JSON, Answer, endpoint
from voxlane.server.api.service import Service, service_of
from voxlane.server.audio.voices import served_name
from voxlane.server.errors import EngineNotReady, ModelNotFound
from voxlane.server.http.reply import json_response
from voxlane.server.log import quote


class Sampling(JsonReply):
    """What is taken for parameters that a request leaves out."""

    temperature: Annotated[float, Meta(description="0 is greedy.")]
    top_k: Annotated[int, Meta(description="0: all.")]
    top_p: Annotated[float, Meta(description="1: all.")]
    min_p: Annotated[float, Meta(description="0: all.")]
    repetition_penalty: Annotated[float, Meta(description="1: none.")]


class ChatFacts(JsonReply, tag_field="task", tag="chat"):
    """A model that chats."""

    architecture: str
    parameters: Annotated[int, Meta(description="How many.")]
    context_tokens: Annotated[int, Meta(description="Prompt and answer together.")]
    weights: Annotated[str, Meta(description="How they are stored.")]
    pages: Annotated[str, Meta(description="How the KV cache is stored.")]
    device: str
    sampling: Sampling
    adapter: Annotated[
        str | UnsetType, Meta(description="The LoRA adapter that was merged into it; absent if there is none.")
    ] = UNSET


class AsrFacts(JsonReply, tag_field="task", tag="asr"):
    """A model that listens."""

    languages: tuple[str, ...]


class SpeechFacts(JsonReply, tag_field="task", tag="speech"):
    """A model that answers speech with speech."""

    context_tokens: Annotated[int, Meta(description="Tokens, frames and rows of sound together.")]
    sample_rate: Annotated[int, Meta(description="In Hz.")]
    clip_seconds: Annotated[float, Meta(description="The longest clip that it writes down.")]


class TtsFacts(JsonReply, tag_field="task", tag="tts"):
    """A model that speaks."""

    voices: Annotated[tuple[str, ...], Meta(description="The default one first.")]
    sample_rate: Annotated[int, Meta(description="In Hz.")]
    languages: Annotated[
        tuple[str, ...] | UnsetType, Meta(description="Those that can be asked for; absent if there is one.")
    ] = UNSET
    instructions: Annotated[bool | UnsetType, Meta(description="Whether it can be told how to speak.")] = UNSET


class Model(JsonReply, kw_only=True):
    """One model."""

    id: Annotated[str, Meta(description="Its name.")]
    object: Literal["model"] = "model"
    created: Annotated[int, Meta(description="Always 0.")] = 0
    owned_by: Literal["voxlane"] = "voxlane"
    voxlane: ChatFacts | AsrFacts | SpeechFacts | TtsFacts


class ModelList(JsonReply, kw_only=True):
    """The models."""

    object: Literal["list"] = "list"
    data: list[Model]


@endpoint(
    "listModels",
    "Models",
    "What is served",
    "The model that chats under each of its names, the one that listens, the one that speaks.",
    {200: Answer("The models.", {JSON: ModelList})},
    (EngineNotReady,),
)
async def list_models(request: Request) -> Response:
    """Answer GET /v1/models."""
    return json_response(ModelList(data=list(_models(service_of(request)).values())))


@endpoint(
    "getModel",
    "Models",
    "One of them",
    "As in the list.",
    {200: Answer("The model.", {JSON: Model})},
    (ModelNotFound, EngineNotReady),
    parameter=("A name from the list; it may hold slashes.", "{model}"),
)
async def get_model(request: Request) -> Response:
    """Answer GET /v1/models/{name}."""
    found = _models(service_of(request)).get(request.path_params["name"])
    if found is None:
        raise ModelNotFound(f"{quote(request.path_params['name'])} was asked for.", param="model")
    return json_response(found)


def _models(service: Service) -> dict[str, Model]:
    """Return every model by name: those that chat, and those that listen, speak, or do all of it."""
    ready = service.ready
    found: dict[str, ChatFacts | AsrFacts | SpeechFacts | TtsFacts] = {}
    for name in service.model_names:
        found[name] = ChatFacts(
            architecture=ready.architecture,
            parameters=ready.parameters,
            context_tokens=ready.context_tokens,
            weights=ready.weights,
            pages=ready.pages,
            device=ready.device,
            sampling=Sampling(**{one: getattr(ready.sampling, one) for one in MODEL_DECIDES}),
            adapter=served_name(ready.adapter) or UNSET,
        )
    if ready.asr_model:
        found.setdefault(served_name(ready.asr_model), AsrFacts(languages=ready.asr_languages))
    if ready.speech.name:
        speech = SpeechFacts(
            context_tokens=ready.speech.context_tokens,
            sample_rate=ready.speak_rate,
            clip_seconds=ready.speech.heard_s,
        )
        found.setdefault(served_name(ready.speech.name), speech)
    if ready.tts_model:
        voice = TtsFacts(voices=ready.voices, sample_rate=ready.speak_rate)
        if ready.speak_languages:  # those that can be asked for
            voice.languages, voice.instructions = ready.speak_languages, ready.instructed
        found.setdefault(served_name(ready.tts_model), voice)
    return {name: Model(id=name, voxlane=facts) for name, facts in found.items()}
