"""voxlane's engine in a process of its own: it makes speech and writes down what is said. It is an extra of the lab."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from voxlane_lab.errors import LabError

if TYPE_CHECKING:
    from voxlane.server.engine_client.engine_process import EngineProcess

INSTALL = "pip install 'voxlane-lab[speech]'"


def speech_is_installed() -> bool:
    """Return whether speech can be made and understood here."""
    return find_spec("voxlane") is not None


@asynccontextmanager
async def speech_engine(**models: str) -> AsyncIterator[EngineProcess]:
    """Start an engine with some models on the CPU: a GPU is the server's. Raise LabError where there is no voxlane."""
    if not speech_is_installed():
        raise LabError(f"speech that is not in the package is made by voxlane: {INSTALL}")
    from voxlane.engine.api import EngineConfig
    from voxlane.server.engine_client.engine_process import EngineProcess
    from voxlane.server.errors import VoxlaneError

    try:
        async with EngineProcess(EngineConfig(device="cpu", **models)) as engine:  # type: ignore[arg-type]
            await engine.wait_ready()
            yield engine
    except VoxlaneError as error:
        raise LabError(f"speech cannot be made: {error.hint or error}") from None
