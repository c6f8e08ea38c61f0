"""Every architecture and the class that runs it. A new architecture is added here.

Its GGUF names, if it has any, are in weights/gguf_names.py; a variant of Llama is a few flags in decoder_config.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor

from voxlane.engine.errors import ModelConfigError
from voxlane.engine.kernels.attention.pages import LayerPages, Layout
from voxlane.engine.models.decoder import Decoder
from voxlane.engine.models.loading import Mode, Progress
from voxlane.engine.models.moonshine import Moonshine
from voxlane.engine.models.qwen3_asr.model import Qwen3ASR
from voxlane.engine.models.settings import Settings
from voxlane.engine.models.spec import ModelSpec
from voxlane.engine.models.spelling import Spelling
from voxlane.engine.models.whisper import Whisper
from voxlane.engine.weights.files import OpenedWeights
from voxlane.engine.weights.tensors import WeightFile

Recognition = Moonshine | Whisper | Qwen3ASR


class ChatModel(Protocol):
    """What the engine needs of a model that writes text."""

    spec: ModelSpec
    mode: Mode
    vocab_size: int
    context_tokens: int
    parameters: int

    @staticmethod
    def spec_of(config: dict[str, object]) -> ModelSpec:
        """Return the sizes of the model that a config describes, or raise ModelConfigError."""

    @classmethod
    def load(
        cls,
        weights: WeightFile,
        mode: Mode = "packed",
        progress: Progress | None = None,
        device: str | torch.device = "cpu",
        context_tokens: int = 0,
    ) -> ChatModel:
        """Read a model, or raise ModelError with one line that names the config key or tensor at fault."""

    def forward(self, tokens: Tensor, layout: Layout, pages: Sequence[LayerPages]) -> Tensor:
        """Run tokens, write what layers keep of them into `pages`; return their hidden rows."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden rows."""


CHAT_MODELS: dict[str, type[ChatModel]] = {
    "LlamaForCausalLM": Decoder,
    "Qwen2ForCausalLM": Decoder,
    "Qwen3ForCausalLM": Decoder,
    "Gemma3ForCausalLM": Decoder,
    "Gemma3ForConditionalGeneration": Decoder,
    "Lfm2ForCausalLM": Decoder,
    "Lfm2MoeForCausalLM": Decoder,
}
"""Models that write text."""

RECOGNISERS: dict[str, type[Recognition]] = {
    "MoonshineForConditionalGeneration": Moonshine,
    "WhisperForConditionalGeneration": Whisper,
    "Qwen3ASRForConditionalGeneration": Qwen3ASR,
}
"""Models that listen."""

QWEN3_TTS = "Qwen3TTSForConditionalGeneration"
"""The one model that speaks and names its architecture; the other voices are a package and an ONNX file."""

LFM2_AUDIO = "Lfm2AudioForConditionalGeneration"
"""The model that answers speech with speech."""

OTHER_VOICES = ("kokoro", "hibari")
"""The catalog's names for the architectures of the other voices."""

_BY_MODEL_TYPE = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "moonshine": "MoonshineForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
    "qwen3_asr": "Qwen3ASRForConditionalGeneration",
}
"""For configs that name no architecture."""


def supported_architectures() -> frozenset[str]:
    """Return every architecture that can be loaded, the voices that are no registered class included."""
    return frozenset((*CHAT_MODELS, *RECOGNISERS, QWEN3_TTS, LFM2_AUDIO, *OTHER_VOICES))


def architecture_of(config: dict[str, object], table: Collection[str] = CHAT_MODELS) -> str:
    """Return the architecture a config names, or raise ModelConfigError with a list of those in `table`."""
    listed = config.get("architectures")
    name = listed[0] if isinstance(listed, list) and listed else _BY_MODEL_TYPE.get(str(config.get("model_type")))
    if isinstance(name, str) and name in table:
        return name
    found = name or config.get("model_type") or "none"
    raise ModelConfigError(f"architecture {found!r:.80} is not supported (supported: {', '.join(table)})")


def chat_spec(config: dict[str, object]) -> ModelSpec:
    """Return the sizes of the chat model that a config describes, or raise ModelError."""
    return CHAT_MODELS[architecture_of(config)].spec_of(config)


def load_model(
    weights: WeightFile,
    mode: Mode = "packed",
    progress: Progress | None = None,
    device: str | torch.device = "cpu",
    context_tokens: int = 0,
) -> ChatModel:
    """Load the chat model in `weights`, or raise ModelError."""
    return CHAT_MODELS[architecture_of(weights.config)].load(weights, mode, progress, device, context_tokens)


def load_recogniser(
    weights: OpenedWeights, mode: Mode = "packed", progress: Progress | None = None, device: str | torch.device = "cpu"
) -> Recognition:
    """Load the model that listens in `weights`, with its vocabulary, or raise ModelError."""
    kind = RECOGNISERS[architecture_of(weights.config, RECOGNISERS)]
    if issubclass(kind, Qwen3ASR):
        return kind.load(weights, weights, mode, progress, device)
    vocab_size = Settings(weights.config).integer("vocab_size", maximum=1 << 22)
    return kind.load(weights, Spelling.open(weights, vocab_size), mode, progress, device)
