"""Streaming equals offline: real speech, the real model, random pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from speech_clips import clip, decode

from voxlane.codecs.voicing import Voicing
from voxlane.engine.audio.segmenter import RATE
from voxlane.engine.audio.transcriber import Closed, DecodeRequest, Transcriber, max_tokens
from voxlane.engine.models.moonshine import Moonshine
from voxlane.engine.models.registry import load_recogniser
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.store import resolve

CLIPS = [
    ("beckett", 0, 10), ("clone-test", 0, 5), ("two_cities", 0, 5), ("two_cities", 4, 10), ("two_cities", 13, 19),
    ("two_cities", 20, 26), ("two_cities", 28, 36), ("endgame_nagg_nell", 0, 6), ("endgame_nagg_nell", 11, 17),
    ("endgame_nagg_nell", 22, 29),
]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Moonshine:
    model = load_recogniser(open_weights(resolve("moonshine-tiny-en")), "packed")
    assert isinstance(model, Moonshine)
    return model


def transcribe(model: Moonshine, samples: NDArray[np.float32], sizes: list[int], *, partials: bool) -> list[Closed]:
    """Return the finals of a stream in pieces of these sizes; on the way, check that nothing settled is taken back."""
    listener = Transcriber(Voicing(), model.starts_word, max_samples=model.max_samples, partials=partials)
    finals: list[Closed] = []
    settled: list[int] = []

    def look_around() -> None:
        told = listener.settled()
        while (look := listener.next_look()) or told:
            heard = told.pop(0) if told else listener.looked(look, *found(look)) if look else None
            assert heard is not None
            settled.extend(heard.settled)
            if heard.closed is not None:
                assert tuple(settled) == heard.closed.tokens
                settled.clear()
                finals.append(heard.closed)

    def found(look: DecodeRequest) -> tuple[list[int], list[float]]:
        sound = torch.from_numpy(listener.clip(look))
        with torch.inference_mode():
            return decode(model, sound, look.forced, min(model.context_tokens - 1, max_tokens(len(sound))))

    at = 0
    for size in sizes:
        listener.hear(samples[at : at + size])
        at += size
        look_around()
    listener.end()
    look_around()
    assert at >= len(samples)
    assert listener.done
    return finals


@pytest.mark.weights
@pytest.mark.parametrize(("name", "start_s", "end_s"), CLIPS)
def test_a_stream_in_any_pieces_is_heard_as_the_whole(model: Moonshine, name: str, start_s: int, end_s: int) -> None:
    samples = clip(Path(resolve("speech-samples")) / f"{name}.wav", start_s, end_s).numpy()
    whole = transcribe(model, samples, [len(samples)], partials=False)
    assert sum(len(one.tokens) for one in whole) > 5
    # About a second: enough looks for words to settle, few enough for a quick test.
    sizes = np.random.default_rng(start_s).integers(RATE // 4, 2 * RATE, 200).tolist()
    pieces = transcribe(model, samples, sizes, partials=True)
    assert [(one.start, one.end, one.tokens) for one in pieces] == [(one.start, one.end, one.tokens) for one in whole]
