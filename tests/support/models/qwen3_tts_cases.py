"""Small Qwen3-TTS checkpoints and requests, run both by the peer and by us: the real layout, tiny sizes."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from qwen_tts_peer import QwenTtsPeer
from safetensors.torch import load_file, save_file
from torch import Tensor

Config = dict[str, object]

TEXT_VOCABULARY, CODES, FORCED_FRAMES, MAX_FRAMES = 160, 48, 10, 8
ROLE, TAIL = [150, 3, 4], [151, 4, 150, 3, 4]
CLIP_SAMPLES = 24_000

_DECODER: Config = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000, "max_position_embeddings": 256,
}  # fmt: skip


def config(kind: str, *, size: str, hidden: int, inner_hidden: int, groups: int) -> Config:
    """Return a configuration with the keys of the published ones."""
    first = CODES  # the first token that is not sound
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": size,
        "tts_model_type": kind,
        "im_start_token_id": 150,
        "im_end_token_id": 151,
        "tts_pad_token_id": 152,
        "tts_bos_token_id": 153,
        "tts_eos_token_id": 154,
        "speaker_encoder_config": {
            "enc_dim": hidden,
            "enc_channels": [16, 16, 16, 32],
            "enc_kernel_sizes": [5, 3, 3, 1],
            "enc_dilations": [1, 2, 3, 1],
            "enc_attention_channels": 8,
            "enc_res2net_scale": 4,
            "enc_se_channels": 8,
            "sample_rate": 24_000,
        },
        "talker_config": {
            **_DECODER,
            "hidden_size": hidden,
            "num_hidden_layers": 3,
            "vocab_size": CODES + 1024,
            "num_code_groups": groups,
            "text_hidden_size": 32,
            "text_vocab_size": TEXT_VOCABULARY,
            "rope_scaling": {
                "interleaved": True,
                "mrope_section": [4, 2, 2],
                "rope_type": "default",
                "type": "default",
            },
            "codec_pad_id": first + 100,
            "codec_bos_id": first + 101,
            "codec_eos_token_id": first + 102,
            "codec_think_id": first + 106,
            "codec_nothink_id": first + 107,
            "codec_think_bos_id": first + 108,
            "codec_think_eos_id": first + 109,
            "codec_language_id": {"english": first + 2, "chinese": first + 7, "beijing_dialect": first + 26},
            "spk_id": {"ryan": first + 1013, "dylan": first + 830} if kind == "custom_voice" else {},
            "spk_is_dialect": {"ryan": False, "dylan": "beijing_dialect"} if kind == "custom_voice" else {},
            "code_predictor_config": {
                **_DECODER,
                "hidden_size": inner_hidden,
                "num_hidden_layers": 2,
                "vocab_size": CODES,
                "num_code_groups": groups,
            },
        },
    }


CONFIGS = {
    "clones": config("base", size="1b7", hidden=64, inner_hidden=48, groups=6),
    "voices": config("custom_voice", size="1b7", hidden=48, inner_hidden=48, groups=16),
    "designs": config("voice_design", size="1b7", hidden=48, inner_hidden=64, groups=18),
}
_END_SCALES = {"clones": 1.0, "voices": 2.5, "designs": -30.0}  # scale of the logit that ends speech


@dataclass(frozen=True, slots=True)
class Case:
    """One request."""

    name: str
    checkpoint: str
    text: list[int]
    language: str = "auto"
    speaker: str = ""
    instructions: tuple[int, ...] = ()
    whole_text: bool = False
    clip: str = ""
    clip_text: tuple[int, ...] = ()
    clip_frames: int = 0
    repetition_penalty: float = 1.05
    max_frames: int = MAX_FRAMES


def _words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(5, 150), k=count)


_DESIGN = (150, 9, 4, 33, 77, 21, 151, 4)

CASES = [
    Case("clone", "clones", _words(1, 6), "English", clip="clip"),
    Case("clone whole", "clones", _words(2, 7), clip="other clip", whole_text=True, repetition_penalty=1.5),
    Case("imitation", "clones", _words(3, 9), clip="clip", clip_text=(40, 41, 42), clip_frames=7),
    Case("imitation, long clip", "clones", _words(4, 2), clip="clip", clip_text=(40, 41), clip_frames=9),
    Case("imitation whole", "clones", _words(5, 5), "chinese", "", (), True, "clip", (8, 7), clip_frames=4),
    Case("voice", "voices", _words(6, 5), speaker="Ryan", repetition_penalty=1.5),
    Case("dialect", "voices", _words(7, 12), "Chinese", "dylan", instructions=_DESIGN),
    Case("one word", "voices", _words(8, 1), "english", "dylan", whole_text=True),
    Case("design", "designs", _words(9, 6), "english", instructions=_DESIGN, whole_text=True),
    Case("design streaming", "designs", _words(10, 4), repetition_penalty=1.3),
    Case("design plain", "designs", _words(11, 3), "chinese", repetition_penalty=1.3),
]


class Answers:
    """The peer's output for every case."""

    def __init__(self, peer: QwenTtsPeer, folder: Path) -> None:
        self.folder = folder
        self.given = _given()
        plan = {
            name: {
                "config": CONFIGS[name],
                "end_scale": _END_SCALES[name],
                "cases": [asdict(case) | {"role": ROLE, "tail": TAIL} for case in CASES if case.checkpoint == name],
            }
            for name in CONFIGS
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        save_file(self.given, folder / "given.safetensors")
        peer.run("qwen_tts_peer_talker.py", folder)
        self.of = {case.name: load_file(folder / f"{case.name}.safetensors") for case in CASES}


def _given() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(11)
    time = torch.arange(CLIP_SAMPLES) / 24_000
    given = {
        "clip": 0.3 * torch.sin(2 * torch.pi * 180 * time) + 0.05 * torch.randn(CLIP_SAMPLES, generator=generator),
        "other clip": 0.1 * torch.randn(7_001, generator=generator),
    }
    for case in CASES:
        talker = CONFIGS[case.checkpoint]["talker_config"]
        assert isinstance(talker, dict)
        shape = (FORCED_FRAMES, talker["num_code_groups"])
        given[f"{case.name}.forced"] = torch.randint(0, CODES, shape, generator=generator)
        frames = (case.clip_frames, talker["num_code_groups"])
        given[f"{case.name}.clip_frames"] = torch.randint(0, CODES, frames, generator=generator)
    return given
