"""Everything that reads bytes from strangers, as functions of bytes that raise documented errors only.

A target that reads a stream of messages takes them from one input, with SPLIT between two.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import h11
import msgpack

from voxlane.codecs import opus_packets, wav
from voxlane.codecs.errors import AudioError
from voxlane.codecs.limits import AudioLimits
from voxlane.engine.errors import WeightsError
from voxlane.engine.weights import gguf_header, safetensors
from voxlane.server import limits
from voxlane.server.api import form
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.errors import VoxlaneError
from voxlane.server.http import body, framing
from voxlane.server.protocols import native
from voxlane.server.protocols.dialect import AudioFormat, BadMessage, Capabilities, Handshake, Hello
from voxlane.server.protocols.openai_realtime import protocol as realtime
from voxlane.server.protocols.phone import systems
from voxlane_lab import scenario
from voxlane_lab.errors import LabError

TESTS = Path(__file__).parents[2]
SPLIT = b"\x1e"
MOST_MESSAGES = 8
CAPABILITIES = Capabilities("voxlane", "smol", "moonshine", "hibari", ("en",), ("one",), ("pcm16", "opus"))
OPENED = realtime.opening(Handshake({}, None, CAPABILITIES), SessionConfig())
HELLOS = (Hello(), Hello(input=AudioFormat("opus", 48_000)), Hello(input=AudioFormat("mulaw", 8_000)))
SMALL = AudioLimits(seconds=10, decoded_bytes=1 << 20)


@dataclass(frozen=True, slots=True)
class Target:
    """One parser."""

    run: Callable[[bytes], object]
    documented: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...]  # pieces that mutations insert
    files: tuple[str, ...]  # the files whose coverage counts

    def try_one(self, data: bytes) -> None:
        """Parse an input; an undocumented exception comes out."""
        with suppress(*self.documented):
            self.run(data)


def _lines() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lines", TESTS / "server" / "protocols" / "phone" / "lines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lines"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


LINES: dict[str, Any] = _lines().LINES


# ---- parsers


def _native(data: bytes) -> None:
    codec = native.Native(HELLOS[len(data) % len(HELLOS)], 24_000)
    for message in data.split(SPLIT)[:MOST_MESSAGES]:
        try:
            codec = native.Native(native.read_hello(message, SessionConfig()), 24_000)
        except BadMessage:
            codec.decode(message)


def _realtime(data: bytes) -> None:
    codec = realtime.OpenAIRealtime(OPENED, 24_000)
    for message in data.split(SPLIT)[:MOST_MESSAGES]:
        list(codec.decode(message.decode("utf-8", "replace")))


def _message(data: bytes) -> bytes | str:
    return data[1:] if data[:1] == b"\0" else data.decode("utf-8", "replace")


def _phone(make: Callable[[], Any], data: bytes) -> None:
    codec = make()
    for message in data.split(SPLIT)[:MOST_MESSAGES]:
        list(codec.read(_message(message)))


def _audiosocket(make: Callable[[], Any], data: bytes) -> None:
    codec = make()
    for message in data.split(SPLIT)[:MOST_MESSAGES]:
        list(codec.read(message))


def _recognise(data: bytes) -> None:
    systems.recognise([_message(message) for message in data.split(SPLIT)[:2]], ())


def _head(data: bytes) -> None:
    parser = framing.StrictConnection(limits.HEAD_BYTES)
    for piece in data.split(SPLIT)[:MOST_MESSAGES]:
        parser.receive_data(piece)
        while (event := parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.ConnectionClosed):
                return
            if isinstance(event, h11.Request):
                framing.is_ascii(event)


def _form(data: bytes) -> None:
    kind, _, rest = data.partition(b"\n")
    reader = form.FormReader(form.boundary_of(kind.decode("latin-1")), "file")
    for piece in rest.split(SPLIT)[:MOST_MESSAGES]:
        reader.feed(piece)
    reader.finish()


def _wav(data: bytes) -> None:
    wav.is_wav(data)
    wav.decode_wav(data, SMALL)


def _gguf(data: bytes) -> None:
    gguf_header.read_header(Path("x.gguf"), cast(Any, data))


_FOLDER = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
_FILE = Path(_FOLDER.name) / "x.safetensors"


def _safetensors(data: bytes) -> None:
    _FILE.write_bytes(data)
    safetensors._read_header(_FILE)


def _scenario(data: bytes) -> None:
    scenario.read_scenario(data.decode("utf-8", "replace"), name="x")


# ---- seeds


def _packed(*messages: tuple[object, ...]) -> tuple[bytes, ...]:
    return tuple(map(msgpack.packb, messages))


NATIVE_SEEDS = _packed(
    ("hello", {"input": {"codec": "pcm16", "rate": 16000}, "output": {"codec": "mulaw", "rate": 8000}}),
    ("hello", {"config": {"speed": 1.5, "voice": "one"}}),
    ("hello", {"input": [{"codec": "opus", "rate": 48000}], "key": "k", "resume": "r", "last_seq": 3}),
    ("hello", {"played": [1, 2], "config": {"turns": {"mode": "manual"}, "barge_in": {"hold": "duck"}, "tools": []}}),
    ("audio", bytes(64)), ("audio", b"\x78\x00\x01"), ("text", "hello"), ("ping", 3), ("bye",),
    ("played", 1, 480, 0), ("config", {"temperature": 0.5, "voice": "one", "tools": [{"name": "f"}]}),
    ("start",), ("end",), ("stop",), ("respond",), ("tool_result", "c", "42"),
)  # fmt: skip

B64 = base64.b64encode(bytes(32)).decode()
REALTIME_SEEDS = tuple(
    json.dumps(event).encode()
    for event in (
        {"type": "session.update", "session": {"type": "realtime", "instructions": "Sing.", "tool_choice": "auto"}},
        {"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}},
        {"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}},
        {"type": "session.update", "session": {"tools": [{"type": "function", "name": "f", "parameters": {}}]}},
        {"type": "input_audio_buffer.append", "audio": B64},
        {"type": "input_audio_buffer.commit"},
        {"type": "input_audio_buffer.clear", "event_id": "e"},
        {
            "type": "conversation.item.create",
            "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        },
        {
            "type": "conversation.item.create",
            "item": {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": B64}]},
        },
        {"type": "conversation.item.create", "item": {"type": "function_call_output", "call_id": "c", "output": "4"}},
        {"type": "conversation.item.truncate", "item_id": "a", "content_index": 0, "audio_end_ms": 300},
        {"type": "conversation.item.delete", "item_id": "a"},
        {"type": "response.create", "response": {"output_modalities": ["text"], "metadata": {"a": "b"}}},
        {"type": "response.create", "response": {"conversation": "none", "input": []}},
        {"type": "response.cancel"},
        {"type": "output_audio_buffer.clear"},
    )
)


def _as_input(message: bytes | str) -> bytes:
    return b"\0" + message if isinstance(message, bytes) else message.encode()


def _phone_seeds(line: Any, encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    opening = [encode(message) for message in line.opening]
    yield SPLIT.join(opening)
    yield SPLIT.join([*opening, encode(line.media(bytes(32), 1)), encode(line.media(bytes(32), 2))])
    if line.foreign is not None:
        yield SPLIT.join([*opening, encode(line.foreign)])


HEAD_SEEDS = (
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /v1/x?a=b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\nTrailer: 1\r\n\r\n",
    b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
    b"GET /v1/voice HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX: \xff\r\n\r\n",
)
FORM_SEEDS = (
    b'multipart/form-data; boundary=b\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nw\r\n--b--\r\n',
    b'multipart/form-data; boundary="b"\n--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\nRIFF\x1e\r\n--b\r\nContent-Disposition: form-data; name=x\r\n\r\n\xff"
    b"\r\n--b--\r\n",
)
JSON_SEEDS = (b'{"a": [1, -2.5e3, true, null, "\\u00e9\\ud83d\\ude00"]}', b"[[[[]]]]", b"1e400", b"NaN", b'"\\ud800"')
WAV_SEEDS = (
    wav.encode_wav([0.0, 0.5, -0.5, 1.0], 16_000),
    wav.wav_stream_header(8_000) + bytes(20),
    b"RIFF" + struct.pack("<I4s4sIHHIIHH4sI", 48, b"WAVE", b"fmt ", 16, 3, 2, 48_000, 384_000, 8, 32, b"data", 16)
    + bytes(16),
    b"RIFF" + struct.pack("<I4s4sI", 99, b"WAVE", b"LIST", 4) + b"abcd"
    + struct.pack("<4sIHHIIHH4sI", b"fmt ", 16, 1, 1, 8_000, 8_000, 1, 8, b"data", 8) + bytes(8),
    b"RIFF" + struct.pack("<I4s4sIHHIIHHHHI", 99, b"WAVE", b"fmt ", 40, 0xFFFE, 1, 8_000, 16_000, 2, 16, 22, 16, 4)
    + b"\x01\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71" + struct.pack("<4sI", b"data", 4) + bytes(4),
)  # fmt: skip


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


_TENSOR = _text(b"t") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
GGUF_SEEDS = (
    b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
    b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + _text(b"a") + struct.pack("<II", 4, 7) + _TENSOR + bytes(96),
    b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + _text(b"a") + struct.pack("<I", 8) + _text(b"llama")
    + _text(b"b") + struct.pack("<IIQ", 9, 8, 2) + _text(b"x") + _text(b"y"),
    b"GGUF" + struct.pack("<IQQ", 2, 0, 3) + _text(b"general.alignment") + struct.pack("<II", 4, 32)
    + _text(b"c") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3) + _text(b"d") + struct.pack("<IB", 7, 1),
    b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + _text(b"a") + b"\t\0\0\0" + struct.pack("<IQ", 9, 1) * 3,
)  # fmt: skip


def _tensors(header: dict[str, object], data: bytes = bytes(32)) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


SAFETENSORS_SEEDS = (
    _tensors({"a": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}}),
    _tensors({"__metadata__": {"x": "y"}, "a": {"dtype": "I8", "shape": [], "data_offsets": [0, 1]}}),
    _tensors(
        {
            "a": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]},
            "b": {"dtype": "U8", "shape": [16], "data_offsets": [16, 32]},
        }
    ),
)
SCENARIO_SEEDS = tuple(
    path.read_bytes() for path in sorted((Path(scenario.__file__).parent / "scenarios").glob("*.toml"))[::8]
)
OPUS_SEEDS = (
    b"\x78\0\1",
    b"\x79\0\1",
    b"\x7a\x01\0\1",
    b"\x7b\x03" + bytes(9),
    b"\x7b\xc2\x01\x01\0\0\0",
    b"\x7b\x42\x02\0\0\0\0",
)

JSON_WORDS = (
    b"null",
    b"true",
    b"-1",
    b"1e400",
    b"NaN",
    b'"',
    b"{",
    b"[",
    b"\\ud800",
    b'"type":',
    b"9" * 30,
    b"\xff",
    SPLIT,
)
BINARY_WORDS = (b"\xff" * 8, b"\0" * 8, b"\x7f\xff\xff\xff", b"\x80", b"\xdd\xff\xff\xff\xff", SPLIT)
HTTP_WORDS = (
    b"\r\n",
    b"\r\n\r\n",
    b": ",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 9\r\n",
    b"0\r\n\r\n",
    b"\xff",
    SPLIT,
)


def _file(module: ModuleType) -> str:
    return str(Path(cast(str, module.__file__)).resolve())


def _room(module: ModuleType) -> tuple[str, ...]:
    return tuple(map(str, sorted(Path(_file(module)).parent.glob("*.py"))))


def _phone_files(name: str) -> tuple[str, ...]:
    folder = Path(_file(systems)).parent
    return tuple(str(folder / f"{part}.py") for part in (name, "reading", "json_stream"))


WEIGHTS = (WeightsError,)
TARGETS: dict[str, Target] = {
    "native": Target(_native, (BadMessage,), NATIVE_SEEDS, BINARY_WORDS, (_file(native),)),
    "realtime": Target(_realtime, (BadMessage,), REALTIME_SEEDS, JSON_WORDS, _room(realtime)),
    "recognise": Target(
        _recognise,
        (BadMessage,),
        tuple(SPLIT.join(map(_as_input, line.opening[:2])) for line in LINES.values()),
        JSON_WORDS,
        (_file(systems),),
    ),
    **{
        f"phone-{name}": Target(
            partial(_audiosocket if name == "audiosocket" else _phone, line.make),
            (BadMessage,),
            tuple(_phone_seeds(line, bytes if name == "audiosocket" else _as_input)),
            BINARY_WORDS if name == "audiosocket" else JSON_WORDS,
            _phone_files(name),
        )
        for name, line in LINES.items()
    },
    "http-head": Target(_head, (h11.RemoteProtocolError,), HEAD_SEEDS, HTTP_WORDS, (_file(framing),)),
    "form": Target(_form, (VoxlaneError,), FORM_SEEDS, HTTP_WORDS, (_file(form),)),
    "json-body": Target(body.parse_json, (VoxlaneError,), JSON_SEEDS, JSON_WORDS, (_file(body),)),
    "wav": Target(_wav, (AudioError,), WAV_SEEDS, BINARY_WORDS, (_file(wav),)),
    "opus-packet": Target(opus_packets.packet_samples, (AudioError,), OPUS_SEEDS, BINARY_WORDS, (_file(opus_packets),)),
    "gguf": Target(_gguf, WEIGHTS, GGUF_SEEDS, BINARY_WORDS, (_file(gguf_header),)),
    "safetensors": Target(_safetensors, WEIGHTS, SAFETENSORS_SEEDS, JSON_WORDS, (_file(safetensors),)),
    "scenario": Target(_scenario, (LabError,), SCENARIO_SEEDS, JSON_WORDS, (_file(scenario),)),
}
