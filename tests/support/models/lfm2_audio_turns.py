"""Whole turns of a small LFM2-Audio, by our ends around transformers' backbone, and as slowly as they can be said.

The slow turn runs the whole sequence again for every step, with transformers' encoder and the slow depth transformer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from lfm2_audio_parts import (
    BACKBONE,
    CODES,
    CONFIG,
    DEPTH_LAYERS,
    ENCODER,
    GROUPS,
    TensorsInMemory,
    adapter_peer,
    depth_parts,
    encoder_peer,
    encoder_tensors,
)
from lfm2_audio_reference import SlowDepthformer
from torch import Tensor

from voxlane.engine.audio.nemo_mel import nemo_mel
from voxlane.engine.kernels.sampling.sampling import MIN_P
from voxlane.engine.models.lfm2_audio.clip_stream import ClipStream, encode_due
from voxlane.engine.models.lfm2_audio.ends import Lfm2AudioEnds
from voxlane.engine.models.lfm2_audio.interleaving import Turn

VOCABULARY = 140
END = CODES - 1
Step = int | tuple[int, ...]
"""A token, or the codes of a frame."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens, a clip, frames of an earlier turn, and tokens again."""

    before: list[int]
    clip: Tensor  # [samples]
    frames: Tensor  # [n, groups]
    after: list[int]


class SmallLfm2Audio:
    """One random checkpoint, loaded both ways."""

    def __init__(self) -> None:
        parts = depth_parts(tied=False)
        parts["depth_embeddings.0.to_logits.weight"][END] *= 3.0  # sound ends now and then
        self.ends = Lfm2AudioEnds.load(TensorsInMemory(encoder_tensors(ENCODER) | parts, CONFIG | _apart()), "float32")
        self.backbone = _backbone()
        self._embedding = self.backbone.embed_tokens.weight.detach()
        self._table = parts["audio_embedding.embedding.weight"].view(GROUPS, CODES, BACKBONE)
        self._slow_depth = SlowDepthformer(parts, GROUPS, DEPTH_LAYERS)
        self._slow_encoder, self._slow_adapter = encoder_peer(ENCODER), adapter_peer(32)

    def turn(self, prompt: Prompt, turn: Turn, steps: int) -> Iterator[Step]:
        """Yield the likeliest tokens and frames of a turn, with caches, by our modules around the backbone."""
        depth, cache = self.ends.depthformer, None
        rows = torch.cat([self._embedding[prompt.before], self._clip(prompt.clip), *self._rest(prompt)])
        scratch, packet = depth.scratch(1), torch.zeros(1, MIN_P + 1, dtype=torch.int32)
        for _ in range(steps):
            out = self.backbone(inputs_embeds=rows[None], past_key_values=cache, use_cache=True)
            hidden, cache = out.last_hidden_state[0, -1:], out.past_key_values
            if turn.sound:
                frame = torch.empty((1, GROUPS), dtype=torch.int64)
                depth.complete(hidden, frame, packet, scratch)
                rows, turn = self.ends.frames.embed(frame), turn.after_frame(int(frame[0, 0]))
                yield tuple(frame[0].tolist())
            else:
                token = int((hidden @ self._embedding.T).argmax())
                rows, turn = self._embedding[[token]], turn.after_token(token)
                yield token
                if turn.ended:
                    return

    def slow_turn(self, prompt: Prompt, runs: tuple[int, int] | None, steps: int) -> Iterator[Step]:
        """Yield the same; `runs` are the tokens and frames that take turns, None where the model decides."""
        mel = nemo_mel(prompt.clip, 16)
        clip = self._slow_adapter(self._slow_encoder(mel[None]).last_hidden_state[0])
        rows = [*self._embedding[prompt.before], *clip, *map(self._frame, prompt.frames.tolist())]
        rows += [*self._embedding[prompt.after]]
        kind, run, complete = "text", runs[0] if runs else 0, False
        for _ in range(steps):
            hidden = self.backbone(inputs_embeds=torch.stack(rows)[None], use_cache=False).last_hidden_state[0, -1]
            run -= 1
            if kind == "text":
                token = int((hidden.double() @ self._embedding.double().T).argmax())
                yield token
                if token == 7:
                    return
                complete = complete or token == 130
                rows.append(self._embedding[token])
                if runs is None:
                    kind = "sound" if token == 128 else "text"
                elif run == 0 or complete:
                    kind, run = "sound", runs[1]
            else:
                codes = self._slow_depth.greedy(hidden)
                yield tuple(codes)
                if runs is not None and run == 0 and not complete:
                    kind, run = "text", runs[0]
                if codes[0] == END:
                    codes, kind = [END] * GROUPS, "text"
                rows.append(self._frame(codes))

    def _clip(self, clip: Tensor) -> Tensor:
        stream = ClipStream(self.ends.config.encoder)
        stream.append(clip)
        stream.end()
        return encode_due(self.ends.encoder, [stream])[0]

    def _rest(self, prompt: Prompt) -> list[Tensor]:
        return [self.ends.frames.embed(prompt.frames), self._embedding[prompt.after]]

    def _frame(self, codes: list[int]) -> Tensor:
        return torch.stack([self._table[group, code] for group, code in enumerate(codes)]).sum(dim=0)


def _apart() -> dict[str, object]:
    depth = CONFIG["depthformer"]
    assert isinstance(depth, dict)
    return {"depthformer": {**depth, "tie": False}}


def _backbone() -> Any:
    """Return a random backbone of transformers: two convolutions and an attention."""
    import transformers

    torch.manual_seed(21)
    config = transformers.Lfm2Config(
        vocab_size=VOCABULARY, hidden_size=BACKBONE, intermediate_size=96, block_auto_adjust_ff_dim=False,
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        layer_types=["conv", "full_attention", "conv"], pad_token_id=0,
    )  # fmt: skip
    model = transformers.Lfm2Model(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.normal_(mean=1.0 if tensor.ndim == 1 else 0.0, std=0.15)
    return model
