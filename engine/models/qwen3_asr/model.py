"""Qwen3-ASR: speech recognition by a language model that is given sound among its tokens.

The tower turns a clip into rows; a Qwen3 decoder reads them at positions of the prompt, and writes the language and the
words. So a clip takes positions in the request's own block table; there is no second table. How a runner uses it,
beside what moonshine.py says:

    encode   encoded = model.encode(clips); model.write_cross(encoded.states, slots, pages) keeps the rows at `slots`
             until the next step: they are no keys and values yet
    decode   model.forward(tokens, …): a token of -1 - slot means the row kept at that slot

The rows of a clip, the prompt around them and the drafts go through the decoder in one pass, in the step that encodes
the clip.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from voxlane.engine.audio.mel import HOP, SAMPLE_RATE
from voxlane.engine.audio.transcriber import max_tokens
from voxlane.engine.kernels.attention.paged import gather
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.linear.linear import embed
from voxlane.engine.models.clips import ENCODER_BLOCK, ClipPlaces, JoinedSound
from voxlane.engine.models.decoder import DecoderLayers, read_layers
from voxlane.engine.models.loading import Mode, Progress, TensorReader, Weight
from voxlane.engine.models.qwen3_asr.config import CHUNK_STATES, Qwen3ASRConfig, check_generation
from voxlane.engine.models.qwen3_asr.prompt import ClipPrompt
from voxlane.engine.models.qwen3_asr.tower import AudioTower, by_band, flat
from voxlane.engine.models.recognition import DETECTING, Cross, Encoded, SpeechModel
from voxlane.engine.models.spelling import Spelling
from voxlane.engine.text.tokenizer import HasPath, Tokenizer
from voxlane.engine.weights.json_files import read_json
from voxlane.engine.weights.tensors import Blocks, WeightFile

MAX_SAMPLES = 20 * SAMPLE_RATE
"""Segments are shorter (ListenPolicy); a clip of this length takes 100 MiB of cache in float32 at 0.6B."""

_NAMES = {f"audio_tower.proj{n}.": f"multi_modal_projector.linear_{n}." for n in (1, 2)}
_PREFIXES = {"model.": "", "thinker.model.": "language_model.", "thinker.": ""}
"""How files spell the library's names: in the library's layout, then in the authors'."""


class Qwen3ASR(SpeechModel):
    """A loaded Qwen3-ASR."""

    sample_rate = SAMPLE_RATE
    max_samples = MAX_SAMPLES
    inline = True

    def __init__(
        self,
        config: Qwen3ASRConfig,
        tower: AudioTower,
        decoder: DecoderLayers,
        embedding: Weight,
        head: Weight,
        prompts: ClipPrompt,
        tokenizer: Tokenizer,
        spelling: Spelling,
        parameters: int,
    ) -> None:
        super().__init__(spelling)
        self.config = config
        self.parameters = parameters
        self.spec = decoder.spec
        self.vocab_size, self.hidden_size = config.text.vocab_size, config.text.hidden_size
        self.dtype = decoder.dtype
        self.samples_per_state = config.tower.chunk_frames * HOP / CHUNK_STATES
        self.clip_start = len(prompts.before)
        self.languages, self.detects_language = prompts.languages, True
        self.nobody = next((token for token, code in prompts.detectable.items() if not code), -1)
        self.eos_ids = tokenizer.eos_ids | {prompts.end}
        # The alignment heads are not measured: use all heads of the last third.
        layers = config.text.layers
        first = layers - max(1, layers // 3)
        self.alignment_heads = tuple(itertools.product(range(first, layers), range(config.text.heads)))
        self._prompts = prompts
        self._tower = tower
        self._decoder = decoder
        self._embedding = embedding
        self._head = head
        self.context_tokens = decoder.context_tokens
        self.device = tower.device
        self.restrictions = self._forbidden(tokenizer).to(self.device)
        self._kept: Tensor | None = None  # [slots, hidden]: rows of the clips of the step under way
        self._reserved = False

    @classmethod
    def load(
        cls,
        weights: WeightFile,
        beside: HasPath,
        mode: Mode = "packed",
        progress: Progress | None = None,
        device: str | torch.device = "cpu",
    ) -> Qwen3ASR:
        """Read a model and the vocabulary beside it, or raise ModelError with one line for a person."""
        config = Qwen3ASRConfig.from_dict(weights.config)
        generation = beside.path / "generation_config.json"
        check_generation(read_json(generation) if generation.is_file() else {})
        text = config.text
        tokenizer = Tokenizer.from_weights(beside)
        spelling = Spelling.of(tokenizer, text.vocab_size)
        prompts = ClipPrompt.of(tokenizer, config.languages)
        aliases = {_plain(name): name for name in weights.names()}
        reader = TensorReader(_Flattened(weights, config.tower.bands), aliases, mode, torch.device(device), progress)
        embedding = reader.matrix(["language_model.embed_tokens.weight"], [text.vocab_size], text.hidden_size)
        head = embedding if text.tied else reader.matrix(["lm_head.weight"], [text.vocab_size], text.hidden_size)
        longest = len(prompts.ask("", ())) + 4 + config.tower.states(MAX_SAMPLES) + max_tokens(MAX_SAMPLES)
        decoder = read_layers(reader, text, mode, "language_model.", min(longest, text.context_tokens))
        tower = AudioTower.read(reader, config.tower)
        reader.finish(ignored=["lm_head.weight"] if text.tied else [])
        return cls(config, tower, decoder, embedding, head, prompts, tokenizer, spelling, reader.parameters)

    # ---- how it is asked

    def states(self, samples: int) -> int:
        """Return how many rows a clip of `samples` becomes."""
        return self.config.tower.states(samples)

    def prompt_tokens(self, language: str, states: int = 0) -> list[int]:
        """Return what a transcript of a clip of so many states starts with; language "" is named next."""
        return self._prompts.ask(language, [self.config.audio_token] * states)

    def after_language(self, token: int) -> list[int]:
        """Return what follows the first token of a language's name."""
        return self._prompts.after_name(token)

    def language_of(self, token: int) -> str:
        """Return the language that a name's first token means; "" for a clip without speech."""
        return self._prompts.detectable.get(token, "")

    # ---- from sound to rows

    def encode(self, clips: Sequence[Tensor]) -> Encoded:
        """Return the decoder's input rows [states, hidden] of clips [samples] of float32 at 16 kHz."""
        if not clips or any(clip.ndim != 1 or len(clip) > MAX_SAMPLES for clip in clips):
            raise ValueError(f"clips of one dimension and at most {MAX_SAMPLES} samples are needed")
        lengths = [self.states(len(clip)) for clip in clips]
        pieces = self.pieces(lengths)
        block = ENCODER_BLOCK if self.device.type == "cuda" else max(pieces)  # on a CPU one block holds one window
        places = ClipPlaces.of(pieces, block)
        rows = torch.cat([self._stem(clip) for clip in clips])
        return Encoded(self.encode_rows(rows, places.layout(rows.device), places.blocks, block), lengths)

    def pieces(self, states: Sequence[int]) -> list[int]:
        """Return how many rows attend to each other in the tower: windows of eight seconds."""
        return self._tower.pieces(states)

    def join(self, samples: Sequence[int]) -> JoinedSound:
        """Return how clips of so many samples are joined for `stem_joined`."""
        return self._tower.join(samples)

    def joined_samples(self, rows: int, clips: int) -> int:
        """Return the most samples that so many clips of so many states together are joined to."""
        return self._tower.joined_samples(rows, clips)

    def stem_parts(self, rows: int, clips: int) -> dict[str, tuple[int, ...]]:
        """Return the largest shapes of the numbers that `stem_joined` takes beside the sound."""
        return self._tower.stem_parts(rows, clips)

    def stem_joined(self, sound: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
        """Return the input of the tower's layers for joined clips, [rows, tower's hidden] float32."""
        return self._tower.stem_joined(sound, parts)

    def encode_rows(self, rows: Tensor, layout: Layout, blocks: int, block: int) -> Tensor:
        """Run the tower's layers over rows, which it overwrites; return the decoder's input, [T, hidden]."""
        return self._tower.run(rows, layout, blocks, block)

    def _stem(self, clip: Tensor) -> Tensor:
        joined = self.join([len(clip)])
        sound = torch.zeros(joined.samples, device=self.device)
        sound[: len(clip)] = clip
        return self.stem_joined(
            sound, {name: torch.from_numpy(part).to(self.device) for name, part in joined.numbers.items()}
        )

    # ---- from rows and tokens to words

    def reserve(self, slots: int) -> None:
        """Reserve room for the rows of a step's clips, at a fixed address for graphs."""
        self._kept = torch.zeros((slots + 1, self.hidden_size), dtype=self.dtype, device=self.device)
        self._reserved = True

    def write_cross(self, states: Tensor, slots: Tensor, pages: list[Pages]) -> None:
        """Keep the rows [S, hidden] of clips at slots [S] until the next step; a negative slot keeps nothing."""
        if not self._reserved:
            self._kept = torch.zeros((int(slots.max()) + 2, self.hidden_size), dtype=self.dtype, device=self.device)
        assert self._kept is not None
        nowhere = len(self._kept) - 1
        self._kept.index_copy_(0, torch.where(slots < 0, nowhere, slots).long(), states.to(self._kept.dtype))

    def forward(self, tokens: Tensor, layout: Layout, cross: Cross, pages: list[Pages]) -> Tensor:
        """Run `tokens` [T] int64, write their keys and values into `pages`; return normed hidden rows [T, hidden].

        A negative token means a row of a clip; `cross` is not used.
        """
        return self._decoder.run(self._embedded(tokens), layout, pages)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, vocab] float32 of hidden rows [N, hidden] that forward returned."""
        return self._decoder.logits_of(hidden, self._head)

    def cross_weights(
        self, tokens: Tensor, layout: Layout, cross: Cross, pages: list[Pages], heads: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """Return each row's attention weights of the (layer, head) pairs in `heads`: [heads, tokens, states].

        The tokens must be all that come after the clip. They are run again in their own slots. These are the decoder's
        self-attention weights on the clip's positions, scaled to a sum of one.
        """
        starts, states = layout.query_starts.tolist(), cross.lengths.tolist()
        scale, group = self.config.text.attention_scale, self.config.text.heads // self.config.text.kv_heads
        found: list[dict[tuple[int, int], Tensor]] = [{} for _ in states]

        def observe(layer: int, q: Tensor) -> None:
            wanted = [head for at, head in heads if at == layer]
            for row, (first, last) in enumerate(itertools.pairwise(starts)) if wanted else ():
                until = self.clip_start + states[row]
                k = gather(pages[layer], layout.block_tables[row], until, "k")[:, self.clip_start :]
                k = k[[head // group for head in wanted]]  # [wanted, states, D]
                scores = torch.einsum("thd,hsd->hts", q[first:last, wanted].float(), k) * scale
                for head, weights in zip(wanted, torch.softmax(scores, dim=-1), strict=True):
                    found[row][layer, head] = weights

        self._decoder.observed(self._embedded(tokens), layout, pages, observe)
        return [torch.stack([row[pair] for pair in heads]) for row in found]

    def _embedded(self, tokens: Tensor) -> Tensor:
        rows = embed(tokens.clamp(min=0), self._embedding).to(torch.float32)
        if self._kept is None:
            return rows
        kept = self._kept[(-1 - tokens).clamp(min=0)].to(torch.float32)
        return torch.where((tokens < 0)[:, None], kept, rows)

    def _forbidden(self, tokenizer: Tokenizer) -> Tensor:
        """Return what is added to logits, [3, vocab]: -inf for control tokens and tokens without text."""
        table = torch.zeros(3, self.vocab_size)
        known = min(tokenizer.vocab_size, self.vocab_size)
        controls = [token for token in tokenizer.special_ids if token < known] + [self._prompts.text]
        table[:, controls] = -math.inf
        table[:, known:] = -math.inf
        table[:, [token for token in self.eos_ids if token < known]] = 0.0
        table[DETECTING] = -math.inf
        table[DETECTING, list(self._prompts.detectable)] = 0.0
        return table


class _Flattened:
    """A file with convolutions as matrices over windows."""

    def __init__(self, weights: WeightFile, bands: int) -> None:
        self._weights = weights
        self._bands = bands

    @property
    def config(self) -> dict[str, object]:
        return self._weights.config

    def names(self) -> list[str]:
        return self._weights.names()

    def tensor(self, name: str) -> Tensor:
        tensor = flat(name, self._weights.tensor(name))
        return by_band(tensor, self._bands) if name.endswith(".conv_out.weight") else tensor

    def blocks(self, name: str) -> Blocks | None:
        return None if ".conv" in name else self._weights.blocks(name)


def _plain(name: str) -> str:
    """Return the library's name, without its first part, of a tensor in either layout."""
    for prefix, plain in _PREFIXES.items():
        if name.startswith(prefix):
            name = plain + name.removeprefix(prefix)
            break
    for own, plain in _NAMES.items():
        if name.startswith(own):
            name = plain + name.removeprefix(own)
    return name
