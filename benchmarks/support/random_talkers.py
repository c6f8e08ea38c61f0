"""Qwen3-TTS checkpoints with random weights: folders in the published layout, true shapes, noise for a voice.

Their kind is `custom_voice`, so no recording is needed. The end of speech is never chosen (its logit is zero, and only
the fifty likeliest codes are sampled), so an utterance is as long as its listener wants, up to the limit of
generation_config.json. The encoder of the speech tokenizer has no weights.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from support.random_models import decoder_shapes
from support.sessions.engine import vocabulary
from support.tts.codec import SMALL, TRUE, RandomReader
from voxlane.engine.models.qwen3_tts.codec_config import MODEL_TYPE, CodecConfig
from voxlane.engine.models.qwen3_tts.codec_weights import read_weights
from voxlane.engine.weights.tensors import Blocks

Config = dict[str, object]

SPEAKER, LANGUAGE = "ryan", "english"
MAX_FRAMES = 400  # 32 seconds
END_LOUDNESS = 1.6
"""Factor on an Unwritten talker's output weights for the end of speech, so that it ends sometimes."""

_NO_SOUND = 1024  # tokens of the talker's vocabulary after its codes
_HEADS: Config = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
_SMALL_HEADS: Config = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
_SMALL_ENCODER: Config = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 32, "num_filters": 4, "upsampling_ratios": [4, 2], "codebook_size": 8, "codebook_dim": 8,
    "vector_quantization_hidden_dimension": 8, "num_quantizers": 16, "upsample_groups": 8,
}  # fmt: skip
_SMALL_CODEC: Config = {
    **SMALL, "codebook_size": 256, "hidden_size": 32, "intermediate_size": 48, "head_dim": 16,
    "num_attention_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")


def _decoder(hidden: int, inner: int, layers: int, heads: Config, positions: int, codes: int) -> Config:
    sizes: Config = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    other = {"max_position_embeddings": positions, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000, "hidden_act": "silu"}
    return {**sizes, **heads, **other, "vocab_size": codes, "num_code_groups": 16}


def _config(size: str, talker: Config, predictor: Config, text_vocabulary: int, text_width: int) -> Config:
    codes, specials = predictor["vocab_size"], text_vocabulary - len(_SPECIALS)
    if text_vocabulary == _TRUE_VOCABULARY:
        specials = 151_643  # the rows after them are spare
    pairs = talker["head_dim"]
    assert isinstance(codes, int)
    assert isinstance(pairs, int)
    names = ("pad", "bos", "eos_token", "think", "nothink", "think_bos", "think_eos")
    sections = [pairs // 2 - 2 * (pairs * 5 // 32), pairs * 5 // 32, pairs * 5 // 32]
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": size,
        "tts_model_type": "custom_voice",
        "im_start_token_id": specials + 1,
        "im_end_token_id": specials + 2,
        "tts_pad_token_id": specials + 3,
        "tts_bos_token_id": specials + 4,
        "tts_eos_token_id": specials + 5,
        "talker_config": {
            **talker,
            "text_hidden_size": text_width,
            "text_vocab_size": text_vocabulary,
            "rope_scaling": {"interleaved": True, "mrope_section": sections, "rope_type": "default", "type": "default"},
            **{f"codec_{name}_id": codes + 100 + number for number, name in enumerate(names)},
            "codec_language_id": {LANGUAGE: codes + 2},
            "spk_id": {SPEAKER: codes + 900},
            "spk_is_dialect": {SPEAKER: False},
            "code_predictor_config": predictor,
        },
    }


_TRUE_VOCABULARY, _CODES = 151_936, 2048
_PREDICTOR = _decoder(1024, 3072, 5, _HEADS, 65_536, _CODES)


def _true(size: str, hidden: int, inner: int) -> Config:
    talker = _decoder(hidden, inner, 28, _HEADS, 32_768, _CODES + _NO_SOUND)
    return _config(size, talker, _PREDICTOR, _TRUE_VOCABULARY, 2048)


SHAPES: dict[str, tuple[Config, Config]] = {  # the configurations of the talker and of the speech tokenizer's decoder
    "0.6b": (_true("0b6", 1024, 3072), TRUE),
    "1.7b": (_true("1b7", 2048, 6144), TRUE),
    "small": (  # the true heads and numbers of codes: what kernels are compiled for
        _config(
            "1b7",
            _decoder(512, 1024, 2, _HEADS, 1024, _CODES + _NO_SOUND),
            _decoder(256, 512, 2, _HEADS, 64, _CODES),
            1031,
            128,
        ),
        {**SMALL, "codebook_size": _CODES},
    ),
    "tiny": (
        _config(
            "1b7",
            _decoder(64, 96, 2, _SMALL_HEADS, 1024, 256 + _NO_SOUND),
            _decoder(48, 96, 1, _SMALL_HEADS, 64, 256),
            1031,
            32,
        ),
        _SMALL_CODEC,
    ),
}


def tensor_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Return every tensor's name and shape."""
    talker = config["talker_config"]
    assert isinstance(talker, dict)
    predictor: Config = talker["code_predictor_config"]
    inner = _numbers(predictor)
    hidden, width, codes = talker["hidden_size"], talker["text_hidden_size"], inner["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "talker.model.codec_embedding.weight": (talker["vocab_size"], hidden),
        "talker.model.text_embedding.weight": (talker["text_vocab_size"], width),
        "talker.text_projection.linear_fc1.weight": (width, width),
        "talker.text_projection.linear_fc1.bias": (width,),
        "talker.text_projection.linear_fc2.weight": (hidden, width),
        "talker.text_projection.linear_fc2.bias": (hidden,),
        "talker.codec_head.weight": (talker["vocab_size"], hidden),
    }
    for group in range(inner["num_code_groups"] - 1):
        shapes[f"talker.code_predictor.model.codec_embedding.{group}.weight"] = (codes, hidden)
        shapes[f"talker.code_predictor.lm_head.{group}.weight"] = (codes, inner["hidden_size"])
    if hidden != inner["hidden_size"]:
        name = "talker.code_predictor.small_to_mtp_projection"
        shapes |= {f"{name}.weight": (inner["hidden_size"], hidden), f"{name}.bias": (inner["hidden_size"],)}
    for prefix, numbers in {"talker.model.": _numbers(talker), "talker.code_predictor.model.": inner}.items():
        shapes |= decoder_shapes(prefix, numbers, head_norms=True)
    return shapes


def _numbers(config: Mapping[str, object]) -> dict[str, int]:
    return {key: value for key, value in config.items() if isinstance(value, int)}


def _tensor(name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    random = torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
    values = torch.randn(shape, generator=random, device=device)
    if name.endswith("norm.weight"):
        values = 1 + 0.1 * values
    elif len(shape) == 1:
        values *= 0.1
    else:
        values *= 0.3 if "embedding" in name else shape[1] ** -0.5
    return values


class Unwritten:
    """A talker without a file, in float32, the same on every device. It ends its speech sometimes."""

    def __init__(self, shape: str) -> None:
        self.config = SHAPES[shape][0]
        self._shapes = tensor_shapes(self.config)

    def names(self) -> list[str]:
        """Return the names of the tensors."""
        return list(self._shapes)

    def blocks(self, name: str) -> Blocks | None:
        """Return None: these are floats."""
        return None

    def tensor(self, name: str) -> Tensor:
        """Return a tensor; its numbers depend on its name alone."""
        made = _tensor(name, self._shapes[name], torch.device("cpu"))
        if name == "talker.codec_head.weight":
            talker = self.config["talker_config"]
            assert isinstance(talker, dict)
            made[talker["codec_eos_token_id"]] *= END_LOUDNESS
        return made


class _Kept(RandomReader):
    """Keeps the tensors that are read: all of a decoder, under their published names."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.tensors: dict[str, Tensor] = {}

    def floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor and keep it."""
        found = self.tensors[f"decoder.{name}"] = super().floats(name, shape)
        return found


def write(shape: str, folder: Path, device: str = "cpu") -> None:
    """Write a checkpoint: talker, tokenizer and speech tokenizer."""
    config, decoder = SHAPES[shape]
    codec = folder / "speech_tokenizer"
    codec.mkdir(parents=True, exist_ok=True)
    talker = config["talker_config"]
    assert isinstance(talker, dict)
    tensors = {name: _tensor(name, size, torch.device(device)) for name, size in tensor_shapes(config).items()}
    tensors["talker.codec_head.weight"][talker["codec_eos_token_id"]] = 0
    _save(tensors, folder, torch.float32 if shape == "tiny" else torch.bfloat16)
    _json(folder / "config.json", config)
    _json(folder / "generation_config.json", {"do_sample": True, "max_new_tokens": MAX_FRAMES})
    _write_vocabulary(folder, config)

    settings: Config = {"model_type": MODEL_TYPE, "encoder_config": _SMALL_ENCODER, "decoder_config": decoder}
    kept = _Kept(torch.device(device))
    read_weights(kept, CodecConfig.from_dict(settings), torch.float32)
    _save(kept.tensors, codec, torch.float32)
    _json(codec / "config.json", {"architectures": ["Qwen3TTSTokenizerV2Model"], **settings})
    extractor = {"feature_extractor_type": "EncodecFeatureExtractor", "feature_size": 1, "sampling_rate": 24_000}
    _json(codec / "preprocessor_config.json", {**extractor, "padding_value": 0.0, "return_attention_mask": True})


def _save(tensors: dict[str, Tensor], folder: Path, dtype: torch.dtype) -> None:
    whole = {name: tensor.to(dtype).cpu().contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def _write_vocabulary(folder: Path, config: Config) -> None:
    first = config["im_start_token_id"]
    assert isinstance(first, int)
    data = vocabulary(first - 1 + 2)["model"]  # with two control tokens, which are not part of it
    assert isinstance(data, dict)
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in data["merges"]]
    merges = list(dict.fromkeys([*_make_word("assistant", data["vocab"]), *merges]))
    _json(folder / "vocab.json", data["vocab"])
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    added = {str(first - 1 + number): {"content": text, **flags} for number, text in enumerate(_SPECIALS)}
    settings = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": added, "pad_token": _SPECIALS[0]}
    other = {"eos_token": _SPECIALS[2], "unk_token": None, "bos_token": None, "add_prefix_space": False}
    _json(folder / "tokenizer_config.json", {**settings, **other, "clean_up_tokenization_spaces": False})


def _make_word(word: str, words: dict[str, int]) -> list[str]:
    """Make a word one token, as a role's name is everywhere, in place of made-up words; return its merges."""
    starts = [word[:length] for length in range(2, len(word) + 1)]
    last = list(words)[-len(starts) :]
    for start, made_up in zip(starts, last, strict=True):
        if start not in words:
            words[start] = words.pop(made_up)
    return [f"{start[:-1]} {start[-1]}" for start in starts]


def _json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
