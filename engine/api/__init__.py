"""All that the server knows of the engine: the messages between them, what they are made of, and their packets.

This is the only engine module the server's hot path imports. It knows no torch, no sockets and no scheduling: it says
what can be asked of an engine and what an engine can answer.
"""

# What is imported here is this package's own: naming it once is enough for ruff and for mypy.
# ruff: noqa: F401
# mypy: implicit-reexport

from voxlane.engine.api.codec import UndecodableMessage, decode, encode
from voxlane.engine.api.forks import FORK, Forked, decode_forked, encode_forked
from voxlane.engine.api.messages import (
    Append,
    Attach,
    Cancel,
    Configure,
    EndInput,
    Finished,
    ForgetVoice,
    FromEngine,
    KeepVoice,
    Loading,
    Message,
    Pause,
    Pieces,
    Ping,
    Pong,
    Probability,
    Ready,
    Refused,
    Resume,
    Rewind,
    Rewound,
    Samples,
    Shutdown,
    Started,
    StartFailed,
    StepStats,
    Submit,
    Text,
    ToEngine,
    ToolCall,
    VoiceMade,
    Words,
)
from voxlane.engine.api.packets import (
    ATTACHED,
    BUNDLE,
    FRAGMENT_BYTES,
    MAX_MESSAGE_BYTES,
    Assembler,
    bundle,
    fragments,
)
from voxlane.engine.api.pieces import SOUND_END, heard_pieces
from voxlane.engine.api.progress import PAGE_BYTES, ProgressPage
from voxlane.engine.api.pronunciations import (
    MAX_PRONUNCIATIONS,
    BadPronunciation,
    Pronunciation,
    has_phonemes,
    read_pronunciations,
)
from voxlane.engine.api.values import (
    AUTO_ADAPTER,
    AUTO_MODEL,
    CLIP_RATE,
    CLIP_SECONDS,
    CLIP_TEXT_CHARS,
    LISTEN_RATE,
    MAX_PROFILE_BYTES,
    MAX_UNHEARD_S,
    MAX_UNSAID_CHARS,
    MAX_VOICES,
    MODEL_DECIDES,
    ChatMessage,
    CloneParams,
    ConverseModel,
    EngineConfig,
    FinishReason,
    ListenParams,
    Policy,
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
    ToolUse,
    Word,
    sampling_of,
)
