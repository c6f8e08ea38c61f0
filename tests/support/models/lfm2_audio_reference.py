"""LFM2-Audio as slowly as it can be said. The depth transformer: no cache, no fused matrix, in float64.

For each group the whole frame so far goes through every layer again. Written from the paper's description of RQ
transformers and the published tensors' names.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.models.lfm2_audio.config import CODES, END_OF_TURN, TEXT_END

HEADS, KV_HEADS, THETA, EPS = 32, 8, 1e6, 1e-5


class SlowDepthformer:
    """The tensors of a file, and what they mean."""

    def __init__(self, tensors: dict[str, Tensor], groups: int, layers: int) -> None:
        self._tensors = {name: tensor.double() for name, tensor in tensors.items()}
        self._groups = groups
        self._layers = layers

    def logits(self, hidden: Tensor, codes: list[int]) -> Tensor:
        """Return the next group's logits for a hidden row, after the codes that were chosen already."""
        inputs = F.linear(hidden.double(), self._get("depth_linear.weight"), self._get("depth_linear.bias"))
        rows = inputs.view(self._groups, -1)[: len(codes) + 1].clone()
        for group, code in enumerate(codes):
            rows[group + 1] += self._get(f"depth_embeddings.{group}.embedding.weight")[code]
        for layer in range(self._layers):
            rows = self._layer(rows, f"depthformer.layers.{layer}.")
        group = f"depth_embeddings.{len(codes)}."
        return self._get(f"{group}to_logits.weight") @ self._norm(rows[-1], f"{group}embedding_norm")

    def greedy(self, hidden: Tensor) -> list[int]:
        """Return the likeliest code of each group; only the first may be the end of sound."""
        codes: list[int] = []
        for group in range(self._groups):
            logits = self.logits(hidden, codes)
            codes.append(int((logits if group == 0 else logits[:-1]).argmax()))
        return codes

    def _layer(self, rows: Tensor, name: str) -> Tensor:
        rows = rows + self._attention(self._norm(rows, f"{name}operator_norm"), f"{name}operator.")
        x, feed = self._norm(rows, f"{name}ffn_norm"), f"{name}feed_forward."
        gated = F.silu(x @ self._get(f"{feed}w1.weight").T) * (x @ self._get(f"{feed}w3.weight").T)
        return rows + gated @ self._get(f"{feed}w2.weight").T

    def _attention(self, x: Tensor, name: str) -> Tensor:
        count, width = x.shape
        size = width // HEADS
        heads = (x @ self._get(f"{name}qkv_proj.weight").T).view(count, -1, size)
        q, k, v = torch.split(heads, [HEADS, KV_HEADS, KV_HEADS], dim=1)
        q = _turned(self._norm(q, f"{name}bounded_attention.q_layernorm"))
        k = _turned(self._norm(k, f"{name}bounded_attention.k_layernorm"))
        out = torch.zeros(count, HEADS, size, dtype=torch.float64)
        for row in range(count):
            for head in range(HEADS):
                shared = head // (HEADS // KV_HEADS)
                weights = torch.softmax(k[: row + 1, shared] @ q[row, head] / size**0.5, dim=0)
                out[row, head] = weights @ v[: row + 1, shared]
        return out.view(count, width) @ self._get(f"{name}out_proj.weight").T

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(dim=-1, keepdim=True) + EPS).sqrt() * self._get(f"{name}.weight")

    def _get(self, name: str) -> Tensor:
        return self._tensors[name]


def _turned(x: Tensor) -> Tensor:
    """Rotate neighbouring pairs of `x` [positions, heads, size] as complex numbers."""
    count, heads, size = x.shape
    angles = torch.arange(count)[:, None] * THETA ** (-torch.arange(0, size, 2).double() / size)
    pairs = torch.view_as_complex(x.reshape(count, heads, size // 2, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[:, None]).flatten(2)


class SlowSpeech:
    """The whole model as slowly as it can be said: every step reads everything again, with transformers' LFM2."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        import transformers

        backbone = {name.removeprefix("lfm."): one for name, one in tensors.items() if name.startswith("lfm.")}
        self._backbone = transformers.Lfm2Model(transformers.Lfm2Config(**config["lfm"])).eval()
        self._backbone.load_state_dict(backbone)
        self._text = backbone["embed_tokens.weight"]
        self._frames = tensors["audio_embedding.embedding.weight"]
        self._groups, self._runs = config["codebooks"], (config["interleaved_n_text"], config["interleaved_n_audio"])
        self._depth = SlowDepthformer(tensors, self._groups, config["depthformer"]["layers"])

    def answer(self, prompt: list[Any], steps: int) -> list[Any]:
        """Return the likeliest answer to tokens and rows [hidden] of clips: tokens, and frames as tuples."""
        made: list[Any] = []
        kind, run, complete = "text", self._runs[0], False
        while len(made) < steps:
            hidden = self._read([*prompt, *made])
            run -= 1
            if kind == "text":
                made.append(int((self._text @ hidden).argmax()))
                if made[-1] == END_OF_TURN:
                    break
                complete = complete or made[-1] == TEXT_END
                if complete or run == 0:
                    kind, run = "sound", self._runs[1]
            else:
                codes = self._depth.greedy(hidden)
                ended = codes[0] == CODES
                made.append((CODES,) * self._groups if ended else tuple(codes))
                if (run == 0 and not complete) or ended:
                    kind, run = "text", self._runs[0] if run == 0 and not complete else run
        return made

    @torch.no_grad()
    def _read(self, pieces: list[Any]) -> Tensor:
        """Return the hidden row after everything."""
        rows = [self._row(piece) for piece in pieces]
        found: Tensor = self._backbone(inputs_embeds=torch.stack(rows)[None], use_cache=False).last_hidden_state
        return found[0, -1]

    def _row(self, piece: Any) -> Tensor:
        if isinstance(piece, Tensor):
            return piece
        if isinstance(piece, tuple):
            return sum((self._frames[group * (CODES + 1) + code] for group, code in enumerate(piece)), torch.zeros(()))
        return self._text[piece]
