"""What distinguishes one LFM2-Audio checkpoint from another, read from its config.json.

Every key of the parts that this package computes is used, known not to change the result, or refused by name. The
backbone's section is handed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voxlane.engine.api import SOUND_END
from voxlane.engine.models.decoder_config import DecoderConfig
from voxlane.engine.models.generic_keys import CHOOSING, NEUTRAL, NOTES
from voxlane.engine.models.lfm2_audio.conformer_config import ConformerConfig
from voxlane.engine.models.settings import Settings

CODES = SOUND_END
"""Entries of a codebook of Mimi. One more code, this number, ends a stretch of sound."""

AUDIO_START, TEXT_END, END_OF_TURN = 128, 130, 7
"""Tokens of the vocabulary: sound follows; the rest of the turn is sound; the turn ends."""

_HEADS, _KV_HEADS = 32, 8  # of the depth transformer; the configuration does not name them. Below, likewise:
_THETA, _NORM_EPS = 1_000_000.0, 1e-5
_INNER_STEP = 256  # a feed-forward's width is a multiple of this

_USED_KEYS = {
    "codebooks", "depthformer", "encoder", "interleaved_n_audio", "interleaved_n_text", "lfm", "preprocessor",
    "tie_audio_embeddings",
}  # fmt: skip
_TRAINING = {"audio_loss_multiplier", "codebook_weight", "semantic_codebook_factor", "text_loss_multiplier"}
_MAX_SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class Lfm2AudioConfig:
    """One checkpoint."""

    groups: int  # codes a frame
    interleaved_text: int  # tokens of text in turn with
    interleaved_frames: int  # frames of sound
    backbone: Mapping[str, object]  # the section `lfm`, in the form of transformers' Lfm2Config
    hidden_size: int  # the backbone's
    encoder: ConformerConfig
    depth: DecoderConfig
    depth_tied: bool  # a group's output head is its embedding table

    @classmethod
    def from_dict(cls, values: dict[str, object]) -> Lfm2AudioConfig:
        """Read a config.json, or raise ModelConfigError that names the key."""
        top = Settings(values)
        top.known_only(_USED_KEYS, NOTES | CHOOSING | _TRAINING, NEUTRAL)
        for key in ("encoder", "preprocessor", "lfm", "depthformer"):
            if key not in top:
                raise top.refuse(key, "missing")
        top.flag("tie_audio_embeddings", default=False)  # of an output head over all codes, which is not used
        backbone = top.section("lfm")
        depth = top.section("depthformer")
        groups = top.integer("codebooks", minimum=2, maximum=32)
        return cls(
            groups=groups,
            interleaved_text=top.integer("interleaved_n_text", maximum=1000),
            interleaved_frames=top.integer("interleaved_n_audio", maximum=1000),
            backbone={key: backbone.value(key) for key in backbone.names()},
            hidden_size=backbone.integer("hidden_size", maximum=_MAX_SIZE),
            encoder=ConformerConfig.read(top.section("encoder"), top.section("preprocessor")),
            depth=_depth(depth, groups),
            depth_tied=depth.flag("tie", default=True),
        )


def _depth(section: Settings, groups: int) -> DecoderConfig:
    """Return the depth transformer as the Qwen3 that it is, but for the order of its rotated pairs."""
    section.known_only({"layers", "dim", "tie"})
    dim = section.integer("dim", maximum=_MAX_SIZE)
    if dim % (4 * _HEADS):
        raise section.refuse("dim", f"{dim} is not a multiple of {4 * _HEADS}")
    values = {
        "hidden_size": dim,
        "intermediate_size": -(-(8 * dim // 3) // _INNER_STEP) * _INNER_STEP,
        "num_hidden_layers": section.integer("layers", maximum=256),
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": dim // _HEADS,
        "vocab_size": CODES + 1,
        "max_position_embeddings": groups,
        "rms_norm_eps": _NORM_EPS,
        "rope_theta": _THETA,
        "tie_word_embeddings": False,
    }
    return DecoderConfig.from_settings("qwen3", Settings(values, section.prefix))
