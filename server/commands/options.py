"""The flags that stand for a key of the configuration, and how a command of `voxlane` gets its own parser."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TypeAlias

Option = tuple[str, str, str, type, str]  # flag, key, placeholder, type, what it does

DEVICE_OPTION: Option = ("--device", "engine.device", "DEVICE", str, "where models run: auto, cpu or cuda")
MODEL_OPTIONS: tuple[Option, ...] = (
    (
        "--model",
        "engine.model",
        "MODEL",
        str,
        "a name from `voxlane models list`, a GGUF file or a safetensors directory",
    ),
    ("--policy", "engine.policy", "POLICY", str, "who goes first: fcfs, priority or deadline"),
    DEVICE_OPTION,
    ("--weights", "engine.weights", "TYPE", str, "auto, packed, float32 or bfloat16"),
    ("--pages", "engine.pages", "TYPE", str, "KV cache elements: auto, float32, bfloat16 or int8"),
    ("--kv-memory-mib", "engine.kv_memory_mib", "MIB", int, "memory for the KV cache on a CPU"),
    ("--trace", "engine.trace", "FILE", str, "write a Chrome/Perfetto trace of the engine's steps"),
)
THREADS_OPTION: Option = ("--threads", "engine.threads", "N", int, "compute threads; 0: every core")
LISTENER_OPTION: Option = ("--asr-model", "engine.asr_model", "MODEL", str, 'the model that listens; "": none')
SPEAKER_OPTION: Option = ("--tts-model", "engine.tts_model", "MODEL", str, 'the model that speaks; "": none')
SERVER_OPTIONS: tuple[Option, ...] = (
    ("--host", "server.host", "HOST", str, "address to listen on"),
    ("--port", "server.port", "PORT", int, "port to listen on; 0: any free one"),
    ("--max-batch", "engine.max_batch", "N", int, "requests in one engine step; 0: as many as suit the device"),
)

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # argparse gives it no public name


def add_command(commands: Commands, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    """Return the parser of a new command, with its examples at the end of its help."""
    return commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    """Add flags whose values override keys of the configuration."""
    for flag, key, metavar, kind, text in options:
        parser.add_argument(flag, dest=key, metavar=metavar, type=kind, default=None, help=f"{text} [{key}]")
