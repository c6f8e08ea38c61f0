"""The `voxlane` command: arguments in, one of the commands run, one line and an exit code when it fails.

Each command has its own module.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from voxlane.server import config as configuration
from voxlane.server import log
from voxlane.server.commands import arguments as command_line
from voxlane.server.commands.cluster_arguments import add_cluster
from voxlane.server.commands.lab import add_lab, run_lab
from voxlane.server.commands.options import Commands
from voxlane.server.commands.terminal import escape_unknown_characters, write_text
from voxlane.server.config import (
    API_KEY_VARIABLE,
    CHAT_KEY_VARIABLE,
    STORE_PASSWORD_VARIABLE,
    VERSION,
    WEBHOOK_SECRET_VARIABLE,
    Config,
)
from voxlane.server.errors import ConfigError, EngineGivenUp, EngineStartFailed, VoxlaneError
from voxlane.server.http.auth import is_loopback

USAGE_ERROR, FAILURE, INTERRUPTED = 2, 1, 130

ENGINE_GIVEN_UP = 69
"""Exit code of `voxlane serve` when the engine cannot be started again (EX_UNAVAILABLE): a restart of the whole service
on this machine may not help either."""

OWN_ENGINE = {
    "--config": "config",
    "--model": "engine.tts_model",
    "--device": "engine.device",
    "--threads": "engine.threads",
}
"""Flags of `say` that only apply to an engine of its own, and the names of their values."""

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    escape_unknown_characters(sys.stdout)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["lab"]:
            return run_lab(given[1:])
        parser = _parser(with_models=given[:1] == ["models"])
        parsed = parser.parse_args(given)
        command: Command | None = getattr(parsed, "command", None)
        if command is None:
            parser.print_help()
            return USAGE_ERROR
        return command(parsed)
    except ConfigError as error:
        return _fail(error.hint, USAGE_ERROR)
    except EngineGivenUp as error:
        return _fail(f"the engine cannot be started again: {error.hint}", ENGINE_GIVEN_UP)
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
    if log.writes_json():
        logging.getLogger(__name__).critical(log.line("failed", reason=reason))
    else:
        write_text(sys.stderr, f"voxlane: {reason}\n")  # it may hold a server's own words
    return code


def _parser(*, with_models: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="voxlane",
        description="A real-time voice service: one inference engine, with a lane for urgent requests.",
        epilog="Start here:\n"
        "  voxlane chat                        talk to the default model in the terminal\n"
        '  voxlane chat "Why is the sky blue?"  one question, one answer\n'
        '  voxlane say "Hello." -o hello.wav   speak a text\n'
        "  voxlane transcribe hello.wav        write down what is said in a recording\n"
        "  voxlane serve                       OpenAI-compatible server on http://127.0.0.1:8000\n"
        "  voxlane talk                        converse with that server by voice\n"
        "  voxlane voices                      the voices of that server\n"
        "  voxlane keys add NAME               a key for a client, with limits of its own\n"
        "  voxlane cluster up --cells 2         several servers, on one machine or many\n"
        "  voxlane lab run quick --url URL     test the interruptions of any voice server\n"
        "  voxlane doctor                      what the engine would do here, and whether it can\n\n"
        "`voxlane COMMAND --help` explains each command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"voxlane {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add, run in _COMMANDS:
        of_command = add(commands)
        of_command.set_defaults(command=run)
        if run is _models and with_models:
            # Imported here: the other commands do not need the catalogue, and start faster without it.
            from voxlane.engine.weights import command

            command.add_arguments(of_command)
    add_lab(commands)
    return parser


def _config(arguments: argparse.Namespace) -> Config:
    given = {key: value for key, value in vars(arguments).items() if "." in key and value is not None}
    return configuration.load(arguments.config, given)


def _serve(arguments: argparse.Namespace) -> int:
    from voxlane.server.cell.messages import Secrets
    from voxlane.server.commands.serve import serve
    from voxlane.server.commands.supervisor import cell_size, serve_cell
    from voxlane.server.phone.phone_keys import read_phone_keys

    config = _config(arguments)
    api_key, chat_key = _key(API_KEY_VARIABLE), _key(CHAT_KEY_VARIABLE)
    keyed = api_key or config.keys.file
    if not keyed and not config.server.open and not is_loopback(config.server.host):
        raise ConfigError(
            f"server.host: {config.server.host} can be reached by others: set {API_KEY_VARIABLE}, "
            "or file under [keys] (see `voxlane keys --help`), "
            "or open = true under [server] in the file of --config to serve every client"
        )
    log.set_up(config.server.log_level, as_json=config.log.format == "json")
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        secret, password = _key(WEBHOOK_SECRET_VARIABLE), _key(STORE_PASSWORD_VARIABLE)
        keys = (api_key, chat_key, read_phone_keys(_key), secret)
        processes = cell_size(config)
        if processes > 1 or len(config.server.gpus) > 1:
            runner.run(serve_cell(config, Secrets(*keys, password), processes))
        else:
            runner.run(serve(config, *keys, store_password=password))
    return 0


def _key(variable: str) -> str:
    key = os.environ.get(variable, "")
    if not key.isascii() or key != key.strip():
        raise ConfigError(f"{variable}: a key is ASCII without spaces around it")
    return key


def _chat(arguments: argparse.Namespace) -> int:
    from voxlane.server.commands.chat import ChatOptions, run_chat

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
    from voxlane.server.commands.transcribe import TranscribeOptions, run_transcribe

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
    from voxlane.server.commands.say import SayOptions, run_list_voices, run_say, run_say_there

    log.set_up("warning")
    if arguments.list_voices and arguments.url:
        raise ConfigError("--list-voices is for an engine of one's own: a server's are shown by `voxlane voices`")
    useless = [flag for flag, name in OWN_ENGINE.items() if vars(arguments)[name] is not None]
    if arguments.url and useless:
        raise ConfigError(f"{useless[0]} is for an engine of one's own: the server of --url has its models already")
    if arguments.list_voices:
        return run_list_voices(_config(arguments).engine)
    # A server has pronunciations of its own.
    usual = () if arguments.url else _config(arguments).voice.pronunciations
    options = SayOptions(
        output=arguments.output,
        format=arguments.format,
        voice=arguments.voice,
        speed=arguments.speed,
        seed=arguments.seed,
        language=arguments.language,
        instructions=arguments.instructions,
        pronunciations=tuple(arguments.pronounce) or usual,
    )
    text = " ".join(arguments.text) if arguments.text else None
    if arguments.url:
        from voxlane.server.commands.remote import Remote

        return run_say_there(Remote(arguments.url, _key(API_KEY_VARIABLE)), options, text)
    return run_say(_config(arguments).engine, options, text)


def _voices(arguments: argparse.Namespace) -> int:
    from voxlane.server.commands import voices
    from voxlane.server.commands.remote import Remote

    log.set_up("warning")
    remote = Remote(arguments.url, _key(API_KEY_VARIABLE))
    match arguments.action:
        case "add":
            return voices.run_add(
                remote,
                arguments.name,
                arguments.source,
                transcript=arguments.transcript,
                language=arguments.language,
                consent=arguments.consent,
            )
        case "rm":
            return voices.run_remove(remote, arguments.name)
        case _:
            return voices.run_list(remote)


def _keys(arguments: argparse.Namespace) -> int:
    from voxlane.server.commands import keys
    from voxlane.server.tenants.key_file import KeyRecord

    file = arguments.file or configuration.load(arguments.config).keys.file
    if not file:
        raise ConfigError("which file? give --file keys.json, or --config with file = … under [keys]")
    match arguments.action:
        case "add":
            limits = ("conversations", "requests_per_minute", "audio_minutes_per_minute", "priority")
            wanted = KeyRecord(name=arguments.name, hash="", **{name: getattr(arguments, name) for name in limits})
            return keys.run_add(Path(file), wanted)
        case "revoke":
            return keys.run_revoke(Path(file), arguments.name)
        case _:
            return keys.run_list(Path(file))


def _talk(arguments: argparse.Namespace) -> int:
    from voxlane.server.commands.talk import TalkOptions, run_talk

    log.set_up("warning")
    names = ("voice", "voice_language", "voice_instructions", "instructions", "greeting", "temperature", "seed")
    config = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if arguments.eagerness is not None:
        config["turns"] = {"eagerness": arguments.eagerness}
    return run_talk(
        TalkOptions(arguments.url, arguments.source, arguments.target, os.environ.get(API_KEY_VARIABLE, ""), config)
    )


def _models(arguments: argparse.Namespace) -> int:
    from voxlane.engine.weights import command

    if arguments.action == "recommend":
        from voxlane.server.commands.recommend import run_recommend

        return run_recommend(arguments.device, as_json=arguments.json)
    return command.run(arguments)


def _perplexity(arguments: argparse.Namespace) -> int:
    from voxlane.server.commands.perplexity import run_perplexity

    log.set_up("warning")
    return run_perplexity(_config(arguments).engine, arguments.file)


def _cluster(arguments: argparse.Namespace) -> int:
    from voxlane.server.commands.cluster import run_cluster

    log.set_up("warning")
    return run_cluster(arguments)


def _doctor(arguments: argparse.Namespace) -> int:
    from voxlane.server.commands.doctor import run_doctor

    return run_doctor(_config(arguments).engine, as_json=arguments.json)


def _check_config(arguments: argparse.Namespace) -> int:

    if arguments.file is not None and arguments.config is not None:
        raise ConfigError(f"one file at a time: leave out {arguments.file} or --config {arguments.config}")
    config = configuration.load(arguments.file or arguments.config)
    write_text(sys.stdout, configuration.render(config, explained=arguments.keys))
    return 0


_COMMANDS: tuple[tuple[Callable[[Commands], argparse.ArgumentParser], Command], ...] = (
    (command_line.add_serve, _serve),
    (command_line.add_chat, _chat),
    (command_line.add_transcribe, _transcribe),
    (command_line.add_say, _say),
    (command_line.add_voices, _voices),
    (command_line.add_keys, _keys),
    (command_line.add_talk, _talk),
    (add_cluster, _cluster),
    (command_line.add_models, _models),
    (command_line.add_doctor, _doctor),
    (command_line.add_perplexity, _perplexity),
    (command_line.add_check_config, _check_config),
)
"""The arguments of each command and the function that runs it, in the order of the help."""


if __name__ == "__main__":
    sys.exit(main())
