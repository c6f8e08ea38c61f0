"""Whisper: speech recognition over windows of 30 seconds, one language or a hundred.

A log-mel spectrogram goes through two convolutions and a transformer (50 states a second, always 1500 of them); a
decoder writes words, or words and times. A runner uses it as moonshine.py describes.

A CPU uses short windows: the encoder sees the clip and a second of silence. Whisper was trained with 30 s, and after a
short window alone its decoder often does not find the end: it begins again from the first word, in 3 of 12 turns. So
the states of an empty window, which are the same for every clip and encoded once, follow those of the short one up to
the usual 1500th, every fourth of them. In the decoder's attention each counts as four: the silence then has the weight
that it was trained with. Counted as one, 9 of 1365 short turns were sentences written again and again; counted as four,
none was. A turn of 3 s takes a tenth of the time. What is still repeated, audio/transcriber.py doubts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.audio.mel import FRAMES, HOP, SAMPLE_RATE, WINDOW_SAMPLES, log_mel, window_mels
from voxlane.engine.errors import ModelConfigError
from voxlane.engine.kernels.conv.conv import columns, conv, conv_together, flatten
from voxlane.engine.kernels.norm.layer_norm import gelu
from voxlane.engine.models.clips import JoinedSound
from voxlane.engine.models.encoder_decoder import (
    DecoderLayer,
    EncoderDecoder,
    EncoderDecoderWeights,
    EncoderLayer,
    LayerNorm,
    Projection,
)
from voxlane.engine.models.loading import Mode, Progress, TensorReader
from voxlane.engine.models.recognition import DETECTING, OPENING, WRITING, Encoded
from voxlane.engine.models.settings import Settings
from voxlane.engine.models.spelling import Spelling
from voxlane.engine.weights.json_files import read_json
from voxlane.engine.weights.safetensors import SafetensorsDirectory
from voxlane.engine.weights.tensors import Blocks, WeightFile

STATES = FRAMES // 2
STATE_SAMPLES = 2 * HOP

MARGIN_SAMPLES = SAMPLE_RATE
"""Silence that is encoded after a clip."""

QUIET_EVERY = 4
"""Of the silence after that up to 30 s, one state of so many stands for its neighbours, and counts as all of them."""

EXPECTED_TOKENS = 64
"""The most tokens of expected words: about 20 names. Each look reads them again."""

_ENGLISH_VOCABULARY = 51_864
"""The English models' vocabulary; a multilingual one has one more token, and one for every language beyond 99."""


@dataclass(frozen=True, slots=True)
class WhisperTokens:
    """The control tokens, which follow the words in every vocabulary in the same order."""

    end: int  # <|endoftext|>
    start: int  # <|startoftranscript|>
    languages: range  # <|en|> and so on
    translate: int
    transcribe: int
    previous: int  # <|startofprev|>
    no_speech: int
    no_timestamps: int
    timestamps: range  # <|0.00|> to <|30.00|>, 20 ms apart

    @classmethod
    def of(cls, vocab_size: int) -> WhisperTokens:
        """Return the tokens of a vocabulary of this size, or raise ModelConfigError."""
        multilingual = vocab_size > _ENGLISH_VOCABULARY
        languages = 99 + max(0, vocab_size - _ENGLISH_VOCABULARY - 1)
        end = 50_256 + multilingual
        first = end + 2 + languages
        if vocab_size < _ENGLISH_VOCABULARY or languages > 999:
            raise ModelConfigError(f"config key vocab_size: {vocab_size} is no Whisper vocabulary")
        return cls(
            end=end,
            start=end + 1,
            languages=range(end + 2, first),
            translate=first,
            transcribe=first + 1,
            previous=first + 3,
            no_speech=first + 4,
            no_timestamps=first + 5,
            timestamps=range(first + 6, first + 6 + STATES + 1),
        )

    def prompt(self, *, language: int | None = None, translate: bool = False, timestamps: bool = False) -> list[int]:
        """Return what a transcript starts with; a multilingual model needs the token of its language."""
        task = [] if language is None else [language, self.translate if translate else self.transcribe]
        return [self.start, *task, *([] if timestamps else [self.no_timestamps])]


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """The numbers of one checkpoint."""

    vocab_size: int
    hidden_size: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    encoder_inner: int
    decoder_inner: int
    mel_bins: int
    context_tokens: int
    suppressed: tuple[int, ...]  # never written: punctuation of stage directions, control tokens
    suppressed_first: tuple[int, ...]  # not written first: a blank, the end
    alignment_heads: tuple[tuple[int, int], ...]  # (layer, head) pairs that attend to where a word sounds

    @property
    def multilingual(self) -> bool:
        """Whether it knows more than English."""
        return self.vocab_size > _ENGLISH_VOCABULARY

    @property
    def translates(self) -> bool:
        """Whether it was trained to translate into English: those whose decoder was cut down, as turbo's, were not."""
        return self.multilingual and self.decoder_layers == self.encoder_layers

    @classmethod
    def from_dict(cls, values: dict[str, object]) -> WhisperConfig:
        """Read Hugging Face's config.json, generation_config.json's keys among it, or raise ModelConfigError."""
        settings = Settings(values)
        hidden = settings.integer("d_model", maximum=1 << 16)
        heads = settings.integer("decoder_attention_heads", maximum=256)
        layers = settings.integer("decoder_layers", maximum=256)
        if settings.integer("encoder_attention_heads", heads) != heads:
            raise settings.refuse("encoder_attention_heads", f"must be decoder_attention_heads, {heads}")
        if hidden % heads or hidden // heads % 4 or hidden // heads > 256:
            raise settings.refuse("d_model", f"{heads} heads of a multiple of 4 up to 256 are needed")
        if settings.text("activation_function", "gelu") != "gelu":
            raise settings.refuse("activation_function", "only 'gelu' is supported")
        if settings.flag("scale_embedding", default=False):
            raise settings.refuse("scale_embedding", "is not supported")
        if settings.integer("max_source_positions", STATES) != STATES:
            raise settings.refuse("max_source_positions", f"only {STATES} is supported: 30 s")
        vocabulary = settings.integer("vocab_size", maximum=1 << 22)
        # Without measured alignment heads OpenAI takes all heads of the later layers.
        later = [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]
        return cls(
            vocab_size=vocabulary,
            hidden_size=hidden,
            heads=heads,
            encoder_layers=settings.integer("encoder_layers", maximum=256),
            decoder_layers=layers,
            encoder_inner=settings.integer("encoder_ffn_dim", maximum=1 << 20),
            decoder_inner=settings.integer("decoder_ffn_dim", maximum=1 << 20),
            mel_bins=settings.integer("num_mel_bins", 80, maximum=256),
            context_tokens=settings.integer("max_target_positions", 448, maximum=1 << 16),
            suppressed=_token_list(settings, "suppress_tokens", vocabulary),
            suppressed_first=_token_list(settings, "begin_suppress_tokens", vocabulary),
            alignment_heads=_head_list(settings, layers, heads) or tuple(later),
        )


def _token_list(settings: Settings, key: str, vocabulary: int) -> tuple[int, ...]:
    value = settings.value(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(token) is int and token < vocabulary for token in value):
        raise settings.refuse(key, f"{value!r:.60} is not a list of tokens")
    return tuple(token for token in value if token >= 0)  # -1 means a list that OpenAI's own program makes


def _head_list(settings: Settings, layers: int, heads: int) -> tuple[tuple[int, int], ...]:
    value = settings.value("alignment_heads")
    pairs: list[tuple[int, int]] = []
    for pair in value if isinstance(value, list) else []:
        match pair:
            case [int(layer), int(head)] if 0 <= layer < layers and 0 <= head < heads:
                pairs.append((layer, head))
            case _:
                raise settings.refuse("alignment_heads", f"{pair!r:.60} is no layer and head of this model")
    return tuple(pairs)


class Whisper(EncoderDecoder):
    """A loaded Whisper."""

    sample_rate = SAMPLE_RATE
    samples_per_state = STATE_SAMPLES
    max_samples = WINDOW_SAMPLES
    fixed_window = True
    long_segments = True
    tells_silence = True

    def __init__(
        self,
        config: WhisperConfig,
        mode: Mode,
        transformer: EncoderDecoderWeights,
        convolutions: list[Projection],
        encoder_positions: Tensor,
        spelling: Spelling,
        parameters: int,
    ) -> None:
        super().__init__(
            transformer,
            spelling,
            intermediate_size=config.decoder_inner,
            vocab_size=config.vocab_size,
            context_tokens=config.context_tokens,
            parameters=parameters,
        )
        self.config = config
        self.mode = mode
        self.tokens = WhisperTokens.of(config.vocab_size)
        self.eos_ids = frozenset({self.tokens.end})
        self.alignment_heads = config.alignment_heads
        if config.multilingual:
            self._languages = _language_names(self.tokens, spelling)
            self.languages = tuple(self._languages.values())
            self.detects_language = bool(self.languages)
            if config.translates:
                self.tasks = (self.tokens.transcribe, self.tokens.translate)
        self.restrictions = _restrictions(config, self.tokens).to(self.device)
        self._convolutions = convolutions
        self._encoder_positions = encoder_positions
        self._quiet: Tensor | None = None  # the states of an empty window; None: every window has 30 s

    @classmethod
    def load(
        cls,
        weights: WeightFile,
        spelling: Spelling,
        mode: Mode = "packed",
        progress: Progress | None = None,
        device: str | torch.device = "cpu",
    ) -> Whisper:
        """Read a model, or raise ModelError with one line that names the config key or tensor at fault."""
        config = WhisperConfig.from_dict(_with_generation(weights))
        aliases = {name: name for name in weights.names()}
        reader = TensorReader(_Flattened(weights), aliases, mode, torch.device(device), progress)
        hidden = config.hidden_size
        convolutions = [
            _projection(reader, "model.encoder.conv1", hidden, columns(3, config.mel_bins)),
            _projection(reader, "model.encoder.conv2", hidden, columns(3, hidden)),
        ]
        positions = _table(reader, "model.encoder.embed_positions.weight", STATES, hidden)
        transformer = _load_transformer(reader, config, device)
        reader.finish(ignored=["proj_out.weight"])
        return cls(config, mode, transformer, convolutions, positions, spelling, reader.parameters)

    def use_short_windows(self) -> None:
        """Encode only a clip and a margin of its 30 s from now on."""
        with torch.inference_mode():
            self._quiet = self.encode([torch.zeros(0)]).states
        self.fixed_window, self.short_windows = False, True
        self.thinned = QUIET_EVERY

    def window(self, samples: int) -> int:
        """Return how many states the encoder makes of a clip of `samples` and the silence after it."""
        if self._quiet is None:
            return STATES
        return min(STATES, -(-(samples + MARGIN_SAMPLES) // STATE_SAMPLES))

    def states(self, samples: int) -> int:
        """Return how many states a decoder sees of a clip of `samples`: those of the silence after it included."""
        window = self.window(samples)
        return window + len(quiet_places(window))

    def encode(self, clips: Sequence[Tensor]) -> Encoded:
        """Return the states of clips: of a short window, then those of an empty one up to 30 s."""
        encoded = super().encode(clips)
        if self._quiet is None:
            return encoded
        parts: list[Tensor] = []
        ends = itertools.accumulate(encoded.lengths, initial=0)
        for first, last in itertools.pairwise(ends):
            rest = quiet_places(last - first)
            parts += [encoded.states[first:last], self._quiet[rest.start : rest.stop : rest.step]]
        return Encoded(torch.cat(parts), [self.states(len(clip)) for clip in clips])

    def stem(self, clips: Sequence[Tensor]) -> list[Tensor]:
        """Return the input of the encoder's layers for each clip, [window, hidden] float32."""
        if not clips:
            raise ValueError("there is no clip to encode")
        first, second = self._convolutions
        spectrograms = [log_mel(clip, self.config.mel_bins, 2 * self.window(len(clip))) for clip in clips]
        rows = [gelu(clip) for clip in conv(spectrograms, first.weight, first.bias, 3, 1, 1)]
        rows = [gelu(clip) for clip in conv(rows, second.weight, second.bias, 3, 2, 1)]
        return [clip + self._encoder_positions[: len(clip)] for clip in rows]

    def join(self, samples: Sequence[int]) -> JoinedSound:
        """Return how clips are joined: each in a window of its own."""
        starts = [clip * WINDOW_SAMPLES for clip in range(len(samples))]
        return JoinedSound(starts, len(samples) * WINDOW_SAMPLES, {})

    def joined_samples(self, rows: int, clips: int) -> int:
        """Return the samples that so many clips are joined to."""
        return clips * WINDOW_SAMPLES

    def stem_joined(self, sound: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
        """Do stem's work for joined clips and their silence, all at once: [rows, hidden]."""
        first, second = (one.dense() for one in self._convolutions)
        x = window_mels(sound.view(-1, WINDOW_SAMPLES), self.config.mel_bins).to(self.dtype)
        x = F.gelu(conv_together(x, *first, 3, 1, 1))
        x = F.gelu(conv_together(x, *second, 3, 2, 1))
        return (x + self._encoder_positions).flatten(0, 1)

    def silence(self, hidden: Tensor) -> Tensor:
        """Return the probability of silence, from hidden rows [N, hidden] of <|startoftranscript|> tokens."""
        return torch.softmax(self.logits(hidden), dim=-1)[:, self.tokens.no_speech]

    def prompt_tokens(self, language: str, states: int = 0) -> list[int]:
        """Return what a transcript starts with; with language "", a multilingual model writes its token next."""
        if not self.detects_language:
            return self.tokens.prompt()
        named = [token for token, name in self._languages.items() if name == language]
        return self.tokens.prompt(language=named[0]) if language else [self.tokens.start]

    def expecting(self, words: Sequence[str]) -> list[int]:
        """Return the words as the text before the transcript: Whisper spells names as that text does."""
        tokens: list[int] = []
        for word in words:
            more = self._spelling.encode(f", {word}" if tokens else f" {word}")
            if len(tokens) + len(more) < EXPECTED_TOKENS:
                tokens += more
        return [self.tokens.previous, *tokens, *self._spelling.encode(".")] if tokens else []

    def after_language(self, token: int) -> list[int]:
        """Return what follows the token of a language that was detected."""
        return self.tokens.prompt(language=token)[2:]

    def language_of(self, token: int) -> str:
        """Return the language, as in ISO 639-1, that a token names."""
        return self._languages.get(token, "")


def quiet_places(window: int) -> range:
    """Return which states of an empty window follow a short window of so many states."""
    return range(window, STATES, QUIET_EVERY)


def _restrictions(config: WhisperConfig, tokens: WhisperTokens) -> Tensor:
    """Return what is added to logits, [3, vocab]: -inf for control tokens, and first also for blanks and the end."""
    table = torch.zeros(3, config.vocab_size)
    table[[WRITING, OPENING], tokens.start :] = -math.inf
    table[:DETECTING, list(config.suppressed)] = -math.inf
    table[OPENING, list(config.suppressed_first)] = -math.inf
    table[DETECTING, : tokens.languages.start] = -math.inf
    table[DETECTING, tokens.languages.stop :] = -math.inf
    return table


def _language_names(tokens: WhisperTokens, spelling: Spelling) -> dict[int, str]:
    names = {token: spelling.names[token] for token in tokens.languages}
    return {token: name[2:-2] for token, name in names.items() if name.startswith("<|") and name.endswith("|>")}


class _Flattened:
    """A Whisper file with convolutions as matrices over windows, and tables of positions as vectors."""

    def __init__(self, weights: WeightFile) -> None:
        self._weights = weights

    @property
    def config(self) -> dict[str, object]:
        return self._weights.config

    def names(self) -> list[str]:
        return self._weights.names()

    def tensor(self, name: str) -> Tensor:
        tensor = self._weights.tensor(name)
        if ".conv" in name and tensor.ndim == 3:
            return flatten(tensor)
        return tensor.reshape(-1) if name.endswith(".embed_positions.weight") else tensor

    def blocks(self, name: str) -> Blocks | None:
        return None if ".conv" in name else self._weights.blocks(name)


def _with_generation(weights: WeightFile) -> dict[str, object]:
    """Return the config; Hugging Face keeps part of Whisper's in a file of its own."""
    if not isinstance(weights, SafetensorsDirectory):
        return weights.config
    beside = weights.path / "generation_config.json"
    generation = read_json(beside) if beside.is_file() else {}
    keys = ("suppress_tokens", "begin_suppress_tokens", "alignment_heads")
    return {**weights.config, **{key: generation[key] for key in keys if key in generation}}


def _load_transformer(reader: TensorReader, config: WhisperConfig, device: str | torch.device) -> EncoderDecoderWeights:
    hidden, head_dim = config.hidden_size, config.hidden_size // config.heads
    embedding = reader.matrix(["model.decoder.embed_tokens.weight"], [config.vocab_size], hidden)
    places = max(STATES, config.context_tokens)
    return EncoderDecoderWeights(
        heads=config.heads,
        head_dim=head_dim,
        encoder=[_encoder_layer(reader, config, index) for index in range(config.encoder_layers)],
        encoder_norm=_norm(reader, "model.encoder.layer_norm", hidden),
        decoder=[_decoder_layer(reader, config, index) for index in range(config.decoder_layers)],
        decoder_norm=_norm(reader, "model.decoder.layer_norm", hidden),
        embedding=embedding,
        head=embedding,
        cos=torch.ones(places, head_dim // 2, device=device),
        sin=torch.zeros(places, head_dim // 2, device=device),
        gated_decoder=False,
        positions=_table(reader, "model.decoder.embed_positions.weight", config.context_tokens, hidden),
        dtype=reader.dtype,
    )


def _encoder_layer(reader: TensorReader, config: WhisperConfig, index: int) -> EncoderLayer:
    prefix, hidden = f"model.encoder.layers.{index}.", config.hidden_size
    return EncoderLayer(
        attention_norm=_norm(reader, f"{prefix}self_attn_layer_norm", hidden),
        qkv=_fused(reader, f"{prefix}self_attn.", "qkv", hidden),
        out=_projection(reader, f"{prefix}self_attn.out_proj", hidden, hidden),
        mlp_norm=_norm(reader, f"{prefix}final_layer_norm", hidden),
        up=_projection(reader, f"{prefix}fc1", config.encoder_inner, hidden),
        down=_projection(reader, f"{prefix}fc2", hidden, config.encoder_inner),
    )


def _decoder_layer(reader: TensorReader, config: WhisperConfig, index: int) -> DecoderLayer:
    prefix, hidden = f"model.decoder.layers.{index}.", config.hidden_size
    return DecoderLayer(
        attention_norm=_norm(reader, f"{prefix}self_attn_layer_norm", hidden),
        qkv=_fused(reader, f"{prefix}self_attn.", "qkv", hidden),
        out=_projection(reader, f"{prefix}self_attn.out_proj", hidden, hidden),
        cross_norm=_norm(reader, f"{prefix}encoder_attn_layer_norm", hidden),
        cross_q=_fused(reader, f"{prefix}encoder_attn.", "q", hidden),
        cross_kv=_fused(reader, f"{prefix}encoder_attn.", "kv", hidden),
        cross_out=_projection(reader, f"{prefix}encoder_attn.out_proj", hidden, hidden),
        mlp_norm=_norm(reader, f"{prefix}final_layer_norm", hidden),
        up=_projection(reader, f"{prefix}fc1", config.decoder_inner, hidden),
        down=_projection(reader, f"{prefix}fc2", hidden, config.decoder_inner),
    )


def _fused(reader: TensorReader, prefix: str, parts: str, hidden: int) -> Projection:
    weight = reader.matrix([f"{prefix}{part}_proj.weight" for part in parts], [hidden] * len(parts), hidden)
    # Keys have no bias: it would add the same to every score of a query, which softmax ignores.
    known = {part: reader.bias([f"{prefix}{part}_proj.bias"], [hidden]) for part in parts if part != "k"}
    none = torch.zeros_like(next(iter(known.values())))
    return Projection(weight, torch.cat([known.get(part, none) for part in parts]))


def _projection(reader: TensorReader, name: str, outputs: int, inputs: int) -> Projection:
    return Projection(reader.matrix([f"{name}.weight"], [outputs], inputs), reader.bias([f"{name}.bias"], [outputs]))


def _norm(reader: TensorReader, name: str, size: int) -> LayerNorm:
    return LayerNorm(reader.vector(f"{name}.weight", size), reader.vector(f"{name}.bias", size))


def _table(reader: TensorReader, name: str, rows: int, columns: int) -> Tensor:
    """Return learned positions as float32, whatever the mode: they are added, not multiplied by."""
    return reader.vector(name, rows * columns).view(rows, columns)
