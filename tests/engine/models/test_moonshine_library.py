"""Moonshine against the C++ library that comes with its weights: the same words, letter by letter.

The library rounds what goes into every product to 8 bits. Now and again the last bit of a float32 sum decides whether a
number is rounded up or down; within a few layers that has grown to as much noise as the rounding makes anyway, and of
two words that are about equally likely it writes the one or the other. Another version of its runtime writes others.

So ours is run with this rounding, and the library's own graphs, in the library's own runtime, beside it. What goes into
a product of ours must be what goes into theirs, to a small part of a rounding step. Where two so close still lie
on different sides of a boundary, theirs counts. Nothing else is taken over. (Measured on all speech in the assets, 31
stretches: 24 come out alike without the rounding, 25 with it, and all 31 if 430 of 48,856,896 numbers are settled so.)
With transformers, which does not round, ours agree token by token: test_moonshine.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from moonshine_voice import ModelArch, Transcriber
from speech_clips import PagedClips, clip
from torch import Tensor

from voxlane.engine.kernels.linear.linear import linear
from voxlane.engine.models import encoder_decoder
from voxlane.engine.models.loading import Mode, Weight
from voxlane.engine.models.moonshine import Moonshine
from voxlane.engine.models.registry import load_recogniser
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.store import resolve

from .moonshine_graph import Graph

pytestmark = [pytest.mark.weights, pytest.mark.usefixtures("one_thread")]

RECORDINGS = ["beckett", "clone-test", "endgame_nagg_nell", "two_cities"]

TOKENS_PER_S = 6.5
"""After so many the library is told to stop, whatever is said."""

SLACK = 0.02
"""Of a rounding step. Measured: 0.009, in the convolutions, where ours is 0.001 from float64 and theirs 0.009."""


@dataclass(frozen=True)
class Line:
    """A stretch the library cut out, the samples it decoded, and what it wrote."""

    samples: Tensor
    text: str

    @property
    def most_tokens(self) -> int:
        return math.ceil(TOKENS_PER_S * len(self.samples) / 16_000)


class RoundedProducts:
    """Products as the library has them: of activations in 8 bits, one step and one zero for all rows of a call."""

    def __init__(self) -> None:
        self.theirs: list[Tensor] = []  # what goes into the library's next products
        self.furthest = 0.0  # from theirs to ours, in steps
        self.numbers = self.settled = 0  # all that were rounded, and those ours would have rounded otherwise

    def __call__(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """Do linear's work."""
        theirs = self.theirs.pop(0)
        assert x.shape == theirs.shape
        low, high = theirs.min().clamp(max=0), theirs.max().clamp(min=0)
        step = (high - low) / 255
        zero = (-low / step).round()
        apart = (x - theirs).abs() / step
        wanted, ours = (((rows / step).round() + zero).clamp(0, 255) for rows in (theirs, x))
        codes = torch.where(apart < SLACK, wanted, ours)
        self.furthest = max(self.furthest, float(apart.max()))
        self.numbers += x.numel()
        self.settled += int((codes != ours).sum())
        return linear((codes - zero) * step, weight, bias)


def transcribe(model: Moonshine, line: Line, graph: Graph, products: RoundedProducts) -> str:
    """Return what a model writes when it rounds as the library does."""
    *encoder, states = graph.encode(line.samples)
    products.theirs = [*encoder, *[states] * len(model.spec.layers)]
    batch = PagedClips(model, [line.samples], block_tokens=16)
    token, tokens = model.config.start_token, list[int]()
    while token != model.config.eos_token and len(tokens) < line.most_tokens:
        assert not products.theirs
        products.theirs = graph.step(token)
        with torch.inference_mode():
            token = int(model.logits(batch.feed({0: [token]})[0]).argmax())
        tokens.append(token)
    return model.text_of(tokens).strip()


def library(directory: Path) -> Iterator[Line]:
    """Yield the stretches of the recordings that the library decodes, and its text of each."""
    for name in RECORDINGS:
        samples = clip(resolve("speech-samples") / f"{name}.wav")
        # Where it cuts depends on all that it heard in this process, with a fresh one for every clip a little less.
        options = {"max_tokens_per_second": TOKENS_PER_S}
        with Transcriber(directory, ModelArch.TINY, options=options) as transcriber:
            lines = transcriber.transcribe_without_streaming(samples.tolist(), 16_000).lines
        for line in lines:
            first = round(line.start_time * 16_000)
            sound = torch.tensor(line.audio_data)
            assert torch.equal(sound, samples[first : first + len(sound)])  # nothing padded, nothing made louder
            yield Line(sound, line.text.strip())


def load(directory: Path, mode: Mode, **settings: object) -> Moonshine:
    weights = open_weights(directory)
    weights.config.update(settings)
    model = load_recogniser(weights, mode)
    assert isinstance(model, Moonshine)
    return model


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve("moonshine-tiny-en")


@pytest.fixture(scope="module")
def graph(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return Graph(directory, tmp_path_factory.mktemp("graphs"))


@pytest.fixture(scope="module")
def lines(directory: Path) -> list[Line]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOONSHINE_ORT_SINGLE_THREAD", "1")
        return list(library(directory))


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> RoundedProducts:
    products = RoundedProducts()
    monkeypatch.setattr(encoder_decoder, "linear", products)
    return products


def test_the_same_words_as_the_library(
    directory: Path, lines: list[Line], graph: Graph, products: RoundedProducts
) -> None:
    model = load(directory, "float32")
    written = [transcribe(model, line, graph, products) for line in lines]
    print(f"{len(lines)} stretches; of {products.numbers} numbers {products.settled} rounded as ours would not have,")
    print(f"the furthest {products.furthest:.4f} of a step from ours")
    assert len(lines) > 20
    assert written == [line.text for line in lines]
    assert products.furthest < SLACK


def test_a_slightly_wrong_model_is_told_from_the_library(
    directory: Path, lines: list[Line], graph: Graph, products: RoundedProducts
) -> None:
    wrong = load(directory, "float32", rope_theta=9_990.0)  # 10,000 is right
    transcribe(wrong, lines[0], graph, products)
    assert products.furthest > SLACK


def test_packed_weights_round_less_than_the_library(directory: Path, lines: list[Line], graph: Graph) -> None:
    exact, packed = (load(directory, mode) for mode in ("float32", "packed"))
    clips = [line.samples for line in lines[:8]]
    with torch.inference_mode():
        wanted, ours = (torch.cat([model.encode([clip]).states for clip in clips]) for model in (exact, packed))
    theirs = torch.cat([graph.encode(clip)[-1] for clip in clips])
    assert (ours - wanted).square().mean() < (theirs - wanted).square().mean()
