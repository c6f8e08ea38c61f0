"""One file per architecture family: a batch of tokens in, logits out, through the kernels."""

from __future__ import annotations

import torch

from voxlane.engine.models.decoder import Decoder
from voxlane.engine.models.loading import Mode, Progress
from voxlane.engine.models.settings import ConfigError, TensorError
from voxlane.engine.weights.errors import ModelError
from voxlane.engine.weights.tensors import WeightFile

__all__ = ["ARCHITECTURES", "ConfigError", "Decoder", "ModelError", "TensorError", "architecture_of", "load_model"]

ARCHITECTURES = {
    "LlamaForCausalLM": Decoder,
    "Qwen2ForCausalLM": Decoder,
    "Qwen3ForCausalLM": Decoder,
    "Gemma3ForCausalLM": Decoder,
    "Gemma3ForConditionalGeneration": Decoder,
}

# For configs that name no architecture.
_BY_MODEL_TYPE = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
}


def architecture_of(config: dict[str, object]) -> str:
    """Return the architecture a config names, or raise ConfigError listing the ones we run."""
    listed = config.get("architectures")
    name = listed[0] if isinstance(listed, list) and listed else _BY_MODEL_TYPE.get(str(config.get("model_type")))
    if isinstance(name, str) and name in ARCHITECTURES:
        return name
    found = name or config.get("model_type") or "none"
    raise ConfigError(f"architecture {found!r:.80} is not supported (supported: {', '.join(ARCHITECTURES)})")


def load_model(
    weights: WeightFile,
    mode: Mode = "packed",
    progress: Progress | None = None,
    device: str | torch.device = "cpu",
    context_tokens: int = 0,
) -> Decoder:
    """Load the model in `weights` with the class its architecture names, or raise ModelError."""
    return ARCHITECTURES[architecture_of(weights.config)].load(weights, mode, progress, device, context_tokens)
