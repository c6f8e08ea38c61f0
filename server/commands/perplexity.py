"""`voxlane perplexity`: a text file through the engine's scorer. A broken model shows at once."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from voxlane.engine.api import EngineConfig, Finished, RequestStats, Submit
from voxlane.server.commands.progress import Progress
from voxlane.server.engine_client.engine_process import ENGINE_COMMAND, EngineProcess
from voxlane.server.errors import ConfigError, InternalError, ModelFailed

WINDOW_TOKENS = 512
"""Tokens per window if the configuration sets no context: most published figures use it."""


def run_perplexity(config: EngineConfig, path: Path, *, engine_command: Sequence[str] = ENGINE_COMMAND) -> int:
    """Print the perplexity of the text in `path` and return the exit code."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text") from error
    if not config.model:
        raise ConfigError("engine.model is empty: there is nothing to measure")
    window_tokens = config.context_tokens or WINDOW_TOKENS
    config = dataclasses.replace(config, context_tokens=window_tokens, asr_model="", tts_model="", speech_model="")
    window, stats = asyncio.run(_score(config, text, engine_command))
    mean = -stats.logprob_sum / stats.scored_tokens
    # exp overflows above 709: take infinity for a model that bad.
    perplexity = math.exp(mean) if mean < 700 else math.inf
    rate = stats.scored_tokens / stats.total_s if stats.total_s else 0.0
    print(
        f"perplexity {perplexity:.4f}  tokens {stats.scored_tokens}  window {window}  "
        f"mean log-probability {-mean:.5f}  {rate:.0f} tokens/s"
    )
    return 0


async def _score(config: EngineConfig, text: str, command: Sequence[str]) -> tuple[int, RequestStats]:
    """Return the window in use, which the model may limit, and the measured sums."""
    with Progress(sys.stderr) as progress:
        async with EngineProcess(config, command=command, observers=(progress,)) as link:
            ready = await link.wait_ready()
            progress.close()
            async with link.submit(Submit(secrets.token_hex(8), "score", text=text)) as stream:
                async for output in stream:
                    if isinstance(output, Finished):
                        if output.reason == "failed":
                            raise ModelFailed
                        if output.stats.scored_tokens:
                            return ready.context_tokens, output.stats
    raise InternalError(detail="the engine scored nothing")
