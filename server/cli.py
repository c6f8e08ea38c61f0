"""The `voxlane` command: arguments in, one of the commands run, one line and an exit code when it fails.

It knows the command line. It does not know what the commands do: each has its own module.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from voxlane.server import config as configuration
from voxlane.server import log
from voxlane.server.auth import is_loopback
from voxlane.server.config import API_KEY_VARIABLE, CHAT_KEY_VARIABLE, Config
from voxlane.server.errors import ConfigError, EngineStartFailed, VoxlaneError
from voxlane.server.options import (
    DEVICE_OPTION,
    LISTENER_OPTION,
    MODEL_OPTIONS,
    SERVER_OPTIONS,
    SPEAKER_OPTION,
    THREADS_OPTION,
    Commands,
    add_command,
    add_options,
)
from voxlane.server.service import VERSION

SPEECH_FORMATS = ("aac", "flac", "mp3", "opus", "pcm", "wav")
"""codecs.encode's, written again: importing it costs 0.3 s, and --help must not wait."""

USAGE_ERROR, FAILURE, INTERRUPTED = 2, 1, 130

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(with_models=given[:1] == ["models"])
    parsed = parser.parse_args(given)
    command: Command | None = getattr(parsed, "command", None)
    if command is None:
        parser.print_help()
        return USAGE_ERROR
    try:
        return command(parsed)
    except ConfigError as error:
        return _fail(error.hint, USAGE_ERROR)
    except EngineStartFailed as error:
        return _fail(f"the engine could not start: {error.hint}", FAILURE)
    except VoxlaneError as error:
        return _fail(error.message, FAILURE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `voxlane … | head`: the reader has what it wanted. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE


def _fail(reason: str, code: int) -> int:
    print(f"voxlane: {reason}", file=sys.stderr)
    return code


def _parser(*, with_models: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="voxlane",
        description="A real-time voice service: one inference engine, with a lane for those who must be heard at once.",
        epilog="Start here:\n"
        "  voxlane chat                        talk to the default model in the terminal\n"
        '  voxlane chat "Why is the sky blue?"  one question, one answer\n'
        '  voxlane say "Hello." -o hello.wav   speak a text\n'
        "  voxlane transcribe hello.wav        write down what is said in a recording\n"
        "  voxlane serve                       OpenAI-compatible server on http://127.0.0.1:8000\n"
        "  voxlane talk                        converse with that server by voice\n"
        "  voxlane doctor                      what the engine would do here, and whether it can\n\n"
        "`voxlane COMMAND --help` explains each command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"voxlane {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_serve(commands)
    _add_chat(commands)
    _add_transcribe(commands)
    _add_say(commands)
    _add_talk(commands)
    _add_models(commands, with_arguments=with_models)
    _add_doctor(commands)
    _add_perplexity(commands)
    _add_check_config(commands)
    return parser


def _add_serve(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "serve",
        "run the server",
        "  voxlane serve\n"
        "  voxlane serve --port 9000 --model ./my-model.gguf\n"
        "  voxlane serve --config voxlane.toml\n"
        "  voxlane serve --model '' --asr-model whisper-tiny-en   # speech alone, no chat\n"
        f"  {API_KEY_VARIABLE}=secret voxlane serve --host 0.0.0.0   # clients must send the key",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file; see `voxlane check-config`")
    add_options(parser, (*SERVER_OPTIONS, *MODEL_OPTIONS, THREADS_OPTION, LISTENER_OPTION, SPEAKER_OPTION))
    parser.set_defaults(command=_serve)


def _add_chat(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "chat",
        "chat with a model in the terminal, no server needed",
        "  voxlane chat\n"
        '  voxlane chat "Write a haiku about rain." --temperature 0.7 --seed 1\n'
        "  voxlane chat --system 'You are a pirate.'\n"
        "  echo 'Summarise: …' | voxlane chat --max-tokens 100",
    )
    parser.add_argument("message", nargs="?", metavar="MESSAGE", help="ask this and leave; without it: interactive")
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file, for its [engine] section")
    parser.add_argument("--system", metavar="TEXT", default="", help="how the model should behave")
    parser.add_argument("--temperature", type=float, default=0.7, help="0: always the likeliest word (default: 0.7)")
    parser.add_argument("--seed", type=int, default=None, help="same seed, same answer")
    parser.add_argument("--max-tokens", type=int, default=None, help="longest answer (default: as long as the context)")
    parser.add_argument("--stats", action="store_true", help="show speed after each answer")
    add_options(parser, (*MODEL_OPTIONS, THREADS_OPTION))
    parser.set_defaults(command=_chat)


def _add_transcribe(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "transcribe",
        "write down what is said in recordings, no server needed",
        "  voxlane transcribe talk.wav\n"
        "  voxlane transcribe *.mp3 --json > talks.jsonl    # one line a file; MP3 and others need PyAV\n"
        "  voxlane transcribe film.m4a --srt > film.srt\n"
        "  curl -s https://example.org/talk.ogg | voxlane transcribe --stream\n"
        "  arecord -q -t raw -f S16_LE -r 16000 | voxlane transcribe --raw 16000 --stream   # live; Ctrl-C ends it",
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="WAV, MP3, FLAC, Ogg, WebM, M4A or AAC; - or none: stdin"
    )
    parser.add_argument("--stream", action="store_true", help="print as soon as it is certain, not at the end")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--json",
        dest="shape",
        action="store_const",
        const="json",
        help="segments, words and times; with --stream one line a segment",
    )
    shape.add_argument("--srt", dest="shape", action="store_const", const="srt", help="SubRip subtitles")
    shape.add_argument("--vtt", dest="shape", action="store_const", const="vtt", help="WebVTT subtitles")
    parser.add_argument(
        "--language", metavar="CODE", default="", help="what is spoken, as en; default: the model decides"
    )
    parser.add_argument("--raw", metavar="RATE", type=int, help="stdin is bare 16-bit mono PCM, heard while it comes")
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file, for its [engine] section")
    add_options(
        parser,
        [
            ("--model", *LISTENER_OPTION[1:4], "a listening model from `voxlane models list`"),
            DEVICE_OPTION,
            THREADS_OPTION,
        ],
    )
    parser.set_defaults(command=_transcribe, shape="text")


def _add_say(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "say",
        "speak a text, no server needed",
        "  voxlane say Good morning, everybody.\n"
        "  voxlane say 'It costs $4.50.' -o price.wav --speed 1.2\n"
        "  voxlane say -o chapter.mp3 < chapter.txt         # MP3 and others need PyAV\n"
        "  voxlane chat 'Tell me a story.' | voxlane say    # spoken while it is written\n"
        "  voxlane say --model kokoro-82m --list-voices",
    )
    parser.add_argument("text", nargs="*", metavar="TEXT", help="what to say; without it: stdin")
    parser.add_argument("-o", "--output", metavar="FILE", default="", help="write a file; -: stdout; without: play it")
    parser.add_argument("--format", choices=SPEECH_FORMATS, help="default: by the file's name, else wav")
    parser.add_argument("--voice", metavar="NAME", default="", help="see --list-voices")
    parser.add_argument("--speed", type=float, default=1.0, help="0.5 to 2 (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="same text, same seed, same sound (default: 0)")
    parser.add_argument("--language", metavar="NAME", default="", help="for models that speak several")
    parser.add_argument(
        "--instructions", metavar="TEXT", default="", help="how to say it, for models that listen to it"
    )
    parser.add_argument("--list-voices", action="store_true", help="print the voices and leave")
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file, for its [engine] section")
    add_options(
        parser,
        [
            ("--model", *SPEAKER_OPTION[1:4], "a speaking model from `voxlane models list`"),
            DEVICE_OPTION,
            THREADS_OPTION,
        ],
    )
    parser.set_defaults(command=_say)


def _add_talk(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "talk",
        "converse with a server by voice",
        "  voxlane talk                                     microphone and loudspeaker; needs voxlane[talk]\n"
        "  voxlane talk --in question.wav --out answer.wav  without a sound card\n"
        "  voxlane talk --url wss://example.org/v1/voice    another server\n"
        f"  {API_KEY_VARIABLE}=secret voxlane talk            a server that wants a key",
    )
    parser.add_argument("--url", default="ws://127.0.0.1:8000/v1/voice", help="default: %(default)s")
    parser.add_argument("--in", dest="source", metavar="FILE", default="", help="say this file instead of listening")
    parser.add_argument("--out", dest="target", metavar="FILE", default="", help="write what is heard into this WAV")
    parser.add_argument("--voice", metavar="NAME", help="who speaks")
    parser.add_argument("--instructions", metavar="TEXT", help="how the assistant should behave")
    parser.add_argument("--greeting", metavar="TEXT", help="what it says first")
    parser.add_argument("--temperature", type=float, help="0: always the likeliest word")
    parser.add_argument("--seed", type=int, help="same seed, same answers")
    parser.add_argument("--eagerness", choices=("low", "medium", "high", "auto"), help="how soon it answers")
    parser.set_defaults(command=_talk)


def _add_models(commands: Commands[argparse.ArgumentParser], *, with_arguments: bool) -> None:
    parser = commands.add_parser("models", help="list, pull, locate and remove models")
    if with_arguments:
        # Imported only where it is asked for: the other commands never need the catalogue, and start without it.
        from voxlane.engine.weights import command

        command.add_arguments(parser)
        parser.set_defaults(command=command.run)


def _add_doctor(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "doctor",
        "say what the engine would do on this machine, and check that it can",
        "  voxlane doctor\n"
        "  voxlane doctor --device cuda --model ./my-model.gguf\n"
        "  voxlane doctor --config voxlane.toml --json",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file, for its [engine] section")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    add_options(parser, (*MODEL_OPTIONS, THREADS_OPTION, LISTENER_OPTION, SPEAKER_OPTION))
    parser.set_defaults(command=_doctor)


def _add_perplexity(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "perplexity",
        "measure how well a model predicts a text (lower is better)",
        "  voxlane perplexity book.txt\n  voxlane perplexity book.txt --context 256 --pages int8",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="UTF-8 text")
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file, for its [engine] section")
    parser.add_argument(
        "--context",
        dest="engine.context_tokens",
        metavar="N",
        type=int,
        default=None,
        help="tokens per window (default: 512) [engine.context_tokens]",
    )
    add_options(parser, (*MODEL_OPTIONS, THREADS_OPTION))
    parser.set_defaults(command=_perplexity)


def _add_check_config(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "check-config",
        "check a configuration and print the effective values",
        "  voxlane check-config                    the defaults, ready to be edited\n"
        "  voxlane check-config > voxlane.toml\n"
        "  voxlane check-config voxlane.toml       what differs from the defaults is marked",
    )
    parser.add_argument("config", nargs="?", metavar="FILE", type=Path, help="TOML file")
    parser.set_defaults(command=_check_config)


def _config(arguments: argparse.Namespace) -> Config:
    given = {key: value for key, value in vars(arguments).items() if "." in key and value is not None}
    return configuration.load(arguments.config, given)


def _serve(arguments: argparse.Namespace) -> int:
    from voxlane.server.serve import serve

    config = _config(arguments)
    api_key, chat_key = _key(API_KEY_VARIABLE), _key(CHAT_KEY_VARIABLE)
    if not api_key and not config.server.open and not is_loopback(config.server.host):
        raise ConfigError(
            f"server.host: {config.server.host} can be reached by others: set {API_KEY_VARIABLE}, "
            "or server.open = true to serve everybody"
        )
    log.set_up(config.server.log_level)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, api_key, chat_key))
    return 0


def _key(variable: str) -> str:
    key = os.environ.get(variable, "")
    if not key.isascii() or key != key.strip():
        raise ConfigError(f"{variable}: a key is ASCII without spaces around it")
    return key


def _chat(arguments: argparse.Namespace) -> int:
    from voxlane.server.chat_cli import ChatOptions, run_chat

    options = ChatOptions(
        system=arguments.system,
        temperature=arguments.temperature,
        seed=arguments.seed,
        max_tokens=arguments.max_tokens,
        stats=arguments.stats,
    )
    log.set_up("warning")
    return run_chat(_config(arguments).engine, options, arguments.message)


def _transcribe(arguments: argparse.Namespace) -> int:
    from voxlane.server.transcribe_cli import TranscribeOptions, run_transcribe

    options = TranscribeOptions(
        files=tuple(arguments.files),
        shape=arguments.shape,
        stream=arguments.stream,
        language=arguments.language,
        raw_rate=arguments.raw,
    )
    log.set_up("warning")
    return run_transcribe(_config(arguments).engine, options)


def _say(arguments: argparse.Namespace) -> int:
    from voxlane.server.say_cli import SayOptions, run_list_voices, run_say

    log.set_up("warning")
    if arguments.list_voices:
        return run_list_voices(_config(arguments).engine)
    options = SayOptions(
        output=arguments.output,
        format=arguments.format,
        voice=arguments.voice,
        speed=arguments.speed,
        seed=arguments.seed,
        language=arguments.language,
        instructions=arguments.instructions,
    )
    return run_say(_config(arguments).engine, options, " ".join(arguments.text) if arguments.text else None)


def _talk(arguments: argparse.Namespace) -> int:
    from voxlane.server.talk_cli import TalkOptions, run_talk

    log.set_up("warning")
    names = ("voice", "instructions", "greeting", "temperature", "seed")
    config = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if arguments.eagerness is not None:
        config["turns"] = {"eagerness": arguments.eagerness}
    return run_talk(
        TalkOptions(arguments.url, arguments.source, arguments.target, os.environ.get(API_KEY_VARIABLE, ""), config)
    )


def _perplexity(arguments: argparse.Namespace) -> int:
    from voxlane.server.perplexity_cli import run_perplexity

    log.set_up("warning")
    return run_perplexity(_config(arguments).engine, arguments.file)


def _doctor(arguments: argparse.Namespace) -> int:
    from voxlane.server.doctor_cli import run_doctor

    return run_doctor(_config(arguments).engine, as_json=arguments.json)


def _check_config(arguments: argparse.Namespace) -> int:
    sys.stdout.write(configuration.render(_config(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
