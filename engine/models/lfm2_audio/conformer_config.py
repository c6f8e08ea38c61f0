"""The numbers of LFM2-Audio's FastConformer encoder and of the spectrogram it reads, from its config.json.

Every key is used, known not to change the result, or refused by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from voxlane.engine.audio.mel import HOP, SAMPLE_RATE, WINDOW
from voxlane.engine.audio.nemo_mel import FFT, frames
from voxlane.engine.models.settings import Settings

_USED_KEYS = {
    "conv_kernel_size", "d_model", "feat_in", "feat_out", "ff_expansion_factor", "n_heads", "n_layers",
    "pos_emb_max_len", "subsampling_conv_channels", "subsampling_factor", "xscaling",
}  # fmt: skip
_UNUSED_KEYS = {
    *("dropout", "dropout_att", "dropout_emb", "dropout_pre_encoder"),  # training's
    *("reduction_factor", "reduction_position"),  # of a reduction, and there is none
}
_FIXED: dict[str, tuple[object, ...]] = {
    "att_context_size": ([-1, -1], [[-1, -1]]), "causal_downsampling": (False,), "conv_context_size": (),
    "conv_norm_type": ("batch_norm",), "reduction": (), "self_attention_model": ("rel_pos",),
    "subsampling": ("dw_striding",), "untie_biases": (True,),
}  # fmt: skip
_SOUND_FIXED: dict[str, tuple[object, ...]] = {
    "frame_splicing": (1,), "log": (True,), "n_fft": (FFT,), "normalize": ("per_feature",), "pad_to": (0,),
    "pad_value": (0,), "sample_rate": (SAMPLE_RATE,), "window": ("hann",), "window_size": (WINDOW / SAMPLE_RATE,),
    "window_stride": (HOP / SAMPLE_RATE,),
}  # fmt: skip
_SOUND_UNUSED = {"dither"}  # noise that is added in training only
_MAX_SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class ConformerConfig:
    """The encoder of one checkpoint."""

    bins: int  # of the spectrogram
    channels: int  # of the convolutions that shorten it
    halvings: int  # of the frame rate, by these
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kernel: int  # of the layers' convolutions
    input_scale: float
    max_states: int  # rows of the longest clip

    @property
    def head_dim(self) -> int:
        """Return a head's size."""
        return self.hidden_size // self.heads

    @property
    def bands(self) -> int:
        """Return what the convolutions leave of the bins."""
        return -(-self.bins // (1 << self.halvings))

    def states(self, samples: int) -> int:
        """Return how many rows a clip of so many samples becomes."""
        return -(-frames(samples) // (1 << self.halvings))

    @classmethod
    def read(cls, encoder: Settings, sound: Settings) -> ConformerConfig:
        """Read the sections `encoder` and `preprocessor`, or raise ModelConfigError that names the key."""
        encoder.known_only(_USED_KEYS, _UNUSED_KEYS, _FIXED)
        sound.known_only({"features"}, _SOUND_UNUSED, _SOUND_FIXED)
        hidden = encoder.integer("d_model", maximum=_MAX_SIZE)
        heads = encoder.integer("n_heads", maximum=1024)
        if hidden % (2 * heads):
            raise encoder.refuse("n_heads", f"{heads} heads of an even size do not fit into d_model {hidden}")
        if encoder.value("feat_out") not in (None, -1, hidden):
            raise encoder.refuse("feat_out", f"only -1 or d_model {hidden} is supported")
        bins = encoder.integer("feat_in", maximum=1024)
        if sound.integer("features", bins) != bins:
            raise sound.refuse("features", f"must be encoder.feat_in, {bins}")
        factor = encoder.integer("subsampling_factor", minimum=2, maximum=64)
        if factor & (factor - 1):
            raise encoder.refuse("subsampling_factor", f"{factor} is no power of 2")
        kernel = encoder.integer("conv_kernel_size", maximum=1023)
        if kernel % 2 == 0:
            raise encoder.refuse("conv_kernel_size", f"{kernel} is even")
        channels = encoder.value("subsampling_conv_channels")
        return cls(
            bins=bins,
            channels=hidden if channels == -1 else encoder.integer("subsampling_conv_channels", maximum=_MAX_SIZE),
            halvings=factor.bit_length() - 1,
            hidden_size=hidden,
            intermediate_size=hidden * encoder.integer("ff_expansion_factor", 4, maximum=64),
            layers=encoder.integer("n_layers", maximum=256),
            heads=heads,
            kernel=kernel,
            input_scale=math.sqrt(hidden) if encoder.flag("xscaling", default=True) else 1.0,
            max_states=encoder.integer("pos_emb_max_len", 5000, maximum=1 << 20),
        )
