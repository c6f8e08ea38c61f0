"""Run inside the peer: write small random 12 Hz tokenizers as the package saves them, and their decoders' output.

    qwen_tts_peer_codec.py FOLDER CONFIGS    CONFIGS is JSON: a decoder_config for each name

FOLDER/NAME then holds config.json, model.safetensors, and expected.safetensors with `codes` [streams, frames, groups]
and `samples` [streams, samples].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import qwen_tts_peer_imports  # noqa: F401  (must come before qwen_tts)
import torch
from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Config
from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model
from safetensors.torch import save_file

STREAMS, FRAMES = 3, 24
ENCODER = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 32, "num_filters": 4, "upsampling_ratios": [4, 2], "codebook_size": 8, "codebook_dim": 8,
    "vector_quantization_hidden_dimension": 8, "num_quantizers": 4, "upsample_groups": 8,
}  # fmt: skip


def main(folder: Path, configs: dict[str, dict[str, object]]) -> None:
    for seed, (name, decoder) in enumerate(configs.items()):
        torch.manual_seed(seed)
        rate = 1
        for factor in (*decoder["upsample_rates"], *decoder["upsampling_ratios"]):
            rate *= factor
        config = Qwen3TTSTokenizerV2Config(
            encoder_config=ENCODER, decoder_config=decoder, decode_upsample_rate=rate, encode_downsample_rate=rate
        )
        model = Qwen3TTSTokenizerV2Model(config).eval()
        randomise(model)
        codes = torch.randint(config.decoder_config.codebook_size, (STREAMS, FRAMES, decoder["num_quantizers"]))
        samples = model.decoder(codes.transpose(1, 2))[:, 0]
        # So few frames are one chunk of the package's own decode, which must give the same result.
        assert torch.equal(torch.stack(model.decode(codes).audio_values), samples)
        model.save_pretrained(folder / name)
        save_file({"codes": codes, "samples": samples}, folder / name / "expected.safetensors")


def randomise(model: Qwen3TTSTokenizerV2Model) -> None:
    """Give every weight a value that matters, and the sound a loudness that seldom clips."""
    for name, parameter in model.decoder.named_parameters():
        if name.endswith(("cluster_usage", "norm.weight", "layernorm.weight", "layer_scale.scale", "gamma")):
            parameter.uniform_(0.5, 1.5)
        elif parameter.ndim > 1:
            fan_in = parameter[0].numel()
            # Residual units add only a little: else every stage multiplies rounding errors by ten.
            gain = 0.3 if ".conv2." in name else 1.0
            parameter.normal_(std=1.0 if name.endswith("embedding_sum") else gain * fan_in**-0.5)
        else:
            parameter.normal_(std=0.3)
    last = model.decoder.decoder[-1].conv
    loudness = []
    hook = last.register_forward_hook(lambda module, inputs, output: loudness.append(output.std()))
    model.decoder(torch.randint(model.decoder.config.codebook_size, (1, model.decoder.config.num_quantizers, FRAMES)))
    hook.remove()
    last.weight.mul_(0.3 / loudness[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
