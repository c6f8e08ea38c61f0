"""What distinguishes one Qwen3-ASR checkpoint from another, read from the keys of its config.json.

There are two layouts: the authors' own, with everything under `thinker_config`, and the one of Hugging Face's library.
Every key is used, known not to change the result, or refused by name: in each part of config.json and in
generation_config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from voxlane.engine.audio.mel import HOP
from voxlane.engine.models.decoder_config import QWEN3_KEYS, DecoderConfig
from voxlane.engine.models.generic_keys import CHOOSING, NEUTRAL, NOTES
from voxlane.engine.models.settings import Settings

CHUNK_STATES = 13
"""States of a chunk of sound, whatever the window is: the model's prompts count so."""

MIN_SAMPLES = 8_000
"""Half a second: a shorter clip is padded with silence, as in training."""

_PARTS_KEYS = {"audio_config", "audio_token_id", "text_config"}
_PARTS_UNUSED = {
    *("audio_start_token_id", "audio_end_token_id", "user_token_id"),  # the prompt names them by their words
    *("timestamp_token_id", "token_classification_bias"),  # an aligner's
    "tie_word_embeddings",  # in the authors' layout the text model has its own
}
_TOWER_KEYS = {
    "activation_function", "d_model", "downsample_hidden_size", "encoder_attention_heads", "encoder_ffn_dim",
    "encoder_layers", "max_position_embeddings", "max_source_positions", "n_window", "n_window_infer", "num_mel_bins",
    "output_dim", "scale_embedding",
}  # fmt: skip
_TOWER_ALIASES = {
    "hidden_size": "d_model", "intermediate_size": "encoder_ffn_dim", "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}  # fmt: skip
"""Other names under which files repeat sizes."""
_TOWER_UNUSED = {
    *("activation_dropout", "dropout"),  # training's
    "conv_chunksize",  # how much is computed at a time
    "tie_word_embeddings",  # sound has no words
}
_GENERATION_UNUSED = {
    *("temperature", "top_k", "top_p"),  # of do_sample
    *("max_length", "max_new_tokens"),  # a clip's length limits its text
}

_MROPE_KEYS = ("mrope_section", "interleaved", "mrope_interleaved")


@dataclass(frozen=True, slots=True)
class TowerConfig:
    """The sizes of the audio tower."""

    mel_bins: int
    layers: int
    heads: int
    hidden_size: int
    intermediate_size: int
    channels: int  # of the convolutions
    output_size: int
    chunk_frames: int  # of 10 ms each: the convolutions' chunk
    window_chunks: int  # chunks that attend to each other in the layers

    @property
    def head_dim(self) -> int:
        """Dimensions of one head."""
        return self.hidden_size // self.heads

    @property
    def window_states(self) -> int:
        """States that attend to each other."""
        return CHUNK_STATES * self.window_chunks

    @property
    def bands(self) -> int:
        """Mel bins after the convolutions."""
        return _halved(self.mel_bins)

    def frames(self, samples: int) -> int:
        """Return how many frames of 10 ms a clip has."""
        return max(samples, MIN_SAMPLES) // HOP

    def states(self, samples: int) -> int:
        """Return how many states a clip becomes."""
        whole, rest = divmod(self.frames(samples), self.chunk_frames)
        return whole * CHUNK_STATES + _halved(rest)


@dataclass(frozen=True, slots=True)
class Qwen3ASRConfig:
    """One checkpoint's sizes, consistent: from_dict has checked them."""

    tower: TowerConfig
    text: DecoderConfig
    audio_token: int  # stands where the clip's states go
    languages: tuple[str, ...]  # by their English names, if the file lists them

    @classmethod
    def from_dict(cls, config: dict[str, object]) -> Qwen3ASRConfig:
        """Return the configuration in `config`, or raise ModelConfigError naming the key."""
        whole = Settings(config)
        settings = whole.section("thinker_config") if "thinker_config" in whole else whole
        for place in (whole, settings):
            for key in ("quantization_config", "quantization", "classify_num", "mtp_num_hidden_layers"):
                if key in place:
                    raise place.refuse(key, "not supported")
        if "aligner" in settings.text("model_type", ""):
            raise settings.refuse("model_type", "an aligner writes no text")
        _check_parts(whole, settings)
        text = _text(settings)
        tower = _tower(settings.section("audio_config"), text.hidden_size)
        return cls(
            tower=tower,
            text=text,
            audio_token=settings.integer("audio_token_id", 151_676, minimum=0, maximum=text.vocab_size - 1),
            languages=tuple(whole.texts("support_languages")) if "support_languages" in whole else (),
        )


def check_generation(config: Mapping[str, object]) -> None:
    """Raise ModelConfigError if generation_config.json asks for more than greedy text and its end."""
    settings = Settings(config, "generation_config.")
    settings.known_only({"eos_token_id"}, NOTES | _GENERATION_UNUSED, {**NEUTRAL, "do_sample": (False,)})


def _check_parts(whole: Settings, parts: Settings) -> None:
    """Raise ModelConfigError for a key that is not one of those around the two networks' own."""
    unused = NOTES | CHOOSING | _PARTS_UNUSED
    if parts is whole:
        whole.known_only({*_PARTS_KEYS, "support_languages"}, unused, NEUTRAL)
        return
    whole.known_only({"support_languages", "thinker_config"}, unused, NEUTRAL)
    parts.known_only(_PARTS_KEYS, unused, NEUTRAL)


def _tower(section: Settings, text_size: int) -> TowerConfig:
    section.known_only({*_TOWER_KEYS, *_TOWER_ALIASES}, NOTES | CHOOSING | _TOWER_UNUSED, NEUTRAL)
    for alias, key in _TOWER_ALIASES.items():
        if alias in section and section.value(alias) != section.value(key):
            raise section.refuse(alias, f"differs from {key}")
    hidden = section.integer("d_model", minimum=4, maximum=1 << 16)
    heads = section.integer("encoder_attention_heads", maximum=256)
    if hidden % heads or hidden // heads % 4 or hidden // heads > 256:
        raise section.refuse("d_model", f"{heads} heads of a multiple of 4 up to 256 are needed")
    if section.text("activation_function", "gelu") != "gelu":
        raise section.refuse("activation_function", "only 'gelu' is supported")
    if section.flag("scale_embedding", default=False):
        raise section.refuse("scale_embedding", "is not supported")
    frames = 2 * section.integer("n_window", maximum=1 << 12)
    if _halved(frames) != CHUNK_STATES:
        raise section.refuse("n_window", f"chunks of {frames} frames do not become {CHUNK_STATES} states")
    window = section.integer("n_window_infer", maximum=1 << 20)
    if window % frames:
        raise section.refuse("n_window_infer", f"{window} is no multiple of a chunk's {frames} frames")
    for key in ("max_position_embeddings", "max_source_positions"):
        if section.integer(key, CHUNK_STATES) < CHUNK_STATES:
            raise section.refuse(key, f"a chunk has {CHUNK_STATES} states")
    output = section.integer("output_dim", maximum=1 << 17)
    if output != text_size:
        raise section.refuse("output_dim", f"{output} is not the text model's hidden_size {text_size}")
    return TowerConfig(
        mel_bins=section.integer("num_mel_bins", 128, minimum=8, maximum=256),
        layers=section.integer("encoder_layers", maximum=256),
        heads=heads,
        hidden_size=hidden,
        intermediate_size=section.integer("encoder_ffn_dim", maximum=1 << 20),
        channels=section.integer("downsample_hidden_size", 480, maximum=1 << 14),
        output_size=output,
        chunk_frames=frames,
        window_chunks=window // frames,
    )


def _text(settings: Settings) -> DecoderConfig:
    section = settings.section("text_config")
    section.known_only(QWEN3_KEYS, NOTES | CHOOSING, NEUTRAL)
    if section.section("rope_scaling").names() and section.section("rope_parameters").names():
        raise section.refuse("rope_parameters", "rope_scaling is there as well")
    if section.flag("use_sliding_window", default=False):
        raise section.refuse("use_sliding_window", "is not supported here")
    section.integer("num_key_value_heads")  # required: the architecture's default differs from Qwen3's
    keys = {name: section.value(name) for name in section.names()}
    for name in ("rope_scaling", "rope_parameters"):
        if name in section:
            keys[name] = _plain_rope(section.section(name))
    config = DecoderConfig.from_settings("qwen3", Settings(keys, section.prefix))
    for name in ("rope_scaling", "rope_parameters"):
        _check_axes(section.section(name), config.head_dim)
    if settings.prefix:  # the authors' layout: the text model's own key counts
        return config
    return replace(config, tied=settings.flag("tie_word_embeddings", default=True))


def _plain_rope(section: Settings) -> dict[str, object]:
    """Return a rotation without its three axes, which advance together for sound."""
    return {name: section.value(name) for name in section.names() if name not in _MROPE_KEYS}


def _check_axes(section: Settings, head_dim: int) -> None:
    for key in _MROPE_KEYS[1:]:
        section.flag(key, default=False)
    match section.value("mrope_section"):
        case None:
            pass
        case [int(time), int(height), int(width)] if min(time, height, width) >= 0 and (
            2 * (time + height + width) == head_dim
        ):
            pass
        case _:
            raise section.refuse("mrope_section", f"three parts of {head_dim // 2} pairs are needed")


def _halved(length: int) -> int:
    """Return a length after three convolutions of stride 2."""
    for _ in range(3):
        length = -(-length // 2)
    return length
