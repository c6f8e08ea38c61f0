"""The values in messages: limits, parameters, statistics and transcripts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

LISTEN_RATE = 16_000
"""Samples a second of the audio to transcribe."""

MAX_UNHEARD_S = 120.0
"""Seconds of audio that a request may be ahead of `Words.heard_s`; a request with more is ended."""

MAX_UNSAID_CHARS = 200_000
"""Characters that a request may have waiting to be spoken; a request with more is ended."""

CLIP_RATE = 24_000
"""Samples a second of the recordings that voices are made from."""

CLIP_SECONDS = (1.0, 30.0)
"""Shortest and longest recording: less shows no voice, and more lengthens every prompt without a better voice."""

CLIP_TEXT_CHARS = 1000
"""Characters of a recording's text: twice of what fits into the longest recording."""

MAX_VOICES = 64
"""Named voices from recordings at one time: about 300 KB each, with half a minute of frames."""

MAX_PROFILE_BYTES = 64 * 1024
"""Bytes of a voice: an embedding, half a minute of frames, and the tokens of their text."""

AUTO_MODEL = "auto"
"""As EngineConfig.model or asr_model: the engine chooses a model by the machine's speed and memory."""

AUTO_ADAPTER = "auto"
"""As EngineConfig.adapter: the adapter that comes with voxlane for the chat model, if there is one."""

Task = Literal["chat", "complete", "score", "probe", "asr", "tts", "voice", "converse"]
Policy = Literal["fcfs", "priority", "deadline"]
FinishReason = Literal["eos", "stop", "length", "cancelled", "failed"]
RefusalCode = Literal["too_long", "overloaded", "bad_request", "duplicate_id", "no_model"]


class Priority(IntEnum):
    """The rank of a request; deadlines decide within a rank. CRITICAL is the interrupt lane."""

    NORMAL = 0
    HIGH = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The configuration of an engine. Zero or "auto" is chosen from the model and the machine."""

    model: Annotated[
        str,
        Meta(
            description="The model that chats: a name from `voxlane models list`, a file or a directory;"
            ' "auto" chooses by the speed and memory of this machine, "" is none.'
        ),
    ] = AUTO_MODEL
    asr_model: Annotated[
        str,
        Meta(
            description="The model that listens, named in the same way;"
            ' "auto" chooses by the speed of this machine, "" is none.'
        ),
    ] = AUTO_MODEL
    tts_model: Annotated[str, Meta(description='The model that speaks, named in the same way; "" for none.')] = "hibari"
    speech_model: Annotated[
        str,
        Meta(
            description="A model that answers speech with speech, without a chat model and a voice in between: an"
            ' LFM2-Audio, named in the same way; "" is none. The listening model writes the captions.'
        ),
    ] = ""
    adapter: Annotated[
        str,
        Meta(
            description="A LoRA adapter (PEFT) merged into the chat model: a directory or an hf: name;"
            ' "auto" is ours, if there is one for the model, "" is none.'
        ),
    ] = AUTO_ADAPTER
    weights: Annotated[
        Literal["auto", "packed", "float32", "bfloat16"],
        Meta(description="How weights are kept; packed means groups of 32 in 4 or 8 bits."),
    ] = "auto"
    pages: Annotated[
        Literal["auto", "float32", "bfloat16", "int8"],
        Meta(description="The element type of the KV cache; int8 takes half of bfloat16's memory."),
    ] = "auto"
    threads: Annotated[
        int, Meta(ge=0, le=1024, description="Compute threads; 0 takes every core this process may use.")
    ] = 0
    context_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 24,
            description="The longest prompt and output together, in tokens; 0 takes the model's own limit.",
        ),
    ] = 0
    kv_memory_mib: Annotated[
        int, Meta(ge=1, le=1 << 22, description="MiB of memory for the chat model's KV cache on a CPU.")
    ] = 512
    asr_memory_mib: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 22,
            description="MiB of memory for the listening model's KV cache; 0 takes 128 on a CPU, up to 4096 on a GPU.",
        ),
    ] = 0
    tts_memory_mib: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 22,
            description="MiB of memory for the speaking model's KV cache, if it has one; 0 takes 512 on a CPU, up to"
            " 8192 on a GPU.",
        ),
    ] = 0
    speech_memory_mib: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 22,
            description="MiB of memory for the KV cache of engine.speech_model; 0 takes 512 on a CPU, up to 8192 on a"
            " GPU.",
        ),
    ] = 0
    swap_memory_mib: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 22,
            description="MiB of host memory for requests that had to make room; 0 computes them again instead.",
        ),
    ] = 256
    block_tokens: Annotated[
        int, Meta(ge=0, le=1024, description="Tokens in one block of the KV cache; 0 takes 16 on a CPU, 64 on a GPU.")
    ] = 0
    max_batch: Annotated[
        int, Meta(ge=0, le=4096, description="The most requests in one step; 0 takes 16 on a CPU, 256 on a GPU.")
    ] = 0
    max_step_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 20,
            description="The most tokens in one step, prefill chunks included; 0 takes 512 on a CPU, 4096 on a GPU.",
        ),
    ] = 0
    max_waiting: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Requests in the queue before new ones are refused with 429.")
    ] = 256
    policy: Annotated[
        Policy, Meta(description="The order of requests: by arrival (fcfs), by priority, or by deadline.")
    ] = "deadline"
    step_budget_ms: Annotated[
        float,
        Meta(
            ge=0,
            le=60_000,
            description="The length of a step under policy deadline, in ms: a critical request waits that long;"
            " 0 takes 60 on a CPU, 10 on a GPU.",
        ),
    ] = 0.0
    first_word_ms: Annotated[
        float,
        Meta(
            ge=0,
            le=60_000,
            description="How soon after a person's last sound an answer's first word is to be heard, in ms: on a CPU"
            ' model = "auto" takes the largest model that is quick enough for that.',
        ),
    ] = 700.0
    prefix_cache: Annotated[bool, Meta(description="Keep computed prompts for requests whose prompts begin alike.")] = (
        True
    )
    lookup_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Tokens guessed from the prompt in each step: quicker where it is quoted; 0 guesses none.",
        ),
    ] = 0
    trace: Annotated[
        str, Meta(description='A file for a Chrome/Perfetto trace of the engine\'s steps; "" writes none.')
    ] = ""
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Meta(description="Where the models run; auto takes a GPU if there is one.")
    ] = "auto"
    gpu_memory_share: Annotated[
        float,
        Meta(
            ge=0.05,
            le=0.98,
            description="The share of GPU memory the weights leave free that the chat model's KV cache takes.",
        ),
    ] = 0.85
    gpu_engines: Annotated[
        int,
        Meta(
            ge=1,
            le=16,
            description="Engines on this GPU, each with an equal part of its memory; `server.gpus` sets it when it"
            " names a GPU several times.",
        ),
    ] = 1
    standby: Annotated[
        bool,
        Meta(
            description="Keep the loaded models in a second process on a CPU, from which a lost engine is replaced at"
            " once; both share the memory of the weights."
        ),
    ] = True
    hang_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Seconds without progress after which the engine is taken to hang and is replaced; 0 waits"
            " five minutes.",
        ),
    ] = 2.0
    start_failures: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Restarts in a row, within engine.start_failures_s, at which the engine cannot load: then the"
            " server ends with exit code 69; 0 tries for ever.",
        ),
    ] = 5
    start_failures_s: Annotated[
        float, Meta(ge=1, le=86400, description="Seconds within which these failures count.")
    ] = 600.0
    # Fetch models from mirrors where their publisher cannot be reached; the key is weights.mirrors.
    mirrors: bool = True


class Value(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A part of a message: an array of its fields in order. Values hold only values, so they can form no cycle."""


class SamplingParams(Value, frozen=True):
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
    # A JSON schema, or "json" for any object. The output follows it and ends when it is complete; only max_tokens or a
    # stop string can cut it. Log-probabilities are over the tokens that the schema allows.
    schema: str = ""
    # End an output that repeats itself for so many tokens, and cut its repeats; 0: never. An output with a schema, a
    # required tool call or ignore_eos is not ended.
    loop_tokens: int = 0
    # Names among MODEL_DECIDES that the request leaves open: the engine takes the model's own values.
    unset: tuple[str, ...] = ()

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the choice is simply the largest logit."""
        penalties = self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty
        return self.temperature == 0 and not self.logit_bias and not penalties


MODEL_DECIDES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""The sampling parameters that a request may leave to the model."""


def sampling_of(
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
) -> SamplingParams:
    """Return sampling parameters; each that is None is left to the model."""
    values = dict(zip(MODEL_DECIDES, (temperature, top_k, top_p, min_p, repetition_penalty), strict=True))
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    return SamplingParams(**given, unset=tuple(name for name in values if name not in given))


class SamplingDefaults(Value, frozen=True):
    """The values for parameters that a chat request leaves to the model."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    source: str = ""  # where they were found; "": only the model's size was known


class ConverseModel(Value, frozen=True):
    """The model that answers speech with speech."""

    name: str = ""  # "": this engine has none
    context_tokens: int = 0  # positions of a conversation: tokens, frames, and rows of what a person said
    rows_s: float = 0.0  # rows that a second of what a person said becomes
    frame_samples: int = 0  # of a piece of sound

    @property
    def heard_s(self) -> float:
        """Seconds of sound that it hears at once: they fill at most half of its context."""
        return min(MAX_UNHEARD_S, self.context_tokens / 2 / self.rows_s) if self.rows_s else 0.0


class ListenParams(Value, frozen=True):
    """How a stream of audio is transcribed."""

    language: str = ""  # as in ISO 639-1; "": the model decides
    partials: bool = True  # send the transcript so far while audio still comes
    word_times: bool = False
    hot_words: tuple[str, ...] = ()  # names and rare words to expect, the most important first; Whisper only
    translate: bool = False  # write in English what is said in another language, if Ready.asr_translates


class SpeakParams(Value, frozen=True):
    """How a text is spoken."""

    voice: str = ""  # one of Ready.voices; "": the model's default
    speed: float = 1.0  # 0.5 to 2
    seed: int = 0  # the same text and seed give the same samples
    language: str = ""  # one of Ready.speak_languages; "": the model decides. Codec language models only
    instructions: str = ""  # how to speak, in plain words. Codec language models only
    live: bool = False  # the text is still being written: speak its beginning at once. Codec language models only
    pronunciations: tuple[str, ...] = ()  # how names are said, as api/pronunciations.py reads them


class CloneParams(Value, frozen=True):
    """How a voice is made from a recording."""

    consent: bool = False  # the person in the recording has agreed
    language: str = ""  # the voice's language, by the checkpoint's name; "": that of the text


class Tool(Value, frozen=True):
    """A function the model may call."""

    name: str  # letters, digits, "_", "-" and ".", at most 64
    description: str = ""
    parameters: str = ""  # a JSON schema of an object; "": it takes no arguments


class ToolUse(Value, frozen=True):
    """A call the assistant made, as part of a conversation."""

    call_id: str
    name: str
    arguments: str  # a JSON object


class ChatMessage(Value, frozen=True):
    """One message of a conversation for the chat template."""

    role: str
    content: str
    tool_calls: tuple[ToolUse, ...] = ()  # role "assistant"
    call_id: str = ""  # role "tool": the call that this message answers
    sound: bytes = b""  # role "user", task "converse": what was said instead of `content`, 16-bit at LISTEN_RATE
    pieces: tuple[tuple[int, ...], ...] = ()  # role "assistant", task "converse": as Pieces told them


class TokenLogprob(Value, frozen=True):
    """A token of the output, its log-probability, and the likeliest alternatives as (bytes, log-probability).

    Bytes, because a token may hold half a character.
    """

    data: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


class RequestStats(Value, frozen=True):
    """The cost of one request. Times are seconds on the engine's clock."""

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
    audio_s: float = 0.0  # seconds transcribed or spoken


class Word(Value, frozen=True):
    """A word of a transcript with its times."""

    text: str
    start_s: float
    end_s: float


class Segment(Value, frozen=True):
    """A stretch of speech whose transcript is final."""

    text: str
    start_s: float
    end_s: float
    logprob: float  # mean over its tokens
    tokens: int
    no_speech: float  # the probability that it holds no speech
    language: str
    words: tuple[Word, ...] = ()  # if word times were asked for


class SpokenWord(Value, frozen=True):
    """The samples of a word: text[start:end] of the whole request sounds from start_sample to end_sample."""

    start: int
    end: int
    start_sample: int
    end_sample: int
