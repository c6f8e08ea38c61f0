"""Flags that override a key of the configuration, and the parser of each command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Option:
    """A flag whose value overrides a key of the configuration."""

    flag: str
    key: str
    placeholder: str
    kind: Callable[[str], object]
    text: str  # what it does


def _comma_separated(text: str) -> tuple[str, ...]:
    """Return the entries of a list on the command line."""
    return tuple(text.split(","))


_MODEL_TEXT = "a name from `voxlane models list`, a GGUF file or a safetensors directory"
DEVICE_OPTION = Option("--device", "engine.device", "DEVICE", str, "where models run: auto, cpu or cuda")
MODEL_OPTIONS = (
    Option("--model", "engine.model", "MODEL", str, f"{_MODEL_TEXT}; auto: what suits this machine"),
    Option(
        "--adapter",
        "engine.adapter",
        "ADAPTER",
        str,
        "a LoRA adapter to merge into it: a directory, an hf: name or auto",
    ),
    Option("--policy", "engine.policy", "POLICY", str, "the order of requests: fcfs, priority or deadline"),
    DEVICE_OPTION,
    Option("--weights", "engine.weights", "TYPE", str, "auto, packed, float32 or bfloat16"),
    Option("--pages", "engine.pages", "TYPE", str, "KV cache elements: auto, float32, bfloat16 or int8"),
    Option("--kv-memory-mib", "engine.kv_memory_mib", "MIB", int, "memory for the KV cache on a CPU"),
    Option("--trace", "engine.trace", "FILE", str, "write a Chrome/Perfetto trace of the engine's steps"),
)
THREADS_OPTION = Option("--threads", "engine.threads", "N", int, "compute threads; 0: every core")
LISTENER_OPTION = Option(
    "--asr-model", "engine.asr_model", "MODEL", str, 'the model that listens; auto: by the machine; "": none'
)
SPEAKER_OPTION = Option("--tts-model", "engine.tts_model", "MODEL", str, 'the model that speaks; "": none')
SPEECH_OPTION = Option(
    "--speech-model", "engine.speech_model", "MODEL", str, "an LFM2-Audio that answers speech with speech"
)
SERVER_OPTIONS = (
    Option("--host", "server.host", "HOST", str, "address to listen on"),
    Option("--port", "server.port", "PORT", int, "port to listen on; 0: any free one"),
    Option(
        "--tls-cert", "server.tls_cert", "FILE", str, "serve https and wss with this certificate and its chain, PEM"
    ),
    Option("--tls-key", "server.tls_key", "FILE", str, "its private key, PEM"),
    Option("--processes", "server.processes", "K", int, "server processes that share the port; 0: by cores and device"),
    Option(
        "--gpus",
        "server.gpus",
        "0,1",
        _comma_separated,
        "an engine on each of these GPUs, two on one that is named twice",
    ),
    Option("--at", "server.at", "NAME", str, "the name of this server at its balancer"),
    Option("--agent-check", "server.agent_check", "HOST:PORT", str, "where HAProxy asks for the room"),
    Option("--max-batch", "engine.max_batch", "N", int, "requests in one engine step; 0: as many as suit the device"),
)

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # argparse has no public name for it


def add_command(commands: Commands, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    """Return the parser of a new command, with its examples at the end of its help."""
    return commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_engine_file(parser: argparse.ArgumentParser) -> None:
    """Add the flag that names the file of the configuration, for commands with an engine of their own."""
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file, for [engine] and [weights]")


def add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    """Add flags whose values override keys of the configuration."""
    for one in options:
        told = f"{one.text} [{one.key}]"
        parser.add_argument(one.flag, dest=one.key, metavar=one.placeholder, type=one.kind, default=None, help=told)
