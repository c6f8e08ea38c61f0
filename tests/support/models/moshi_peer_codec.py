"""Writes small random Mimi checkpoints with Kyutai's package moshi, and what it decodes. Runs inside the peer.

moshi_peer_codec.py FOLDER CONFIG       CONFIG is JSON with the keys of transformers' MimiConfig
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file

for _name in ("sentencepiece", "sphn", "bitsandbytes"):  # the package imports them and Mimi uses none
    sys.modules[_name] = ModuleType(_name)
    sys.modules[_name].__spec__ = ModuleSpec(_name, None)
sys.modules["sentencepiece"].SentencePieceProcessor = object  # type: ignore[attr-defined]

from moshi.models import loaders  # noqa: E402

STREAMS, FRAMES = 2, 21


def main(folder: Path, config: dict[str, Any]) -> None:
    """Write kyutai.safetensors, and the codes and samples of some streams."""
    torch.manual_seed(5)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    model = _model(config)
    for name, tensor in model.state_dict().items():
        if name.endswith("cluster_usage"):
            tensor.uniform_(0.5, 2.0)
        elif name.endswith(("embedding_sum", "layer_scale_1.scale", "layer_scale_2.scale")):
            tensor.normal_()
        elif name.endswith("_initialized"):
            tensor.fill_(1.0)
    codes = torch.randint(config["codebook_size"], (STREAMS, config["num_quantizers"], FRAMES))
    samples = model.decode(codes)[:, 0]
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "kyutai.safetensors")
    save_file({"codes": codes.transpose(1, 2).contiguous(), "samples": samples}, folder / "kyutai_expected.safetensors")


def _model(config: dict[str, Any]) -> Any:
    hidden, ratios = config["hidden_size"], config["upsampling_ratios"]
    seanet = loaders._seanet_kwargs | {"dimension": hidden, "n_filters": config["num_filters"], "ratios": ratios}
    quantizer = loaders._quantizer_kwargs | {
        "dimension": config["codebook_dim"], "n_q": config["num_quantizers"], "bins": config["codebook_size"],
        "input_dimension": hidden, "output_dimension": hidden,
    }  # fmt: skip
    transformer = loaders._transformer_kwargs | {
        "d_model": hidden, "num_heads": config["num_attention_heads"], "num_layers": config["num_hidden_layers"],
        "context": config["sliding_window"], "dim_feedforward": config["intermediate_size"], "input_dimension": hidden,
        "output_dimensions": [hidden],
    }  # fmt: skip
    encoder, decoder = loaders.SEANetEncoder(**seanet), loaders.SEANetDecoder(**seanet)
    rate = config["sampling_rate"] / encoder.hop_length
    return loaders.MimiModel(
        encoder,
        decoder,
        loaders.SplitResidualVectorQuantizer(**quantizer),
        channels=1,
        sample_rate=config["sampling_rate"],
        frame_rate=rate / 2,
        encoder_frame_rate=rate,
        causal=True,
        resample_method="conv",
        encoder_transformer=loaders.transformer.ProjectedTransformer(**transformer),
        decoder_transformer=loaders.transformer.ProjectedTransformer(**transformer),
    ).eval()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
