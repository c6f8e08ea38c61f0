"""Qwen3-TTS: a language model whose words are sounds, 12.5 frames of them a second.

The *talker* reads, for every position, a text token and a frame of codes summed up, and names the first code of the
next frame; the *code predictor* names the rest of that frame. What an engine calls, in a request's order:

- `Qwen3TTS.load`       read a checkpoint.
- `embed_voice`         turn a clip into the embedding of its voice (base checkpoints), once a voice.
- `open_utterance`      begin an utterance: its speaker, language and style. Its KV is paged like a chat's.
- `Utterance.append`    give it text, also while it speaks, and `end` it. It waits for text that has not come.
- `Utterance.available` tells how many positions can be computed; prompts may be computed in chunks of any size.
- `inputs`              gather ranges of rows of several utterances, prompt chunks and single frames alike.
- `forward`             run them over the pages; `logits` shows the first code's logits of hidden rows.
- `Choices.of`          gather how the next frames are chosen, for rows where `Utterance.frame_due` says one is due.
- `frames`              make those frames: first code, then the predictor's loop. The same on every row, and no
                        number is read back: with persistent `Inputs`, `Layout` and `Choices` it goes into a graph.
- `Utterance.text_for`  name the text of a frame that is still being made, so that the step after it can be prepared.
- `Utterance.add`       take the frame; its codes are the next position's input. A first code of `end_code` ends speech.
- `Utterance.rewind`    go back to a frame; the cache goes back to one position less than `available` then says, since
                        the hidden row of the last one is needed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.linear.linear import embed
from voxlane.engine.kernels.sampling.code_choice import choose_code
from voxlane.engine.models.decoder import DecoderLayers, read_layers
from voxlane.engine.models.loading import Mode, Progress, TensorReader, Weight
from voxlane.engine.models.qwen3_tts.choice import Choices, FirstCode
from voxlane.engine.models.qwen3_tts.config import Qwen3TTSConfig
from voxlane.engine.models.qwen3_tts.predictor import CodePredictor, Scratch
from voxlane.engine.models.qwen3_tts.prompt import SPEAKER, Utterance
from voxlane.engine.models.qwen3_tts.speaker import SpeakerEncoder
from voxlane.engine.weights.tensors import WeightFile


@dataclass(frozen=True, slots=True)
class Inputs:
    """A step's rows, one utterance's after the other's."""

    text: Tensor  # [tokens] int64
    codes: Tensor  # [tokens, groups] int64; below zero: nothing, or the speaker
    speaker_rows: Tensor | None = None  # [n] int64: where a voice's embedding is added
    speakers: Tensor | None = None  # [n, hidden]


@dataclass(frozen=True, slots=True)
class _TextProjection:
    """From the text's width to the talker's."""

    table: Weight  # [text vocabulary, text hidden]
    inner: Weight
    inner_bias: Tensor
    outer: Weight
    outer_bias: Tensor


class Qwen3TTS:
    """A loaded checkpoint."""

    def __init__(
        self,
        config: Qwen3TTSConfig,
        talker: DecoderLayers,
        text: _TextProjection,
        table: Tensor,
        head: Weight,
        predictor: CodePredictor,
        speaker_encoder: SpeakerEncoder | None,
        parameters: int,
    ) -> None:
        self.config = config
        self.talker = talker  # its spec, context_tokens and dtype say what cache it needs
        self.predictor = predictor
        self.end_code = config.codec.eos
        self.parameters = parameters
        self.device = table.device
        self._text = text
        self._table = table  # [every group's codes one after the other, a row of zeros; hidden]
        self._head = head
        self.speaker_encoder = speaker_encoder  # base checkpoints only
        self._first_code = FirstCode(config)
        sizes = torch.tensor([config.talker.vocab_size] + [config.codes] * (config.groups - 1))
        self._offsets = (sizes.cumsum(0) - sizes).to(self.device)  # of each group in the table

    @classmethod
    def load(
        cls,
        weights: WeightFile,
        mode: Mode = "packed",
        progress: Progress | None = None,
        device: str | torch.device = "cpu",
        context_tokens: int = 0,
    ) -> Qwen3TTS:
        """Read a model, or raise ModelError with one line that names the config key or tensor at fault.

        `context_tokens` shortens the model's own limit, and the memory of its position tables with it.
        """
        config = Qwen3TTSConfig.from_dict(weights.config)
        own = config.talker.context_tokens
        reader = TensorReader(weights, _names(weights, config), mode, torch.device(device), progress)
        hidden, vocabulary = config.talker.hidden_size, config.talker.vocab_size
        talker = read_layers(reader, config.talker, mode, "talker.model.", min(context_tokens or own, own))
        head = reader.matrix(["talker.codec_head.weight"], [vocabulary], hidden)
        inner_tables = [f"talker.code_predictor.model.codec_embedding.{n}.weight" for n in range(config.groups - 1)]
        sizes = [vocabulary] + [config.codes] * (config.groups - 1)
        table = reader.table(["talker.model.codec_embedding.weight", *inner_tables], sizes, hidden)
        table = F.pad(table, (0, 0, 0, 1))
        predictor = CodePredictor.read(reader, config, mode, table)
        encoder = None
        if config.speaker_encoder is not None:
            encoder = SpeakerEncoder.read(reader, config.speaker_encoder, "speaker_encoder.")
        text = _read_text(reader, config)
        reader.finish()
        return cls(config, talker, text, table, head, predictor, encoder, reader.parameters)

    def embed_voice(self, samples: Tensor) -> Tensor:
        """Return the embedding [hidden] of the voice in a clip at 24 kHz; ValueError if it is too short for one."""
        if self.speaker_encoder is None:
            raise ValueError(f"a {self.config.kind} checkpoint has no speaker encoder")
        return self.speaker_encoder.embed(samples.to(self.device))

    def inputs(self, parts: Sequence[tuple[Utterance, int, int]]) -> Inputs:
        """Return the rows of positions `start` to `stop` of each utterance."""
        text: list[int] = []
        codes: list[tuple[int, ...]] = []
        places: list[int] = []
        speakers: list[Tensor] = []
        for utterance, start, stop in parts:
            own_text, own_codes = utterance.rows(start, stop)
            for index, row in enumerate(own_codes, start=len(text)):
                if row[0] == SPEAKER:
                    assert utterance.speaker is not None, "a place for a voice, and no voice"
                    places.append(index)
                    speakers.append(utterance.speaker.to(self.device, torch.float32))
            text += own_text
            codes += own_codes
        rows = torch.tensor(text, device=self.device), torch.tensor(codes, device=self.device)
        if not places:
            return Inputs(*rows)
        return Inputs(*rows, torch.tensor(places, device=self.device), torch.stack(speakers))

    def forward(self, inputs: Inputs, layout: Layout, pages: list[Pages]) -> Tensor:
        """Run rows of utterances, write their keys and values into `pages`; return normed hidden rows [T, hidden]."""
        said = self._say(inputs.text)
        nothing = len(self._table) - 1
        where = torch.where(inputs.codes < 0, nothing, inputs.codes + self._offsets)
        # Summed in float32 for every type of the tables.
        residual = F.embedding(where, self._table).sum(dim=1, dtype=torch.float32).add_(said)
        if inputs.speaker_rows is not None and inputs.speakers is not None:
            residual.index_add_(0, inputs.speaker_rows, inputs.speakers)
        return self.talker.run(residual, layout, pages)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, vocabulary] float32 of the next frame's first code, before any rule."""
        return self.talker.logits_of(hidden, self._head)

    def frames(self, hidden: Tensor, choices: Choices, scratch: Scratch) -> Tensor:
        """Return the next frame [rows, groups] int64 of each hidden row [rows, hidden] that forward returned.

        A code is -1 where logits are not finite; codes after a first code of `end_code` are no sound.
        """
        predictor, rules = self.predictor, self._first_code.rules(choices)
        frames = torch.empty((len(hidden), self.config.groups), dtype=torch.int64, device=hidden.device)
        x = predictor.open(hidden)
        choose_code(self.logits(hidden), choices.first, frames[:, 0], rules, x[:, 1], predictor.table)
        predictor.complete(x, frames, choices.inner, scratch)
        return frames

    def _say(self, text: Tensor) -> Tensor:
        project, own = self.talker.project, self._text
        x = embed(text, own.table).to(self.talker.dtype)
        inner = project(x, own.inner, own.inner_bias)
        silu = self.config.talker.activation == "silu"
        inner = F.silu(inner) if silu else F.gelu(inner, approximate="tanh")
        return project(inner, own.outer, own.outer_bias)


def _names(weights: WeightFile, config: Qwen3TTSConfig) -> dict[str, str]:
    # A base checkpoint that was tuned to one voice still has the encoder, which it no longer needs.
    unused = ("speaker_encoder.",) if config.speaker_encoder is None else ()
    return {name: name for name in weights.names() if not name.startswith(unused)}


def _read_text(reader: TensorReader, config: Qwen3TTSConfig) -> _TextProjection:
    width, hidden = config.text_hidden_size, config.talker.hidden_size
    name = "talker.text_projection.linear_fc"
    return _TextProjection(
        table=reader.matrix(["talker.model.text_embedding.weight"], [config.text_vocab_size], width),
        inner=reader.matrix([f"{name}1.weight"], [width], width),
        inner_bias=reader.bias([f"{name}1.bias"], [width]),
        outer=reader.matrix([f"{name}2.weight"], [hidden], width),
        outer_bias=reader.bias([f"{name}2.bias"], [hidden]),
    )
