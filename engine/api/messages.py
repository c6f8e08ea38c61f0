"""The messages between server and engine: a closed set. codec.py turns them into bytes and back."""

from __future__ import annotations

from voxlane.engine.api.values import (
    ChatMessage,
    CloneParams,
    ConverseModel,
    EngineConfig,
    FinishReason,
    ListenParams,
    Priority,
    RefusalCode,
    RequestStats,
    SamplingDefaults,
    SamplingParams,
    Segment,
    SpeakParams,
    SpokenWord,
    Task,
    TokenLogprob,
    Tool,
    Value,
)


class _Message(Value, frozen=True, tag=True):
    """A value that travels alone: its class name comes before its fields."""


# ---- server to engine


class Configure(_Message, frozen=True):
    """The first message on the socket: the configuration, and the log level as a number of Python's logging."""

    config: EngineConfig
    log_level: int = 20


class Submit(_Message, frozen=True):
    """Start a request.

    `chat` renders messages with the model's template; `complete` and `score` take text as it is. `probe` takes messages
    whose last is the user's and may be unfinished, and asks whether it is finished. `asr` and `tts` take their input in
    any number of Appends until EndInput; without a model that speaks, `tts` is done by the one that answers speech with
    speech. `converse` takes messages and then what a person says, in the same way as
    `asr`, and answers in text and sound. `voice` takes a recording in the same way and answers with VoiceMade; `text`
    holds the words of the recording, if the voice should imitate its manner too.
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
    session: str = ""  # commands about requests of one session keep their order
    epoch: int = 0
    tools: tuple[Tool, ...] = ()  # tasks "chat" and "probe"
    tool_choice: str = "auto"  # or "none"; "required": one well-formed call and nothing else; a name: of that tool
    clone: CloneParams = CloneParams()  # task "voice"
    by_speech_model: bool = False  # tasks "asr" and "tts": even if there is another model for it


class Append(_Message, frozen=True):
    """Give a running request more input. An unknown id is not an error: it may just have ended.

    `asr`: 16-bit little-endian samples at LISTEN_RATE, one channel. `voice`: the same at CLIP_RATE. `tts`: one clause,
    which is one unit of work, so the first clause of a reply should be short; Ready.reads_words allows single words.
    `goes_on`: the next text is of the same clause, so that its first words can be said before it is whole.
    """

    request_id: str
    audio: bytes = b""
    text: str = ""
    goes_on: bool = False


class EndInput(_Message, frozen=True):
    """End a request's input. The request ends when all of its input is transcribed or spoken."""

    request_id: str


class Pause(_Message, frozen=True):
    """Take requests out of the batch at the next step; they keep their blocks. An unknown id is not an error.

    The engine applies it before any other command that waits, except earlier commands about these requests or their
    sessions. A request that is submitted later under one of these ids is not paused.
    """

    request_ids: tuple[str, ...]


class Resume(_Message, frozen=True):
    """Let a paused request continue with the token that it would have produced."""

    request_id: str


class Cancel(_Message, frozen=True):
    """End a request at the next step and free its blocks in that step. An unknown id is not an error."""

    request_id: str


class Rewind(_Message, frozen=True):
    """Speak a reply again from a sample on, whether it runs, is paused or waits for text. The answer is Rewound.

    A voice of codec frames goes back to the frame that holds the sample, a voice of clauses to the sample itself. The
    appended text stays; with the same seed it sounds the same. A sample that was not sent yet changes nothing, and
    neither does the id of a request that has ended: the server keeps the sound of those.
    """

    request_id: str
    sample: int


class KeepVoice(_Message, frozen=True):
    """Give a voice that VoiceMade returned, from this engine or one like it, a name."""

    name: str
    profile: bytes


class ForgetVoice(_Message, frozen=True):
    """Remove the name of a voice. Running requests keep the voice; an unknown name is not an error."""

    name: str


class Attach(_Message, frozen=True):
    """Serve another server process: the packet after this one is ATTACHED, with the descriptor of its link."""


class Ping(_Message, frozen=True):
    """Answer with Pong as soon as commands are read."""


class Shutdown(_Message, frozen=True):
    """Exit at once; only the trace is closed."""


# ---- engine to server


class Loading(_Message, frozen=True):
    """Progress of the start: the current stage, and its share that is done (0 to 1)."""

    what: str
    done: float


class Ready(_Message, frozen=True):
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
    speak_languages: tuple[str, ...] = ()  # the languages that a request may name
    instructed: bool = False  # whether SpeakParams.instructions are followed
    one_pace: bool = False  # whether SpeakParams.speed must be 1
    respells_only: bool = False  # whether SpeakParams.pronunciations must not give phonemes
    reads_words: bool = False  # whether text should come word by word, not in whole clauses
    begins_early: bool = False  # whether the first words of a clause are said before it is whole: Append.goes_on
    clones: bool = False  # whether voices can be made from recordings
    chosen: str = ""  # why engine.model = "auto" chose this model; "": the configuration names the model
    missed: str = ""  # why a better model could not be fetched; "": none was missed
    asr_chosen: str = ""  # why engine.asr_model = "auto" chose this model; "": the configuration names the model
    asr_missed: str = ""  # why a better model that listens could not be fetched; "": none was missed
    sampling: SamplingDefaults = SamplingDefaults()  # of the chat model
    adapter: str = ""  # the adapter merged into the chat model; "": none
    asr_translates: bool = False  # whether ListenParams.translate is followed
    speech: ConverseModel = ConverseModel()


class StartFailed(_Message, frozen=True):
    """The engine cannot start; `reason` is one line a person can act on."""

    reason: str


class Started(_Message, frozen=True):
    """The request left the queue. A request without any input to transcribe or speak ends without this message."""

    request_id: str
    epoch: int
    prompt_tokens: int
    cached_tokens: int


class Text(_Message, frozen=True):
    """More output: whole characters only."""

    request_id: str
    epoch: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    tokens: int = 0  # tokens of the output so far; 0: not counted


class Words(_Message, frozen=True):
    """More of a transcript. The transcript so far is all `settled` texts joined, then the newest `tail`."""

    request_id: str
    epoch: int
    settled: str  # new text that will not change
    tail: str  # text that may change; it replaces the tail before
    heard_s: float  # audio up to here has been processed, speech or not
    segments: tuple[Segment, ...] = ()  # newly completed; all of their text is settled
    covered_s: float = 0.0  # the words, tail included, are those of the audio up to here


class Samples(_Message, frozen=True):
    """More speech: a clause, or a few frames. Offsets count from the start of the reply and leave no gap."""

    request_id: str
    epoch: int
    offset: int
    pcm: bytes  # 16-bit little-endian, one channel, at Ready.speak_rate
    words: tuple[SpokenWord, ...]  # the words that end in these samples; the first may begin in earlier ones


class Pieces(_Message, frozen=True):
    """More of a `converse` answer as its model knows it, for the messages of the next turn.

    A piece of one number is a token, a longer one a frame of sound. What was not heard is cut from the history with
    `heard_pieces`; Rewound cuts the pieces from the frame of its sample on.
    """

    request_id: str
    epoch: int
    pieces: tuple[tuple[int, ...], ...]


class Rewound(_Message, frozen=True):
    """All samples of a reply from this one on are void, and the words that end after it; they are sent again."""

    request_id: str
    epoch: int
    sample: int  # the offset of the next Samples


class ToolCall(_Message, frozen=True):
    """The model calls a declared tool. The text of the call is not sent as Text."""

    request_id: str
    epoch: int
    call_id: str  # unique; the same if the same request runs again
    name: str
    arguments: str  # a JSON object


class Probability(_Message, frozen=True):
    """The answer to a probe: the probability, 0 to 1, that the user's turn ends here. From 0.5 on it does."""

    request_id: str
    epoch: int
    value: float


class VoiceMade(_Message, frozen=True):
    """The voice of a recording as bytes. The engine keeps it only if KeepVoice gives it a name."""

    request_id: str
    epoch: int
    profile: bytes


class Finished(_Message, frozen=True):
    """The request's last message, unless it was refused."""

    request_id: str
    epoch: int
    reason: FinishReason
    stats: RequestStats


class Refused(_Message, frozen=True):
    """The request never ran. `detail` may be shown to its sender: it holds numbers and names, no content."""

    request_id: str
    epoch: int
    code: RefusalCode
    detail: str


class StepStats(_Message, frozen=True):
    """Figures of the engine's steps, sent about once a second while it works and once when it becomes idle."""

    steps: int  # since the last StepStats, like all other sums here
    rows: int  # sum of the requests in these steps: rows / steps is the mean batch
    prefill_tokens: int
    decode_tokens: int
    busy_s: float
    longest_step_s: float
    schedule_s: float  # the part of busy_s for planning
    move_s: float  # the part of busy_s for block copies and swaps
    forward_s: float  # the part of busy_s for the model
    sample_s: float  # the part of busy_s for logits and sampling
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
    interval_s: float = 0.0  # time since the last StepStats; 0: not told
    pressing_s: float = 0.0  # the part of busy_s in steps with a request above normal priority
    blocks_available: float = 1.0  # the share of blocks that are free or only cached, of the model with the least


class Pong(_Message, frozen=True):
    """The answer to Ping: the engine's loop runs."""


ToEngine = (
    Configure
    | Submit
    | Append
    | EndInput
    | Pause
    | Resume
    | Cancel
    | Rewind
    | KeepVoice
    | ForgetVoice
    | Attach
    | Ping
    | Shutdown
)
FromEngine = (
    Loading
    | Ready
    | StartFailed
    | Started
    | Text
    | Words
    | Samples
    | Pieces
    | Rewound
    | ToolCall
    | Probability
    | VoiceMade
    | Finished
    | Refused
    | StepStats
    | Pong
)
Message = ToEngine | FromEngine
