"""The arguments of `voxlane-lab`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias

DIALECT_NAMES = ("native", "realtime", "twilio", "pcm")
"""The same as in lab.dialects.choice: importing that costs time, and --help must not wait."""


PROGRAM = "voxlane-lab"

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # argparse has no public name for it


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    whole = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Test the interruptions of any voice server.",
        epilog="examples:\n"
        "  voxlane-lab list                                      the scenarios that ship\n"
        "  voxlane-lab run hard_stop --url planted:none          a good agent in this process: all gates are met\n"
        "  voxlane-lab run mhm --url planted:stops_for_mhm       a bad one: a gate is missed, exit code 1\n"
        "  voxlane-lab run quick --url ws://127.0.0.1:8000/v1/voice\n"
        "  OPENAI_API_KEY=… voxlane-lab run hard_stop --url 'wss://api.openai.com/v1/realtime?model=gpt-realtime'\n"
        "  voxlane-lab compare before/ after/                    what became better or worse, with intervals\n"
        "  voxlane-lab score call.wav                            a stereo recording: person left, agent right\n\n"
        "exit codes: 0 all gates met; 1 a gate missed; 2 it could not be measured",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = whole.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    _add_run(parts)
    _add_compare(parts)
    _add_score(parts)
    _add_saved(parts)
    _add_sounds(parts)
    _add_agent(parts)
    add_command(parts, "list", "list the scenarios that ship, and the groups of them", "  voxlane-lab list")
    add_command(
        parts,
        "schema",
        "print the JSON schema of scenarios, for editors",
        "  voxlane-lab schema > scenario.schema.json",
    )
    return whole


def add_command(commands: Commands, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    """Return the parser of a new command, with its examples at the end of its help."""
    return commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_run(parts: Commands) -> None:
    parser = add_command(
        parts,
        "run",
        "call a server as a person who interrupts it, and measure",
        "  voxlane-lab run quick --url ws://127.0.0.1:8000/v1/voice\n"
        "  voxlane-lab run my_scenario.toml --url ws://127.0.0.1:8765/media --dialect twilio\n"
        "  voxlane-lab run mhm cough --url ws://… --dialect pcm --mapping mapping.toml --repeat 20\n"
        "  voxlane-lab run all --url planted:slow_yield --out slow/\n"
        "  voxlane-lab run quick --url ws://old:8000/v1/voice --against ws://new:8000/v1/voice --repeat 10\n\n"
        "The server's key is read from VOXLANE_LAB_KEY, or OPENAI_API_KEY or VOXLANE_API_KEY of the dialect.",
    )
    parser.add_argument(
        "scenarios", nargs="+", metavar="SCENARIO", help="a name or group of `voxlane-lab list`, a file, or all"
    )
    parser.add_argument(
        "--url",
        required=True,
        help="ws:// or wss:// address; planted:FAULT: an agent in this process, see `agent --list`",
    )
    parser.add_argument(
        "--against", default="", metavar="URL", help="hold each call with this server too, and print what differs there"
    )
    parser.add_argument("--dialect", choices=DIALECT_NAMES, help="the protocol; default: guessed from the address")
    parser.add_argument("--repeat", type=_positive, metavar="N", help="repeats instead of the scenario's own")
    parser.add_argument("--seed", type=_seed, metavar="N", help="seed instead of the scenario's own")
    parser.add_argument(
        "--at-once", type=_positive, default=1, metavar="N", help="hold so many calls at the same time (%(default)s)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the results; default: lab-results")
    parser.add_argument("--model", default="", help="the model to ask for, where the dialect names one")
    parser.add_argument("--voice", default="", help="the agent's voice to ask for, where the dialect names one")
    parser.add_argument(
        "--turn-detection",
        default="",
        choices=("server_vad", "semantic_vad"),
        help="how a server of the dialect realtime decides that a turn is over; default: its own choice",
    )
    parser.add_argument("--mapping", type=Path, metavar="FILE", help="the mapping file of the dialect pcm")
    parser.add_argument("--naive", action="store_true", help="a loudspeaker that obeys nothing, whatever the scenario")
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON")


def _add_compare(parts: Commands) -> None:
    parser = add_command(
        parts,
        "compare",
        "compare two runs of the same scenarios, call by call",
        "  voxlane-lab compare before/ after/\n  voxlane-lab compare ours/result.json theirs/result.json",
    )
    parser.add_argument("before", type=Path, help="folder of a run, or its result.json")
    parser.add_argument("after", type=Path, help="the other")
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")


def _add_score(parts: Commands) -> None:
    parser = add_command(
        parts,
        "score",
        "judge stereo recordings of others: person left, agent right",
        "  voxlane-lab score call.wav\n  voxlane-lab score call.wav --labels call.toml --out scored/",
    )
    parser.add_argument("recordings", nargs="+", type=Path, metavar="FILE", help="WAV files with two channels")
    parser.add_argument("--labels", type=Path, metavar="FILE", help="what each utterance means; default: guessed")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write a report there")
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON")


def _add_saved(parts: Commands) -> None:
    replay = add_command(
        parts, "replay", "judge the saved calls of a run again, without a server", "  voxlane-lab replay lab-results/"
    )
    report = add_command(parts, "report", "write the HTML report of a run again", "  voxlane-lab report lab-results/")
    for parser in (replay, report):
        parser.add_argument("run", type=Path, help="folder of a run")
    replay.add_argument("--json", action="store_true", help="print the whole result as JSON")


def _add_sounds(parts: Commands) -> None:
    parser = add_command(
        parts,
        "sounds",
        "make and list what the person says and does",
        "  voxlane-lab sounds                 list the sounds, noise beds and voices\n"
        "  voxlane-lab sounds quick           make all clips of these scenarios now\n"
        "  voxlane-lab sounds --write cough.wav cough",
    )
    parser.add_argument(
        "scenarios", nargs="*", metavar="NAME", help="scenarios whose clips to make; a sound with --write"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the sound of this name as a WAV file")
    parser.add_argument("--seed", type=_seed, default=1, metavar="N", help="seed of the sound")


def _add_agent(parts: Commands) -> None:
    parser = add_command(
        parts,
        "agent",
        "run an agent with a fault, to try the lab on",
        "  voxlane-lab agent --fault slow_yield --port 8765\n"
        "  voxlane-lab agent --list\n\n"
        "Paths: /v1/voice (native), /v1/realtime, /twilio, /pcm. The agent does not understand words.",
    )
    parser.add_argument("--fault", default="none", metavar="NAME", help="what it does wrong; none: nothing")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=_port, default=8765, help="port to listen on; 0: any free one")
    parser.add_argument("--counts", action="store_true", help="it counts, for the memory scenarios")
    parser.add_argument("--spoken", action="store_true", help="it speaks with words, made once; else in tones")
    parser.add_argument("--list", action="store_true", help="list the faults")


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError("must be from 1 to 1000")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError("must be from 0 to 4294967295")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError("must be from 0 to 65535")
    return value
