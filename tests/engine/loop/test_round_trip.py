"""Sentences said by the default voice and heard again: what both halves of speech lose together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from voxlane.engine.api import (
    LISTEN_RATE,
    Append,
    EndInput,
    EngineConfig,
    ListenParams,
    Samples,
    SpeakParams,
    Submit,
    Words,
)
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


def say(engine: Assembly, text: str, *names: str) -> np.ndarray:
    core = engine.core
    submit = Submit("say", "tts", speak=SpeakParams(pronunciations=names))
    messages = core.handle([submit, Append("say", text=text), EndInput("say")])
    while core.busy:
        messages += core.step()
    pcm = b"".join(message.pcm for message in messages if isinstance(message, Samples))
    samples = torch.from_numpy(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768)
    return functional.resample(samples, engine.ready.speak_rate, LISTEN_RATE).numpy()


def hear(engine: Assembly, samples: np.ndarray, *hot_words: str) -> str:
    core = engine.core
    audio = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    messages = core.handle([Submit("hear", "asr", listen=ListenParams(partials=False, hot_words=hot_words))])
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


def test_names_are_spelt_as_told():
    engine = assemble(EngineConfig(model="", asr_model="whisper-tiny-en"))
    names = ("Okonkwo", "Siobhan", "Thaddeus", "Ngozi", "Wojcik", "Kubernetes")
    said = {name: say(engine, f"Please tell {name} that I will be late.") for name in names}
    usual = [name for name, sound in said.items() if name in hear(engine, sound)]
    told = [name for name, sound in said.items() if name in hear(engine, sound, *names)]
    print(f"without hot words: {usual}; with all of them: {told}")
    assert len(told) >= len(usual) + 3
    plain = say(engine, "Please tell the driver that I will be late.")
    assert hear(engine, plain, *names) == "Please tell the driver that I will be late."


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


def test_a_name_is_heard_as_it_is_to_be_said():
    """The same sentence, the name as written, respelled, and in phonemes: the recogniser hears another name."""
    engine = assemble(EngineConfig(model="", asr_model="moonshine-tiny-en"))
    text = "My daughter Niamh likes music."
    written, respelled, sounded = (
        hear(engine, say(engine, text, *names)) for names in ((), ("Niamh = neev",), ("Niamh = /niːv/",))
    )
    print(written, respelled, sounded)
    assert "Neve" not in written
    assert "Neve" in respelled
    assert "Neve" in sounded
