"""Moonshine against the C++ library that comes with its weights: the same words where the speech is clear.

The library rounds activations to 8 bits as it goes. The same graph in another version of its runtime, or by its other
branch, differs from it in about one stretch of eight, so on unclear speech "the same words" cannot be had. Ours in
float32 are those of transformers, token by token (test_moonshine.py); against the known text each is right at times.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from pathlib import Path

import pytest
import torch
from moonshine_voice import ModelArch, Transcriber

from voxlane.engine.listening import max_tokens
from voxlane.engine.models import load_recogniser
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.store import resolve

from .listening import clip, decode

pytestmark = pytest.mark.weights

CLIPS = [
    ("beckett", 0, 10), ("clone-test", 0, 5), ("two_cities", 0, 8.5), ("two_cities", 8.5, 13), ("two_cities", 13, 17),
    ("two_cities", 17, 21), ("two_cities", 24.3, 28.8), ("two_cities", 28.8, 45), ("endgame_nagg_nell", 7, 12.5),
    ("endgame_nagg_nell", 21.5, 28.6),
]  # fmt: skip


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


CLEAR = "two_cities"
"""A slow reader in a quiet room; the others mumble, or play a part."""

LEAST = 0.9
"""Words that are the same over all clips; measured: 94 % in float32, 93 % packed."""


@pytest.mark.parametrize("weights", ["float32", "packed"])
def test_the_same_words_as_the_library(weights):
    model = load_recogniser(open_weights(resolve("moonshine-tiny-en")), weights)
    same = total = 0
    for name, start_s, end_s in CLIPS:
        samples = clip(Path(resolve("speech-samples")) / f"{name}.wav", start_s, end_s)
        # A fresh one for every clip: it cuts a clip by what it heard before.
        with Transcriber(resolve("moonshine-tiny-en"), ModelArch.TINY) as library:
            lines = library.transcribe_without_streaming(samples.tolist(), model.sample_rate).lines
        for line in lines:
            sound = torch.tensor(line.audio_data)  # what the library decoded: where it cuts is its own business
            with torch.inference_mode():
                tokens, _ = decode(model, sound, (), max_tokens(len(sound)))
            ours, theirs = words(model.text_of(tokens)), words(line.text)
            blocks = SequenceMatcher(None, theirs, ours, autojunk=False).get_matching_blocks()
            same += sum(block.size for block in blocks)
            total += max(len(theirs), len(ours))
            if name == CLEAR and weights == "float32":
                assert ours == theirs
    print(f"{weights}: {same} of {total} words are the same, {same / total:.1%}")
    assert total > 100
    assert same / total >= LEAST
