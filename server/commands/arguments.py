"""The arguments of each command of `voxlane`, and their help. cli.py runs the commands.

It imports nothing slow: --help must not wait.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from voxlane.codecs.extras import install_command
from voxlane.server.commands.options import (
    DEVICE_OPTION,
    LISTENER_OPTION,
    MODEL_OPTIONS,
    SERVER_OPTIONS,
    SPEAKER_OPTION,
    SPEECH_OPTION,
    THREADS_OPTION,
    Commands,
    Option,
    add_command,
    add_engine_file,
    add_options,
)
from voxlane.server.config import API_KEY_VARIABLE

SERVER_URL = "http://127.0.0.1:8000"
SPEECH_FORMATS = ("aac", "flac", "mp3", "opus", "pcm", "wav")
"""The same as in codecs.encode: importing that costs 0.3 s, and --help must not wait."""


def add_serve(commands: Commands) -> argparse.ArgumentParser:
    """Add `voxlane serve`."""
    parser = add_command(
        commands,
        "serve",
        "run the server",
        "  voxlane serve\n"
        "  voxlane serve --port 9000 --model ./my-model.gguf\n"
        "  voxlane serve --config voxlane.toml\n"
        "  voxlane serve --model '' --asr-model whisper-tiny-en   # speech alone, no chat\n"
        f"  {API_KEY_VARIABLE}=secret voxlane serve --host 0.0.0.0   # clients must send the key\n"
        "  voxlane serve --tls-cert cert.pem --tls-key key.pem     # https and wss; renewed files are used\n"
        "  voxlane keys add acme --file keys.json                  # one key for each client",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file; see `voxlane check-config`")
    add_options(
        parser, (*SERVER_OPTIONS, *MODEL_OPTIONS, THREADS_OPTION, LISTENER_OPTION, SPEAKER_OPTION, SPEECH_OPTION)
    )
    parser.add_argument(
        "--log-json",
        dest="log.format",
        action="store_const",
        const="json",
        default=None,
        help="write the log as JSON, one object a line [log.format]",
    )
    parser.add_argument(
        "--reuse-port",
        dest="server.reuse_port",
        action="store_const",
        const=True,
        default=None,
        help="share the port with the server process that this one replaces [server.reuse_port]",
    )
    return parser


def add_chat(commands: Commands) -> argparse.ArgumentParser:
    """Add `voxlane chat`."""
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
    add_engine_file(parser)
    parser.add_argument("--system", metavar="TEXT", default="", help="how the model should behave")
    parser.add_argument("--temperature", type=float, help="0: always the likeliest word (default: the model's own)")
    parser.add_argument("--seed", type=int, default=None, help="same seed, same answer")
    parser.add_argument("--max-tokens", type=int, default=None, help="longest answer (default: as long as the context)")
    parser.add_argument("--stats", action="store_true", help="show speed after each answer")
    add_options(parser, (*MODEL_OPTIONS, THREADS_OPTION))
    return parser


def add_transcribe(commands: Commands) -> argparse.ArgumentParser:
    """Add `voxlane transcribe`."""
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
    add_engine_file(parser)
    model = replace(LISTENER_OPTION, flag="--model", text="a listening model from `voxlane models list`")
    add_options(parser, (model, DEVICE_OPTION, THREADS_OPTION))
    parser.set_defaults(shape="text")
    return parser


def add_say(commands: Commands) -> argparse.ArgumentParser:
    """Add `voxlane say`."""
    parser = add_command(
        commands,
        "say",
        "speak a text, no server needed",
        "  voxlane say Good morning, everybody.\n"
        "  voxlane say 'It costs $4.50.' -o price.wav --speed 1.2\n"
        "  voxlane say -o chapter.mp3 < chapter.txt         # MP3 and others need PyAV\n"
        "  voxlane chat 'Tell me a story.' | voxlane say    # spoken while it is written\n"
        "  voxlane say 'Siobhan is here.' --pronounce 'Siobhan = shiv-awn'\n"
        "  voxlane say --model kokoro-82m --list-voices\n"
        "  voxlane say Bonjour. --model ./Qwen3-TTS-12Hz-1.7B-CustomVoice --language fr --instructions 'Whisper.'\n"
        f"  voxlane say Hello. --voice ada --url {SERVER_URL}   # a running server's voice",
    )
    parser.add_argument("text", nargs="*", metavar="TEXT", help="what to say; without it: stdin")
    parser.add_argument("-o", "--output", metavar="FILE", default="", help="write a file; -: stdout; without: play it")
    parser.add_argument("--format", choices=SPEECH_FORMATS, help="default: by the file's name, else wav")
    parser.add_argument("--voice", metavar="NAME", default="", help="see --list-voices; a server's: `voxlane voices`")
    parser.add_argument("--speed", type=float, default=1.0, help="0.5 to 2 (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="same text, same seed, same sound (default: 0)")
    parser.add_argument("--language", metavar="NAME", default="", help="as en, for models that speak several")
    parser.add_argument(
        "--instructions", metavar="TEXT", default="", help="how to say it, for models that listen to it"
    )
    parser.add_argument(
        "--pronounce",
        metavar="NAME=SOUND",
        action="append",
        default=[],
        help="how a name is said: 'Siobhan = shiv-awn', or 'Siobhan = /ʃɪˈvɔːn/' in phonemes; may be repeated"
        " (default: voice.pronunciations)",
    )
    parser.add_argument("--list-voices", action="store_true", help="print the voices and leave")
    parser.add_argument(
        "--url", default="", help=f"let a running server say it, as {SERVER_URL}: its voices from recordings too"
    )
    add_engine_file(parser)
    text = "a speaking model from `voxlane models list`, or a directory of Qwen3-TTS"
    add_options(parser, (replace(SPEAKER_OPTION, flag="--model", text=text), DEVICE_OPTION, THREADS_OPTION))
    return parser


def add_voices(commands: Commands) -> argparse.ArgumentParser:
    """Add `voxlane voices` with its actions: list, add, rm."""
    parser = add_command(
        commands,
        "voices",
        "list the voices of a server, and make new ones from recordings",
        "  voxlane voices                                   all there are\n"
        "  voxlane voices add ada --from ada.wav --transcript 'What is said in it.' --consent\n"
        "  voxlane say 'Good morning.' --voice ada --url http://127.0.0.1:8000\n"
        "  voxlane talk --voice ada\n"
        "  voxlane voices rm ada\n\n"
        "A server that makes voices speaks with a Qwen3-TTS Base checkpoint: voxlane serve --tts-model DIRECTORY.\n"
        "The recording is heard once and not kept; the voice lasts as long as the server runs.",
    )
    parser.add_argument("--url", default=SERVER_URL, help="the server (default: %(default)s)")
    parser.set_defaults(action="list")
    actions = parser.add_subparsers(title="what to do", metavar="ACTION")
    shown = actions.add_parser("list", help="print the voices, the default one first")
    made = actions.add_parser("add", help="make a voice from 1 to 30 s of a recording")
    made.add_argument("name", metavar="NAME", help="what the voice is called from then on")
    made.add_argument(
        "--from", dest="source", metavar="FILE", type=Path, required=True, help="WAV, or others with PyAV"
    )
    made.add_argument(
        "--transcript", metavar="TEXT", default="", help="what is said in it: the manner of speaking is taken over too"
    )
    made.add_argument("--language", metavar="NAME", default="", help="what it will speak, as en; default: by each text")
    made.add_argument(
        "--consent", action="store_true", help="the person who is heard has agreed that their voice is imitated"
    )
    gone = actions.add_parser("rm", help="have a voice forgotten")
    gone.add_argument("name", metavar="NAME", help="of a voice that was made from a recording")
    for action, name in ((shown, "list"), (made, "add"), (gone, "rm")):
        # No default here: it would overwrite a value given before the action.
        action.add_argument("--url", default=argparse.SUPPRESS, help=f"the server (default: {SERVER_URL})")
        action.set_defaults(action=name)
    return parser


def add_keys(commands: Commands) -> argparse.ArgumentParser:
    """Add `voxlane keys`."""
    parser = add_command(
        commands,
        "keys",
        "the keys of a server: who may use it, and how much",
        "  voxlane keys add acme --file keys.json --conversations 20 --requests-per-minute 600\n"
        "  voxlane keys add desk --config voxlane.toml --priority critical   # the file under [keys] there\n"
        "  voxlane keys list --file keys.json\n"
        "  voxlane keys revoke acme --file keys.json\n"
        "\n"
        "A key is shown once; the file holds its hash. A running server with\n"
        "\n"
        "  [keys]\n"
        '  file = "keys.json"\n'
        "\n"
        "reads the file again when it changes. The conversations of a revoked key end within seconds. Without a\n"
        "limit, only the server's own limits count. `voxlane keys add --help` explains the limits.",
    )
    parser.set_defaults(action="list", name="")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="make a key and show it, once")
    add.add_argument("name", metavar="NAME", help="of the tenant: in metrics and in this list, as acme")
    add.add_argument("--conversations", type=int, default=0, metavar="N", help="at one time, parked ones too")
    add.add_argument(
        "--requests-per-minute", type=int, default=0, metavar="N", help="HTTP requests and new conversations"
    )
    add.add_argument(
        "--audio-minutes-per-minute",
        type=float,
        default=0.0,
        metavar="X",
        help="sound from microphones and recordings, and of /v1/audio/speech: an open microphone takes 1",
    )
    add.add_argument(
        "--priority",
        choices=("normal", "high", "critical"),
        default="normal",
        help="the most urgent priority that its requests may ask for (default: normal)",
    )
    revoke = actions.add_parser("revoke", help="take a key away")
    revoke.add_argument("name", metavar="NAME", help="of the tenant")
    listing = actions.add_parser("list", help="names and limits")
    for action, name in ((add, "add"), (revoke, "revoke"), (listing, "list")):
        action.set_defaults(action=name)
        action.add_argument(
            "--file", metavar="FILE", type=Path, help="the file of keys; default: keys.file of --config"
        )
        action.add_argument("--config", metavar="FILE", type=Path, help="TOML file of the server")
    return parser


def add_talk(commands: Commands) -> argparse.ArgumentParser:
    """Add `voxlane talk`."""
    parser = add_command(
        commands,
        "talk",
        "converse with a server by voice",
        f"  voxlane talk                                     microphone and loudspeaker: {install_command('talk')}\n"
        "  voxlane talk --in question.wav --out answer.wav  without a sound card\n"
        "  voxlane talk --url https://example.org           another server; wss://example.org/v1/voice works too\n"
        f"  {API_KEY_VARIABLE}=secret voxlane talk            a server that wants a key",
    )
    parser.add_argument("--url", default=SERVER_URL, help="default: %(default)s")
    parser.add_argument("--in", dest="source", metavar="FILE", default="", help="say this file instead of listening")
    parser.add_argument("--out", dest="target", metavar="FILE", default="", help="write what is heard into this WAV")
    parser.add_argument("--voice", metavar="NAME", help="the voice; see `voxlane voices`")
    parser.add_argument("--voice-language", metavar="NAME", help="what it speaks, as en")
    parser.add_argument("--voice-instructions", metavar="TEXT", help="how it speaks, for models that listen to it")
    parser.add_argument("--instructions", metavar="TEXT", help="how the assistant should behave")
    parser.add_argument("--greeting", metavar="TEXT", help="what it says first")
    parser.add_argument("--temperature", type=float, help="0: always the likeliest word (default: the model's own)")
    parser.add_argument("--seed", type=int, help="same seed, same answers")
    parser.add_argument("--eagerness", choices=("low", "medium", "high", "auto"), help="how soon it answers")
    return parser


def add_models(commands: Commands) -> argparse.ArgumentParser:
    """Add `voxlane models`; the catalogue defines its arguments."""
    return add_command(
        commands,
        "models",
        "list, recommend, pull, locate and remove models",
        "  voxlane models                        what there is by name, what it is for, and whether it is here\n"
        "  voxlane models recommend              what suits this machine, and how quick it would be\n"
        "  voxlane models pull kokoro-82m\n"
        "  voxlane models pull hf:Qwen/Qwen3-0.6B\n"
        "  voxlane models path kokoro-82m        where its files lie\n"
        "  voxlane models rm kokoro-82m",
    )


def add_doctor(commands: Commands) -> argparse.ArgumentParser:
    """Add `voxlane doctor`."""
    parser = add_command(
        commands,
        "doctor",
        "say what the engine would do on this machine, and check that it can",
        "  voxlane doctor\n"
        "  voxlane doctor --device cuda --model ./my-model.gguf\n"
        "  voxlane doctor --config voxlane.toml --json",
    )
    add_engine_file(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    add_options(parser, (*MODEL_OPTIONS, THREADS_OPTION, LISTENER_OPTION, SPEAKER_OPTION, SPEECH_OPTION))
    return parser


def add_perplexity(commands: Commands) -> argparse.ArgumentParser:
    """Add `voxlane perplexity`."""
    parser = add_command(
        commands,
        "perplexity",
        "measure how well a model predicts a text (lower is better)",
        "  voxlane perplexity book.txt\n  voxlane perplexity book.txt --context 256 --pages int8",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="UTF-8 text")
    add_engine_file(parser)
    window = Option("--context", "engine.context_tokens", "N", int, "tokens per window (default: 512)")
    add_options(parser, (window, *MODEL_OPTIONS, THREADS_OPTION))
    return parser


def add_check_config(commands: Commands) -> argparse.ArgumentParser:
    """Add `voxlane check-config`."""
    parser = add_command(
        commands,
        "check-config",
        "check a configuration and print every key with the value in force",
        "  voxlane check-config                          the defaults\n"
        "  voxlane check-config --keys                   and what each key is for, and takes\n"
        "  voxlane check-config --keys > voxlane.toml    a file to be edited; keys left out keep their defaults\n"
        "  voxlane check-config voxlane.toml             what differs from the defaults is marked\n"
        "  voxlane serve --config voxlane.toml           uses it\n\n"
        "sections of the file:\n"
        "  [server]  where it listens, how it goes down    [limits]  what HTTP clients may use\n"
        "  [engine]  models, device, memory, scheduling    [voice]   conversations\n"
        "  [chat]    another server that does the thinking in conversations\n"
        "  [weights] where models may be fetched from",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", type=Path, help="TOML file; without one: the defaults")
    parser.add_argument("--config", metavar="FILE", type=Path, help="the same, as the other commands take it")
    parser.add_argument("--keys", action="store_true", help="explain every key: what it is for, and what it takes")
    return parser
