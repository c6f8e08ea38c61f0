"""What distinguishes one Qwen3-TTS checkpoint from another, read from the keys of its config.json.

Every key is used, known not to change the sound, or refused by name: in each part of config.json and in
generation_config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from voxlane.engine.models.decoder_config import QWEN3_KEYS, DecoderConfig
from voxlane.engine.models.generic_keys import CHOOSING, NEUTRAL, NOTES
from voxlane.engine.models.settings import Settings

Kind = Literal["base", "custom_voice", "voice_design"]

SUPPRESSED_CODES = 1024
"""The last codes of the talker's vocabulary are for prompts: of them only the end of speech may be chosen."""

MIN_FRAMES = 2
"""Speech does not end before this many frames."""

MEL_BINS, SAMPLE_RATE = 128, 24_000  # what the speaker encoder hears
_KINDS: tuple[Kind, ...] = ("base", "custom_voice", "voice_design")
_MAX_GROUPS = 64
_MAX_FACTOR = 100.0
_MROPE_AXES = 3
_TOP_KEYS = {
    "im_end_token_id", "im_start_token_id", "speaker_encoder_config", "talker_config", "tokenizer_type",
    "tts_bos_token_id", "tts_eos_token_id", "tts_model_size", "tts_model_type", "tts_pad_token_id",
}  # fmt: skip
_TOP_UNUSED = {
    "assistant_token_id",  # a word of the prompt; the vocabulary knows it
    "tie_word_embeddings",  # the parts have their own
}
_PREDICTOR_KEYS = QWEN3_KEYS - {"rope_parameters"} | {"num_code_groups"}  # transformers 4 spells it rope_scaling
_TALKER_KEYS = _PREDICTOR_KEYS - {"layer_types", "max_window_layers"} | {
    "code_predictor_config", "codec_bos_id", "codec_eos_token_id", "codec_language_id", "codec_nothink_id",
    "codec_pad_id", "codec_think_bos_id", "codec_think_eos_id", "codec_think_id", "spk_id", "spk_is_dialect",
    "text_hidden_size", "text_vocab_size",
}  # fmt: skip
_TALKER_UNUSED = {"layer_types", "max_window_layers", "position_id_per_seconds"}  # the package reads none of them
_SPEAKER_KEYS = {
    "enc_attention_channels", "enc_channels", "enc_dilations", "enc_dim", "enc_kernel_sizes", "enc_res2net_scale",
    "enc_se_channels", "mel_dim", "sample_rate",
}  # fmt: skip
_SAMPLING_KEYS = {
    "do_sample", "max_new_tokens", "repetition_penalty", "temperature", "top_k", "top_p", "subtalker_dosample",
    "subtalker_temperature", "subtalker_top_k", "subtalker_top_p",
}  # fmt: skip
_Name = TypeVar("_Name", bound=str)


@dataclass(frozen=True, slots=True)
class TextTokens:
    """Tokens of the text stream that no text contains."""

    start: int  # <|im_start|>
    end: int  # <|im_end|>
    pad: int  # nothing more to read aloud
    bos: int
    eos: int


@dataclass(frozen=True, slots=True)
class CodecTokens:
    """Tokens of the talker's vocabulary that are no sound."""

    pad: int
    bos: int
    eos: int  # the end of speech
    think: int  # a language is named
    nothink: int  # none is
    think_bos: int
    think_eos: int


@dataclass(frozen=True, slots=True)
class SpeakerEncoderConfig:
    """The sizes of the speaker encoder."""

    size: int  # of the embedding
    channels: tuple[int, ...]  # per layer; the last joins what those between said
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    attention_channels: int
    res2net_scale: int  # parts a layer's channels are cut into
    squeeze_channels: int


@dataclass(frozen=True, slots=True)
class Qwen3TTSConfig:
    """One checkpoint's flags and sizes, consistent: from_dict has checked them."""

    kind: Kind
    size: str  # "0b6", "1b7"
    talker: DecoderConfig
    predictor: DecoderConfig
    groups: int  # codes a frame
    text_vocab_size: int
    text_hidden_size: int
    text: TextTokens
    codec: CodecTokens
    languages: Mapping[str, int]  # name -> codec token; dialects among them
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]  # speaker -> its dialect's name among the languages
    speaker_encoder: SpeakerEncoderConfig | None  # base checkpoints only

    @classmethod
    def from_dict(cls, config: dict[str, object]) -> Qwen3TTSConfig:
        """Return the configuration in `config`, or raise ModelConfigError naming the key."""
        settings = Settings(config)
        for key in ("quantization_config", "quantization"):
            if key in settings:
                raise settings.refuse(key, "not supported")
        settings.known_only(_TOP_KEYS, NOTES | CHOOSING | _TOP_UNUSED, NEUTRAL)
        settings.section("speaker_encoder_config").known_only(_SPEAKER_KEYS, NOTES)
        kind = _choice(settings, "tts_model_type", _KINDS)
        _choice(settings, "tokenizer_type", ("qwen3_tts_tokenizer_12hz",))
        section = settings.section("talker_config")
        talker, predictor = _talker(section), _predictor(section.section("code_predictor_config"))
        groups = section.integer("num_code_groups", minimum=2, maximum=_MAX_GROUPS)
        _check_groups(section, groups, predictor, talker)
        text_vocab = section.integer("text_vocab_size", maximum=2**24)
        languages = _tokens(section, "codec_language_id", talker.vocab_size)
        speakers = _tokens(section, "spk_id", talker.vocab_size)
        if kind == "custom_voice" and (not speakers or "" in speakers):
            raise section.refuse("spk_id", "a custom_voice checkpoint has speakers, each with a name")
        return cls(
            kind=kind,
            size=settings.text("tts_model_size", ""),
            talker=talker,
            predictor=predictor,
            groups=groups,
            text_vocab_size=text_vocab,
            text_hidden_size=section.integer("text_hidden_size", 2048, maximum=2**17),
            text=_text_tokens(settings, text_vocab),
            codec=_codec_tokens(section, talker.vocab_size),
            languages=languages,
            speakers=speakers,
            dialects=_dialects(section, speakers, languages),
            speaker_encoder=_speaker_encoder(settings, talker.hidden_size) if kind == "base" else None,
        )

    @property
    def codes(self) -> int:
        """Return how many codes each group's codebook has."""
        return self.predictor.vocab_size

    @property
    def takes_instructions(self) -> bool:
        """Return whether words may say how to speak; the small model was not taught to listen to them."""
        return self.kind == "voice_design" or (self.kind == "custom_voice" and self.size != "0b6")


@dataclass(frozen=True, slots=True)
class SpeechSampling:
    """How frames are chosen: the first code by the talker, the others of a frame by the code predictor."""

    temperature: float = 0.9  # 0: the likeliest
    top_k: int = 50  # 0: all
    top_p: float = 1.0
    repetition_penalty: float = 1.05  # of first codes this request has spoken before
    inner_temperature: float = 0.9
    inner_top_k: int = 50
    inner_top_p: float = 1.0
    max_frames: int = 2048

    @classmethod
    def from_dict(cls, config: Mapping[str, object], end: int | None = None) -> SpeechSampling:
        """Return the defaults a checkpoint's generation_config.json names, or raise ModelConfigError naming the key.

        `end` is the talker's end of speech: the file may repeat it.
        """
        settings = Settings(config, "generation_config.")
        own = {"min_new_tokens": tuple(range(MIN_FRAMES + 1)), "max_length": (20,)}  # 20: the library's default
        ends = () if end is None else (end, [end])
        settings.known_only(_SAMPLING_KEYS, NOTES, {**NEUTRAL, **own, "eos_token_id": ends})

        def temperature(name: str, switch: str) -> float:
            return _factor(settings, name, 0.9) if settings.flag(switch, default=True) else 0.0

        return cls(
            temperature=temperature("temperature", "do_sample"),
            top_k=settings.integer("top_k", 50, minimum=0),
            top_p=_share(settings, "top_p"),
            repetition_penalty=_factor(settings, "repetition_penalty", 1.05),
            inner_temperature=temperature("subtalker_temperature", "subtalker_dosample"),
            inner_top_k=settings.integer("subtalker_top_k", 50, minimum=0),
            inner_top_p=_share(settings, "subtalker_top_p"),
            max_frames=settings.integer("max_new_tokens", 2048, maximum=2**24),
        )


def _talker(section: Settings) -> DecoderConfig:
    section.known_only(_TALKER_KEYS, NOTES | CHOOSING | _TALKER_UNUSED, NEUTRAL)
    keys = {name: section.value(name) for name in section.names()}
    if section.flag("use_sliding_window", default=False):
        raise section.refuse("use_sliding_window", "a talker with a sliding window is not supported")
    for name in ("layer_types", "max_window_layers"):  # a talker has none; they must not be read as a Qwen3's
        keys.pop(name, None)
    heads, hidden = section.integer("num_attention_heads"), section.integer("hidden_size")
    keys.setdefault("head_dim", hidden // heads)
    config = _decoder(section, keys)
    rope = section.section("rope_scaling")
    sections = _integers(rope, "mrope_section", None)
    if len(sections) != _MROPE_AXES or 2 * sum(sections) != config.head_dim:
        raise rope.refuse("mrope_section", f"three parts of {config.head_dim // 2} pairs are needed")
    rope.flag("interleaved", default=False)
    return config


def _predictor(section: Settings) -> DecoderConfig:
    # It alone has no end: as many codes as there are groups are asked of it.
    section.known_only(_PREDICTOR_KEYS, NOTES | CHOOSING - {"eos_token_id"}, {**NEUTRAL, "eos_token_id": ()})
    keys = {name: section.value(name) for name in section.names()}
    return _decoder(section, keys)


def _decoder(section: Settings, keys: dict[str, object]) -> DecoderConfig:
    if section.flag("tie_word_embeddings", default=False):
        raise section.refuse("tie_word_embeddings", "heads and tables are different things here")
    section.integer("num_key_value_heads")  # required: the architecture's default differs from Qwen3's
    rope = section.section("rope_scaling")
    # A talker's three axes of positions always advance together, so that its sections collapse to the plain rotation.
    keys["rope_scaling"] = {
        name: rope.value(name) for name in rope.names() if name not in ("mrope_section", "interleaved")
    }
    return DecoderConfig.from_settings("qwen3", Settings(keys, section.prefix))


def _check_groups(section: Settings, groups: int, predictor: DecoderConfig, talker: DecoderConfig) -> None:
    inner = section.section("code_predictor_config")
    if inner.integer("num_code_groups") != groups:
        raise inner.refuse("num_code_groups", f"differs from the talker's {groups}")
    if predictor.context_tokens < groups:
        raise inner.refuse("max_position_embeddings", f"a frame has {groups} codes")
    if talker.vocab_size - SUPPRESSED_CODES != predictor.vocab_size:
        wanted = f"{predictor.vocab_size} codes and {SUPPRESSED_CODES} tokens that are no sound"
        raise section.refuse("vocab_size", f"{talker.vocab_size} is not {wanted}")


def _text_tokens(settings: Settings, vocabulary: int) -> TextTokens:
    def token(name: str, default: int) -> int:
        return settings.integer(f"{name}_token_id", default, minimum=0, maximum=vocabulary - 1)

    return TextTokens(
        start=token("im_start", 151_644),
        end=token("im_end", 151_645),
        pad=token("tts_pad", 151_671),
        bos=token("tts_bos", 151_672),
        eos=token("tts_eos", 151_673),
    )


def _codec_tokens(section: Settings, vocabulary: int) -> CodecTokens:
    def token(name: str) -> int:
        return section.integer(name, minimum=vocabulary - SUPPRESSED_CODES, maximum=vocabulary - 1)

    return CodecTokens(
        pad=token("codec_pad_id"),
        bos=token("codec_bos_id"),
        eos=token("codec_eos_token_id"),
        think=token("codec_think_id"),
        nothink=token("codec_nothink_id"),
        think_bos=token("codec_think_bos_id"),
        think_eos=token("codec_think_eos_id"),
    )


def _tokens(section: Settings, key: str, vocabulary: int) -> dict[str, int]:
    table = section.section(key)
    return {name.lower(): table.integer(name, minimum=0, maximum=vocabulary - 1) for name in table.names()}


def _dialects(section: Settings, speakers: dict[str, int], languages: dict[str, int]) -> dict[str, str]:
    table = section.section("spk_is_dialect")
    found: dict[str, str] = {}
    for name in table.names():
        value = table.value(name)
        if value is False:
            continue
        if not isinstance(value, str) or value.lower() not in languages or name.lower() not in speakers:
            raise table.refuse(name, f"{value!r:.60} is neither false nor a dialect in codec_language_id")
        found[name.lower()] = value.lower()
    return found


def _speaker_encoder(settings: Settings, hidden_size: int) -> SpeakerEncoderConfig:
    section = settings.section("speaker_encoder_config")
    for key, value in (("mel_dim", MEL_BINS), ("sample_rate", SAMPLE_RATE)):
        if section.integer(key, value) != value:
            raise section.refuse(key, f"only {value} is supported")
    size = section.integer("enc_dim", 1024)
    if size != hidden_size:
        raise section.refuse("enc_dim", f"{size} is not the talker's hidden_size {hidden_size}")
    channels = _integers(section, "enc_channels", [512, 512, 512, 512, 1536])
    kernels = _integers(section, "enc_kernel_sizes", [5, 3, 3, 3, 1])
    dilations = _integers(section, "enc_dilations", [1, 2, 3, 4, 1])
    if not 3 <= len(channels) == len(kernels) == len(dilations):
        raise section.refuse(
            "enc_channels", "needs as many entries as enc_kernel_sizes and enc_dilations, three or more"
        )
    if len(set(channels[:-1])) != 1 or channels[-1] != channels[0] * (len(channels) - 2):
        raise section.refuse("enc_channels", "layers of one width, and a last one as wide as those between together")
    scale = section.integer("enc_res2net_scale", 8)
    if channels[0] % scale:
        raise section.refuse("enc_res2net_scale", f"{scale} does not divide {channels[0]} channels")
    return SpeakerEncoderConfig(
        size=size,
        channels=channels,
        kernels=kernels,
        dilations=dilations,
        attention_channels=section.integer("enc_attention_channels", 128),
        res2net_scale=scale,
        squeeze_channels=section.integer("enc_se_channels", 128),
    )


def _choice(settings: Settings, key: str, allowed: tuple[_Name, ...]) -> _Name:
    found = settings.text(key)
    for name in allowed:
        if found == name:
            return name
    raise settings.refuse(key, f"{found!r:.60} is not one of {', '.join(allowed)}")


def _integers(section: Settings, key: str, default: list[int] | None) -> tuple[int, ...]:
    value = section.value(key) if key in section else default
    if not isinstance(value, list) or not all(type(item) is int and 0 < item < 2**20 for item in value):
        raise section.refuse(key, f"{value!r:.60} is not a list of positive integers")
    return tuple(value)


def _factor(settings: Settings, key: str, default: float) -> float:
    """Return a number that scores can be multiplied by or divided by in single precision."""
    value = settings.number(key, default)
    if not 1 / _MAX_FACTOR <= value <= _MAX_FACTOR:
        raise settings.refuse(key, f"{value:g} is not between {1 / _MAX_FACTOR:g} and {_MAX_FACTOR:g}")
    return value


def _share(settings: Settings, key: str) -> float:
    value = settings.number(key, 1.0)
    if value > 1:
        raise settings.refuse(key, f"{value} is above 1")
    return value
