"""The page's server around the scripted engine, in a process of its own: it starts within a second or two."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from house import ENGINE_COMMAND

CODE = """
import asyncio, sys, uvloop
from voxlane.engine.api import EngineConfig
from voxlane.server.config import Config, ServerConfig, VoiceConfig, WebRtcConfig
from voxlane.server.commands.serve import serve
engine = EngineConfig("scripted", asr_model="moonshine-tiny-en", tts_model="hibari")
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    config = Config(**{"server": ServerConfig(port=0), "engine": engine, **eval(sys.argv[2])})
    runner.run(serve(config, sys.argv[1], engine_command=sys.argv[3:]))
"""


@contextlib.contextmanager
def page_server(key: str = "", parts: str = "{}", **environment: str) -> Iterator[str]:
    """Run the server, with further parts of its configuration written as a dictionary; give its address."""
    command = [sys.executable, "-c", CODE, key, parts, *ENGINE_COMMAND]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **environment}
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("voxlane "), first
        yield first.split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=60)
