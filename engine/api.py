"""The messages between server and engine: a closed set, msgpack arrays on a packet socket.

This is the only engine module the server's hot path imports. It knows no torch, no sockets and no scheduling: it says
what can be asked of an engine and what an engine can answer.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import msgpack

from voxlane.engine.wire import BadMessage as BadMessage
from voxlane.engine.wire import build, flatten

FRAGMENT_BYTES = 64 * 1024
"""Largest packet on the socket. A SEQPACKET message must fit the kernel's send buffer (208 KiB by default)."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest reassembled message: a long prompt with room to spare, far below anything that hurts."""

LISTEN_RATE = 16_000
"""Samples a second of the audio an engine hears."""

MAX_UNHEARD_S = 120.0
"""Audio a request may have appended beyond `Words.heard_s`; who sends more loses the request."""

MAX_UNSAID_CHARS = 200_000
"""Text a request may have appended that is not yet spoken; who sends more loses the request."""

CLIP_RATE = 24_000
"""Samples a second of the recordings that voices are made from."""

CLIP_SECONDS = (1.0, 30.0)
"""Shortest and longest of them: less is no voice, and more of it makes every prompt longer, not the voice better."""

CLIP_TEXT_CHARS = 1000
"""What can be said in the longest of them, and as much again."""

MAX_VOICES = 64
"""Voices made from recordings that have a name at one time: some 300 KB each, with half a minute's frames."""

MAX_PROFILE_BYTES = 64 * 1024
"""A voice as bytes: an embedding, half a minute of frames, and the tokens of what is said in it."""

Task = Literal["chat", "complete", "score", "probe", "asr", "tts", "voice"]
Policy = Literal["fcfs", "priority", "deadline"]
FinishReason = Literal["eos", "stop", "length", "cancelled", "failed"]
RefusalCode = Literal["too_long", "overloaded", "bad_request", "duplicate_id", "no_model"]


class Priority(IntEnum):
    """How a request ranks before its deadline is looked at. CRITICAL is the interrupt lane."""

    NORMAL = 0
    HIGH = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How one engine is set up. Zero or "auto" means: chosen from the model and the machine."""

    # Each of the three: a name from `voxlane models list`, a file or a directory; "" leaves that task out.
    model: str = "smollm2-135m-instruct"  # chat
    asr_model: str = "moonshine-tiny-en"  # listens
    tts_model: str = "hibari"  # speaks
    weights: Literal["auto", "packed", "float32", "bfloat16"] = "auto"  # packed: int4/int8 groups of 32
    pages: Literal["auto", "float32", "bfloat16", "int8"] = "auto"  # element type of the KV cache
    threads: int = 0  # compute threads; 0: every core this process may use
    context_tokens: int = 0  # longest prompt plus output; 0: the model's own limit
    kv_memory_mib: int = 512  # KV cache of the chat model on a CPU
    asr_memory_mib: int = 0  # KV cache of the listening model; 0: 128 on a CPU, up to 4096 on a GPU
    tts_memory_mib: int = 0  # KV cache of a speaking model that has one; 0: 512 on a CPU, up to 8192 on a GPU
    swap_memory_mib: int = 256  # host memory for swapped-out requests; 0 turns swapping off
    block_tokens: int = 0  # tokens in a KV block; 0: 16 on a CPU, 64 on a GPU
    max_batch: int = 0  # requests in one step; 0: 16 on a CPU, 256 on a GPU
    max_step_tokens: int = 0  # tokens in one step, prefill chunks included; 0: 512 on a CPU, 4096 on a GPU
    max_waiting: int = 256  # requests in the queue before new ones are refused
    policy: Policy = "deadline"
    # `deadline` fills a step up to this long: it bounds how long a critical request waits; 0: 60 on a CPU, 10 on a GPU
    step_budget_ms: float = 0.0
    prefix_cache: bool = True
    lookup_tokens: int = 0  # tokens guessed per step by prompt lookup; 0 turns it off
    trace: str = ""  # file for a Chrome/Perfetto trace; "" turns it off
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where the models run; "auto": on a GPU if there is one
    gpu_memory_share: float = 0.85  # of the GPU memory that is free once the weights are there, for the KV cache


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop. The defaults are greedy."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None  # None: the engine draws one per request
    stop: tuple[str, ...] = ()
    max_tokens: int = 256
    logprobs: int = -1  # -1: none; 0: the chosen token's; n: and the n most likely
    ignore_eos: bool = False  # for benchmarks and tests: run to max_tokens
    # A JSON schema, or "json" for any object: the output is JSON of it and ends when that is complete; only max_tokens
    # or a stop string can cut it. Log-probabilities are those among the tokens the schema allows.
    schema: str = ""

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the choice is simply the largest logit."""
        penalties = self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty
        return self.temperature == 0 and not self.logit_bias and not penalties


@dataclass(frozen=True, slots=True)
class ListenParams:
    """How a stream of audio is heard."""

    language: str = ""  # as in ISO 639-1; "": the model decides
    partials: bool = True  # say what was understood so far while audio still comes
    word_times: bool = False


@dataclass(frozen=True, slots=True)
class SpeakParams:
    """How a text is said."""

    voice: str = ""  # one of Ready.voices; "": the model's default
    speed: float = 1.0  # 0.5 to 2
    seed: int = 0  # of the breath in it, or of how it is said: same text, same seed, same samples
    # What only codec language models know what to do with; others speak English, and in their own manner.
    language: str = ""  # one of Ready.speak_languages; "": the model finds out
    instructions: str = ""  # how to say it, in plain words, for a model that takes them
    live: bool = False  # its text is still being made: say the first of it at once, be it less well


@dataclass(frozen=True, slots=True)
class CloneParams:
    """How a voice is made from a recording."""

    consent: bool = False  # whoever is heard in it has agreed that this is done
    language: str = ""  # what the voice speaks, by the checkpoint's names of languages; "": as the text has it


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call."""

    name: str  # letters, digits, "_", "-" and ".", at most 64
    description: str = ""
    parameters: str = ""  # a JSON schema of an object; "": it takes no arguments


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call the assistant made, as part of a conversation."""

    call_id: str
    name: str
    arguments: str  # a JSON object


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation as the chat template sees it."""

    role: str
    content: str
    tool_calls: tuple[ToolUse, ...] = ()  # role "assistant"
    call_id: str = ""  # role "tool": the call this is the result of


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that came out, its log-probability, and the likeliest alternatives as (bytes, log-probability).

    Bytes, because a token may hold half a character.
    """

    data: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestStats:
    """What one request cost. Times are seconds on the engine's clock."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int  # prompt tokens found in the prefix cache
    queue_s: float
    first_token_s: float
    per_token_s: float
    total_s: float
    preemptions: int
    lookup_proposed: int = 0
    lookup_accepted: int = 0
    logprob_sum: float = 0.0  # tasks "score" and "asr" only: the sum over scored_tokens
    scored_tokens: int = 0
    audio_s: float = 0.0  # heard or spoken


@dataclass(frozen=True, slots=True)
class Word:
    """A word that was heard, and when."""

    text: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of speech whose transcript is final."""

    text: str
    start_s: float
    end_s: float
    logprob: float  # mean over its tokens
    tokens: int
    no_speech: float  # how probable it is that nobody speaks in it
    language: str
    words: tuple[Word, ...] = ()  # if word times were asked for


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """The text's [start:end], characters counted over the whole request, sounds from one sample up to another."""

    start: int
    end: int
    start_sample: int
    end_sample: int


# ---- server to engine


@dataclass(frozen=True, slots=True)
class Configure:
    """The first message on the socket: what to load, and how much to log of it, by Python's numbers."""

    config: EngineConfig
    log_level: int = 20


@dataclass(frozen=True, slots=True)
class Submit:
    """Start a request.

    `chat` renders messages with the model's template; `complete` and `score` take text as it is. `probe` takes messages
    whose last is the user's and may not be finished, and asks whether it is. `asr` and `tts` take their input by
    Append, as much as there is and when there is some, until EndInput. `voice` takes a recording that way; `text` is
    what is said there, if the voice shall speak in that manner too, and VoiceMade is the answer.
    """

    request_id: str
    task: Task
    messages: tuple[ChatMessage, ...] = ()
    text: str = ""
    sampling: SamplingParams = SamplingParams()
    listen: ListenParams = ListenParams()
    speak: SpeakParams = SpeakParams()
    priority: Priority = Priority.NORMAL
    deadline_s: float | None = None  # seconds from arrival until the first token is due
    tenant: str = ""  # salts the prefix cache: tenants cannot see each other's timing
    session: str = ""  # what Interrupt names
    epoch: int = 0
    tools: tuple[Tool, ...] = ()  # tasks "chat" and "probe"
    tool_choice: str = "auto"  # or "none"; "required": one well-formed call and nothing else; a name: of that tool
    clone: CloneParams = CloneParams()  # task "voice"


@dataclass(frozen=True, slots=True)
class Append:
    """Give a running request more input. An unknown id is not an error: it may just have ended.

    `asr`: 16-bit little-endian samples at LISTEN_RATE, one channel. `voice`: the same at CLIP_RATE. `tts`: one clause;
    what it says is one unit of work, so the first of a reply should be short. A voice that reads words takes as little.
    """

    request_id: str
    audio: bytes = b""
    text: str = ""


@dataclass(frozen=True, slots=True)
class EndInput:
    """Say that a request's input is complete: what is left to hear or say is finished, then the request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Take a request out of the batch at the next step, its blocks kept."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Let a paused request go on with the token it would have produced."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request at the next step and free its blocks in that step. An unknown id is not an error."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Pause every request of a session that was submitted or resumed before this message."""

    session: str


@dataclass(frozen=True, slots=True)
class KeepVoice:
    """Let a voice that VoiceMade brought, of this engine or one like it, be known by a name from now on."""

    name: str
    profile: bytes


@dataclass(frozen=True, slots=True)
class ForgetVoice:
    """Let a name mean nobody. What is being said with the voice is said to its end; an unknown name is no error."""

    name: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Finish nothing more; close the trace and exit."""


# ---- engine to server


@dataclass(frozen=True, slots=True)
class Loading:
    """Start-up progress, for a person who waits: what is happening, and how far along (0 to 1)."""

    what: str
    done: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The models are loaded and warm. Without a chat model, its fields are empty and zero."""

    model: str
    architecture: str
    parameters: int
    context_tokens: int
    weights: str
    pages: str
    kv_blocks: int
    block_tokens: int
    page_bytes_per_token: int
    device: str
    asr_model: str = ""  # "": this engine does not listen
    asr_languages: tuple[str, ...] = ()
    tts_model: str = ""  # "": this engine does not speak
    speak_rate: int = 0  # samples a second of Samples.pcm
    voices: tuple[str, ...] = ()  # the default one first
    speak_languages: tuple[str, ...] = ()  # that can be asked for
    instructed: bool = False  # whether SpeakParams.instructions are followed
    one_pace: bool = False  # whether SpeakParams.speed must be 1
    reads_words: bool = False  # whether text should come as soon as a word is certain: clauses need not be whole
    clones: bool = False  # whether voices can be made from recordings


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The engine cannot start; `reason` is one line a person can act on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Started:
    """The request left the queue. One that has nothing to hear or to say ends without it."""

    request_id: str
    epoch: int
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Text:
    """More output: whole characters only."""

    request_id: str
    epoch: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Words:
    """More of a transcript. The whole of it so far is every `settled` joined as they are, then `tail`."""

    request_id: str
    epoch: int
    settled: str  # new; it will never change
    tail: str  # may change: it replaces the tail before
    heard_s: float  # audio up to here has been dealt with, speech or not
    segments: tuple[Segment, ...] = ()  # just completed; their text is all settled


@dataclass(frozen=True, slots=True)
class Samples:
    """More speech: a clause, or a few frames. Offsets count from the start of the reply and leave no gap."""

    request_id: str
    epoch: int
    offset: int
    pcm: bytes  # 16-bit little-endian, one channel, at Ready.speak_rate
    words: tuple[SpokenWord, ...]  # those that end with it, in order; the first may begin in samples before


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model calls a declared tool. What it wrote to do so is not sent as Text."""

    request_id: str
    epoch: int
    call_id: str  # unique, and the same again if the same request is run again
    name: str
    arguments: str  # a JSON object


@dataclass(frozen=True, slots=True)
class Probability:
    """The answer to a probe: how likely it is, from 0 to 1, that the user's turn ends here. From 0.5 on it does."""

    request_id: str
    epoch: int
    value: float


@dataclass(frozen=True, slots=True)
class VoiceMade:
    """The voice in a recording, to be kept as it is: the engine keeps it only under a name."""

    request_id: str
    epoch: int
    profile: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """The request's last message, unless it was refused."""

    request_id: str
    epoch: int
    reason: FinishReason
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class Refused:
    """The request never ran. `detail` is fit for the person who sent it: it holds numbers and names, no content."""

    request_id: str
    epoch: int
    code: RefusalCode
    detail: str


@dataclass(frozen=True, slots=True)
class StepStats:
    """What the engine has been doing, sent about once a second while it works and once when it falls idle."""

    steps: int  # since the last StepStats, as is everything that adds up
    rows: int  # requests in those steps, so rows / steps is the mean batch
    prefill_tokens: int
    decode_tokens: int
    busy_s: float
    longest_step_s: float
    schedule_s: float  # phases of busy_s: planning,
    move_s: float  # block copies and swaps,
    forward_s: float  # the model,
    sample_s: float  # logits and choices
    lookup_proposed: int
    lookup_accepted: int
    running: int
    waiting: int
    paused: int
    blocks_free: int
    blocks_cached: int
    blocks_used: int
    preemptions: int
    lane_wait_s: float  # longest wait of a critical request for its first step


ToEngine = (
    Configure | Submit | Append | EndInput | Pause | Resume | Cancel | Interrupt | KeepVoice | ForgetVoice | Shutdown
)
FromEngine = (
    Loading
    | Ready
    | StartFailed
    | Started
    | Text
    | Words
    | Samples
    | ToolCall
    | Probability
    | VoiceMade
    | Finished
    | Refused
    | StepStats
)
Message = ToEngine | FromEngine

# The position in this tuple is the code on the wire; server and engine always run the same version.
_TYPES: tuple[type[Any], ...] = (*typing.get_args(ToEngine), *typing.get_args(FromEngine))
_CODES = {cls: code for code, cls in enumerate(_TYPES)}


BUNDLE = 64
"""Most messages that travel in one packet."""


def encode(message: Message) -> bytes:
    """Return the message as one msgpack array: its code, then its fields in order."""
    packed: bytes = msgpack.packb((_CODES[type(message)], *flatten(message)), default=flatten)
    return packed


def decode(data: bytes) -> Message:
    """Return the message in `data`, or raise BadMessage."""
    try:
        parts = msgpack.unpackb(data, use_list=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadMessage(f"not msgpack: {error}") from error
    return _message(parts)


def _message(parts: Any) -> Message:
    if not isinstance(parts, tuple) or not parts or not isinstance(parts[0], int) or not 0 <= parts[0] < len(_TYPES):
        raise BadMessage("not a message of this set")
    message: Message = build(_TYPES[parts[0]], parts[1:])
    return message


def bundle(messages: Iterable[Message]) -> list[bytes]:
    """Return packets with messages in their order; pieces of text, which a step brings by the hundred, share theirs."""
    packets: list[bytes] = []
    for is_text, group in itertools.groupby(messages, key=lambda message: type(message) is Text):
        several = list(group)
        for start in range(0, len(several), BUNDLE if is_text else 1):
            packets += _share(several[start : start + BUNDLE] if is_text else [several[start]])
    return packets


def _share(messages: Sequence[Message]) -> list[bytes]:
    if len(messages) > 1:
        parts = [(_CODES[type(message)], *flatten(message)) for message in messages]
        data: bytes = msgpack.packb(parts, default=flatten)
        if len(data) < FRAGMENT_BYTES:
            return [_SEVERAL + data]
    return [packet for message in messages for packet in fragments(encode(message))]


_SEVERAL = b"\x02"


def fragments(data: bytes) -> list[bytes]:
    """Cut an encoded message into packets: one byte that says whether more follow, then the piece."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise BadMessage(f"message of {len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
    size = FRAGMENT_BYTES - 1
    if len(data) <= size:  # nearly all of them
        return [b"\x00" + data]
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return [(b"\x01" if index + 1 < len(pieces) else b"\x00") + piece for index, piece in enumerate(pieces)]


class Assembler:
    """Joins packets back into messages."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def messages(self, packet: bytes) -> Sequence[Message]:
        """Take one packet; return the messages that are in it, or the one it completes, or none yet."""
        if self._pieces or not packet.startswith(_SEVERAL):
            message = self.feed(packet)
            return () if message is None else (message,)
        try:
            several = msgpack.unpackb(memoryview(packet)[1:], use_list=False)
        except (ValueError, msgpack.UnpackException) as error:
            raise BadMessage(f"not msgpack: {error}") from error
        if not isinstance(several, tuple):
            raise BadMessage("not a list of messages")
        return [_message(parts) for parts in several]

    def feed(self, packet: bytes) -> Message | None:
        """Take one packet of one message; return the message it completes, or None while more is to come."""
        if len(packet) < 2 or packet[0] > 1:
            raise BadMessage("not a packet of this protocol")
        self._pieces.append(packet[1:])
        self._size += len(packet) - 1
        if self._size > MAX_MESSAGE_BYTES:
            raise BadMessage(f"message over the limit of {MAX_MESSAGE_BYTES} bytes")
        if packet[0]:
            return None
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return decode(data)
