"""LFM2-Audio: one language model that hears and speaks. Its positions are tokens, frames of sound and rows of clips.

What an engine calls, in a request's order:

- `Lfm2Audio.load`   read a checkpoint: the backbone, which is an LFM2, and its two ends.
- `Dialogue`         holds a request's positions (dialogue.py). Its KV and its convolutions' past are paged as a chat's.
- `clip`             make a clip of what a person said; `encode` makes its rows, before the step that reads them.
- `inputs`           gather ranges of positions of several dialogues.
- `forward`          run them over the pages; `forward_padded` does so in shapes that a graph can keep.
- `logits`           the next token's, of the hidden rows where `Dialogue.token_due` says that one is due.
- `make_frames`      the next frames, of the hidden rows where `Dialogue.frame_due` says so.

mimi.py turns frames into samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.audio.nemo_mel import nemo_mel
from voxlane.engine.kernels.attention.pages import LayerPages, Layout
from voxlane.engine.kernels.linear.linear import embed
from voxlane.engine.models.decoder import DecoderLayers, read_layers
from voxlane.engine.models.decoder_config import DecoderConfig
from voxlane.engine.models.lfm2_audio.config import CODES
from voxlane.engine.models.lfm2_audio.dialogue import ClipRow, Dialogue, SpokenClip
from voxlane.engine.models.lfm2_audio.ends import BACKBONE, Lfm2AudioEnds
from voxlane.engine.models.loading import Mode, Progress, TensorReader, Weight
from voxlane.engine.models.qwen3_tts.predictor import Scratch
from voxlane.engine.weights.tensors import WeightFile

Encode = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Makes rows [states, hidden] of spectrograms [frames, bins]."""


@dataclass(frozen=True, slots=True)
class DialogueInputs:
    """A step's positions, one dialogue's after the other's."""

    tokens: Tensor  # [positions] int64; -1 where there is none
    frame_places: Tensor  # [n] int64: positions that are frames
    frames: Tensor  # [n, groups] int64
    row_places: Tensor  # [m] int64: positions that are rows of clips
    rows: Tensor  # [m, hidden]


@dataclass(frozen=True, slots=True)
class PaddedInputs:
    """A step's positions in tensors whose shapes depend on their number alone, as a graph needs."""

    tokens: Tensor  # [positions] int64; what stands where there is none does not matter
    codes: Tensor  # [positions, groups] int64; a first code below zero: no frame
    clips: Tensor | None = None  # [positions] int64: which of `rows` a position is; below zero: none
    rows: Tensor | None = None  # [m, hidden]


class Lfm2Audio:
    """A loaded checkpoint."""

    end_code = CODES

    def __init__(self, ends: Lfm2AudioEnds, backbone: DecoderLayers, embedding: Weight, parameters: int) -> None:
        self.config = ends.config
        self.backbone = backbone
        self.spec = backbone.spec
        self.context_tokens = backbone.context_tokens
        self.dtype = backbone.dtype
        self.vocab_size = backbone.config.vocab_size
        self.parameters = parameters
        self.encoder = ends.encoder
        self.device = ends.encoder.device
        self._ends = ends
        self._embedding = embedding

    @classmethod
    def load(
        cls,
        weights: WeightFile,
        mode: Mode = "packed",
        progress: Progress | None = None,
        device: str | torch.device = "cpu",
        context_tokens: int = 0,
    ) -> Lfm2Audio:
        """Read a model, or raise ModelError with one line that names the config key or tensor at fault.

        `context_tokens` shortens the model's own limit, and the memory of its position tables with it.
        """
        ends = Lfm2AudioEnds.load(weights, mode, device)
        names = {name: name for name in weights.names() if name.startswith(BACKBONE)}
        reader = TensorReader(weights, names, mode, torch.device(device), progress)
        model = cls.read(ends, reader, mode, context_tokens)
        reader.finish()
        return model

    @classmethod
    def read(cls, ends: Lfm2AudioEnds, reader: TensorReader, mode: Mode, context_tokens: int = 0) -> Lfm2Audio:
        """Ask `reader` for every tensor of the backbone."""
        config = DecoderConfig.from_dict(dict(ends.config.backbone))
        before = reader.parameters
        embedding = reader.matrix([f"{BACKBONE}embed_tokens.weight"], [config.vocab_size], config.hidden_size)
        context_tokens = min(context_tokens or config.context_tokens, config.context_tokens)
        backbone = read_layers(reader, config, mode, BACKBONE, context_tokens)
        return cls(ends, backbone, embedding, ends.parameters + reader.parameters - before)

    def scratch(self, rows: int) -> Scratch:
        """Return room for making frames of up to `rows` rows at a time."""
        return self._ends.depthformer.scratch(rows)

    def clip(self, samples: Tensor, mel: Tensor | None = None) -> SpokenClip:
        """Return a clip of 16 kHz samples [n], -1 to 1; ValueError if it is empty or too long.

        `mel` is its spectrogram as clip_stream.py makes it, if that is known.
        """
        states = self.config.encoder.states(len(samples)) if len(samples) else 0
        if not 0 < states <= self.config.encoder.max_states:
            raise ValueError(f"a clip of {len(samples)} samples")
        return SpokenClip(samples, states, mel=mel)

    def encode(self, clips: Sequence[SpokenClip], encode: Encode | None = None) -> None:
        """Make the rows of clips, by `encode` in the place of the encoder's own call, if it is given."""
        if clips:
            bins = self.config.encoder.bins
            mels = [nemo_mel(clip.samples, bins) if clip.mel is None else clip.mel for clip in clips]
            for clip, rows in zip(clips, (encode or self.encoder.encode)(mels), strict=True):
                clip.rows, clip.mel = rows, None

    def inputs(self, parts: Sequence[tuple[Dialogue, int, int]]) -> DialogueInputs:
        """Gather positions from one to before another, of several dialogues; their clips must be encoded."""
        pieces = [piece for dialogue, start, stop in parts for piece in dialogue.pieces[start:stop]]
        frames = [(place, piece) for place, piece in enumerate(pieces) if isinstance(piece, tuple)]
        rows: list[tuple[int, Tensor]] = []
        for place, piece in enumerate(pieces):
            if isinstance(piece, ClipRow):
                assert piece.clip.rows is not None, "a clip is encoded before it is read"
                rows.append((place, piece.clip.rows[piece.index]))
        groups, hidden = self.config.groups, self.config.hidden_size
        return DialogueInputs(
            tokens=self._sent([piece if isinstance(piece, int) else -1 for piece in pieces]),
            frame_places=self._sent([place for place, _ in frames]),
            frames=self._sent([code for _, codes in frames for code in codes]).view(-1, groups),
            row_places=self._sent([place for place, _ in rows]),
            rows=torch.stack([row for _, row in rows]) if rows else torch.empty((0, hidden), device=self.device),
        )

    def forward(self, inputs: DialogueInputs, layout: Layout, pages: Sequence[LayerPages]) -> Tensor:
        """Run positions, write what the layers keep into `pages`; return normed hidden rows [positions, hidden]."""
        residual = embed(inputs.tokens.clamp(min=0), self._embedding).to(torch.float32)
        residual.index_copy_(0, inputs.frame_places, self._ends.frames.embed(inputs.frames))
        residual.index_copy_(0, inputs.row_places, inputs.rows.to(torch.float32))
        return self.backbone.run(residual, layout, pages)

    def forward_padded(self, inputs: PaddedInputs, layout: Layout, pages: Sequence[LayerPages]) -> Tensor:
        """Do forward's work; no shape depends on what the positions are."""
        residual = embed(inputs.tokens.clamp(min=0), self._embedding).to(torch.float32)
        residual = torch.where(inputs.codes[:, :1] >= 0, self._ends.frames.embed(inputs.codes), residual)
        if inputs.clips is not None and inputs.rows is not None:
            heard = inputs.rows.index_select(0, inputs.clips.clamp(min=0)).to(torch.float32)
            residual = torch.where(inputs.clips[:, None] >= 0, heard, residual)
        return self.backbone.run(residual, layout, pages)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, vocab] float32 of the next token; the output head is the embedding table."""
        return self.backbone.logits_of(hidden, self._embedding)

    def make_frames(self, hidden: Tensor, packet: Tensor, scratch: Scratch) -> Tensor:
        """Return the next frame [rows, groups] int64 of each hidden row; `packet` is sampling's, see Depthformer."""
        frames = torch.empty((len(hidden), self.config.groups), dtype=torch.int64, device=hidden.device)
        self._ends.depthformer.complete(hidden, frames, packet, scratch)
        return frames

    def _sent(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self.device)
