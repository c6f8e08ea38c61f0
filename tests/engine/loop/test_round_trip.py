"""Sentences said by the default voice and heard again: what both halves of speech lose together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from voxlane.engine.api import LISTEN_RATE, Append, EndInput, EngineConfig, ListenParams, Samples, Submit, Words
from voxlane.engine.audio.torchaudio_import import functional
from voxlane.engine.build import asr_tts
from voxlane.engine.build.assemble import Assembly, assemble
from voxlane.engine.models.hibari.model import Hibari
from voxlane.engine.runners.cuda.clause_tts import CudaClauseTTS

pytestmark = pytest.mark.weights

SENTENCES = (Path(__file__).parents[2] / "data" / "sentences.txt").read_text().splitlines()
MOST = 0.04
"""The share of words that may be lost, added or changed."""


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Return the edit distance in words, and how many were said; numbers and case are spelt alike first."""
    normal = EnglishTextNormalizer({})
    one, other = normal(said).split(), normal(heard).split()
    row = list(range(len(other) + 1))
    for count, word in enumerate(one, 1):
        before, row[0] = row[0], count
        for place, candidate in enumerate(other, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != candidate))
    return row[-1], len(one)


def say(engine: Assembly, text: str) -> np.ndarray:
    core = engine.core
    messages = core.handle([Submit("say", "tts"), Append("say", text=text), EndInput("say")])
    while core.busy:
        messages += core.step()
    pcm = b"".join(message.pcm for message in messages if isinstance(message, Samples))
    samples = torch.from_numpy(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768)
    return functional.resample(samples, engine.ready.speak_rate, LISTEN_RATE).numpy()


def hear(engine: Assembly, samples: np.ndarray) -> str:
    core = engine.core
    audio = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    messages = core.handle([Submit("hear", "asr", listen=ListenParams(partials=False))])
    messages += core.handle([Append("hear", audio=audio), EndInput("hear")])
    while core.busy:
        messages += core.step()
    return "".join(message.settled for message in messages if isinstance(message, Words))


def test_the_devices_voice_is_heard_too(monkeypatch):
    """Ten sentences by the network as it runs on a GPU, which rounds nothing to 8 bits."""

    def on_device(threads, device, progress):
        model = Hibari(threads)
        return model, CudaClauseTTS(model, device)

    monkeypatch.setattr(asr_tts, "_hibari", on_device)
    engine = assemble(EngineConfig(model="", asr_model="moonshine-tiny-en"))
    found = [word_errors(sentence, hear(engine, say(engine, sentence))) for sentence in SENTENCES[:10]]
    errors, words = (sum(column) for column in zip(*found, strict=True))
    print(f"{errors} of {words} words")
    assert errors / words <= MOST


# Whisper always hears thirty seconds, which took five times as long a sentence; what it hears is compared with its
# reference in models/test_whisper.py.
@pytest.mark.parametrize(("model", "count"), [("whisper-tiny-en", 20), ("moonshine-tiny-en", 40)])
def test_what_is_said_is_heard(model, count):
    engine = assemble(EngineConfig(model="", asr_model=model))
    errors = words = 0
    for sentence in SENTENCES[:count]:
        heard = hear(engine, say(engine, sentence))
        wrong, count = word_errors(sentence, heard)
        errors, words = errors + wrong, words + count
        if wrong:
            print(f"{wrong} of {count}: {sentence} | {heard}")
    print(f"{model}: {errors} of {words} words, {errors / words:.1%}")
    assert len(SENTENCES) == 40
    assert errors / words <= MOST
    engine.core.idle()
