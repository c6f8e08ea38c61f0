"""What every endpoint needs, made once at start. Values only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import PurePath
from typing import cast

from starlette.requests import Request

from voxlane.server.config import Config
from voxlane.server.engine_link import EngineLink
from voxlane.server.errors import EngineNotReady
from voxlane.server.gate import Gate
from voxlane.server.metrics import Metrics

VERSION = version("voxlane")


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of one server."""

    config: Config
    link: EngineLink
    metrics: Metrics
    gate: Gate
    api_key: str  # "": no key is asked for

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the names a client may use, the main one first; raise EngineNotReady before they are known."""
        if self.link.ready is None:
            raise EngineNotReady
        names = (served_name(self.link.ready.model), self.config.server.model_alias)
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def fingerprint(self) -> str:
        """Return what a seed's reproducibility depends on, as OpenAI's system_fingerprint."""
        digest = hashlib.sha256(repr((VERSION, self.config.engine, self.link.ready)).encode()).hexdigest()
        return f"fp_{digest[:10]}"


def served_name(model: str) -> str:
    """Return what a model is called outside: where its file lies on this machine is nobody's business."""
    return model if model.startswith("hf:") else PurePath(model).name.removesuffix(".gguf") or model


def service_of(request: Request) -> Service:
    """Return the service that the application was made with."""
    return cast(Service, request.app.state.service)
